//! Rows of Go programs, from the table by which Go's runtime walks stacks itself.
//!
//! It tells for each instruction how much is on the stack above the return address. What is missing
//! there is read from the code: where the frame pointer is saved, and how the few functions that
//! switch stacks do it (go src/runtime/asm_amd64.s; src/runtime/traceback.go has the same
//! exceptions).

use jvmprof_common::rows::{CfaRule, GO_G_M, GO_G_SCHED, RaRule, RbpRule, Row};

use super::row_table::Spans;
use super::signal_return::{SIGNAL_RETURN, is_signal_return};
use crate::native::go::pclntab::GoFunction;
use crate::native::go::program::GoProgram;
use crate::types::Svma;

/// Where every goroutine and every thread begins. `mcall` leaves its goroutine for good; `gogo`
/// leaves the system stack for that of another one, of which it isn't a part.
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
/// Never runs: its address stands for what waits for [`SWITCHES`] in a goroutine's registers.
const SWITCHED: &str = "runtime.systemstack_switch";
/// Before Go 1.17 the table doesn't tell that these write the stack pointer.
const WRITE_SP: [&str; 4] = [SWITCHES, CALLS_C, "runtime.cgocallback", "runtime.cgocallback_gofunc"];

pub(super) fn spans(program: &GoProgram) -> Spans {
    let mut spans = Spans::default();
    let Some((table, base)) = program.table() else { return spans };
    let growing = table.named(GROWS_STACK).find_map(|function| {
        let switch = table.named(SWITCHES).next()?.start;
        let code = |start: u64| program.code_at(Svma(base.wrapping_add(start)));
        goroutine(code(function.start), code(switch))
    });
    for function in table.functions() {
        let start = base.wrapping_add(function.start);
        let Some(code) = program.code_of(&function, base) else { continue };
        let length = usize::try_from(function.end() - function.start).unwrap_or_default();
        let code = code.get(..length).unwrap_or_default();
        let before = program.code_at(Svma(start.wrapping_sub(1)));
        if is_signal_return(code) && before.first() == Some(&INT3) {
            // A handler returns to its first instruction; a row for a return address is looked up
            // before it.
            spans.push(start - 1, start + code.len() as u64, SIGNAL_RETURN);
            continue;
        }
        let end = start + code.len() as u64;
        if function.is(SWITCHED)
            && before.first() == Some(&INT3)
            && function.steps().all(|(_, held)| held == 0)
        {
            spans.push(start - 1, end, Row::AT_CALL);
            continue;
        }
        let left = leaves_stack(&function, code, growing).map(|(at, row)| (start + at as u64, row));
        let signal = INJECTED.iter().any(|name| function.is(name));
        ordinary(&function, code, &mut |from, to, row| {
            let (from, to, row) = (start + from, start + to, Row { signal, ..row });
            match left {
                Some((at, _)) if from >= at => {}
                Some((at, _)) => spans.push(from, to.min(at), row),
                None => spans.push(from, to, row),
            }
        });
        if let Some((at, row)) = left {
            spans.push(at, end, row);
        }
    }
    spans.finish();
    spans
}

/// From which offset on a function's frame isn't on the stack that `rsp` points to any more, and
/// the row there.
fn leaves_stack(function: &GoFunction<'_>, code: &[u8], growing: Option<Row>) -> Option<(usize, Row)> {
    let switched = || after_switch(code).unwrap_or(0);
    if ROOTS.iter().any(|name| function.is(name)) {
        let root = Row { ra: RaRule::Undefined, ..Row::AT_CALL };
        // Since Go 1.17 `runtime.gogo` leaves the switch to `gogo`.
        let stays = function.is(ENTERS) && after_switch(code).is_none();
        return (!stays).then(|| (switched(), root));
    }
    // Before Go 1.21 these two have no frame pointer.
    let is_frameless = || Saved::find(function, code).is_none();
    let waits = function.is(SWITCHES) || function.is(CALLS_C);
    if function.is(GROWS_STACK) || waits && is_frameless() {
        let unknown = Row { cfa: CfaRule::Unsupported, ..Row::AT_CALL };
        return Some((switched(), growing.unwrap_or(unknown)));
    }
    None
}

/// The rows of a function, each by its first offset and the first one behind it.
fn ordinary(function: &GoFunction<'_>, code: &[u8], handle: &mut dyn FnMut(u64, u64, Row)) {
    let switches = function.writes_sp || WRITE_SP.iter().any(|name| function.is(name));
    let saved = Saved::find(function, code);
    let mut from = 0;
    for (to, held) in function.steps() {
        let to = to - function.start;
        if held < 0 {
            from = to;
            continue;
        }
        let row = |rbp| Row { cfa: CfaRule::Rsp(held + 8), rbp, ..Row::AT_CALL };
        // In the order of addresses: until rbp is saved, until it points to the frame, the rest.
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

/// Where a function saves its caller's `rbp`, below the return address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Saved {
    /// Offset from which on it is saved.
    at: u64,
    /// Offset from which on `rbp` points there.
    set: u64,
}

impl Saved {
    /// By the code where the stack pointer moves first: `push rbp; mov rbp, rsp` since Go 1.21,
    /// before that `sub rsp, n; mov [rsp + n - 8], rbp; lea rbp, [rsp + n - 8]`.
    fn find(function: &GoFunction<'_>, code: &[u8]) -> Option<Self> {
        let mut moved = function.start;
        let held = function.steps().find_map(|(end, held)| {
            if held > 0 {
                return Some(held);
            }
            moved = end;
            None
        })?;
        let at = moved - function.start;
        let offset = usize::try_from(at).ok()?;
        let rest = code.get(offset..)?;
        if held == 8 && offset > 0 && code[offset - 1] == PUSH_RBP {
            return rest.starts_with(&[0x48, 0x89, 0xe5]).then_some(Self { at, set: at + 3 });
        }
        let place = held - 8;
        let length = |opcode: u8| {
            let operand = rest.strip_prefix(&[0x48, opcode])?;
            match *operand {
                [0x2c, 0x24, ..] if place == 0 => Some(4),
                [0x6c, 0x24, low, ..] if i32::from(low.cast_signed()) == place => Some(5),
                [0xac, 0x24, a, b, c, d, ..] if i32::from_le_bytes([a, b, c, d]) == place => Some(8),
                _ => None,
            }
        };
        // The `lea` behind it has the same operand, so the same length.
        length(0x89).map(|length| Self { at: at + length, set: at + 2 * length })
    }
}

const PUSH_RBP: u8 = 0x55;
const INT3: u8 = 0xcc;

/// Behind the instruction that loads `rsp` from a `gobuf`: `mov rsp, [reg + sched.sp]`, from there
/// through `rbx`, or `mov rsp, [rbx]`, where `rbx` is the `gobuf`.
fn after_switch(code: &[u8]) -> Option<usize> {
    let sched = GO_G_SCHED as u8;
    let loads = |bytes: &[u8]| matches!(*bytes, [0x48 | 0x49, 0x8b, modrm, at] if modrm & 0xf8 == 0x60 && at == sched);
    let loaded = code.windows(4).position(loads).map(|at| at + 4);
    let through = |bytes: &[u8]| [[0x48, 0x89, 0xdc], [0x48, 0x8b, 0x23]].iter().any(|it| bytes == it);
    let copied = code.windows(3).position(through).map(|at| at + 3);
    [loaded, copied].into_iter().flatten().min()
}

/// How to leave `runtime.morestack`, which runs on the system stack in place of the goroutine whose
/// stack is to grow; from its code and that of `runtime.systemstack`.
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

/// `morestack` does what is looked for in fewer bytes, `systemstack` in half of them.
const MUCH_CODE: usize = 128;

/// The offset of `g` in the thread's own memory: of `mov reg, fs:[offset]`, or of `mov reg, offset;
/// mov reg, fs:[reg]`.
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

/// The offset of `curg` in `m`: the second one that `runtime.systemstack` compares `g` (rax) with,
/// `cmp rax, [rbx + offset]`.
fn current(code: &[u8]) -> Option<i16> {
    let offset = |at: usize| match *code.get(at..)? {
        [0x48, 0x3b, 0x43, offset, ..] => Some(i16::from(offset.cast_signed())),
        [0x48, 0x3b, 0x83, low, high, 0, 0, ..] => i16::try_from(u16::from_le_bytes([low, high])).ok(),
        _ => None,
    };
    (0..code.len()).filter_map(offset).nth(1)
}
