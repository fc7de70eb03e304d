//! What tests wait for instead of a time, in which a busy machine may not have come so far; and
//! what the kernel counts of processes and their threads.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::process::{Child, ExitStatus};
use std::time::{Duration, Instant};

use nix::time::{ClockId, clock_gettime};
use procfs::CurrentSI as _;
use procfs::process::Process;

/// Longest time in which something is looked for again and again: that of a machine with much else
/// to do.
pub(crate) const LONGEST_WAIT: Duration = Duration::from_secs(60);
/// Longest time until something comes true that does so on any machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);
/// Interval of looking whether it has.
pub(crate) const INTERVAL: Duration = Duration::from_millis(50);

/// Waits until something is so.
pub(crate) fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < PATIENCE, "not within {PATIENCE:?}: {what}");
        std::thread::sleep(INTERVAL);
    }
}

/// Longest time until a process ends that was asked to: on a busy machine it has much to name, to
/// write and to send.
const LONGEST_END: Duration = Duration::from_secs(180);

/// Waits until a process has ended; `log` is what is known of one that doesn't.
pub(crate) fn until_it_ends(child: &mut Child, log: impl Fn() -> String) -> ExitStatus {
    let began = Instant::now();
    loop {
        if let Some(status) = child.try_wait().expect("it is a child") {
            return status;
        }
        assert!(began.elapsed() < LONGEST_END, "it doesn't end within {LONGEST_END:?}: {}", log());
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn process(pid: u32) -> Process {
    Process::new(pid.cast_signed()).unwrap_or_else(|error| panic!("process {pid}: {error}"))
}

/// Returns for how long a process has had a CPU, with all its threads, to 10 ms.
pub(crate) fn cpu_time(pid: u32) -> Duration {
    let stat = process(pid).stat().unwrap_or_else(|error| panic!("process {pid}: {error}"));
    Duration::from_millis((stat.utime + stat.stime) * 1000 / procfs::ticks_per_second())
}

/// Returns for how long the calling thread has had a CPU: others on the machine make no difference.
pub(crate) fn own_cpu_time() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map(Duration::from).expect("a clock")
}

/// Waits until a process has had a CPU for so long since its start.
pub(crate) fn until_it_has_run(pid: u32, time: Duration) {
    wait_until(&format!("process {pid} runs for {time:?}"), || cpu_time(pid) >= time);
}

/// Waits until a process has had a CPU for so long from now on.
pub(crate) fn let_it_run(pid: u32, time: Duration) {
    until_it_has_run(pid, cpu_time(pid) + time);
}

/// Waits until a recorder or a daemon samples: it has perf events then.
pub(crate) fn until_it_samples(pid: u32) {
    let is_event = |target: PathBuf| target.to_string_lossy().contains("perf_event");
    let files = || fs::read_dir(format!("/proc/{pid}/fd")).expect("it runs").flatten();
    wait_until("it samples", || files().any(|file| fs::read_link(file.path()).is_ok_and(is_event)));
}

/// Returns the processes that a process has started; none once it has ended.
pub(crate) fn children(pid: u32) -> Vec<u32> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten();
    let children = threads.filter_map(|thread| fs::read_to_string(thread.ok()?.path().join("children")).ok());
    children
        .flat_map(|pids| pids.split_whitespace().map(|pid| pid.parse().expect("a pid")).collect::<Vec<_>>())
        .collect()
}

/// A thread as the kernel counts it, in nanoseconds.
#[derive(Clone, Debug)]
pub(crate) struct ThreadCounts {
    pub(crate) name: String,
    /// When it was started, to 10 ms, and when this was read, since the machine's start.
    pub(crate) started: f64,
    pub(crate) read: f64,
    /// For how long it has run, and waited for a CPU.
    pub(crate) ran: f64,
    pub(crate) delayed: f64,
}

/// Returns the threads of a process, by their ids.
pub(crate) fn threads(pid: u32) -> BTreeMap<u32, ThreadCounts> {
    let tasks = process(pid).tasks().expect("the process runs").flatten();
    let counts = |task: procfs::process::Task| {
        let (stat, schedule) = (task.stat().ok()?, task.schedstat().ok()?);
        let since_boot = clock_gettime(ClockId::CLOCK_BOOTTIME).map(Duration::from).expect("a clock");
        let counts = ThreadCounts {
            name: stat.comm,
            started: stat.starttime as f64 * 1e9 / procfs::ticks_per_second() as f64,
            read: since_boot.as_secs_f64() * 1e9,
            ran: schedule.sum_exec_runtime as f64,
            delayed: schedule.run_delay as f64,
        };
        Some((task.tid.cast_unsigned(), counts))
    };
    tasks.filter_map(counts).collect()
}

/// Returns what the hypervisor says that it has taken of all CPUs, in nanoseconds.
pub(crate) fn stolen() -> f64 {
    let steal = procfs::KernelStats::current().ok().and_then(|stats| stats.total.steal);
    steal.unwrap_or_default() as f64 * 1e9 / procfs::ticks_per_second() as f64
}
