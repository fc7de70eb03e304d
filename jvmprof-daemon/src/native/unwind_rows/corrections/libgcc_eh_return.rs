//! Rows of code that removes frames: `_Unwind_Resume`, `_Unwind_RaiseException` and others of
//! libgcc.
//!
//! They end by `__builtin_eh_return` (gcc gcc/config/i386/i386.cc, `ix86_expand_epilogue`): the
//! stack pointer is set to that of the frame which handles the exception, and its handler is jumped
//! to. Their `.eh_frame` is wrong from the moment on at which `uw_install_context_1` writes that
//! frame's registers, its return address included, to where their own ones are saved. But two
//! contexts on their stack still have both frames (gcc libgcc/unwind-dw2.c, `struct
//! _Unwind_Context`; unwind.inc): one is that of their own caller, the other that of the frame
//! which goes on. While registers are being installed the stack is as it was; afterwards it is as
//! it will be: the handler was interrupted at its first instruction.

use std::collections::HashSet;

use iced_x86::{FlowControl, Instruction, InstructionInfoFactory, Mnemonic, OpAccess, OpKind, Register};
use jvmprof_common::rows::{self, CfaRule, RaRule, RbpRule, Row};

use super::cfi_pattern_search::{FunctionRows, functions_with, instructions};
use super::row_overrides::RowOverride;
use crate::native::byte_source::ByteSource;
use crate::native::elf::ElfFile;
use crate::native::unwind_rows::cfi::CallFrames;

/// Encoding of `DW_CFA_def_cfa`, `rcx`, 8 (DWARF 5, 7.24).
pub(crate) const BY_RCX: [u8; 3] = [0x0c, 0x02, 0x08];
/// Rule for the time when `rcx` points to the handler's address, which takes the place of a return
/// address.
const CFA_BY_RCX: CfaRule = CfaRule::RegisterPlus { register: rows::Register::RCX, add: 8 };
/// The row that such a function's frame information has for all its code but its beginning and its
/// end.
const OWN_FRAME: Row =
    Row { cfa: CfaRule::Rbp(16), rbp: RbpRule::AtCfa(-16), ra: RaRule::AtCfa(-8), signal: false };
/// Offsets in libgcc's `_Unwind_Context`, after 18 registers.
const CONTEXT_CFA: i64 = 0x90;
const CONTEXT_RA: i64 = CONTEXT_CFA + 8;

/// Returns rows that replace the wrong ones.
pub(crate) fn rows<S: ByteSource>(frames: &CallFrames, file: &ElfFile<S>) -> Vec<RowOverride> {
    let functions = functions_with(frames, BY_RCX);
    functions
        .flat_map(|function| overrides(&FunctionRows::of(frames, function), &instructions(file, function)))
        .collect()
}

fn overrides(rows: &FunctionRows, code: &[Instruction]) -> Vec<RowOverride> {
    let leaves = code.iter().position(|it| {
        is_move(it, Register::RSP, Register::RCX)
            && rows.row(it.ip()).is_some_and(|row| row.cfa == CFA_BY_RCX)
    });
    let Some(end) = leaves.and_then(|leaves| Epilogue::before(code, leaves)) else { return Vec::new() };
    let mut overrides = end.overrides(rows, code);
    if let Some(installation) = Installation::before(rows, code, &end) {
        overrides.extend(installation.overrides(code, &end));
    }
    overrides
}

/// The end of such a function.
struct Epilogue {
    /// Index of the first instruction that finds the handler's address where `rcx` points to.
    begin: usize,
    /// Index of the first instruction that has the handler's `rbp`.
    has_rbp: usize,
    /// Index of the instruction that sets `rsp`.
    leaves: usize,
}

impl Epilogue {
    /// Finds the epilogue before an instruction: registers are restored before `rsp` is set, and
    /// the handler's address is stored before that.
    fn before(code: &[Instruction], leaves: usize) -> Option<Self> {
        let (mut begin, mut has_rbp, mut is_located, mut is_stored) = (None, None, false, false);
        for (at, it) in code.iter().enumerate().take(leaves).rev() {
            if is_beside_rbp(it) && it.mnemonic() == Mnemonic::Lea && it.op0_register() == Register::RCX {
                is_located = true;
            } else if is_beside_rbp(it) && it.mnemonic() == Mnemonic::Mov && it.op0_kind() == OpKind::Memory {
                is_stored = true;
            } else if frame_load(it) == Some((Register::RBP, 0)) && has_rbp.is_none() {
                has_rbp = Some(at + 1);
                continue;
            } else if !frame_load(it).is_some_and(|(to, _)| to != Register::RBP && to != Register::RCX) {
                return None;
            }
            begin = begin.or((is_located || is_stored).then_some(at + 1));
            if is_located && is_stored {
                let end = Self { begin: begin?, has_rbp: has_rbp?, leaves };
                return end.is_entered_at(code, at).then_some(end);
            }
        }
        None
    }

    /// Returns true if no jump of the function leads past the first of these instructions.
    fn is_entered_at(&self, code: &[Instruction], first: usize) -> bool {
        let inside = code[first].next_ip()..=code[self.leaves].ip();
        !code.iter().filter_map(jump).any(|target| inside.contains(&target))
    }

    fn overrides(&self, rows: &FunctionRows, code: &[Instruction]) -> Vec<RowOverride> {
        let handler = |rbp| Row { cfa: CFA_BY_RCX, rbp, ra: RaRule::AtCfa(-8), signal: true };
        let begin = code[self.begin].ip();
        let (has_rbp, leaves) = (code[self.has_rbp].ip(), code[self.leaves].ip());
        let mut overrides = vec![
            (begin..has_rbp.max(begin), handler(RbpRule::AtRbp(0))),
            (has_rbp.max(begin)..leaves, handler(RbpRule::Same)),
        ];
        // Frame information describes where the handler's address is; but nothing has called from
        // before it.
        for it in &code[self.leaves..] {
            let row = rows.row(it.ip());
            overrides.extend(row.map(|row| (it.ip()..it.next_ip(), Row { signal: true, ..row })));
            if it.flow_control() != FlowControl::Next {
                break;
            }
        }
        overrides
    }
}

/// The call of `uw_install_context_1`.
struct Installation {
    call: usize,
    /// Distance from `rbp` to the return address in the function's own context; below it, to the
    /// CFA in the handler's.
    own_ra: i32,
    handler_cfa: i32,
}

impl Installation {
    /// Finds the call before the epilogue: the code after it goes on to the end without jumps from
    /// or to elsewhere.
    fn before(rows: &FunctionRows, code: &[Instruction], end: &Epilogue) -> Option<Self> {
        // `_Unwind_DebugHook (target->cfa, target->ra)` follows at once, an empty function for
        // debuggers.
        let mut calls = (0..end.begin).rev().filter(|at| code[*at].is_call_near());
        let (hook, call) = (calls.next()?, calls.next()?);
        let loads = || code[call + 1..hook].iter().filter_map(frame_load);
        let (_, handler_cfa) = loads().find(|(to, _)| *to == Register::RDI)?;
        let has_ra = loads().any(|(_, at)| at == handler_cfa + CONTEXT_RA - CONTEXT_CFA);
        let context = handler_cfa - CONTEXT_CFA;
        let is_context = code.iter().any(|it| frame_address(it).is_some_and(|(_, at)| at == context));
        let own = own_context(&code[..call])?;
        let region = code[call + 1].ip()..code[end.leaves].next_ip();
        let is_closed = code
            .iter()
            .all(|it| jump(it).is_none_or(|target| region.contains(&it.ip()) == region.contains(&target)));
        let returns =
            code[call + 1..end.begin].iter().map(Instruction::ip).chain([region.start.wrapping_sub(1)]);
        let is_own_frame = returns.into_iter().all(|ip| rows.row(ip) == Some(OWN_FRAME));
        let own_ra = i32::try_from(own + CONTEXT_RA).ok()?;
        let handler_cfa = i32::try_from(handler_cfa).ok()?;
        (has_ra && is_context && context != own && is_closed && is_own_frame).then_some(Self {
            call,
            own_ra,
            handler_cfa,
        })
    }

    fn overrides(&self, code: &[Instruction], end: &Epilogue) -> [RowOverride; 2] {
        let goes_on = code[self.call].next_ip();
        let own = Row { ra: RaRule::AtRbp(self.own_ra), ..OWN_FRAME };
        let handler = Row {
            cfa: CfaRule::RbpIndirect { at: self.handler_cfa, add: 0 },
            rbp: RbpRule::AtRbp(0),
            ra: RaRule::AtRbp(self.handler_cfa + 8),
            signal: true,
        };
        [(goes_on.wrapping_sub(1)..goes_on, own), (goes_on..code[end.begin].ip(), handler)]
    }
}

/// Returns the position of the context of the function's own caller, by the arguments of
/// `uw_init_context_1 (context, outer_cfa, outer_ra)`.
fn own_context(code: &[Instruction]) -> Option<i64> {
    let mut factory = InstructionInfoFactory::new();
    let mut held = RegisterValues::default();
    let targets: HashSet<u64> = code.iter().filter_map(jump).collect();
    for it in code {
        if targets.contains(&it.ip()) {
            held = RegisterValues::default();
        }
        let arguments = [Register::RDI, Register::RSI, Register::RDX].map(|register| held.get(register));
        match (it.is_call_near(), arguments) {
            (true, [Some(Value::Frame(context)), Some(Value::Frame(16)), Some(Value::Loaded(8))]) => {
                return Some(context);
            }
            _ => held.apply(it, &mut factory),
        }
    }
    None
}

/// A register's value, relative to `rbp`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Value {
    /// An address in the frame.
    Frame(i64),
    /// The word that was loaded from there.
    Loaded(i64),
}

/// The values of registers, as far as straight code determines them.
#[derive(Debug, Default)]
struct RegisterValues([Option<Value>; 16]);

impl RegisterValues {
    fn get(&self, register: Register) -> Option<Value> {
        if !register.is_gpr64() {
            return None;
        }
        self.0.get(register.number()).copied().flatten()
    }

    fn apply(&mut self, it: &Instruction, factory: &mut InstructionInfoFactory) {
        let loaded = frame_load(it).map(|(to, at)| (to, Value::Loaded(at)));
        let value = frame_address(it).map(|(to, at)| (to, Value::Frame(at))).or(loaded);
        let is_copy = it.mnemonic() == Mnemonic::Mov && it.op1_kind() == OpKind::Register;
        let copied = is_copy.then(|| self.get(it.op1_register())).flatten();
        let value = value.or(copied.map(|value| (it.op0_register(), value)));
        if it.flow_control() != FlowControl::Next {
            *self = Self::default();
            return;
        }
        for used in factory.info(it).used_registers() {
            let register = used.register().full_register();
            let is_read =
                matches!(used.access(), OpAccess::Read | OpAccess::CondRead | OpAccess::NoMemAccess);
            if register.is_gpr64() && !is_read {
                self.0[register.number()] = None;
            }
            if register == Register::RBP && !is_read {
                *self = Self::default();
            }
        }
        if let Some((to, value)) = value.filter(|(to, _)| to.is_gpr64()) {
            self.0[to.number()] = Some(value);
        }
    }
}

fn is_move(it: &Instruction, to: Register, from: Register) -> bool {
    it.mnemonic() == Mnemonic::Mov && (it.op0_register(), it.op1_register()) == (to, from)
}

/// Matches `mov to, [rbp + at]`, of 8 bytes.
fn frame_load(it: &Instruction) -> Option<(Register, i64)> {
    let is_load = it.mnemonic() == Mnemonic::Mov && it.op1_kind() == OpKind::Memory;
    (is_load && it.op0_register().is_gpr64()).then_some((it.op0_register(), frame_offset(it)?))
}

/// Matches `lea to, [rbp + at]`.
fn frame_address(it: &Instruction) -> Option<(Register, i64)> {
    (it.mnemonic() == Mnemonic::Lea).then_some((it.op0_register(), frame_offset(it)?))
}

fn frame_offset(it: &Instruction) -> Option<i64> {
    let is_frame = (it.memory_base(), it.memory_index()) == (Register::RBP, Register::None);
    (is_frame && it.segment_prefix() == Register::None).then_some(it.memory_displacement64().cast_signed())
}

/// Returns true if the operand is `[rbp + register + 8]`.
fn is_beside_rbp(it: &Instruction) -> bool {
    let (base, index) = (it.memory_base(), it.memory_index());
    let is_sum = base == Register::RBP && index.is_gpr64() || index == Register::RBP && base.is_gpr64();
    is_sum && it.memory_index_scale() == 1 && it.memory_displacement64() == 8
}

/// Returns the target of a jump.
fn jump(it: &Instruction) -> Option<u64> {
    let is_jump =
        matches!(it.flow_control(), FlowControl::ConditionalBranch | FlowControl::UnconditionalBranch);
    is_jump.then(|| it.near_branch_target())
}
