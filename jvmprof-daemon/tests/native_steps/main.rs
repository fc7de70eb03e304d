//! Unwinding of native code against the truth: real programs are executed instruction by instruction, from `_start` on, and in
//! each step the whole stack that the unwinder finds is compared with the calls that were watched. Needs gcc, g++ and musl-gcc.
#![allow(clippy::expect_used, clippy::unwrap_used, reason = "a test may panic")]

mod modules;
mod stepper;
mod truth;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use jvmprof_common::abi::Stop;
use jvmprof_common::unwind::{Cursor, rows};
use modules::Modules;
use stepper::Stepper;
use truth::{Caller, Truth};

/// Steps that are made of one program at most: what they do, they do again and again.
const STEPS: usize = 150_000;
/// A signal interrupts the program as often; a prime, so that it hits all kinds of code.
const SIGNAL_EVERY: usize = 499;
/// Frames that are compared in each step.
const DEPTH: usize = 48;

/// What was seen of one program.
#[derive(Default)]
struct Seen {
    steps: usize,
    frames: usize,
    /// Steps whose stack is wrong, by the code where it goes wrong.
    wrong: BTreeMap<String, usize>,
    signals: usize,
    deepest: usize,
}

/// Walks the stack from the registers as the kernel program does, and compares.
fn compare(stepper: &Stepper, truth: &Truth, modules: &mut Modules, seen: &mut Seen) -> Result<(), String> {
    let registers = stepper.registers();
    let mut target = stepper.memory(&registers);
    let mut cursor = Cursor { pc: registers.rip, sp: registers.rsp, fp: registers.rbp, exact: true };
    let callers = truth.callers();
    seen.deepest = seen.deepest.max(callers.len());
    for expected in callers.iter().rev().take(DEPTH).map(Some).chain(std::iter::once(None)) {
        let here = cursor;
        let at = modules.describe(&here);
        let Some(rule) = modules.rule(stepper.pid(), &here) else { return Err(format!("{at}: no row")) };
        let stepped = rows::step(&mut cursor, &rule, &mut target);
        target.leave_frame();
        match (expected, stepped) {
            (Some(Caller { pc, sp, interrupted }), Ok(())) => {
                if (cursor.pc, cursor.sp, cursor.exact) != (*pc, *sp, *interrupted) {
                    let found = (modules.describe(&cursor), cursor.sp as i64 - *sp as i64);
                    return Err(format!("{at}: leads to {found:x?}, not to {pc:x}"));
                }
            }
            (Some(_), Err(stop)) => return Err(format!("{at}: {stop:?}")),
            // More than was compared, or the root.
            (None, Ok(())) if callers.len() > DEPTH => {}
            (None, Ok(())) => return Err(format!("{at}: goes on to {}", modules.describe(&cursor))),
            (None, Err(Stop::Root | Stop::ChainEnded)) => {}
            (None, Err(stop)) if callers.len() <= DEPTH => return Err(format!("{at}: the root, {stop:?}")),
            (None, Err(_)) => {}
        }
        seen.frames += 1;
    }
    Ok(())
}

/// Executes a program from its `_start` on.
fn watch(program: &Path) -> Seen {
    let mut stepper = Stepper::start(program);
    stepper.run_to_entry(program);
    let (mut truth, mut modules, mut seen) = (Truth::default(), Modules::default(), Seen::default());
    let mut step = 0;
    loop {
        step += 1;
        seen.steps += 1;
        if let Err(wrong) = compare(&stepper, &truth, &mut modules, &mut seen) {
            *seen.wrong.entry(wrong).or_default() += 1;
        }
        if step % SIGNAL_EVERY == 0 && stepper.takes_signals() {
            stepper.interrupt();
        }
        if seen.steps >= STEPS || !stepper.step(&mut truth, &mut seen.signals) {
            return seen;
        }
    }
}

fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/native_steps/programs").join(name)
}

/// `most`: the share of steps that may be lost where `is_known` says that they are. A signal there makes its handler's steps lost,
/// too, some 150.
fn check(compiler: &str, file: &str, flags: &[&str], most: f64, is_known: impl Fn(&str) -> bool) {
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("program");
    let mut command = Command::new(compiler);
    command.args(flags).arg("-o").arg(&program).arg(source(file));
    assert!(command.status().unwrap_or_else(|error| panic!("{compiler}: {error}")).success());
    let seen = watch(&program);
    let count = |lost: bool| -> usize {
        seen.wrong.iter().filter(|(at, _)| is_known(at) == lost).map(|(_, count)| count).sum()
    };
    let (wrong, lost) = (count(false), count(true));
    println!(
        "{compiler} {file} {flags:?}: {} steps, {} frames compared, {} deep, {} signals, {lost} lost, {} wrong",
        seen.steps, seen.frames, seen.deepest, seen.signals, wrong
    );
    let mut list: Vec<_> = seen.wrong.iter().collect();
    list.sort_by_key(|(_, count)| std::cmp::Reverse(**count));
    list.iter().take(30).for_each(|(at, count)| println!("  {count} {at}"));
    assert!(seen.steps >= 20_000 && seen.frames > seen.steps, "too few steps");
    assert!(lost as f64 <= most * seen.steps as f64, "{lost} steps lost");
    assert_eq!(wrong, 0, "{compiler} {file} {flags:?}");
}

/// While `_dl_runtime_resolve` waits for `_dl_fixup`, only that one's frame tells where its own is: not in the first
/// instructions, before `rbx` is saved, nor in the last ones, nor if a signal interrupts it.
fn is_lazy_binding(at: &str) -> bool {
    at.starts_with("ld-linux")
}

/// Registers and stack pointer are replaced by others, one by one. That of glibc has no symbol.
fn is_long_jump(at: &str) -> bool {
    at.contains("longjmp") || at.starts_with("libc.so.6") && at.ends_with("UnsupportedRule")
}

/// From where they write the handler's address over their return address, until the stack pointer is set.
fn is_removing_frames(at: &str) -> bool {
    at.contains("_Unwind_")
}

#[test]
fn every_step_of_c_without_frame_pointers_leads_to_the_true_callers() {
    let is_known = |at: &str| is_lazy_binding(at) || is_long_jump(at);
    check("gcc", "steps.c", &["-O2", "-fomit-frame-pointer", "-Wl,-z,lazy"], 0.002, is_known);
}

#[test]
fn every_step_of_c_that_is_linked_statically_leads_to_the_true_callers() {
    check("gcc", "steps.c", &["-O2", "-fomit-frame-pointer", "-static"], 0.002, is_long_jump);
}

#[test]
fn every_step_of_musl_without_frame_information_leads_to_the_true_callers() {
    check("musl-gcc", "steps.c", &["-O2", "-fomit-frame-pointer", "-static"], 0.002, is_long_jump);
}

/// The program does hardly anything else than throw.
#[test]
fn every_step_of_exceptions_leads_to_the_true_callers() {
    let is_known = |at: &str| is_lazy_binding(at) || is_removing_frames(at);
    check("g++", "steps.cc", &["-O2", "-fomit-frame-pointer"], 0.006, is_known);
}
