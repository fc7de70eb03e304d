//! Unwinding of native code against the truth: real programs are executed instruction by
//! instruction, from `_start` on, and in each step the whole stack that the unwinder finds is
//! compared with the calls that were watched. Needs gcc, g++, musl-gcc and go.
#![allow(clippy::expect_used, clippy::unwrap_used, reason = "a test may panic")]

mod goroutines;
mod modules;
#[path = "../support/one_cpu.rs"]
mod one_cpu;
mod stepper;
mod truth;
mod walk;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use goroutines::{Goroutines, Switch};
use jvmprof_common::unwind::Cursor;
use modules::Modules;
use stepper::{Stepper, What};
use truth::{Caller, Truth};
use walk::Walk;

/// Steps that are made of one program at most: what they do, they do again and again.
const STEPS: usize = 150_000;
/// A signal interrupts the program as often; a prime, so that it hits all kinds of code.
const SIGNAL_EVERY: usize = 499;

/// Go's handler takes hundreds of steps.
const SIGNAL_OF_GOROUTINES_EVERY: usize = 4_999;
/// Steps of goroutines: they take turns all some hundred.
const GOROUTINE_STEPS: usize = 200_000;

/// Bytes of stack that a program uses at most.
const MAX_STACK: u64 = 8 << 20;

/// The counts of one program.
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

/// Executes a Go program from its `main.main` on, through all its goroutines, which take turns on
/// one thread.
fn watch_goroutines(program: &Path, main: u64, steps: usize) -> (Seen, Goroutines, usize) {
    let mut unknown = 0;
    let mut stepper = Stepper::start(program);
    stepper.run_to(main);
    let (mut modules, mut seen) = (Modules::default(), Seen::default());
    // So that the code is known by name.
    Walk::of(&stepper, &mut modules);
    let mut truth = Goroutines::at_main(&stepper, |pc| {
        modules.describe(&Cursor::interrupted(pc, 0, 0)).ends_with(" runtime.goexit")
    });
    for step in 1..=steps {
        seen.steps = step;
        let callers = truth.callers();
        seen.deepest = seen.deepest.max(callers.len());
        let walk = Walk::of(&stepper, &mut modules);
        seen.frames += walk.len();
        unknown += usize::from(!truth.is_known());
        if truth.is_known()
            && let Err(wrong) = walk.compare(&callers, &modules)
        {
            *seen.wrong.entry(wrong).or_default() += 1;
        }
        if step % SIGNAL_OF_GOROUTINES_EVERY == 0 && !truth.is_entering() && stepper.takes_signals() {
            stepper.interrupt();
        }
        let Some(step) = stepper.advance() else { break };
        seen.signals += usize::from(step.what == What::Interrupted);
        let switch = stepper.has_loaded_rsp(&step).then(|| {
            let name = |pc| modules.describe(&Cursor::interrupted(pc, 0, 0));
            let is_end = || truth.innermost().is_some_and(|it| name(it.pc).ends_with(" runtime.goexit1"));
            match name(step.before.rip).rsplit(' ').next().unwrap_or_default() {
                "runtime.mcall" if is_end() => Switch::Ends,
                "runtime.mcall" => Switch::Leaves,
                "gogo" | "runtime.gogo" => Switch::Enters,
                _ => Switch::Stays,
            }
        });
        truth.follow(&step, &stepper, switch);
    }
    (seen, truth, unknown)
}

fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/native_stepper/programs").join(name)
}

/// The folder of what go has compiled, that of other tests, too.
fn go_cache() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join("go-cache")
}

/// `most`: the share of steps that may be lost where `is_known` says that they are. A signal there
/// makes its handler's steps lost, too, some 150.
fn check(compiler: &str, file: &str, flags: &[&str], most: f64, is_known: impl Fn(&str) -> bool) -> Seen {
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("program");
    let mut command = Command::new(compiler);
    command.env("GOCACHE", go_cache()).env("GOFLAGS", "");
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

/// While `_dl_runtime_resolve` waits for `_dl_fixup`, only that one's frame tells where its own is:
/// not in the first instructions, before `rbx` is saved, nor in the last ones, nor if a signal
/// interrupts it.
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

/// The program does hardly anything else than throw. Code that removes frames has two true stacks,
/// that before and that behind the removal: it is one of them as a whole, in each step.
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

/// Goroutines that take turns, whose stacks grow and are copied, that wait for each other, panic
/// and are collected. Each step's stack is the goroutine's, also while the thread's system stack
/// does something for it.
#[test]
fn every_step_of_goroutines_leads_to_the_true_callers() {
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("program");
    let mut go = Command::new("go");
    go.env("GOCACHE", go_cache()).env("GOFLAGS", "").env("CGO_ENABLED", "0");
    go.args(["build", "-o"]).arg(&program).arg(source("goroutines.go"));
    assert!(go.status().expect("this test runs go").success());
    let names = Command::new("go").args(["tool", "nm"]).arg(&program).output().expect("this test runs go");
    let names = String::from_utf8(names.stdout).expect("text");
    let main = names.lines().find_map(|line| line.trim().strip_suffix(" T main.main")).expect("a symbol");
    let main = u64::from_str_radix(main, 16).expect("hex");
    let (seen, truth, unknown) = watch_goroutines(&program, main, GOROUTINE_STEPS);
    let wrong: usize = seen.wrong.values().sum();
    println!(
        "go: {} steps, {} frames compared, {} deep, {} signals, {} switches, {} moves, {unknown} unknown, {wrong} wrong",
        seen.steps, seen.frames, seen.deepest, seen.signals, truth.switches, truth.moves
    );
    let mut list: Vec<_> = seen.wrong.iter().collect();
    list.sort_by_key(|(_, count)| std::cmp::Reverse(**count));
    list.iter().take(40).for_each(|(at, count)| println!("  {count} {at}"));
    assert!(truth.switches >= 20 && truth.moves > 0 && seen.signals > 20, "too little of all");
    assert!(unknown * 50 < seen.steps, "{unknown} steps of goroutines that nobody has watched");
    assert_eq!(wrong, 0);
}
