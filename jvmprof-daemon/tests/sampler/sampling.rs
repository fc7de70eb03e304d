//! The sampler against the running kernel. Needs root (or CAP_BPF, CAP_PERFMON), like the profiler
//! itself.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use jvmprof_common::abi::{Counter, Stop};
use jvmprof_daemon::sampler::{
    BackgroundSampler, KernelEvent, KernelEventKind, QueueLimits, Sampler, SamplerOptions,
};

fn start(pids: Option<Vec<u32>>) -> Sampler {
    let options = SamplerOptions {
        frequency: 199,
        pids,
        ring_bytes: 1 << 20,
        allocation: false,
        off_cpu: false,
        monitor_owners: false,
        pauses: false,
        thread_context: false,
        kernel_log: false,
    };
    Sampler::start(&options, drop).expect("the kernel lets root sample")
}

fn busy_shell() -> Child {
    Command::new("sh").args(["-c", "while :; do :; done"]).stdin(Stdio::null()).spawn().expect("sh is there")
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

#[test]
fn only_the_wanted_process_is_sampled_and_every_sample_arrives() {
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
    assert_eq!((counts.malformed.total(), counts.late), (0, 0));
}

#[test]
fn what_is_let_go_of_at_the_end_is_counted() {
    let mut busy = busy_shell();
    let options = SamplerOptions {
        frequency: 199,
        pids: Some(vec![busy.id()]),
        ring_bytes: 1 << 20,
        allocation: false,
        off_cpu: false,
        monitor_owners: false,
        pauses: false,
        thread_context: false,
        kernel_log: false,
    };
    let limits = QueueLimits { samples: 16 << 20, events: 4 << 20 };
    let mut sampler = BackgroundSampler::start(&options, Duration::from_millis(100), limits, drop)
        .expect("the kernel lets root sample");
    while sampler.counts().get(Counter::Taken) < 20 {
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

#[test]
fn a_command_is_seen_from_exec_to_exit_in_order_with_its_samples() {
    let mut sampler = start(None);
    let mut child = Command::new("sh")
        .args(["-c", "i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done"])
        .spawn()
        .expect("sh");
    let pid = child.id();
    child.wait().expect("the child ends by itself");
    let events = collect(&mut sampler, Duration::from_millis(200));
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
        .args(["-c", "read go; sh -c 'while :; do :; done' & child=$!; sleep 1; kill $child"])
        .stdin(Stdio::piped())
        .spawn()
        .expect("sh is there");
    let mut sampler = start(Some(vec![parent.id()]));
    drop(parent.stdin.take());
    let events = collect(&mut sampler, Duration::from_millis(800));
    parent.wait().expect("the parent ends by itself");
    let of_children = events
        .iter()
        .filter(|event| matches!(&event.kind, KernelEventKind::Sample(sample) if sample.header.pid != parent.id()))
        .count();
    assert!(of_children > 20, "{of_children} samples of the busy child");
}
