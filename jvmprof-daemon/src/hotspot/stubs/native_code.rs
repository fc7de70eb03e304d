//! Rows of compiled and assembled code of files that comes without call frame information, such as
//! musl's.
//!
//! Functions are entered by calls and return by `ret`, which has to find the return address: what
//! would contradict that isn't believed, and has no rows.

use jvmprof_common::rows::Row;

use super::machine_code::control_flow::{ControlFlow, LocalCalls};
use super::machine_code::frame_state::FrameState;
use super::machine_code::instruction_effects::ImplicitEffects;
use super::{STUB_ALIGNMENT, spans};
use crate::types::Svma;

/// Instructions that are looked at for each byte of code, at most: more than compilers' code asks
/// for.
const MAX_STEPS_PER_BYTE: usize = 32;

/// The rows of one stretch of code, in order: first address, first one behind it, row.
///
/// `code`: its bytes, which begin at `base`. `entries`: where functions begin, as far as that is
/// known; some may be wrong.
pub fn analyze_native(code: &[u8], base: Svma, entries: &[Svma]) -> Vec<(u64, u64, Row)> {
    if u32::try_from(code.len()).is_err() {
        return Vec::new();
    }
    let implicit_effects = ImplicitEffects { has_roots: true, ..ImplicitEffects::default() };
    let mut flow = ControlFlow::new(code, base.0, LocalCalls::Functions, implicit_effects);
    flow.set_budget(MAX_STEPS_PER_BYTE.saturating_mul(code.len()).max(1 << 20));
    let inside = |entry: &Svma| {
        let offset = u32::try_from(entry.0.checked_sub(base.0)?).ok()?;
        ((offset as usize) < code.len()).then_some(offset)
    };
    let mut entries: Vec<u32> = entries.iter().filter_map(inside).collect();
    entries.sort_unstable();
    flow.set_entries(&entries);
    for entry in entries {
        // What contradicts itself has no rows.
        flow.explore_function(entry, &FrameState::called());
        explore_called(&mut flow);
    }
    explore_rest(&mut flow, base);
    let found = spans(flow.into_rows(), crate::types::Avma(base.0));
    let ends = found.iter().skip(1).map(|span| span.start.0).chain([base.0 + code.len() as u64]);
    found.iter().zip(ends).filter_map(|(span, end)| Some((span.start.0, end, span.row?))).collect()
}

/// Explores code that nothing leads to: targets of jumps through tables, and functions that are
/// called through pointers.
fn explore_rest(flow: &mut ControlFlow<'_>, base: Svma) {
    let mut from = 0;
    while let Some(at) = flow.next_undecoded(from).filter(|_| !flow.is_exhausted()) {
        let aligned = (base.0 + u64::from(at)).is_multiple_of(STUB_ALIGNMENT);
        let called = (aligned || flow.follows_decoded(at)).then(FrameState::called);
        let jumped = flow.jumped_to(at);
        // Functions are aligned; a function that never returns contradicts nothing.
        let states = if aligned { [called, jumped] } else { [jumped, called] };
        let mut states = states.into_iter().flatten();
        let explored = states.any(|state| flow.explore_function(at, &state));
        explore_called(flow);
        from = match explored {
            true => at,
            false => {
                let aligned = at + (STUB_ALIGNMENT - (base.0 + u64::from(at)) % STUB_ALIGNMENT) as u32;
                flow.next_decoded(at, aligned).max(at + 1)
            }
        };
    }
}

/// Functions that were called from within the code.
fn explore_called(flow: &mut ControlFlow<'_>) {
    while let Some(function) = flow.take_function() {
        flow.explore_function(function, &FrameState::called());
    }
}
