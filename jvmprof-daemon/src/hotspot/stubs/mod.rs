//! Unwind rows of the code that HotSpot generates without any debug information: interpreter,
//! stubs, adapters.
//!
//! The machine code itself is interpreted abstractly: from the state in which a kind of code is
//! entered, each instruction's effect on the places of return address, frame pointer and caller's
//! stack pointer is followed. So rows are exact for each instruction, and hold for JDKs that nobody
//! has seen yet, as long as code is entered the same way. nmethods aren't looked at here.

mod analyses_on_disk;
mod analysis_cache;
mod blob_kinds;
mod machine_code;
mod named_stub;
mod native_code;
mod piece_shape;
pub(crate) mod stub_names;
mod stub_rows;
mod vtable_stubs;

#[cfg(test)]
mod tests;

use iced_x86::{Mnemonic, OpKind};
use jvmprof_common::rows::Row;

pub use self::analyses_on_disk::AnalysesOnDisk;
pub use self::blob_kinds::{BlobKind, kind_of_blob, kind_of_codelet};
use self::machine_code::control_flow::{ControlFlow, LocalCalls};
use self::machine_code::frame_state::FrameState;
use self::machine_code::instruction_effects::ImplicitEffects;
use self::machine_code::relocatable_fields::RelocatableField;
pub use self::native_code::analyze_native;
pub(crate) use self::stub_rows::PieceShapes;
pub use self::stub_rows::{RowCoverage, StubRows};
use crate::types::Avma;

/// From `start` to the next span's start the same row holds; `None`: nothing is known there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowSpan {
    pub start: Avma,
    pub row: Option<Row>,
}

/// Entries of stubs are aligned to `CodeEntryAlignment`, at least this (openjdk
/// src/hotspot/cpu/x86/globals_x86.hpp).
const STUB_ALIGNMENT: u64 = 16;

/// The rows of one range of generated code, and the bytes that it makes nothing of.
///
/// `code`: the range's bytes, which begin at `base`. `seeds`: further addresses where it is entered
/// in the way of its kind. The rows are sorted, begin at `base` and end where the range ends: the
/// caller ends them.
fn analyze_piece(
    code: &[u8],
    base: Avma,
    kind: BlobKind,
    seeds: &[Avma],
) -> (Vec<RowSpan>, Vec<RelocatableField>) {
    let all = |row| (vec![RowSpan { start: base, row }], Vec::new());
    match kind {
        BlobKind::Frameless => return all(Some(Row::AT_CALL)),
        BlobKind::Continuations => return all(None),
        _ if code.is_empty() || u32::try_from(code.len()).is_err() => return all(None),
        _ => {}
    }
    let mut flow = ControlFlow::new(code, base.0, local_calls(kind), implicit_effects(kind));
    let offsets = seeds.iter().filter_map(|seed| seed.0.checked_sub(base.0));
    let offsets = offsets.filter_map(|offset| u32::try_from(offset).ok());
    for entry in std::iter::once(0).chain(offsets.filter(|offset| (*offset as usize) < code.len())) {
        if let Some(state) = entry_state(&flow, kind, entry) {
            // What can't be decoded has no rows.
            let _ = flow.explore(entry, state, false);
        }
        explore_functions(&mut flow);
    }
    explore_rest(&mut flow, base, kind);
    let fields = flow.take_fields();
    (spans(flow.into_rows(), base), fields)
}

/// Functions that were called from within the range.
fn explore_functions(flow: &mut ControlFlow<'_>) {
    while let Some(function) = flow.take_function() {
        let _ = flow.explore(function, FrameState::called(), true);
    }
}

/// Explores the code that no known entry leads to as if it were entered where it begins.
fn explore_rest(flow: &mut ControlFlow<'_>, base: Avma, kind: BlobKind) {
    let mut from = 0;
    while let Some(at) = flow.next_undecoded(from) {
        let aligned = (base.0 + u64::from(at)).is_multiple_of(STUB_ALIGNMENT);
        let entry = aligned || flow.follows_decoded(at);
        let state = entry_state(flow, kind, at).filter(|_| entry);
        let explored = state.is_some_and(|state| flow.explore(at, state, true).is_ok());
        explore_functions(flow);
        from = if explored {
            at
        } else if kind.has_tables() {
            at + (STUB_ALIGNMENT - (base.0 + u64::from(at)) % STUB_ALIGNMENT) as u32
        } else {
            flow.next_decoded(at, u32::MAX)
        };
    }
}

/// The state in which code of a kind is entered at `entry`; `None` if that isn't known.
fn entry_state(flow: &ControlFlow<'_>, kind: BlobKind, entry: u32) -> Option<FrameState> {
    let first = flow.instruction(entry)?;
    let pushes = first.mnemonic() == Mnemonic::Push && first.op0_kind() == OpKind::Register;
    match kind {
        BlobKind::Stub | BlobKind::StubRoutines | BlobKind::Frameless => Some(FrameState::called()),
        BlobKind::InterpreterEntry => (entry == 0).then(FrameState::interpreter_entry),
        BlobKind::MethodHandles => Some(FrameState::interpreter_entry()),
        BlobKind::InterpreterFrame => Some(FrameState::interpreter_frame()),
        BlobKind::Adapter if entry == 0 => Some(FrameState::adapter_entry()),
        BlobKind::Adapter => Some(FrameState::called_by_compiled()),
        BlobKind::Exception => Some(FrameState::thrown()),
        BlobKind::Framed => (entry == 0).then(FrameState::framed),
        BlobKind::Safepoint if entry == 0 && pushes && first.op0_register() != iced_x86::Register::RBP => {
            Some(FrameState::jumped_to())
        }
        BlobKind::Safepoint => (entry == 0).then(FrameState::called_by_compiled),
        // The entries for exceptions begin with a store of rdx, the others with the save of all
        // registers.
        BlobKind::Deoptimization if pushes && first.op0_register() == iced_x86::Register::RBP => {
            Some(FrameState::called_by_compiled())
        }
        BlobKind::Deoptimization => {
            let stores = first.mnemonic() == Mnemonic::Mov && first.op0_kind() == OpKind::Memory;
            (stores && first.op1_register() == iced_x86::Register::RDX).then(FrameState::thrown)
        }
        BlobKind::UncommonTrap => (entry == 0).then(FrameState::called_by_compiled),
        BlobKind::Continuations => None,
    }
}

fn local_calls(kind: BlobKind) -> LocalCalls {
    match kind {
        BlobKind::InterpreterEntry | BlobKind::InterpreterFrame | BlobKind::MethodHandles => {
            LocalCalls::SameFrame
        }
        _ => LocalCalls::Functions,
    }
}

fn implicit_effects(kind: BlobKind) -> ImplicitEffects {
    use BlobKind::{Adapter, Deoptimization, Exception, Framed, Safepoint, Stub, UncommonTrap};
    ImplicitEffects {
        patches_return_address: matches!(kind, Stub | Exception | Framed | Safepoint | Deoptimization),
        replaces_frames: matches!(kind, Deoptimization | UncommonTrap),
        calls_compiled: kind == Adapter,
        has_roots: false,
    }
}

fn spans(rows: impl Iterator<Item = (u32, Option<Row>)>, base: Avma) -> Vec<RowSpan> {
    // Padding may come first.
    let mut spans = vec![RowSpan { start: base, row: None }];
    for (offset, row) in rows {
        if offset == 0 {
            spans.clear();
        }
        if spans.last().is_none_or(|last| last.row != row) {
            spans.push(RowSpan { start: Avma(base.0 + u64::from(offset)), row });
        }
    }
    spans
}
