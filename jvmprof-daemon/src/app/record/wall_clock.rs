//! Wall-clock time: of each thread, where all its time went, on the CPU and off it.
//!
//! Stacks of CPU time and of waits are samples. How long a thread ran, the kernel counts
//! (`/proc/PID/task/TID/schedstat`, Documentation/scheduler/sched-stats.rst), and the rest of the
//! time that it was there it waited: both kinds of samples are scaled to that, thread by thread.
//!
//! In a virtual machine there is a third part: the thread had its CPU, and the hypervisor ran
//! another machine there. The kernel doesn't count that as time of the thread
//! (`update_rq_clock_task`, kernel/sched/core.c), and by its switches the thread didn't wait.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use jvmprof_common::unwind_tables::NS_PER_TICK;
use nix::time::{ClockId, clock_gettime};
use procfs::CurrentSI;

use super::summary::threads::PID;
use crate::event_type::EventType;
use crate::pipeline::off_cpu::{TotalWaitTime, WAIT_LABEL};
use crate::profile::model::label_names::{THREAD_ID, THREAD_NAME};
use crate::profile::model::{
    Batch, Frame, FrameKind, LabelSet, Line, Sample, SampleLabel, SampleLabels, Series,
};

/// The frame of time of which no stack was taken: too short for that.
const NOT_SAMPLED: &str = "[not sampled]";
/// The cause of such a wait.
const UNSEEN_WAIT: &str = "not_sampled";
/// The frame of time that the hypervisor took, and the cause of such a wait.
const STOLEN: &str = "[stolen by the hypervisor]";
const STOLEN_WAIT: &str = "stolen";

/// What the kernel knows of a thread's time, in ns.
#[derive(Clone, Debug, PartialEq, Eq)]
struct ThreadTime {
    ran: u64,
    /// When that was read, of `CLOCK_BOOTTIME`.
    read_at: u64,
    /// When it was started, of the same clock, to 10 ms.
    start: u64,
    name: String,
}

/// The threads of the recorded processes when the recording began.
#[derive(Debug)]
pub(super) struct WallClock {
    began: u64,
    at_begin: HashMap<u32, ThreadTime>,
    /// What threads had waited, by their ids.
    waits_at_begin: HashMap<u32, TotalWaitTime>,
    stolen_at_begin: u64,
}

/// What the clocks say at a recording's end.
#[derive(Debug)]
pub(super) struct ThreadSpans {
    /// By thread id.
    pub(super) spans: HashMap<u32, ThreadSpan>,
    /// The time that they are of.
    pub(super) duration: Duration,
}

/// The time of a thread during the recording, in ns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ThreadSpan {
    pid: u32,
    name: String,
    ran: u64,
    waited: u64,
    /// What the hypervisor took while it had its CPU.
    stolen: u64,
}

impl WallClock {
    /// Reads the clocks of the threads that these processes have now. `waits`: what threads have
    /// waited up to now, by their ids.
    pub(super) fn begin(pids: &[u32], waits: HashMap<u32, TotalWaitTime>) -> Self {
        let at_begin = pids.iter().flat_map(|pid| threads(*pid)).collect();
        let (began, stolen_at_begin) = (boottime_ns(), stolen_ns());
        Self { began, at_begin, waits_at_begin: waits, stolen_at_begin }
    }

    /// Reads the clocks again, and returns the time of each thread that runs now. `waits` is as
    /// for [`Self::begin`].
    pub(super) fn end(&self, pids: &HashSet<u32>, waits: &HashMap<u32, TotalWaitTime>) -> ThreadSpans {
        let all_stolen = stolen_ns().saturating_sub(self.stolen_at_begin);
        let of_pid = |pid: u32| threads(pid).into_iter().map(move |(tid, time)| (pid, tid, time));
        let now: Vec<_> = pids.iter().copied().flat_map(of_pid).collect();
        let ended = boottime_ns();
        let span = |(pid, tid, time): (u32, u32, ThreadTime)| {
            let before = self.at_begin.get(&tid).filter(|before| before.start == time.start);
            let (ran_before, since) = before.map_or((0, time.start), |before| (before.ran, before.read_at));
            let elapsed = ended.saturating_sub(self.began.max(time.start));
            // One thread's clock is read after the other's, and all have the same time.
            let read = time.read_at.saturating_sub(since).max(1);
            let ran = u128::from(time.ran.saturating_sub(ran_before)) * u128::from(elapsed);
            let ran = u64::try_from(ran / u128::from(read)).unwrap_or(u64::MAX).min(elapsed);
            let stolen = waits.get(&tid).filter(|wait| has_started(wait, time.start)).map(|wait| {
                let before = self.waits_at_begin.get(&tid).filter(|it| it.start_ns == wait.start_ns);
                stolen_between(before, wait, time.ran.saturating_sub(ran_before))
            });
            let stolen = stolen.unwrap_or(0).min(all_stolen).min(elapsed - ran);
            (tid, ThreadSpan { pid, name: time.name, ran, waited: elapsed - ran - stolen, stolen })
        };
        let duration = Duration::from_nanos(ended.saturating_sub(self.began));
        ThreadSpans { spans: now.into_iter().map(span).collect(), duration }
    }
}

/// Returns true if the times are of the thread that `/proc` says has started then.
const fn has_started(wait: &TotalWaitTime, start: u64) -> bool {
    wait.start_ns / NS_PER_TICK * NS_PER_TICK == start
}

/// Returns the time in which a thread had a CPU without running, ns. `ran`: for how long it ran
/// meanwhile.
fn stolen_between(before: Option<&TotalWaitTime>, now: &TotalWaitTime, ran: u64) -> u64 {
    let (since, waited) = before.map_or((now.since_ns, 0), |before| (before.until_ns, before.waited_ns));
    let elapsed = now.until_ns.saturating_sub(since);
    elapsed.saturating_sub(now.waited_ns.saturating_sub(waited)).saturating_sub(ran)
}

/// Returns what the hypervisor has taken of all CPUs since the machine's start, to 10 ms a CPU.
fn stolen_ns() -> u64 {
    let ticks = procfs::KernelStats::current().ok().and_then(|stats| stats.total.steal);
    ticks.unwrap_or(0).saturating_mul(NS_PER_TICK)
}

/// Returns the threads of a process.
fn threads(pid: u32) -> Vec<(u32, ThreadTime)> {
    let Ok(process) = procfs::process::Process::new(pid.cast_signed()) else { return Vec::new() };
    let Ok(tasks) = process.tasks() else { return Vec::new() };
    let time = |task: procfs::process::Task| {
        let ran = task.schedstat().ok()?.sum_exec_runtime;
        let stat = task.stat().ok()?;
        let (read_at, start) = (boottime_ns(), stat.starttime.saturating_mul(NS_PER_TICK));
        Some((task.tid.cast_unsigned(), ThreadTime { ran, read_at, start, name: stat.comm }))
    };
    tasks.flatten().filter_map(time).collect()
}

fn boottime_ns() -> u64 {
    let now = clock_gettime(ClockId::CLOCK_BOOTTIME).map(Duration::from).unwrap_or_default();
    u64::try_from(now.as_nanos()).unwrap_or(u64::MAX)
}

/// Returns one profile of what CPU time and waits say of threads, a series each. `spans`: the time
/// of the threads that are there; of others, which have ended, samples stand for what they are.
pub(super) fn wall_batch(batches: &[Batch], ThreadSpans { spans, duration }: &ThreadSpans) -> Option<Batch> {
    let cpu = batches.iter().find(|batch| batch.event == EventType::Cpu)?;
    let waits = batches.iter().find(|batch| batch.event == EventType::OffCpu)?;
    let mut of_threads: BTreeMap<ThreadKey<'_>, ThreadSamples<'_>> = BTreeMap::new();
    let mut of_processes: HashMap<&str, &LabelSet> = HashMap::new();
    for (part, batch) in [cpu, waits].into_iter().enumerate() {
        for Series { labels, samples } in &batch.series {
            if let Some(pid) = labels.get(PID) {
                of_processes.insert(pid, labels);
            }
            let tid = labels.get(THREAD_ID).and_then(|tid| tid.parse().ok());
            let key = match tid.filter(|tid| spans.contains_key(tid)) {
                Some(tid) => ThreadKey::Running(tid),
                None => ThreadKey::Ended(labels),
            };
            of_threads.entry(key).or_default().add(part, labels, samples);
        }
    }
    for (tid, span) in spans {
        if let Some(labels) = of_processes.get(&*span.pid.to_string()) {
            // It may have done nothing of which a sample was taken.
            of_threads.entry(ThreadKey::Running(*tid)).or_default().add(0, labels, &[]);
        }
    }
    let series =
        of_threads.into_iter().map(|(thread, ThreadSamples { labels, parts: [cpu_time, waits] })| {
            let (mut labels, mut parts) = (labels.cloned().unwrap_or_default(), [cpu_time, waits]);
            if let ThreadKey::Running(tid) = thread
                && let Some(span) = spans.get(&tid)
            {
                labels.insert(THREAD_ID.to_owned(), tid.to_string());
                labels.insert(THREAD_NAME.to_owned(), span.name.clone());
                scale(&mut parts[0], span.ran, &SampleLabels::default());
                let wait = |cause: &str| {
                    SampleLabels::new([SampleLabel { name: WAIT_LABEL.into(), value: cause.into() }])
                };
                scale(&mut parts[1], span.waited, &wait(UNSEEN_WAIT));
                if span.stolen > 0 {
                    parts[1].push(without_stack(STOLEN, span.stolen, wait(STOLEN_WAIT)));
                }
            }
            let mut samples: Vec<Sample> = parts.into_iter().flatten().collect();
            count_periods(&mut samples, cpu.period.max(1));
            Series { labels, samples }
        });
    Some(Batch { event: EventType::Wall, duration: *duration, series: series.collect(), ..*cpu })
}

/// A thread that runs, or the labels of one whose clocks are gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum ThreadKey<'a> {
    Running(u32),
    Ended(&'a LabelSet),
}

/// Samples of CPU time and of waits of one thread, whose labels may have changed meanwhile.
#[derive(Debug, Default)]
struct ThreadSamples<'a> {
    /// Those that say most: of a JVM once it was read.
    labels: Option<&'a LabelSet>,
    parts: [Vec<Sample>; 2],
}

impl<'a> ThreadSamples<'a> {
    fn add(&mut self, part: usize, labels: &'a LabelSet, samples: &[Sample]) {
        if self.labels.is_none_or(|known| known.len() < labels.len()) {
            self.labels = Some(labels);
        }
        self.parts[part].extend(samples.iter().cloned());
    }
}

/// Makes the counts of samples what a clock of all threads would have counted.
fn count_periods(samples: &mut [Sample], period: u64) {
    let (mut time, mut counted) = (0_u64, 0);
    for sample in samples {
        time = time.saturating_add(sample.value);
        // What rounding takes from one, the next one gets.
        let all = time.saturating_add(period / 2) / period;
        sample.count = all - counted;
        counted = all;
    }
}

/// Returns a sample of time whose only frame says what it is.
fn without_stack(frame: &str, value: u64, labels: SampleLabels) -> Sample {
    let lines = vec![Line::named(frame)];
    let frame = Frame { kind: FrameKind::Marker, address: None, mapping: None, lines };
    Sample { labels, ..Sample::of_events(Arc::from([Arc::new(frame)]), 0, value) }
}

/// Makes the sum of the samples' values this number. `labels`: those of time without a sample.
fn scale(samples: &mut Vec<Sample>, sum: u64, labels: &SampleLabels) {
    let sampled: u64 = samples.iter().map(|sample| sample.value).sum();
    if sampled == 0 {
        if sum > 0 {
            samples.push(without_stack(NOT_SAMPLED, sum, labels.clone()));
        }
        return;
    }
    let (mut left, mut rest) = (sum, sampled);
    for sample in samples {
        let value = (u128::from(sample.value) * u128::from(left) / u128::from(rest.max(1))) as u64;
        rest -= sample.value;
        left -= value;
        sample.value = value;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pipeline::off_cpu::wait_of;
    use crate::profile::testing::{batch, frame, series};

    fn span(ran: u64, waited: u64) -> ThreadSpan {
        ThreadSpan { pid: 7, name: "worker".to_owned(), ran, waited, stolen: 0 }
    }

    fn spans<const N: usize>(of: [(u32, ThreadSpan); N]) -> ThreadSpans {
        ThreadSpans { spans: of.into(), duration: Duration::from_nanos(133) }
    }

    fn of_thread(event: EventType, tid: &str, values: &[u64]) -> Batch {
        let stacks = values.iter().map(|value| (vec![frame(FrameKind::Java, "f")], *value));
        let mut series = series(&[("pid", "7"), (THREAD_ID, tid)], stacks.collect());
        series.samples.iter_mut().zip(values).for_each(|(sample, value)| sample.value = *value);
        Batch { event, period: 10, ..batch(vec![series]) }
    }

    fn values(batch: &Batch) -> Vec<u64> {
        batch.series.iter().flat_map(|series| series.samples.iter().map(|sample| sample.value)).collect()
    }

    #[test]
    fn samples_of_a_thread_are_scaled_to_the_time_that_it_ran_and_waited() {
        let batches =
            [of_thread(EventType::Cpu, "8", &[10, 20]), of_thread(EventType::OffCpu, "8", &[7, 7, 7])];
        let wall = wall_batch(&batches, &spans([(8, span(33, 100))])).expect("both are there");
        assert_eq!(wall.duration, Duration::from_nanos(133));
        assert_eq!(values(&wall), [11, 22, 33, 33, 34]);
        assert_eq!(wall.series.len(), 1, "one of the thread");
        assert_eq!(wall.series[0].samples[1].count, 2);
        let unknown = wall_batch(&batches, &spans([])).expect("both are there");
        assert_eq!(values(&unknown), [10, 20, 7, 7, 7]);
    }

    #[test]
    fn time_without_samples_is_there_all_the_same() {
        let batches = [of_thread(EventType::Cpu, "8", &[]), of_thread(EventType::OffCpu, "8", &[5])];
        let wall = wall_batch(&batches, &spans([(8, span(3, 9))])).expect("both are there");
        assert_eq!(values(&wall), [3, 9]);
        assert_eq!(&*wall.series[0].samples[0].frames[0].lines[0].name, NOT_SAMPLED);
    }

    #[test]
    fn time_that_the_hypervisor_took_is_apart() {
        let batches = [of_thread(EventType::Cpu, "8", &[3]), of_thread(EventType::OffCpu, "8", &[5])];
        let span = ThreadSpan { stolen: 4, ..span(3, 9) };
        let wall = wall_batch(&batches, &spans([(8, span)])).expect("both are there");
        assert_eq!(values(&wall), [3, 9, 4]);
        let stolen = &wall.series[0].samples[2];
        assert_eq!((&*stolen.frames[0].lines[0].name, wait_of(stolen)), (STOLEN, Some(STOLEN_WAIT)));
    }

    #[test]
    fn what_a_thread_neither_ran_nor_waited_was_taken_from_it() {
        let time =
            |since_ns, until_ns, waited_ns| TotalWaitTime { start_ns: 1, since_ns, until_ns, waited_ns };
        let (before, now) = (time(50, 1000, 400), time(50, 2000, 1100));
        assert_eq!(stolen_between(Some(&before), &now, 250), 50);
        // The kernel's clocks don't agree to the last nanosecond.
        assert_eq!(stolen_between(Some(&before), &now, 310), 0);
        // Nobody knows what it did before its switches were seen.
        assert_eq!(stolen_between(None, &time(1500, 2000, 300), 120), 80);
        let time = TotalWaitTime { start_ns: 123_456_789, ..now };
        assert!(has_started(&time, 120_000_000) && !has_started(&time, 130_000_000));
    }

    #[test]
    fn a_thread_that_was_renamed_is_one_and_one_without_samples_is_there() {
        let mut batches = [of_thread(EventType::Cpu, "8", &[10]), of_thread(EventType::OffCpu, "8", &[7])];
        batches[1].series[0].labels.insert(THREAD_NAME.to_owned(), "before".to_owned());
        let spans = spans([(8, span(10, 90)), (9, span(0, 100))]);
        let wall = wall_batch(&batches, &spans).expect("both are there");
        assert_eq!(values(&wall), [10, 90, 100]);
        let labels: Vec<_> =
            wall.series.iter().map(|it| [&*it.labels[THREAD_ID], &*it.labels[THREAD_NAME]]).collect();
        assert_eq!(labels, [["8", "worker"], ["9", "worker"]]);
        let unseen = wall.series[1].samples[0].labels.iter().next().map(|label| &*label.value);
        assert_eq!(unseen, Some(UNSEEN_WAIT));
    }

    #[test]
    fn counts_are_of_all_time_though_each_stack_has_less_than_a_period() {
        let batches = [of_thread(EventType::Cpu, "8", &[4; 10]), of_thread(EventType::OffCpu, "8", &[])];
        let wall = wall_batch(&batches, &spans([])).expect("both are there");
        assert_eq!(wall.series[0].samples.iter().map(|sample| sample.count).sum::<u64>(), 4);
    }

    #[test]
    fn the_clocks_of_this_very_thread_say_how_long_it_ran_and_slept() {
        let clock = WallClock::begin(&[std::process::id()], HashMap::new());
        std::thread::sleep(Duration::from_millis(300));
        let tid = nix::unistd::gettid().as_raw().cast_unsigned();
        let ThreadSpans { spans, duration } =
            clock.end(&HashSet::from([std::process::id()]), &HashMap::new());
        let span = &spans[&tid];
        assert_eq!(Duration::from_nanos(span.ran + span.waited), duration, "{span:?}");
        assert!(duration >= Duration::from_millis(300), "{duration:?}");
        assert!(span.waited > span.ran, "{span:?}");
    }
}
