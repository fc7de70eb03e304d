//! Each sample of a program that generates A and B in turn at one address, judged alone: by who
//! called the code it is known what was there, and by the counter whether its name was told to be
//! ambiguous. Needs root (or `CAP_BPF`, `CAP_PERFMON`).

use std::ops::Range;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::recording::program;
use crate::support::{left, scratch};
use jvmprof_daemon::clock::monotonic_ns;
use jvmprof_daemon::own_process::{DEFAULT_URGENT_PERCENT, UrgentCpu};
use jvmprof_daemon::process::process_table::mapped_code;
use jvmprof_daemon::process::{Process, ProcessKey, ProcessTable};
use jvmprof_daemon::profile::model::FrameKind;
use jvmprof_daemon::sampler::{KernelEvent, KernelEventKind, Sampler, SamplerOptions, StackSample};
use jvmprof_daemon::symbolize::{Completion, Deadline, SymbolMemoryLimits, Symbolizer};

/// Samples of generated code.
#[derive(Clone, Copy, Debug, Default)]
struct Verdict {
    right: u64,
    wrong: u64,
    /// Of both, those that were counted as ambiguous.
    ambiguous: u64,
    wrong_but_certain: u64,
    /// Still had no name when it was named.
    unknown: u64,
}

/// The path from samples to names, one sample at a time.
struct Judge {
    table: ProcessTable,
    symbolizer: Symbolizer,
    /// Addresses of `run_a` and `run_b`.
    callers: [Range<u64>; 2],
    verdict: Verdict,
}

fn find(table: &ProcessTable, key: ProcessKey) -> Option<&Process> {
    table.iter().find(|process| process.key == key)
}

impl Judge {
    fn handle(&mut self, event: KernelEvent) {
        match event.kind {
            KernelEventKind::Sample(sample) => self.judge(&sample),
            KernelEventKind::Exec { pid, comm } => self.table.exec(pid, &comm, event.time_ns),
            KernelEventKind::Fork { pid, parent } => self.table.fork(pid, parent),
            KernelEventKind::Exit { pid, tid } => self.table.exit(pid, tid),
            KernelEventKind::Map { pid, mapping: new } => {
                let code = mapped_code(pid, new.start, new.length, new.offset, &new.path, new.build_id);
                self.table.insert_mapping(pid, event.time_ns, code);
            }
            KernelEventKind::EventsLost => self.table.invalidate_all(),
            KernelEventKind::ThreadName { .. } | KernelEventKind::Tlab(_) | KernelEventKind::Pause(_) => {}
        }
    }

    fn ambiguous(&self) -> u64 {
        self.symbolizer.counts().perf_maps.ambiguous
    }

    fn judge(&mut self, sample: &StackSample) {
        let header = &sample.header;
        let (pid, start_ns, comm) = (header.pid, header.start_ns, sample.comm());
        let key = self
            .table
            .process_of_sample(pid, start_ns, &comm, monotonic_ns(), |_| Some(sample.addresses()))
            .key;
        let process = find(&self.table, key).expect("a process that was sampled");
        let (frames, before) = loop {
            // Of the samples here none waits for others: what is counted meanwhile is this one's.
            let before = self.ambiguous();
            let identified = self.symbolizer.identify(process, sample, None, monotonic_ns());
            if let Completion::Completed(completed) = identified.complete(Deadline::Open) {
                break (completed.name().stack.frames, before);
            }
            self.symbolizer.take_rows(|key| find(&self.table, key), None);
            std::thread::sleep(Duration::from_millis(1));
        };
        let was_told = self.ambiguous() > before;
        let Some(name) =
            frames.iter().find(|frame| frame.kind == FrameKind::Jit).map(|frame| &frame.lines[0].name)
        else {
            return;
        };
        let caller = self.callers.iter().position(|caller| {
            let mut addresses = sample.addresses();
            addresses.any(|address| caller.contains(&address.0))
        });
        let Some(caller) = caller else { return };
        let verdict = &mut self.verdict;
        if **name == *"[jit: unknown]" {
            verdict.unknown += 1;
            return;
        }
        let is_right = **name == *["jit_a", "jit_b"][caller];
        verdict.right += u64::from(is_right);
        verdict.wrong += u64::from(!is_right);
        verdict.ambiguous += u64::from(was_told);
        verdict.wrong_but_certain += u64::from(!is_right && !was_told);
    }
}

/// Where a program that isn't moved has its functions.
fn functions(program: &Path, names: [&str; 2]) -> [Range<u64>; 2] {
    let output =
        Command::new("nm").args(["-S", "--defined-only"]).arg(program).output().expect("nm is there");
    let text = String::from_utf8(output.stdout).expect("text");
    names.map(|name| {
        let line = text.lines().find(|line| line.split(' ').next_back() == Some(name)).expect("the function");
        let numbers: Vec<u64> = line.split(' ').filter_map(|it| u64::from_str_radix(it, 16).ok()).collect();
        numbers[0]..numbers[0] + numbers[1]
    })
}

/// A command that begins when its pipe closes.
fn gated(command: &[&str]) -> Child {
    let mut shell = Command::new("sh");
    shell.args(["-c", r#"read go; exec "$@""#, "sh"]).args(command);
    shell.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().expect("sh is there")
}

fn judged(mode: &str, a: &str, b: &str, turns: &str) -> Verdict {
    let directory = scratch();
    let program = program(directory.path());
    let mut child = gated(&[&program.display().to_string(), mode, a, b, turns]);
    let pid = child.id();
    let mut judge = Judge {
        table: ProcessTable::new(8 << 20),
        symbolizer: Symbolizer::new(&SymbolMemoryLimits::of_files(32 << 20)),
        callers: functions(&program, ["run_a", "run_b"]),
        verdict: Verdict::default(),
    };
    let options =
        SamplerOptions { pids: Some(vec![pid]), ring_bytes: 4 << 20, ..SamplerOptions::of_cpu_time(997) };
    let fill =
        |tables| judge.symbolizer.fill(tables, UrgentCpu::new(DEFAULT_URGENT_PERCENT)).expect("a thread");
    let mut sampler = Sampler::start(&options, fill).expect("the kernel lets root sample");
    drop(child.stdin.take());
    // What is named soon may not have been read; what is named late has changed since.
    for pause_ms in [1, 5, 25, 125].into_iter().cycle() {
        std::thread::sleep(Duration::from_millis(pause_ms));
        sampler.poll(&mut |event| judge.handle(event));
        if child.try_wait().expect("a child").is_some() {
            break;
        }
    }
    sampler.stop(&mut |event| judge.handle(event));
    left::remove_left(pid);
    println!("{mode} {a} {b}: {:?}", judge.verdict);
    judge.verdict
}

/// Ends the threads that keep the machine busy, after work that panics, too.
struct BusyUntilDropped<'a>(&'a AtomicBool);

impl Drop for BusyUntilDropped<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// While other threads keep the machine busy, or not.
fn beside(threads: usize, work: impl FnOnce()) {
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _busy = BusyUntilDropped(&is_over);
        for _ in 0..threads {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        work();
    });
}

#[test]
fn each_sample_that_a_perf_map_names_wrongly_is_one_of_those_counted_as_ambiguous() {
    let mut wrong = 0;
    for threads in [0, 4] {
        for (a, b, turns) in [("300", "100", "8"), ("30", "10", "75")] {
            let mut verdict = Verdict::default();
            beside(threads, || verdict = judged("perfmap", a, b, turns));
            assert_eq!((verdict.wrong_but_certain, verdict.unknown), (0, 0), "{verdict:?}");
            assert!(verdict.right > 1000 && verdict.ambiguous > 0, "{verdict:?}");
            wrong += verdict.wrong;
        }
    }
    println!("{wrong} wrong, all of them told");
}

#[test]
fn each_sample_that_a_jitdump_names_is_right_and_certain() {
    let verdict = judged("jitdump", "30", "10", "75");
    assert_eq!((verdict.wrong, verdict.ambiguous, verdict.unknown), (0, 0, 0), "{verdict:?}");
    assert!(verdict.right > 1000, "{verdict:?}");
}
