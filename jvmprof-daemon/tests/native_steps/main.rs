//! Unwinding of native code against the truth: real programs are executed instruction by instruction, from `_start` on, and in
//! each step the whole stack that the unwinder finds is compared with the calls that were watched. Needs gcc, g++, musl-gcc and go.
#![allow(clippy::expect_used, clippy::unwrap_used, reason = "a test may panic")]

mod modules;
mod stepper;
mod truth;
mod walk;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use modules::Modules;
use stepper::Stepper;
use truth::{Caller, Truth};
use walk::Walk;

/// Steps that are made of one program at most: what they do, they do again and again.
const STEPS: usize = 150_000;
/// A signal interrupts the program as often; a prime, so that it hits all kinds of code.
const SIGNAL_EVERY: usize = 499;

/// Bytes of stack that a program uses at most.
const MAX_STACK: u64 = 8 << 20;

/// What was seen of one program.
#[derive(Default)]
struct Seen {
    steps: usize,
    frames: usize,
    /// Steps whose stack is wrong, by the code where it goes wrong.
    wrong: BTreeMap<String, usize>,
    signals: usize,
    deepest: usize,
    /// Steps whose stack is that from which frames have been removed already.
    ahead: usize,
}

/// Executes a program from its `_start` on, as long as it stays on its first stack.
fn watch(program: &Path) -> Seen {
    let mut stepper = Stepper::start(program);
    stepper.run_to_entry(program);
    // `_start` takes the number of arguments off it.
    let top = stepper.registers().rsp + 8;
    let (mut truth, mut modules, mut seen) = (Truth::default(), Modules::default(), Seen::default());
    // Stacks that aren't those before frames are removed: they have to be those behind it.
    let mut ahead: Vec<(Walk, String)> = Vec::new();
    let mut step = 0;
    loop {
        step += 1;
        seen.steps += 1;
        seen.deepest = seen.deepest.max(truth.callers().len());
        let walk = Walk::of(&stepper, &mut modules);
        seen.frames += walk.len();
        match walk.compare(truth.callers(), &modules) {
            Ok(()) => {}
            Err(wrong) => match walk.behind_removal(truth.callers(), &modules) {
                Some(rest) => ahead.push((rest, wrong)),
                None => *seen.wrong.entry(wrong).or_default() += 1,
            },
        }
        if step % SIGNAL_EVERY == 0 && stepper.takes_signals() {
            stepper.interrupt();
        }
        let goes_on = seen.steps < STEPS && stepper.step(&mut truth, &mut seen.signals);
        if !goes_on || !(top - MAX_STACK..=top).contains(&stepper.registers().rsp) {
            ahead.into_iter().for_each(|(_, wrong)| *seen.wrong.entry(wrong).or_default() += 1);
            return seen;
        }
        if !ahead.is_empty() && stepper.jumped_from().is_some_and(|from| modules.removes_frames(from)) {
            let now = stepper.registers();
            if modules.removes_frames(now.rip) {
                continue;
            }
            let handler = Caller { pc: now.rip, sp: now.rsp, interrupted: true };
            let callers: Vec<Caller> = truth.callers().iter().copied().chain([handler]).collect();
            for (walk, wrong) in ahead.drain(..) {
                match walk.compare(&callers, &modules) {
                    Ok(()) => seen.ahead += 1,
                    Err(_) => *seen.wrong.entry(wrong).or_default() += 1,
                }
            }
        }
    }
}

fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/native_steps/programs").join(name)
}

/// `most`: the share of steps that may be lost where `is_known` says that they are. A signal there makes its handler's steps lost,
/// too, some 150.
fn check(compiler: &str, file: &str, flags: &[&str], most: f64, is_known: impl Fn(&str) -> bool) -> Seen {
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("program");
    let mut command = Command::new(compiler);
    command.env("GOCACHE", dir.path().join("cache")).env("GOFLAGS", "");
    command.args(flags).arg("-o").arg(&program).arg(source(file));
    assert!(command.status().unwrap_or_else(|error| panic!("{compiler}: {error}")).success());
    let seen = watch(&program);
    let count = |lost: bool| -> usize {
        seen.wrong.iter().filter(|(at, _)| is_known(at) == lost).map(|(_, count)| count).sum()
    };
    let (wrong, lost) = (count(false), count(true));
    println!(
        "{compiler} {file} {flags:?}: {} steps, {} frames compared, {} deep, {} signals, {} behind a removal, {lost} lost, {wrong} wrong",
        seen.steps, seen.frames, seen.deepest, seen.signals, seen.ahead
    );
    let mut list: Vec<_> = seen.wrong.iter().collect();
    list.sort_by_key(|(_, count)| std::cmp::Reverse(**count));
    list.iter().take(30).for_each(|(at, count)| println!("  {count} {at}"));
    assert!(seen.steps >= 20_000 && seen.frames > seen.steps, "too few steps");
    assert!(lost as f64 <= most * seen.steps as f64, "{lost} steps lost");
    assert_eq!(wrong, 0, "{compiler} {file} {flags:?}");
    seen
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

/// The program does hardly anything else than throw. Code that removes frames has two true stacks, that before and that behind
/// the removal: it is one of them as a whole, in each step.
#[test]
fn every_step_of_exceptions_leads_to_the_true_callers() {
    let seen = check("g++", "steps.cc", &["-O2", "-fomit-frame-pointer"], 0.002, is_lazy_binding);
    assert!(seen.ahead > 100, "frames are removed");
}

/// What it does before the first goroutine runs, on a stack of its own.
#[test]
fn every_step_of_gos_start_leads_to_the_true_callers() {
    check("go", "steps.go", &["build", "-ldflags=-s -w"], 0.0, |_| false);
}
