//! A wait that spans windows. By the pipeline of one process: of a host's threads that wait, a
//! daemon inspects some 200, chosen by chance.

use std::fs;
use std::time::{Duration, Instant};

use jvmprof_daemon::event_type::EventType;
use jvmprof_daemon::own_process::DEFAULT_URGENT_PERCENT;
use jvmprof_daemon::pipeline::allocation::AllocationOptions;
use jvmprof_daemon::pipeline::labels::LabelOptions;
use jvmprof_daemon::pipeline::off_cpu::{OffCpuOptions, wait_of};
use jvmprof_daemon::pipeline::thread_contexts::ThreadContextOptions;
use jvmprof_daemon::pipeline::{MemoryLimits, Pipeline, PipelineOptions, WindowProfiles};
use jvmprof_daemon::sampler::SamplerOptions;
use jvmprof_daemon::symbolize::NativeOptions;

use crate::support::{Workload, compile, scratch};

/// Is stuck twice once there is a file, and writes for how many nanoseconds each time.
const STUCK: &str = r#"
#include <stdio.h>
#include <time.h>
#include <unistd.h>
static double now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec * 1e9 + t.tv_nsec; }
static void rest(long ms) { struct timespec t = { ms / 1000, ms % 1000 * 1000000 }; nanosleep(&t, NULL); }
static void begins(const char *go) { while (access(go, F_OK)) rest(10); }
static void stuck_first(void) { rest(5000); }
static void stuck_again(void) { rest(2500); }
int main(int argc, char **argv) {
    begins(argv[1]);
    double began = now();
    stuck_first();
    double first = now();
    stuck_again();
    double again = now();
    FILE *file = fopen(argv[2], "w");
    fprintf(file, "%.0f %.0f\n", first - began, again - first);
    fclose(file);
    for (;;) rest(10);
}
"#;

const WINDOW: Duration = Duration::from_millis(1500);
/// What the clocks of a test may add to a window's length.
const CLOCKS_NS: f64 = 1e6;
/// A wait that is shorter when a window ends isn't inspected: all of it is in the next one.
const SHORT_NS: f64 = 100e6;

/// A window that has ended: the shortest and the longest time that it may be of, and the waits of
/// it in each function, with the number of sleeps among them.
#[derive(Debug)]
struct Window {
    length_ns: [f64; 2],
    waited_ns: [f64; 2],
    sleeps: [u64; 2],
}

fn options(pid: u32) -> PipelineOptions {
    PipelineOptions {
        sampler: SamplerOptions { pids: Some(vec![pid]), off_cpu: true, ..SamplerOptions::of_cpu_time(49) },
        memory: MemoryLimits::new(64 << 20, None),
        urgent_percent: DEFAULT_URGENT_PERCENT,
        labels: LabelOptions::plain("here".to_owned()),
        java_frame_types: false,
        native: NativeOptions::default(),
        containers: None,
        allocation: AllocationOptions::default(),
        off_cpu: OffCpuOptions { max_inspections: u64::MAX, ..OffCpuOptions::default() },
        thread_context: ThreadContextOptions::default(),
    }
}

impl Window {
    /// Sums the waits in the function `stuck_first`, and in `stuck_again`.
    fn new(flushed: WindowProfiles, length_ns: [f64; 2]) -> Self {
        let batches: Vec<_> = flushed.into_batches().filter(|it| it.event == EventType::OffCpu).collect();
        let mut window = Self { length_ns, waited_ns: [0.0; 2], sleeps: [0; 2] };
        for sample in batches.iter().flat_map(|batch| &batch.series).flat_map(|series| &series.samples) {
            let has = |function: &str| {
                let mut lines = sample.frames.iter().flat_map(|frame| &frame.lines);
                lines.any(|line| &*line.name == function)
            };
            let Some(at) = ["stuck_first", "stuck_again"].into_iter().position(has) else {
                continue;
            };
            window.waited_ns[at] += sample.value as f64;
            window.sleeps[at] += if wait_of(sample) == Some("sleep") { sample.count } else { 0 };
        }
        window
    }
}

#[test]
fn a_wait_that_spans_windows_is_in_each_of_them_and_nothing_of_it_twice() {
    let dir = scratch();
    let (go, sums) = (dir.path().join("go"), dir.path().join("sums"));
    let program = compile(dir.path(), "stuck", STUCK, &["-O0"]);
    let files = [&go, &sums].map(|path| path.to_str().expect("a path in UTF-8"));
    let program = Workload::start(&program, &files);
    let mut pipeline = Pipeline::start(&options(program.pid())).expect("the kernel lets root sample");
    let mut windows = Vec::new();
    let mut last = [Instant::now(); 2];
    let ns = |duration: Duration| duration.as_nanos() as f64;
    while windows.len() < 12 {
        let is_last = sums.exists();
        let end = Instant::now() + WINDOW;
        while Instant::now() < end {
            pipeline.poll(Duration::from_millis(200));
            std::thread::sleep(Duration::from_millis(20));
        }
        if is_last {
            pipeline.stop(Duration::from_secs(10));
        }
        let before = Instant::now();
        let flushed = pipeline.flush();
        let after = Instant::now();
        let length_ns = [ns(before.duration_since(last[1])), ns(after.duration_since(last[0]))];
        windows.push(Window::new(flushed, length_ns));
        last = [before, after];
        // The process is known by now.
        fs::write(&go, "").expect("the folder is writable");
        if is_last {
            break;
        }
    }
    let measured = fs::read_to_string(&sums).expect("it was stuck twice");
    let measured: Vec<f64> = measured.split_whitespace().map(|sum| sum.parse().expect("a number")).collect();
    for (function, measured) in measured.iter().enumerate() {
        let parts: Vec<&Window> = windows.iter().filter(|it| it.waited_ns[function] > 0.0).collect();
        let sum: f64 = parts.iter().map(|window| window.waited_ns[function]).sum();
        println!("{:.5} of {measured} ns in {} windows: {windows:#?}", sum / measured, parts.len());
        assert!((sum / measured - 1.0).abs() < 0.01, "{sum} of {measured} ns: {windows:#?}");
        let sleeps: u64 = windows.iter().map(|window| window.sleeps[function]).sum();
        assert_eq!(sleeps, 1, "it is one wait, in however many parts: {windows:#?}");
        for window in &parts {
            let longest = window.length_ns[1] + SHORT_NS + CLOCKS_NS;
            assert!(window.waited_ns[function] < longest, "more than the window: {windows:#?}");
        }
        // In a window between others it waited all the time. The wait may have ended in the last
        // but one: its end arrives some time later.
        let first = windows.iter().position(|it| it.waited_ns[function] > 0.0).expect("it waited");
        let last = windows.iter().rposition(|it| it.waited_ns[function] > 0.0).expect("it waited");
        assert!(last > first, "in one window only: {windows:#?}");
        for window in &windows[first + 1..(last - 1).max(first + 1)] {
            let shortest = window.length_ns[0] - CLOCKS_NS;
            assert!(window.waited_ns[function] > shortest, "less than the window: {windows:#?}");
        }
    }
    let waited_in = |function: usize| windows.iter().filter(move |it| it.waited_ns[function] > 0.0);
    // 5 s are in three windows of 1.5 s at least, and in fewer if the machine made them longer.
    let longest = waited_in(0).map(|it| it.length_ns[1]).fold(0.0, f64::max);
    let least = (measured[0] / longest) as usize;
    assert!(waited_in(0).count() >= least.max(2), "{least} windows at least: {windows:#?}");
    let in_both = waited_in(0).filter(|it| it.waited_ns[1] > 0.0).count();
    assert!(in_both <= 2, "one came after the other: {windows:#?}");
}
