//! Wall-clock time: of each thread, where all its time went, on the CPU and off it.
//!
//! Stacks of CPU time and of waits are samples. How long a thread ran, the kernel counts
//! (`/proc/PID/task/TID/schedstat`, Documentation/scheduler/sched-stats.rst; of a thread that ends
//! the program at `sched_switch` notes it), and the rest of the time that it was there it waited:
//! both kinds of samples are scaled to that, thread by thread.
//!
//! In a virtual machine there is a third part: the thread had its CPU, and the hypervisor ran
//! another machine there. The kernel doesn't count that as time of the thread
//! (`update_rq_clock_task`, kernel/sched/core.c), and by its switches the thread didn't wait.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use jvmprof_common::off_cpu::EndedThread;
use jvmprof_common::unwind_tables::NS_PER_TICK;
use nix::time::{ClockId, clock_gettime};
use procfs::CurrentSI;

use super::summary::threads::PID;
use crate::clock::monotonic_ns;
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

/// A thread: the id of its process, and its own.
type ThreadIds = (u32, u32);

/// A thread's time as the kernel counts it, in ns.
#[derive(Clone, Debug, PartialEq, Eq)]
struct ThreadTime {
    ran: u64,
    /// When that was read, of `CLOCK_BOOTTIME`.
    read_at: u64,
    /// When it was started, of the same clock, to 10 ms where `/proc` says it.
    start: u64,
    name: String,
}

/// The threads of the recorded processes when the recording began.
#[derive(Debug)]
pub(super) struct ThreadClocks {
    began: u64,
    at_begin: HashMap<u32, ThreadTime>,
    /// What threads had waited, by their ids.
    waits_at_begin: HashMap<u32, TotalWaitTime>,
    stolen_at_begin: u64,
}

/// The clocks of threads at a recording's end.
#[derive(Debug)]
pub(super) struct ThreadSpans {
    pub(super) spans: HashMap<ThreadIds, ThreadSpan>,
    /// The time that they are of.
    pub(super) duration: Duration,
}

/// The time of a thread during the recording, in ns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ThreadSpan {
    name: String,
    ran: u64,
    waited: u64,
    /// What the hypervisor took while it had its CPU.
    stolen: u64,
}

impl ThreadClocks {
    /// Reads the clocks of the threads that these processes have now. `waits`: what threads have
    /// waited up to now, by their ids.
    pub(super) fn begin(pids: &[u32], waits: HashMap<u32, TotalWaitTime>) -> Self {
        let at_begin = pids.iter().flat_map(|pid| threads(*pid)).collect();
        let (began, stolen_at_begin) = (boottime_ns(), stolen_ns());
        Self { began, at_begin, waits_at_begin: waits, stolen_at_begin }
    }

    /// Reads the clocks again, and returns the time of each thread that runs now, or has ended
    /// meanwhile. `waits` is as for [`Self::begin`]; `take_ended` says which threads have ended.
    pub(super) fn end(
        &self,
        pids: &HashSet<u32>,
        waits: &HashMap<u32, TotalWaitTime>,
        take_ended: impl FnOnce() -> Vec<EndedThread>,
    ) -> ThreadSpans {
        let all_stolen = stolen_ns().saturating_sub(self.stolen_at_begin);
        let of_pid = |pid: u32| threads(pid).into_iter().map(move |(tid, time)| ((pid, tid), time));
        let now: Vec<_> = pids.iter().copied().flat_map(of_pid).collect();
        let until = boottime_ns();
        let ahead_ns = until.saturating_sub(monotonic_ns());
        // Afterwards, since more may have ended, and those that have are listed as long as their
        // process is there, if they are its first thread.
        let ended = take_ended();
        let has_ended: HashSet<(u32, u64)> =
            ended.iter().map(|thread| (thread.tid, in_ticks(thread.start_ns))).collect();
        let ended = ended.iter().filter(|thread| thread.ended_ns + ahead_ns > self.began).map(|thread| {
            let (read_at, name) = ((thread.ended_ns + ahead_ns).min(until), name_of(&thread.comm));
            let time = ThreadTime { ran: thread.ran_ns, read_at, start: thread.start_ns, name };
            ((thread.pid, thread.tid), time, read_at, TotalWaitTime::of_ended(thread))
        });
        let runs = |((_, tid), time): &(ThreadIds, ThreadTime)| !has_ended.contains(&(*tid, time.start));
        let running = now.into_iter().filter(runs).map(|(ids, time)| {
            let wait = waits.get(&ids.1).copied();
            (ids, time, until, wait)
        });
        let mut spans: HashMap<ThreadIds, ThreadSpan> = HashMap::new();
        for (ids, time, until, wait) in ended.chain(running) {
            let span = self.span(ids.1, time, until, wait, all_stolen);
            match spans.entry(ids) {
                // A thread that has got the id of one that has ended.
                Entry::Occupied(mut both) => both.get_mut().add(span),
                Entry::Vacant(place) => {
                    place.insert(span);
                }
            }
        }
        ThreadSpans { spans, duration: Duration::from_nanos(until.saturating_sub(self.began)) }
    }

    /// Returns the time of a thread until then, when the others' clocks were read or it ended.
    fn span(
        &self,
        tid: u32,
        time: ThreadTime,
        until: u64,
        wait: Option<TotalWaitTime>,
        all_stolen: u64,
    ) -> ThreadSpan {
        let started = in_ticks(time.start);
        let before = self.at_begin.get(&tid).filter(|before| before.start == started);
        let (ran_before, since) = before.map_or((0, time.start), |before| (before.ran, before.read_at));
        let elapsed = until.saturating_sub(self.began.max(time.start));
        // One thread's clock is read after the other's, and all have the same time.
        let read = time.read_at.saturating_sub(since).max(1);
        let ran = u128::from(time.ran.saturating_sub(ran_before)) * u128::from(elapsed);
        let ran = u64::try_from(ran / u128::from(read)).unwrap_or(u64::MAX).min(elapsed);
        let stolen = wait.filter(|wait| in_ticks(wait.start_ns) == started).map(|wait| {
            let before = self.waits_at_begin.get(&tid).filter(|it| it.start_ns == wait.start_ns);
            stolen_between(before, &wait, time.ran.saturating_sub(ran_before))
        });
        let stolen = stolen.unwrap_or(0).min(all_stolen).min(elapsed - ran);
        ThreadSpan { name: time.name, ran, waited: elapsed - ran - stolen, stolen }
    }
}

impl ThreadSpan {
    fn add(&mut self, other: Self) {
        self.name = other.name;
        self.ran += other.ran;
        self.waited += other.waited;
        self.stolen += other.stolen;
    }
}

/// Returns a thread's start as `/proc` says it.
const fn in_ticks(start_ns: u64) -> u64 {
    start_ns / NS_PER_TICK * NS_PER_TICK
}

/// Returns a thread's name as the kernel keeps it.
fn name_of(comm: &[u8]) -> String {
    let name = comm.split(|byte| *byte == 0).next().unwrap_or_default();
    String::from_utf8_lossy(name).into_owned()
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
/// of threads; of others, whose end nobody has seen, samples stand for what they are.
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
            let number = |name: &str| labels.get(name).and_then(|value| value.parse().ok());
            let ids = number(PID).zip(number(THREAD_ID)).filter(|ids| spans.contains_key(ids));
            let key = ids.map_or(ThreadKey::Untimed(labels), ThreadKey::Timed);
            of_threads.entry(key).or_default().add(part, labels, samples);
        }
    }
    for ids in spans.keys() {
        if let Some(labels) = of_processes.get(&*ids.0.to_string()) {
            // It may have done nothing of which a sample was taken.
            of_threads.entry(ThreadKey::Timed(*ids)).or_default().add(0, labels, &[]);
        }
    }
    let series =
        of_threads.into_iter().map(|(thread, ThreadSamples { labels, parts: [cpu_time, waits] })| {
            let (mut labels, mut parts) = (labels.cloned().unwrap_or_default(), [cpu_time, waits]);
            if let ThreadKey::Timed(ids) = thread
                && let Some(span) = spans.get(&ids)
            {
                labels.insert(THREAD_ID.to_owned(), ids.1.to_string());
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

/// A thread whose time is known, or the labels of one whose clocks are gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum ThreadKey<'a> {
    Timed(ThreadIds),
    Untimed(&'a LabelSet),
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
    use std::time::Instant;

    use super::*;
    use crate::pipeline::off_cpu::wait_of;
    use crate::profile::testing::{batch, frame, series};

    fn span(ran: u64, waited: u64) -> ThreadSpan {
        ThreadSpan { name: "worker".to_owned(), ran, waited, stolen: 0 }
    }

    /// Spans of threads of process 7.
    fn spans<const N: usize>(of: [(u32, ThreadSpan); N]) -> ThreadSpans {
        let spans = of.into_iter().map(|(tid, span)| ((7, tid), span)).collect();
        ThreadSpans { spans, duration: Duration::from_nanos(133) }
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
    }

    #[test]
    fn a_thread_that_has_ended_has_the_time_until_then() {
        const MS: u64 = 1_000_000;
        let now = boottime_ns();
        let ahead = now.saturating_sub(monotonic_ns());
        let began = now - 1000 * MS;
        let of = |ran, start, read_at| ThreadTime { ran, read_at, start, name: String::new() };
        let clock = ThreadClocks {
            began,
            at_begin: HashMap::from([(8, of(40 * MS, in_ticks(began - 100 * MS), began))]),
            waits_at_begin: HashMap::new(),
            stolen_at_begin: 0,
        };
        let ended = |tid, start_ns, at: u64, ran_ns| EndedThread {
            tid,
            pid: 7,
            start_ns,
            ended_ns: at - ahead,
            ran_ns,
            comm: *b"worker\0\0\0\0\0\0\0\0\0\0",
            ..EndedThread::default()
        };
        let threads = vec![
            ended(8, began - 100 * MS, began + 300 * MS, 140 * MS),
            ended(9, began + 100 * MS, began + 600 * MS, 200 * MS),
            // Another one with its id.
            ended(9, began + 700 * MS, began + 900 * MS, 10 * MS),
            ended(10, began - 500 * MS, began - MS, MS),
        ];
        let ThreadSpans { spans, .. } = clock.end(&HashSet::new(), &HashMap::new(), || threads);
        // To 10 ms: the clocks are read one after the other.
        let rounded = |ns: u64| (ns + 5 * MS) / (10 * MS);
        let times = |tid: u32| spans.get(&(7, tid)).map(|it| [it.ran, it.waited].map(rounded));
        assert_eq!(times(8), Some([10, 20]), "what it ran before doesn't count: {spans:?}");
        assert_eq!(times(9), Some([21, 49]), "both: {spans:?}");
        assert_eq!(times(10), None, "it had ended before");
        assert_eq!(spans[&(7, 9)].name, "worker");
    }

    #[test]
    fn threads_of_two_processes_with_one_id_are_two() {
        let mut batches = [of_thread(EventType::Cpu, "8", &[10]), of_thread(EventType::OffCpu, "8", &[7])];
        let other = batches[0].series[0].clone();
        batches[0].series.push(other);
        batches[0].series[1].labels.insert(PID.to_owned(), "6".to_owned());
        let mut spans = spans([(8, span(20, 0))]);
        spans.spans.insert((6, 8), span(30, 0));
        let wall = wall_batch(&batches, &spans).expect("both are there");
        let mut sums: Vec<_> = wall
            .series
            .iter()
            .map(|it| (&*it.labels[PID], it.samples.iter().map(|sample| sample.value).sum::<u64>()))
            .collect();
        sums.sort_unstable();
        assert_eq!(sums, [("6", 30), ("7", 20)]);
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
        const SLEEP: Duration = Duration::from_millis(300);
        let own_time = || Duration::from(clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).expect("a clock"));
        let (tid, pid) = (nix::unistd::gettid().as_raw().cast_unsigned(), std::process::id());
        let began = Instant::now();
        loop {
            let ran_before = own_time();
            let clock = ThreadClocks::begin(&[pid], HashMap::new());
            std::thread::sleep(SLEEP);
            let ThreadSpans { spans, duration } = clock.end(&HashSet::from([pid]), &HashMap::new(), Vec::new);
            let span = &spans[&(pid, tid)];
            assert_eq!(Duration::from_nanos(span.ran + span.waited), duration, "{span:?}");
            assert!(duration >= SLEEP, "{duration:?}");
            // Where the machine stops while the thread reads, the kernel takes that for running.
            let ran = own_time() - ran_before;
            if ran < SLEEP / 2 {
                assert!(span.waited > span.ran, "{span:?}");
                break;
            }
            assert!(began.elapsed().as_secs() < 60, "it ran for {ran:?}: {span:?}");
        }
    }
}
