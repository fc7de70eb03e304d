//! Unwinding of generated code against the truth: a thread of a real JVM is executed step by step,
//! and in each step the answer of the row, or of the kernel program's stepper for compiled code, is
//! compared with the calls that were watched. Needs root and the JDKs of `JVMPROF_TEST_JDKS`.
#![allow(clippy::expect_used, clippy::unwrap_used, reason = "a test may panic")]

mod interrupted;
mod stepper;
#[path = "../support/mod.rs"]
mod support;
mod truth;
mod watch;

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use jvmprof_daemon::hotspot::stubs::StubRows;
use jvmprof_daemon::hotspot::{Hotspot, LiveMemory, images};
use jvmprof_daemon::types::Avma;
use support::processes::LONGEST_WAIT;
use support::{SHORT_LIVED_JVM, jdks, scratch};
use watch::Watch;

/// How often a JVM's thread is stopped to be executed in steps, and how many: it shall be seen in
/// all that it does. Where these steps saw too little of the code, because the thread happened to
/// be in few places of it, it is stopped again.
const BURSTS: usize = 40;
const MOST_BURSTS: usize = 200;
const STEPS: usize = 10_000;

struct Jvm(Child);

impl Drop for Jvm {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn compile(dir: &Path) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/stub_stepper/Steps.java");
    let javac = jdks().into_iter().map(|(_, home)| home.join("bin/javac")).find(|javac| javac.is_file());
    let mut javac = Command::new(javac.expect("one of the JDKs needs a javac"));
    javac.args(SHORT_LIVED_JVM).args(["-nowarn", "--release", "8", "-d"]).arg(dir).arg(source);
    assert!(javac.stderr(Stdio::null()).status().unwrap().success());
    dir.to_owned()
}

/// Runs `Steps` for some milliseconds: the JVM and its main thread.
fn run(home: &Path, classes: &Path, flags: &[&str], milliseconds: &str) -> (Jvm, i32) {
    let mut java = Command::new(home.join("bin/java"));
    java.args(flags).arg("-cp").arg(classes).args(["Steps", milliseconds]);
    let child = java.stdin(Stdio::null()).stdout(Stdio::piped()).spawn();
    let mut jvm = Jvm(child.unwrap_or_else(|error| panic!("{}: {error}", home.display())));
    let mut thread = String::new();
    BufReader::new(jvm.0.stdout.take().unwrap()).read_line(&mut thread).unwrap();
    let thread = thread.trim().parse().unwrap_or_else(|_| panic!("{}: {thread:?}", home.display()));
    (jvm, thread)
}

/// Runs `Steps`, and then executes its main thread step by step until `pcs` places were judged.
fn watch(home: &Path, classes: &Path, flags: &[&str], milliseconds: &str, pcs: usize) -> Watch {
    let (mut jvm, thread) = run(home, classes, flags, milliseconds);
    let mut watch = Watch::new(jvm.0.id());
    for burst in 0..MOST_BURSTS {
        if burst >= BURSTS && watch.checked_pcs() >= pcs {
            break;
        }
        watch.run(thread, STEPS);
        std::thread::sleep(Duration::from_millis(20));
        if !Path::new(&format!("/proc/{}/task/{thread}", jvm.0.id())).is_dir() {
            panic!("the JVM of {} died: {:?}", home.display(), jvm.0.wait());
        }
    }
    watch
}

fn check(name: &str, flags: &[&str], milliseconds: &str, pcs: usize) {
    let dir = scratch();
    let classes = compile(dir.path());
    let mut wrong = Vec::new();
    for (feature, home) in jdks() {
        let watch = watch(&home, &classes, flags, milliseconds, pcs);
        eprintln!("JDK {feature} {name}: {}", watch.summary());
        watch.wrong().iter().for_each(|it| eprintln!("  {it}"));
        wrong.extend(watch.wrong().iter().map(|it| format!("JDK {feature} {name}: {it}")));
        if watch.checked_pcs() < pcs {
            wrong.push(format!("JDK {feature} {name}: fewer than {pcs} pcs: {}", watch.summary()));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The rows of a JVM's stubs, with what other JVMs have told.
fn rows_of(jvm: &Jvm, mut rows: StubRows) -> StubRows {
    let pid = jvm.0.id();
    let mut hotspot = Hotspot::attach(&images(pid).unwrap(), LiveMemory::new(pid)).expect("a running JVM");
    let (codelets, interpreter) = hotspot.codelets().unwrap();
    let start = Avma(hotspot.jvm().interpreter_start);
    rows.update(&hotspot.stub_blobs().unwrap(), &codelets, start, &interpreter);
    rows
}

#[test]
fn code_that_is_known_from_another_jvm_has_the_rows_that_its_analysis_finds() {
    let dir = scratch();
    let classes = compile(dir.path());
    for (feature, home) in jdks() {
        for flags in [&["-Xint"][..], &["-XX:+UseSerialGC"]] {
            let [(first, _), (second, _)] = [(); 2].map(|()| run(&home, &classes, flags, "100"));
            let of_first = rows_of(&first, StubRows::default());
            let own_rows = || rows_of(&second, StubRows::default()).spans();
            // Both ways see the same stubs once the JVM makes no more of them.
            let (began, mut own) = (Instant::now(), own_rows());
            let (shared, own) = loop {
                let shared = rows_of(&second, StubRows::sharing_with(&of_first)).spans();
                let before = std::mem::replace(&mut own, own_rows());
                if before == own {
                    break (shared, own);
                }
                assert!(
                    began.elapsed() < LONGEST_WAIT,
                    "JDK {feature} {flags:?}: it makes new stubs all the time"
                );
            };
            let differ = shared.iter().zip(&own).find(|(one, other)| one != other);
            assert_eq!(differ, None, "JDK {feature} {flags:?}");
            assert_eq!(shared.len(), own.len(), "JDK {feature} {flags:?}");
            assert!(own.len() > 5_000, "JDK {feature} {flags:?}: {} spans", own.len());
            assert_ne!(of_first.spans()[0].start, own[0].start, "they lie elsewhere");
        }
    }
}

#[test]
fn every_step_of_the_interpreter_leads_to_the_true_caller() {
    check("-Xint", &["-Xint"], "500", 2000);
}

#[test]
fn every_step_of_code_of_c1_and_its_stubs_leads_to_the_true_caller() {
    check("C1", &["-XX:TieredStopAtLevel=1"], "3000", 300);
}

#[test]
fn every_step_of_code_of_both_compilers_and_its_stubs_leads_to_the_true_caller() {
    check("tiered", &[], "3000", 300);
}

#[test]
fn every_step_of_code_of_c2_and_its_stubs_leads_to_the_true_caller() {
    check("C2", &["-XX:-TieredCompilation"], "3000", 300);
}
