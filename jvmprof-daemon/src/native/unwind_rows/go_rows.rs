//! Rows of Go programs, from the table by which Go's runtime walks stacks itself.
//!
//! It has for each instruction how much is on the stack above the return address. The rest is
//! decoded from the code: where the frame pointer is saved, and how the few functions that switch
//! stacks do it (go src/runtime/asm_amd64.s; src/runtime/traceback.go has the same exceptions).

use jvmprof_common::rows::{CfaRule, GO_G_M, GO_G_SCHED, RaRule, RbpRule, Row};

use smallvec::SmallVec;

use super::row_table::CompactRowTable;
use super::signal_return::{MAX_SIGNAL_RETURN, SIGNAL_RETURN, signal_return_length};
use crate::native::byte_source::ByteSource;
use crate::native::elf::ElfError;
use crate::native::go::pclntab::{GoFunction, StackStep};
use crate::native::go::program::GoProgram;
use crate::types::Svma;

/// The functions in which goroutines and threads begin. `mcall` leaves its goroutine for good;
/// `gogo` leaves the system stack for that of another one, of which it isn't a part.
const ROOTS: [&str; 8] = [
    "runtime.goexit",
    "runtime.mstart",
    "runtime.rt0_go",
    "_rt0_amd64",
    "_rt0_amd64_linux",
    "runtime.mcall",
    "runtime.gogo",
    "gogo",
];
/// Handlers of signals let the interrupted code call these: what they return to is the interrupted
/// instruction (go src/runtime/signal_amd64.go, `pushCall` and `preparePanic`).
const INJECTED: [&str; 3] = ["runtime.asyncPreempt", "runtime.sigpanic", "runtime.sigpanic0"];
const ENTERS: &str = "runtime.gogo";
const GROWS_STACK: &str = "runtime.morestack";
const SWITCHES: &str = "runtime.systemstack";
const CALLS_C: &str = "runtime.asmcgocall";
/// A function that never runs: its address stands for what waits for [`SWITCHES`] in a goroutine's
/// registers.
const SWITCHED: &str = "runtime.systemstack_switch";
/// Functions that write the stack pointer; before Go 1.17 the table doesn't mark them.
const WRITE_SP: [&str; 4] = [SWITCHES, CALLS_C, "runtime.cgocallback", "runtime.cgocallback_gofunc"];

/// Returns the rows of all functions of a program.
///
/// # Errors
/// [`ElfError::Read`] where the file doesn't give its table or its code.
pub(super) fn table<S: ByteSource>(program: &GoProgram<'_, S>) -> Result<CompactRowTable, ElfError> {
    let mut rows = CompactRowTable::default();
    let [growing, switching] = program.table.named([GROWS_STACK, SWITCHES]);
    let growing = growing.iter().find_map(|function| {
        let code = |start: u64, length| program.code_at(program.address(start), length);
        let switch = switching.first()?.start;
        goroutine(&code(function.start, MUCH_CODE), &code(switch, MUCH_CODE / 2))
    });
    for function in program.table.functions().filter(|function| program.has_code(function)) {
        GoFunctionCode::new(program, &function).push_rows(&function, growing, &mut rows);
    }
    program.check()?;
    rows.finish();
    Ok(rows)
}

/// A function's code and the steps of its stack pointer.
struct GoFunctionCode<'p, 'f, S> {
    program: &'p GoProgram<'f, S>,
    start: Svma,
    /// Bytes of code, without the padding after it.
    length: u64,
    /// Steps by offset in the function.
    steps: SmallVec<[StackStep; 16]>,
}

impl<'p, 'f, S: ByteSource> GoFunctionCode<'p, 'f, S> {
    fn new(program: &'p GoProgram<'f, S>, function: &GoFunction) -> Self {
        let mut steps = program.table.steps(function);
        steps.iter_mut().for_each(|(to, _)| *to -= function.start);
        let length = steps.last().map_or(0, |(to, _)| *to);
        Self { program, start: program.address(function.start), length, steps }
    }

    /// Returns at most `length` bytes of code from an offset on.
    fn code(&self, offset: u64, length: usize) -> SmallVec<[u8; 32]> {
        let left = usize::try_from(self.length.saturating_sub(offset)).unwrap_or(usize::MAX);
        self.program.code_at(Svma(self.start.0.saturating_add(offset)), length.min(left))
    }

    fn push_rows(&self, function: &GoFunction, growing: Option<Row>, rows: &mut CompactRowTable) {
        let (start, end) = (self.start.0, self.start.0 + self.length);
        let is_after_trap = || self.program.code_at(Svma(start.wrapping_sub(1)), 1).first() == Some(&INT3);
        if signal_return_length(&self.code(0, MAX_SIGNAL_RETURN)).is_some() && is_after_trap() {
            // A handler returns to its first instruction; a row for a return address is looked up
            // before it.
            rows.push(start - 1, end, SIGNAL_RETURN);
            return;
        }
        if function.is(SWITCHED) && self.steps.iter().all(|(_, held)| *held == 0) && is_after_trap() {
            rows.push(start - 1, end, Row::AT_CALL);
            return;
        }
        let left = self.leaves_stack(function, growing);
        let signal = INJECTED.iter().any(|name| function.is(name));
        self.ordinary_rows(function, &mut |from, to, row| {
            let to = left.map_or(to, |(at, _)| to.min(at));
            if from < to {
                rows.push(start + from, start + to, Row { signal, ..row });
            }
        });
        if let Some((at, row)) = left {
            rows.push(start + at, end, row);
        }
    }

    /// Returns the offset from which on the frame isn't on the stack that `rsp` points to any more,
    /// and the row there.
    fn leaves_stack(&self, function: &GoFunction, growing: Option<Row>) -> Option<(u64, Row)> {
        let after_switch = || after_switch(&self.code(0, MAX_SWITCHING_CODE)).map(|at| at as u64);
        if ROOTS.iter().any(|name| function.is(name)) {
            let root = Row { ra: RaRule::Undefined, ..Row::AT_CALL };
            let switched = after_switch();
            // Since Go 1.17 `runtime.gogo` leaves the switch to `gogo`.
            let stays = function.is(ENTERS) && switched.is_none();
            return (!stays).then(|| (switched.unwrap_or(0), root));
        }
        // Before Go 1.21 these two have no frame pointer.
        let waits = function.is(SWITCHES) || function.is(CALLS_C);
        if function.is(GROWS_STACK) || waits && self.frame_pointer_save().is_none() {
            let unknown = Row { cfa: CfaRule::Unsupported, ..Row::AT_CALL };
            return Some((after_switch().unwrap_or(0), growing.unwrap_or(unknown)));
        }
        None
    }

    /// Passes on the rows by the steps alone, each with its first offset and the first one after
    /// it.
    fn ordinary_rows(&self, function: &GoFunction, handle: &mut dyn FnMut(u64, u64, Row)) {
        let switches = function.writes_sp || WRITE_SP.iter().any(|name| function.is(name));
        let saved = self.frame_pointer_save();
        let mut from = 0;
        for (to, held) in self.steps.iter().copied() {
            if held < 0 {
                from = to;
                continue;
            }
            let row = |rbp| Row { cfa: CfaRule::Rsp(held + 8), rbp, ..Row::AT_CALL };
            // In the order of addresses: until rbp is saved, until it points to the frame, the
            // rest.
            let saved_at = saved.map_or(u64::MAX, |saved| saved.at).clamp(from, to);
            let set_at = saved.map_or(u64::MAX, |saved| saved.set).clamp(saved_at, to);
            let on_frame = match held {
                0 => row(RbpRule::Same),
                _ if switches => Row { cfa: CfaRule::OtherStack(16), ..row(RbpRule::AtCfa(-16)) },
                _ => row(RbpRule::AtCfa(-16)),
            };
            let just_saved = if held == 0 { on_frame } else { row(RbpRule::AtCfa(-16)) };
            for (from, to, row) in
                [(from, saved_at, row(RbpRule::Same)), (saved_at, set_at, just_saved), (set_at, to, on_frame)]
            {
                if from < to {
                    handle(from, to, row);
                }
            }
            from = to;
        }
    }

    /// Finds the save in the code where the stack pointer moves first: `push rbp; mov rbp, rsp`
    /// since Go 1.21, before that `sub rsp, n; mov [rsp + n - 8], rbp; lea rbp, [rsp + n - 8]`.
    fn frame_pointer_save(&self) -> Option<FramePointerSave> {
        let first = self.steps.iter().position(|(_, held)| *held > 0)?;
        let at = first.checked_sub(1).map_or(0, |before| self.steps[before].0);
        let held = self.steps[first].1;
        let (before, code) = (self.code(at.saturating_sub(1), 1), self.code(at, MAX_FRAME_POINTER_SAVE));
        if held == 8 && at > 0 && before.first() == Some(&PUSH_RBP) {
            return code.starts_with(&[0x48, 0x89, 0xe5]).then_some(FramePointerSave { at, set: at + 3 });
        }
        let place = held - 8;
        let operand = code.strip_prefix(&[0x48, 0x89])?;
        let length = match *operand {
            [0x2c, 0x24, ..] if place == 0 => 4,
            [0x6c, 0x24, low, ..] if i32::from(low.cast_signed()) == place => 5,
            [0xac, 0x24, a, b, c, d, ..] if i32::from_le_bytes([a, b, c, d]) == place => 8,
            _ => return None,
        };
        // The `lea` after it has the same operand, so the same length.
        Some(FramePointerSave { at: at + length, set: at + 2 * length })
    }
}

/// A function's save of its caller's `rbp`, below the return address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FramePointerSave {
    /// Offset from which on it is saved.
    at: u64,
    /// Offset from which on `rbp` points there.
    set: u64,
}

/// Bytes of the longest `mov [rsp + n], rbp`.
const MAX_FRAME_POINTER_SAVE: usize = 8;
/// Bytes of code that are searched for a switch of stacks: the functions that switch have some
/// hundred.
const MAX_SWITCHING_CODE: usize = 4 << 10;
const PUSH_RBP: u8 = 0x55;
const INT3: u8 = 0xcc;

/// Returns the offset after the instruction that loads `rsp` from a `gobuf`: `mov rsp, [reg +
/// sched.sp]`, from there through `rbx`, or `mov rsp, [rbx]`, where `rbx` is the `gobuf`.
fn after_switch(code: &[u8]) -> Option<usize> {
    let sched = GO_G_SCHED as u8;
    let loads = |bytes: &[u8]| matches!(*bytes, [0x48 | 0x49, 0x8b, modrm, at] if modrm & 0xf8 == 0x60 && at == sched);
    let loaded = code.windows(4).position(loads).map(|at| at + 4);
    let through = |bytes: &[u8]| [[0x48, 0x89, 0xdc], [0x48, 0x8b, 0x23]].iter().any(|it| bytes == it);
    let copied = code.windows(3).position(through).map(|at| at + 3);
    [loaded, copied].into_iter().flatten().min()
}

/// Returns the row of `runtime.morestack`, which runs on the system stack in place of the goroutine
/// whose stack is to grow; from its code and that of `runtime.systemstack`.
fn goroutine(code: &[u8], switch: &[u8]) -> Option<Row> {
    let (code, switch) = (code.get(..MUCH_CODE)?, switch.get(..MUCH_CODE / 2)?);
    let store = |modrm: u8| {
        let at = code.windows(4).position(|b| b[..2] == [0x48, 0x89] && b[2] & 0xf8 == modrm)?;
        Some(u64::from(code[at + 3]))
    };
    // lea rax, [rsp + 8]; mov [g + sched.sp], rax
    let lea = code.windows(7).position(|b| b[..7] == [0x48, 0x8d, 0x44, 0x24, 0x08, 0x48, 0x89])?;
    let sched = u64::from(*code.get(lea + 8)?);
    // mov [g + sched.bp], rbp
    let rbp = i32::try_from(store(0x68)?.checked_sub(sched)?).ok()?;
    if sched != GO_G_SCHED || sched != GO_G_M + 8 {
        return None;
    }
    Some(Row {
        cfa: CfaRule::Goroutine { tls: tls(code)?, current: current(switch)? },
        rbp: RbpRule::AtCfa(rbp),
        ra: RaRule::AtCfa(8),
        signal: false,
    })
}

/// Bytes of `morestack` that are searched; it needs fewer, `systemstack` half of them.
const MUCH_CODE: usize = 128;

/// Returns the offset of `g` in the thread's own memory: of `mov reg, fs:[offset]`, or of `mov reg,
/// offset; mov reg, fs:[reg]`.
fn tls(code: &[u8]) -> Option<i32> {
    let number = |bytes: &[u8]| bytes.first_chunk().map(|bytes| i32::from_le_bytes(*bytes));
    let at = code.windows(3).position(|b| b[0] == 0x64 && matches!(b[1], 0x48 | 0x4c) && b[2] == 0x8b)?;
    let operand = code.get(at + 3..)?;
    match *operand {
        [modrm, 0x25, ..] if modrm & 0xc7 == 4 => number(&operand[2..]),
        _ if at >= 7 && code[at - 7..at - 5] == [0x48, 0xc7] => number(&code[at - 4..]),
        _ => None,
    }
}

/// Returns the offset of `curg` in `m`: the second one that `runtime.systemstack` compares `g`
/// (rax) with, `cmp rax, [rbx + offset]`.
fn current(code: &[u8]) -> Option<i16> {
    let offset = |at: usize| match *code.get(at..)? {
        [0x48, 0x3b, 0x43, offset, ..] => Some(i16::from(offset.cast_signed())),
        [0x48, 0x3b, 0x83, low, high, 0, 0, ..] => i16::try_from(u16::from_le_bytes([low, high])).ok(),
        _ => None,
    };
    (0..code.len()).filter_map(offset).nth(1)
}
