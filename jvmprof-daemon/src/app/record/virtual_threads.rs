//! Virtual threads that wait and aren't mounted, in a recording's summary.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::hotspot::CensusTimes;
use crate::own_process::stderr_line;
use crate::pipeline::Pipeline;
use crate::pipeline::off_cpu::{VirtualThreadCensus, virtual_wait};
use crate::symbolize::{NamedVirtualThreads, NamedWaitingStack};

/// Interval of counting: it reads much of a JVM's memory, and only the last result is shown.
const INTERVAL: Duration = Duration::from_secs(10);
/// Rows of the table of a JVM.
const ROWS: usize = 14;
/// JVMs that are printed.
const PRINTED: usize = 5;
/// The time for one census while samples come in, whose buffers are left alone meanwhile, ...
const WHILE_RECORDING: CensusTimes =
    CensusTimes { sets: Duration::from_secs(1), stacks: Duration::from_millis(150) };
/// ... and at the end, when none come any more.
const AT_END: CensusTimes = CensusTimes { sets: Duration::from_secs(3), stacks: Duration::from_secs(3) };
const UNKNOWN: &str = "[unknown]";
/// Packages whose methods say little of the program, and those by which all threads wait.
const JDK: [&str; 3] = ["java.", "jdk.internal.", "sun."];
const WAITING: [&str; 3] = ["java.lang.", "java.util.concurrent.", "jdk.internal."];

/// Counts the virtual threads of JVMs, seldom, and keeps the last result of each.
#[derive(Debug)]
pub(super) struct VirtualThreadCounts {
    began: Instant,
    next: Instant,
    jvms: HashMap<u32, VirtualThreadSummary>,
}

/// The virtual threads of a JVM; numbers of threads are rounded estimates if `is_estimate`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct VirtualThreadSummary {
    pid: u32,
    /// When they were counted, since the recording began; if they never could be, when that was
    /// tried last.
    at_ms: u64,
    /// Those that wait and aren't mounted, those that could run and aren't, and the rest.
    waiting: u64,
    runnable: u64,
    mounted: u64,
    is_estimate: bool,
    /// Stacks that were taken of those that wait, and those of them that reach the thread's root.
    stacks: u64,
    whole_stacks: u64,
    /// Where they wait, the most first.
    waits: Vec<VirtualWaitRow>,
    /// The numbers of `waits` are estimates: `is_estimate`, or not each thread's stack was taken.
    waits_are_estimates: bool,
    /// Why they could not be counted when that was tried last.
    #[serde(skip_serializing_if = "Option::is_none")]
    problem: Option<&'static str>,
    /// When that was, if the numbers are of an earlier count.
    #[serde(skip_serializing_if = "Option::is_none")]
    failed_at_ms: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct VirtualWaitRow {
    /// As the label `wait`.
    wait: &'static str,
    /// The class of what they were parked with.
    #[serde(skip_serializing_if = "Option::is_none")]
    blocker: Option<String>,
    /// The first method that isn't the JDK's, if there is one.
    method: String,
    threads: u64,
    /// The methods of the most frequent stack, leaf first.
    stack: Vec<String>,
}

impl VirtualThreadCounts {
    pub(super) fn begin() -> Self {
        let now = Instant::now();
        Self { began: now, next: now + INTERVAL, jvms: HashMap::new() }
    }

    /// Counts if it is time to.
    pub(super) fn refresh(&mut self, pipeline: &mut Pipeline) {
        if Instant::now() >= self.next {
            self.count(pipeline, WHILE_RECORDING);
            self.next = Instant::now() + INTERVAL;
        }
    }

    fn count(&mut self, pipeline: &mut Pipeline, times: CensusTimes) {
        let at_ms = u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX);
        for (pid, census) in pipeline.virtual_threads(times) {
            let summary = VirtualThreadSummary::new(pid, at_ms, &census);
            match self.jvms.get_mut(&pid) {
                Some(before) if summary.problem.is_some() => before.note_failure(&summary),
                _ => _ = self.jvms.insert(pid, summary),
            }
        }
    }

    /// Counts a last time, and returns the JVMs that have virtual threads, those with most first.
    pub(super) fn end(mut self, pipeline: &mut Pipeline) -> Vec<VirtualThreadSummary> {
        self.count(pipeline, AT_END);
        let mut jvms: Vec<VirtualThreadSummary> = self.jvms.into_values().collect();
        jvms.retain(|jvm| jvm.problem.is_some() || jvm.waiting + jvm.runnable + jvm.mounted > 0);
        jvms.sort_unstable_by_key(|jvm| (std::cmp::Reverse(jvm.waiting), jvm.pid));
        jvms
    }
}

impl VirtualThreadSummary {
    fn new(pid: u32, at_ms: u64, census: &VirtualThreadCensus) -> Self {
        let NamedVirtualThreads { threads, stacks } = match census {
            Ok(census) => census,
            Err(error) => return Self { pid, at_ms, problem: Some(error.as_str()), ..Self::default() },
        };
        Self {
            pid,
            at_ms,
            waiting: rounded(threads.waiting),
            runnable: rounded(threads.runnable),
            mounted: rounded(threads.mounted),
            is_estimate: threads.is_estimate,
            stacks: stacks.len() as u64,
            whole_stacks: stacks.iter().filter(|stack| stack.is_whole).count() as u64,
            waits: rows(stacks),
            waits_are_estimates: threads.is_estimate || (stacks.len() as f64) < threads.waiting,
            problem: None,
            failed_at_ms: None,
        }
    }

    /// Keeps the numbers that there are, and says that a later count failed.
    fn note_failure(&mut self, failed: &Self) {
        let has_numbers = self.problem.is_none() || self.failed_at_ms.is_some();
        self.problem = failed.problem;
        if has_numbers {
            self.failed_at_ms = Some(failed.at_ms);
        } else {
            self.at_ms = failed.at_ms;
        }
    }

    /// Prints the first JVMs.
    pub(super) fn print(jvms: &[Self]) {
        for jvm in &jvms[..jvms.len().min(PRINTED)] {
            jvm.lines().iter().for_each(|line| stderr_line!("{line}"));
        }
    }

    fn lines(&self) -> Vec<String> {
        if let (Some(problem), None) = (self.problem, self.failed_at_ms) {
            return vec![format!("virtual threads of {} can't be counted: {problem}", self.pid)];
        }
        let about = if self.is_estimate { "about " } else { "" };
        let mut lines = vec![format!(
            "{about}{} virtual threads of {} wait without a carrier, {} could run, {} are mounted; {} stacks taken",
            self.waiting, self.pid, self.runnable, self.mounted, self.stacks
        )];
        let row = |row: &VirtualWaitRow| {
            let blocker = row.blocker.as_ref().map_or_else(String::new, |class| format!(": {class}"));
            let threads = format!("{}{}", if self.waits_are_estimates { "~" } else { "" }, row.threads);
            format!("{threads:>9}  {}{blocker} in {}", row.wait, row.method)
        };
        lines.extend(self.waits.iter().map(row));
        if let (Some(problem), Some(failed_at_ms)) = (self.problem, self.failed_at_ms) {
            let seconds = |ms: u64| ms as f64 / 1000.0;
            lines.push(format!(
                "these numbers are of {:.1} s; at {:.1} s they could not be counted: {problem}",
                seconds(self.at_ms),
                seconds(failed_at_ms)
            ));
        }
        lines
    }
}

fn rounded(threads: f64) -> u64 {
    threads.round() as u64
}

/// Cause, blocker and method.
type WaitSite<'a> = (&'static str, Option<&'a str>, &'a str);
/// Numbers of threads by their stacks.
type ThreadsByStack<'a> = HashMap<Vec<&'a str>, f64>;

/// Returns where threads wait, the most first.
fn rows(stacks: &[NamedWaitingStack]) -> Vec<VirtualWaitRow> {
    let mut by_place: HashMap<WaitSite<'_>, ThreadsByStack<'_>> = HashMap::new();
    for stack in stacks {
        let wait = virtual_wait(stack.state, &stack.methods).as_str();
        let names: Vec<&str> = stack.methods.iter().map(|name| name.as_deref().unwrap_or(UNKNOWN)).collect();
        let first_beyond = |packages: &[&str]| {
            names.iter().copied().find(|name| !packages.iter().any(|package| name.starts_with(package)))
        };
        let method = first_beyond(&JDK).or_else(|| first_beyond(&WAITING)).unwrap_or(UNKNOWN);
        let place = by_place.entry((wait, stack.blocker.as_deref(), method)).or_default();
        *place.entry(names).or_default() += stack.threads;
    }
    let row = |((wait, blocker, method), stacks): (WaitSite<'_>, ThreadsByStack<'_>)| {
        let threads = rounded(stacks.values().sum());
        let most = stacks
            .into_iter()
            .max_by(|one, other| one.1.total_cmp(&other.1).then_with(|| one.0.cmp(&other.0)));
        let stack = most.map(|(names, _)| names.into_iter().map(str::to_owned).collect());
        VirtualWaitRow {
            wait,
            blocker: blocker.map(str::to_owned),
            method: method.to_owned(),
            threads,
            stack: stack.unwrap_or_default(),
        }
    };
    let mut rows: Vec<VirtualWaitRow> = by_place.into_iter().map(row).collect();
    rows.sort_unstable_by(|a, b| b.threads.cmp(&a.threads).then_with(|| a.method.cmp(&b.method)));
    rows.truncate(ROWS);
    rows
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hotspot::{VirtualThreads, VirtualThreadsError};

    fn stack(threads: f64, state: &'static str, blocker: Option<&str>, names: &[&str]) -> NamedWaitingStack {
        NamedWaitingStack {
            threads,
            state,
            blocker: blocker.map(Into::into),
            methods: names.iter().map(|name| Some((*name).into())).collect(),
            is_whole: true,
        }
    }

    #[test]
    fn threads_are_counted_by_what_they_wait_for_and_the_programs_method() {
        let park = "java.util.concurrent.locks.LockSupport.park";
        let lock = Some("java.util.concurrent.locks.ReentrantLock$NonfairSync");
        let stacks = vec![
            stack(2.0, "PARKED", lock, &[park, "java.util.concurrent.locks.ReentrantLock.lock", "Shop.buy"]),
            stack(3.0, "PARKED", lock, &[park, "Shop.buy", "Shop.main"]),
            stack(1.0, "BLOCKED", None, &["java.util.Vector.add", "Shop.sell"]),
        ];
        let threads = VirtualThreads { waiting: 6.0, mounted: 1.0, ..VirtualThreads::default() };
        let summary = VirtualThreadSummary::new(7, 0, &Ok(NamedVirtualThreads { threads, stacks }));
        assert_eq!(
            summary.lines(),
            [
                "6 virtual threads of 7 wait without a carrier, 0 could run, 1 are mounted; 3 stacks taken",
                "       ~5  park: java.util.concurrent.locks.ReentrantLock$NonfairSync in Shop.buy",
                "       ~1  monitor in Shop.sell",
            ]
        );
        assert_eq!(summary.waits[0].stack, [park, "Shop.buy", "Shop.main"]);
    }

    #[test]
    fn what_could_not_be_counted_is_said() {
        let mut summary = VirtualThreadSummary::new(7, 0, &Err(VirtualThreadsError::Slow));
        summary.note_failure(&VirtualThreadSummary::new(7, 9, &Err(VirtualThreadsError::Collected)));
        assert_eq!(
            summary.lines(),
            ["virtual threads of 7 can't be counted: collections follow one another too quickly"]
        );
        assert_eq!((summary.at_ms, summary.failed_at_ms), (9, None));
    }

    #[test]
    fn rows_are_estimates_where_not_each_stack_was_taken() {
        let stacks = vec![stack(300.0, "BLOCKED", None, &["Shop.sell"])];
        let threads = VirtualThreads { waiting: 300.0, ..VirtualThreads::default() };
        let summary = VirtualThreadSummary::new(7, 0, &Ok(NamedVirtualThreads { threads, stacks }));
        assert!(summary.waits_are_estimates && !summary.is_estimate);
        assert_eq!(
            summary.lines(),
            [
                "300 virtual threads of 7 wait without a carrier, 0 could run, 0 are mounted; 1 stacks taken",
                "     ~300  monitor in Shop.sell",
            ]
        );
    }

    #[test]
    fn a_later_failure_stands_beside_the_earlier_numbers() {
        let stacks = vec![stack(1.0, "BLOCKED", None, &["Shop.sell"])];
        let threads = VirtualThreads { waiting: 1.0, ..VirtualThreads::default() };
        let counted = Ok(NamedVirtualThreads { threads, stacks });
        let mut summary = VirtualThreadSummary::new(7, 10_040, &counted);
        for at_ms in [20_000, 30_120] {
            summary.note_failure(&VirtualThreadSummary::new(7, at_ms, &Err(VirtualThreadsError::Moving)));
        }
        assert_eq!(
            summary.lines(),
            [
                "1 virtual threads of 7 wait without a carrier, 0 could run, 0 are mounted; 1 stacks taken",
                "        1  monitor in Shop.sell",
                "these numbers are of 10.0 s; at 30.1 s they could not be counted: objects are being moved, \
                 or can't be read",
            ]
        );
    }
}
