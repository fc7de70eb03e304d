//! The sampler against the running kernel. Needs root (or CAP_BPF, CAP_PERFMON), like the profiler
//! itself.

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use jvmprof_common::abi::{Counter, Stop};
use jvmprof_daemon::sampler::{
    BackgroundSampler, KernelEvent, KernelEventKind, QueueLimits, Sampler, SamplerOptions,
};
use nix::sys::signal::{self, Signal};
use nix::unistd::Pid;

use crate::support::KilledChild;

/// Long enough for everything, also on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

fn start(pids: Option<Vec<u32>>) -> Sampler {
    let options = SamplerOptions { pids, ..SamplerOptions::of_cpu_time(199) };
    Sampler::start(&options, drop).expect("the kernel lets root sample")
}

fn busy_shell() -> KilledChild {
    let shell = Command::new("sh").args(["-c", "while :; do :; done"]).stdin(Stdio::null()).spawn();
    KilledChild(shell.expect("sh is there"))
}

fn collect(sampler: &mut Sampler, time: Duration) -> Vec<KernelEvent> {
    let mut events = Vec::new();
    let end = Instant::now() + time;
    while Instant::now() < end {
        std::thread::sleep(Duration::from_millis(20));
        sampler.poll(&mut |event| events.push(event));
    }
    sampler.stop(&mut |event| events.push(event));
    events
}

/// Returns the number of events that came after later ones.
fn out_of_order(events: &[KernelEvent]) -> u64 {
    let mut latest = 0;
    let is_late = |event: &&KernelEvent| {
        let is_late = event.time_ns < latest;
        latest = latest.max(event.time_ns);
        is_late
    };
    events.iter().filter(is_late).count() as u64
}

#[test]
fn only_the_wanted_process_is_sampled_and_every_sample_arrives() {
    let began = Instant::now();
    // A CPU that the hypervisor stops between a record's time and its writing makes it late.
    loop {
        let late = sample_one_of_two();
        if late == 0 {
            return;
        }
        assert!(began.elapsed() < PATIENCE, "{late} events were late, and some each time");
    }
}

/// Samples one of two busy processes, and returns how many events were late.
fn sample_one_of_two() -> u64 {
    let (mut wanted, mut other) = (busy_shell(), busy_shell());
    let mut sampler = start(Some(vec![wanted.id()]));
    let events = collect(&mut sampler, Duration::from_secs(1));
    for child in [&mut wanted, &mut other] {
        child.kill().expect("the child runs");
        child.wait().expect("the child can be waited for");
    }
    let pids: Vec<u32> = events
        .iter()
        .filter_map(|event| match &event.kind {
            KernelEventKind::Sample(sample) => Some(sample.header.pid),
            _ => None,
        })
        .collect();
    assert!(!pids.is_empty());
    assert!(pids.iter().all(|pid| *pid == wanted.id()), "a process that wasn't asked for was sampled");
    let counts = sampler.counts();
    assert_eq!(counts.get(Counter::Taken), pids.len() as u64);
    assert_eq!(counts.get(Counter::Emitted), pids.len() as u64);
    assert!(counts.get(Counter::Filtered) > 0, "the other process ran too");
    assert_eq!(counts.stops().iter().sum::<u64>(), pids.len() as u64, "each walk ended for a counted reason");
    assert_eq!((counts.malformed.total(), counts.late), (0, out_of_order(&events)));
    counts.late
}

#[test]
fn what_is_let_go_of_at_the_end_is_counted() {
    let mut busy = busy_shell();
    let options = SamplerOptions { pids: Some(vec![busy.id()]), ..SamplerOptions::of_cpu_time(199) };
    let limits = QueueLimits { samples: 16 << 20, events: 4 << 20 };
    let mut sampler = BackgroundSampler::start(&options, Duration::from_millis(100), limits, drop)
        .expect("the kernel lets root sample");
    let began = Instant::now();
    while sampler.counts().get(Counter::Taken) < 20 {
        assert!(began.elapsed() < PATIENCE, "{:?}", sampler.counts());
        std::thread::sleep(Duration::from_millis(20));
    }
    busy.kill().expect("the child runs");
    busy.wait().expect("the child can be waited for");
    sampler.stop();
    sampler.shed_queued();
    let counts = sampler.counts();
    assert_eq!((counts.shed.total(), sampler.queued_bytes()), (counts.get(Counter::Emitted), 0));
    assert!(sampler.take().is_none());
}

/// More than the 16,384 processes that there is room for at a time.
#[test]
fn however_many_children_have_ended_the_next_one_is_sampled() {
    let script = "read line; i=0; while [ $i -lt 18000 ]; do (:); i=$((i+1)); done
        sh -c 'while :; do :; done' & echo $!; wait";
    let mut shell = Command::new("sh");
    shell.args(["-c", script]).stdin(Stdio::piped()).stdout(Stdio::piped()).process_group(0);
    let mut shell = shell.spawn().expect("sh is there");
    let mut sampler = start(Some(vec![shell.id()]));
    drop(shell.stdin.take());
    let stdout = shell.stdout.take().expect("it is piped");
    let last = std::thread::spawn(move || BufReader::new(stdout).lines().next());
    let poll = |sampler: &mut Sampler, of: Option<u32>| {
        let mut samples = 0;
        sampler.poll(&mut |event| {
            if let KernelEventKind::Sample(sample) = event.kind {
                samples += u32::from(Some(sample.header.pid) == of);
            }
        });
        samples
    };
    while !last.is_finished() {
        std::thread::sleep(Duration::from_millis(5));
        poll(&mut sampler, None);
    }
    let last = last.join().expect("it doesn't panic").expect("it says it").expect("it is text");
    let last = last.parse().expect("a pid");
    let (began, mut of_last) = (Instant::now(), 0);
    while of_last < 5 && began.elapsed() < PATIENCE {
        std::thread::sleep(Duration::from_millis(20));
        of_last += poll(&mut sampler, Some(last));
    }
    let counts = sampler.counts();
    sampler.stop(&mut |_| {});
    signal::killpg(Pid::from_raw(shell.id().cast_signed()), Signal::SIGKILL).expect("they are ours");
    shell.wait().expect("it has ended");
    assert_eq!(counts.get(Counter::FilterFull), 0);
    assert!(of_last >= 5, "the last of its children isn't sampled");
}

#[test]
fn samples_and_process_events_go_on_after_a_suspend() {
    let mut busy = busy_shell();
    let mut sampler = start(Some(vec![busy.id()]));
    let (mut samples, mut execs) = (0, 0);
    for is_later in [false, true] {
        if is_later {
            sampler.reattach_cpus().expect("the kernel lets root sample");
        }
        let (began, before) = (Instant::now(), (samples, execs));
        while samples < before.0 + 20 || execs == before.1 {
            assert!(began.elapsed() < PATIENCE, "{samples} samples, {execs} execs");
            assert!(Command::new("true").status().expect("true is there").success());
            std::thread::sleep(Duration::from_millis(20));
            sampler.poll(&mut |event| match event.kind {
                KernelEventKind::Sample(_) => samples += 1,
                KernelEventKind::Exec { .. } => execs += 1,
                _ => {}
            });
        }
    }
    let last = collect(&mut sampler, Duration::from_millis(100));
    busy.kill().expect("the child runs");
    busy.wait().expect("the child can be waited for");
    samples += last.iter().filter(|event| matches!(event.kind, KernelEventKind::Sample(_))).count();
    assert_eq!(sampler.counts().get(Counter::Taken), samples as u64, "none is lost");
}

#[test]
fn a_command_is_seen_from_exec_to_exit_in_order_with_its_samples() {
    let mut sampler = start(None);
    let mut child = Command::new("sh")
        .args(["-c", "i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done"])
        .spawn()
        .expect("sh");
    let pid = child.id();
    child.wait().expect("the child ends by itself");
    // The rings have all of it, and in order, however long ago the first of it was.
    let events = collect(&mut sampler, Duration::ZERO);
    assert!(events.is_sorted_by_key(|event| event.time_ns));
    let mut seen = Vec::new();
    for event in &events {
        match &event.kind {
            KernelEventKind::Exec { pid: of, comm } if *of == pid => {
                assert_eq!(comm, "sh");
                seen.push("exec");
            }
            KernelEventKind::Map { pid: of, mapping } if *of == pid && mapping.path.contains("libc.so") => {
                assert!(mapping.build_id.is_some(), "the kernel tells libc's build id");
                seen.push("libc");
            }
            KernelEventKind::Sample(sample) if sample.header.pid == pid && sample.comm() == "sh" => {
                assert!(sample.header.start_ns > 0);
                assert_ne!(sample.stop, Stop::KernelThread);
                // The kernel tells of the exit some time before the process runs for the last time,
                // without its memory.
                seen.push(if sample.stop == Stop::NoMemory { "exiting" } else { "sample" });
            }
            KernelEventKind::Exit { pid: of, .. } if *of == pid => seen.push("exit"),
            _ => {}
        }
    }
    seen.dedup();
    let exec = seen.iter().position(|it| *it == "exec").expect("exec was seen");
    let libc = seen.iter().position(|it| *it == "libc").expect("libc's mapping was seen");
    let exit = seen.iter().position(|it| *it == "exit").expect("exit was seen");
    let sample = seen.iter().rposition(|it| *it == "sample").expect("the loop was sampled");
    assert!(exec < libc && libc < sample && sample < exit, "{seen:?}");
}

#[test]
fn children_of_a_wanted_process_are_sampled_too() {
    let mut parent = Command::new("sh")
        .args(["-c", "read go; sh -c 'while :; do :; done' & child=$!; read end; kill $child"])
        .stdin(Stdio::piped())
        .spawn()
        .expect("sh is there");
    let mut sampler = start(Some(vec![parent.id()]));
    let mut stdin = parent.stdin.take().expect("it is piped");
    stdin.write_all(b"\n").expect("it reads");
    let (began, mut of_children) = (Instant::now(), 0);
    while of_children <= 20 {
        assert!(began.elapsed() < PATIENCE, "{of_children} samples of the busy child");
        std::thread::sleep(Duration::from_millis(20));
        sampler.poll(&mut |event| {
            let is_of_child =
                matches!(&event.kind, KernelEventKind::Sample(sample) if sample.header.pid != parent.id());
            of_children += u32::from(is_of_child);
        });
    }
    drop(stdin);
    parent.wait().expect("the parent ends by itself");
}
