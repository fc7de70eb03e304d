//! JVMs whose pauses aren't followed one by one: how long they were stopped is read from the sums
//! that they keep themselves.

use std::collections::{BTreeMap, HashMap, HashSet};

use crate::hotspot::{LiveMemory, ProcessMemory, SafepointCounters, SafepointSums};
use crate::pipeline::jvm_totals::{AllJvmTotals, PauseTotals, SeriesName};
use crate::process::ProcessKey;
use crate::profile::model::LabelSet;

/// JVMs whose sums are read, at most, and JVMs that have ended and that a recording reports.
const MAX_JVMS: usize = 1024;
/// Times that a JVM is searched for its sums: the last of what is needed comes at the end of its
/// start.
const ATTEMPTS: u32 = 12;
/// Time between the first two; it doubles each time, to 20 s before the last one.
const FIRST_RETRY_NS: u64 = 20_000_000;
/// Interval of reads in a recording, whose JVMs may end before it does.
const READ_INTERVAL_NS: u64 = 250_000_000;
/// The shortest time that a safepoint takes, ns: a JVM can't have had more of them.
const LEAST_SAFEPOINT_NS: u64 = 1_000;

const NO_COUNTERS: &str = "no counters";
const IMPLAUSIBLE: &str = "implausible";
const TOO_MANY: &str = "too many JVMs";

/// The time for which one JVM was stopped in a recording, as it says itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JvmStops {
    pub pid: u32,
    /// Time between the first and the last read of its sums, ns.
    pub followed_ns: u64,
    pub totals: PauseTotals,
}

/// The JVMs whose sums are read.
#[derive(Debug)]
pub(in crate::pipeline) struct SummedJvms<M = LiveMemory> {
    jvms: HashMap<ProcessKey, SummedJvm<M>>,
    searches: HashMap<ProcessKey, Search>,
    /// JVMs that don't say it: they aren't searched again.
    unknown: HashSet<ProcessKey>,
    /// In a recording: JVMs that have ended.
    ended: Option<Vec<JvmStops>>,
    next_read_ns: u64,
    counts: BTreeMap<&'static str, u64>,
}

/// A JVM that is searched for its sums.
#[derive(Debug, Default)]
struct Search {
    attempts: u32,
    next_ns: u64,
}

#[derive(Debug)]
struct SummedJvm<M> {
    pid: u32,
    memory: M,
    counters: SafepointCounters,
    /// When the sums were read first and last: `CLOCK_MONOTONIC`, ns.
    since_ns: u64,
    until_ns: u64,
    first: SafepointSums,
    last: SafepointSums,
    totals: PauseTotals,
    reported: PauseTotals,
    name: SeriesName,
}

/// Sums became less.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct CountersDecreased;

impl<M: ProcessMemory> SummedJvm<M> {
    /// Reads the sums as of now. They stay as they were if the process is gone.
    fn read(&mut self, now_ns: impl Fn() -> u64) -> Result<(), CountersDecreased> {
        let Some(sums) = self.counters.read(&self.memory) else { return Ok(()) };
        let before = self.last;
        if sums.safepoints < before.safepoints || sums.to_safepoint_ns < before.to_safepoint_ns {
            return Err(CountersDecreased);
        }
        self.last = sums;
        self.until_ns = now_ns();
        // A pause that had begun before the first read counts from that on. Whatever a process
        // says, it was stopped for no longer than it was followed.
        let most_ns = self.until_ns.saturating_sub(self.since_ns);
        let grown = |now: u64, first: u64, most: u64| now.saturating_sub(first).min(most);
        let totals = PauseTotals {
            pauses: grown(sums.safepoints, self.first.safepoints, most_ns / LEAST_SAFEPOINT_NS),
            to_safepoint_ns: grown(sums.to_safepoint_ns, self.first.to_safepoint_ns, most_ns),
            stopped_ns: grown(sums.stopped_ns, self.first.stopped_ns, most_ns),
        };
        // In a pause an older JVM says less than before it.
        self.totals.add(totals.since(self.totals));
        Ok(())
    }

    const fn stops(&self) -> JvmStops {
        JvmStops {
            pid: self.pid,
            followed_ns: self.until_ns.saturating_sub(self.since_ns),
            totals: self.totals,
        }
    }
}

impl<M> Default for SummedJvms<M> {
    fn default() -> Self {
        Self {
            jvms: HashMap::new(),
            searches: HashMap::new(),
            unknown: HashSet::new(),
            ended: None,
            next_read_ns: 0,
            counts: BTreeMap::new(),
        }
    }
}

impl<M: ProcessMemory> SummedJvms<M> {
    /// Keeps what is known of JVMs that end, for [`Self::take`]: there is one window.
    pub(in crate::pipeline) fn keep_ended(&mut self) {
        self.ended = Some(Vec::new());
    }

    /// Returns the JVMs of which it isn't known how long they stop, by reason.
    pub(in crate::pipeline) const fn unknown(&self) -> &BTreeMap<&'static str, u64> {
        &self.counts
    }

    /// Returns true if the sums of a JVM are read, or it is known that they can't be.
    pub(in crate::pipeline) fn is_decided(&self, key: ProcessKey) -> bool {
        self.jvms.contains_key(&key) || self.unknown.contains(&key)
    }

    /// Returns true if a JVM is to be searched for its sums now.
    pub(in crate::pipeline) fn wants(&self, key: ProcessKey, now_ns: u64) -> bool {
        !self.is_decided(key) && self.searches.get(&key).is_none_or(|search| search.next_ns <= now_ns)
    }

    /// Begins to read the sums of a JVM. `found`: where they are, if they are there by now.
    pub(in crate::pipeline) fn follow(
        &mut self,
        key: ProcessKey,
        pid: u32,
        found: Option<(SafepointCounters, M)>,
        now_ns: u64,
    ) {
        let read = found.and_then(|(counters, memory)| Some((counters.read(&memory)?, counters, memory)));
        let Some((first, counters, memory)) = read else {
            let search = self.searches.entry(key).or_default();
            search.next_ns = now_ns + (FIRST_RETRY_NS << search.attempts);
            search.attempts += 1;
            if search.attempts >= ATTEMPTS {
                self.give_up(key, NO_COUNTERS);
            }
            return;
        };
        if self.jvms.len() >= MAX_JVMS {
            return self.give_up(key, TOO_MANY);
        }
        self.searches.remove(&key);
        tracing::debug!(pid, "for how long a JVM stops its threads is read");
        let jvm = SummedJvm {
            pid,
            memory,
            counters,
            since_ns: now_ns,
            until_ns: now_ns,
            first,
            last: first,
            totals: PauseTotals::default(),
            reported: PauseTotals::default(),
            name: SeriesName::default(),
        };
        self.jvms.insert(key, jvm);
    }

    fn give_up(&mut self, key: ProcessKey, reason: &'static str) {
        self.searches.remove(&key);
        self.jvms.remove(&key);
        self.unknown.insert(key);
        *self.counts.entry(reason).or_default() += 1;
    }

    /// Notes what the series of a JVM are called.
    pub(in crate::pipeline) fn set_name(&mut self, key: ProcessKey, labels: &LabelSet) {
        if let Some(jvm) = self.jvms.get_mut(&key) {
            jvm.name.update(labels);
        }
    }

    /// Reads the sums of all JVMs.
    pub(in crate::pipeline) fn read_all(&mut self, now_ns: impl Fn() -> u64 + Copy) {
        let implausible: Vec<ProcessKey> =
            self.jvms.iter_mut().filter_map(|(key, jvm)| jvm.read(now_ns).err().map(|_| *key)).collect();
        implausible.into_iter().for_each(|key| self.give_up(key, IMPLAUSIBLE));
    }

    /// Reads the sums in a recording, if that is due.
    pub(in crate::pipeline) fn maintain(&mut self, now_ns: impl Fn() -> u64 + Copy) {
        let now = now_ns();
        if self.ended.is_some() && self.next_read_ns <= now {
            self.next_read_ns = now + READ_INTERVAL_NS;
            self.read_all(now_ns);
        }
    }

    /// Notes that a process has ended, or has begun another program.
    pub(in crate::pipeline) fn ended(&mut self, key: ProcessKey) {
        let jvm = self.jvms.remove(&key);
        let (Some(jvm), Some(ended)) = (jvm, &mut self.ended) else { return };
        if ended.len() < MAX_JVMS {
            ended.push(jvm.stops());
        } else {
            *self.counts.entry(TOO_MANY).or_default() += 1;
        }
    }

    /// Ends a window: adds what is new to the totals of the JVMs.
    pub(in crate::pipeline) fn add_to(&mut self, totals: &mut AllJvmTotals) {
        for jvm in self.jvms.values_mut() {
            if let Some(name) = jvm.name.get().cloned() {
                let before = std::mem::replace(&mut jvm.reported, jvm.totals);
                totals.add_pauses(name, jvm.totals.since(before));
            }
        }
    }

    /// Begins the next window, and forgets JVMs that aren't wanted any more.
    pub(in crate::pipeline) fn begin_window(&mut self, mut is_wanted: impl FnMut(ProcessKey) -> bool) {
        self.jvms.retain(|key, _| is_wanted(*key));
        self.searches.retain(|key, _| is_wanted(*key));
        self.unknown.retain(|key| is_wanted(*key));
    }

    /// Returns the JVMs of a recording that has ended.
    pub(in crate::pipeline) fn take(&mut self) -> Vec<JvmStops> {
        let mut stops = self.ended.take().unwrap_or_default();
        stops.extend(self.jvms.drain().map(|(_, jvm)| jvm.stops()));
        stops
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;
    use crate::hotspot::RecordedMemory;
    use crate::hotspot::process_memory::MemoryRead;
    use crate::hotspot::safepoint_testing as jvm;
    use crate::pipeline::jvm_totals::JvmName;

    const MS: u64 = 1_000_000;

    /// The memory of a JVM that runs on; `None`: it has ended.
    #[derive(Debug, Default)]
    struct Running(RefCell<Option<RecordedMemory>>);

    impl Running {
        fn set(&self, sums: [u64; 3]) {
            *self.0.borrow_mut() = Some(jvm::memory(&jvm::counters(sums.map(u64::cast_signed))));
        }
    }

    impl ProcessMemory for Running {
        fn read_many(&self, reads: &mut [MemoryRead<'_>]) {
            if let Some(memory) = &*self.0.borrow() {
                memory.read_many(reads);
            }
        }
    }

    fn key() -> ProcessKey {
        ProcessKey::numbered(1)
    }

    fn follow<'m>(jvms: &mut SummedJvms<&'m Running>, memory: &'m Running, feature: u32, now_ns: u64) {
        let found = memory.0.borrow().as_ref().and_then(|it| jvm::find(feature, it));
        assert!(jvms.wants(key(), now_ns));
        jvms.follow(key(), 7, found.map(|found| (found, memory)), now_ns);
    }

    fn totals(pauses: u64, to_safepoint_ns: u64, stopped_ns: u64) -> PauseTotals {
        PauseTotals { pauses, to_safepoint_ns, stopped_ns }
    }

    #[test]
    fn what_comes_after_the_first_read_is_reported_once() {
        let memory = Running::default();
        let mut jvms = SummedJvms::default();
        let mut all = AllJvmTotals::default();
        memory.set([10, MS, 20 * MS]);
        follow(&mut jvms, &memory, 17, 0);
        assert!(!jvms.wants(key(), 1));
        let class = ("jvm_main_class".to_owned(), "Shop".to_owned());
        jvms.set_name(key(), &LabelSet::from([("pid".to_owned(), "7".to_owned()), class]));
        memory.set([12, 2 * MS, 50 * MS]);
        let name = JvmName { pid: "7".to_owned(), name: "Shop".to_owned() };
        for _ in 0..2 {
            jvms.read_all(|| 100 * MS);
            jvms.add_to(&mut all);
            assert_eq!(all.get()[&name].pauses, Some(totals(2, MS, 30 * MS)));
        }
        jvms.begin_window(|_| false);
        assert!(jvms.wants(key(), 1), "it is another one's");
    }

    #[test]
    fn a_jvm_that_has_ended_keeps_the_sums_of_the_last_read() {
        let memory = Running::default();
        let mut jvms = SummedJvms::default();
        jvms.keep_ended();
        memory.set([1, 0, 0]);
        follow(&mut jvms, &memory, 17, 5 * MS);
        memory.set([2, 0, 3 * MS]);
        jvms.maintain(|| 10 * MS);
        memory.set([3, 0, 4 * MS]);
        jvms.maintain(|| 11 * MS);
        *memory.0.borrow_mut() = None;
        jvms.read_all(|| 500 * MS);
        jvms.ended(key());
        let stops = JvmStops { pid: 7, followed_ns: 5 * MS, totals: totals(1, 0, 3 * MS) };
        assert_eq!(jvms.take(), [stops], "between two reads nothing is known");
    }

    #[test]
    fn lies_stay_within_the_time_and_end_where_sums_become_less() {
        let memory = Running::default();
        let mut jvms = SummedJvms::default();
        jvms.keep_ended();
        memory.set([5, 0, 0]);
        follow(&mut jvms, &memory, 17, 0);
        memory.set([1 << 60, 1 << 61, 1 << 62]);
        jvms.read_all(|| 10 * MS);
        let most = totals(10_000, 10 * MS, 10 * MS);
        assert_eq!(jvms.jvms[&key()].totals, most);
        memory.set([1 << 60, (1 << 61) - 1, 1 << 62]);
        jvms.read_all(|| 20 * MS);
        assert!(!jvms.wants(key(), u64::MAX) && jvms.take().is_empty());
        assert_eq!(jvms.unknown(), &BTreeMap::from([(IMPLAUSIBLE, 1)]));
    }

    #[test]
    fn a_pause_of_an_older_jvm_is_no_step_back_while_it_lasts() {
        let memory = Running::default();
        let mut jvms = SummedJvms::default();
        memory.set([1, MS, 3 * MS]);
        follow(&mut jvms, &memory, 8, 0);
        // After one, in the next, after that.
        for (sums, stopped) in [([2, 2 * MS, 9 * MS], 5), ([3, 4 * MS, 9 * MS], 5), ([3, 4 * MS, 15 * MS], 9)]
        {
            memory.set(sums);
            jvms.read_all(|| 100 * MS);
            assert_eq!(jvms.jvms[&key()].totals.stopped_ns, stopped * MS, "{sums:?}");
        }
    }

    #[test]
    fn a_jvm_without_sums_is_searched_some_times_and_counted() {
        let memory = Running::default();
        let mut jvms = SummedJvms::default();
        let mut now_ns = 0;
        for _ in 0..ATTEMPTS {
            follow(&mut jvms, &memory, 17, now_ns);
            assert!(!jvms.wants(key(), now_ns));
            now_ns = now_ns * 2 + FIRST_RETRY_NS;
        }
        assert!(!jvms.wants(key(), u64::MAX));
        assert_eq!(jvms.unknown(), &BTreeMap::from([(NO_COUNTERS, 1)]));
    }
}
