//! Counters of how often and for how long a JVM has stopped its threads: the sums among its
//! performance counters, which every HotSpot keeps unless `-XX:-UsePerfData` is given.
//!
//! Sources: openjdk src/hotspot/share/services/runtimeService.cpp (the counters),
//! runtime/safepoint.cpp (`SafepointTracing`, what they are given).

use std::ops::Range;

use super::perf_counters::{PerfDataLayout, PerfFields, is_prologue};
use crate::hotspot::process_memory::ProcessMemory;
use crate::types::Avma;

/// Safepoints that were begun; ticks until all threads had stopped; ticks that are said below.
const NAMES: [&[u8]; 3] = [b"sun.rt.safepoints\0", b"sun.rt.safepointSyncTime\0", b"sun.rt.safepointTime\0"];
/// Ticks a second.
const FREQUENCY: &[u8] = b"sun.os.hrt.frequency\0";
/// The range of the counters' frequency: JDK 8 and later have nanoseconds on Linux (os_linux.cpp,
/// `elapsed_frequency`).
const FREQUENCIES: Range<u64> = 1_000..1_000_000_000_001;
/// Bytes of one of the entries, at most; they have 56 to 64.
const MAX_ENTRY_BYTES: usize = 512;
/// The first JDK whose `safepointTime` begins when all threads have stopped (JDK-8219436). Before,
/// it begins with `safepointSyncTime`, which is a part of it.
const SEPARATE_TIMES_SINCE: u32 = 13;

/// Sums since a JVM's start, as it publishes them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SafepointSums {
    /// Safepoints that were begun.
    pub safepoints: u64,
    /// Time from the begin of stopping threads until all had stopped, ns.
    pub to_safepoint_ns: u64,
    /// Time from then until they went on, ns. A JVM before JDK 13 adds the time to the safepoint
    /// before the rest of a pause, so that in a pause this can be less than before it.
    pub stopped_ns: u64,
}

/// The places of the sums among all counters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SafepointEntries {
    entries: [Range<usize>; 3],
    /// Ticks a second.
    frequency: u64,
}

impl SafepointEntries {
    /// Finds them among all counters; `None` if one isn't there, or isn't what it should be.
    pub fn find(layout: &PerfDataLayout, bytes: &[u8]) -> Option<Self> {
        let entry = |name: &[u8]| {
            let entry = layout.find(bytes, name).filter(|entry| entry.len() <= MAX_ENTRY_BYTES)?;
            Some((entry.clone(), layout.number(&bytes[entry], name)?))
        };
        let frequency = u64::try_from(entry(FREQUENCY)?.1).ok().filter(|it| FREQUENCIES.contains(it))?;
        let [count, sync, time] = NAMES;
        Some(Self { entries: [entry(count)?.0, entry(sync)?.0, entry(time)?.0], frequency })
    }

    /// Returns the places of the entries among all counters.
    pub const fn places(&self) -> &[Range<usize>; 3] {
        &self.entries
    }

    /// Returns the sums of the entries with these bytes; `None` if these aren't the entries any
    /// more, or a sum is negative. `feature`: the JDK's, 8 or later.
    pub fn sums(&self, layout: &PerfDataLayout, entries: [&[u8]; 3], feature: u32) -> Option<SafepointSums> {
        let number = |index: usize| u64::try_from(layout.number(entries[index], NAMES[index])?).ok();
        let (safepoints, sync, time) = (number(0)?, number(1)?, number(2)?);
        let stopped = if feature < SEPARATE_TIMES_SINCE { time.saturating_sub(sync) } else { time };
        Some(SafepointSums {
            safepoints,
            to_safepoint_ns: self.nanoseconds(sync),
            stopped_ns: self.nanoseconds(stopped),
        })
    }

    fn nanoseconds(&self, ticks: u64) -> u64 {
        let nanoseconds = u128::from(ticks) * 1_000_000_000 / u128::from(self.frequency);
        u64::try_from(nanoseconds).unwrap_or(u64::MAX)
    }
}

/// The sums of one JVM: found once, read often.
#[derive(Clone, Debug)]
pub struct SafepointCounters {
    perf: PerfFields,
    /// The address of all counters.
    start: Avma,
    entries: SafepointEntries,
    feature: u32,
}

impl SafepointCounters {
    /// Finds the sums of a JVM of this JDK, and reads all its counters for it; `None` while it
    /// starts, if it doesn't have them, or if the JDK isn't known.
    pub(crate) fn find(perf: PerfFields, feature: u32, memory: &impl ProcessMemory) -> Option<Self> {
        let (start, bytes) = perf.counters(memory).filter(|_| feature >= 8)?;
        let entries = SafepointEntries::find(&perf.layout, &bytes)?;
        Some(Self { perf, start, entries, feature })
    }

    /// Reads the sums, in one system call; `None` if they aren't there any more: the JVM has ended.
    pub fn read(&self, memory: &impl ProcessMemory) -> Option<SafepointSums> {
        let [count, sync, time] = self
            .entries
            .places()
            .each_ref()
            .map(|it| (Avma(self.start.0.saturating_add(it.start as u64)), it.len()));
        // Another process with the same id has other counters, or other addresses.
        let read = memory.read_ranges(&[(self.perf.start, 8), (self.start, 4), count, sync, time]);
        let [start, prologue, count, sync, time] = <[_; 5]>::try_from(read).ok()?;
        if start? != self.start.0.to_le_bytes() || !is_prologue(&prologue?) {
            return None;
        }
        self.entries.sums(&self.perf.layout, [&count?, &sync?, &time?], self.feature)
    }
}

#[cfg(test)]
pub(crate) mod testing {
    use super::*;
    use crate::hotspot::process_memory::RecordedMemory;

    /// Address at which a JVM of [`memory`] says where its counters begin and end.
    const POINTERS: Avma = Avma(0x1000);
    const START: Avma = Avma(0x7f00_0000);

    /// An entry as `PerfData::create_entry` makes it: the name, then an aligned `jlong`.
    fn entry(name: &[u8], value: i64) -> Vec<u8> {
        let data = (20 + name.len()).next_multiple_of(8);
        let words = |words: &[u32]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<_>>();
        let mut entry = words(&[data as u32 + 8, 20, 0]);
        // Flags, units and variability follow the type.
        entry.extend([b'J', 1, 1, 3]);
        entry.extend(words(&[data as u32]));
        entry.extend(name);
        entry.resize(data, 0);
        entry.extend(value.to_le_bytes());
        entry
    }

    /// All counters of a JVM that has these sums in ns, and others around them.
    pub(crate) fn counters(sums: [i64; 3]) -> Vec<u8> {
        with_frequency(sums, 1_000_000_000)
    }

    pub(super) fn with_frequency(sums: [i64; 3], frequency: i64) -> Vec<u8> {
        let numbers = NAMES.into_iter().zip(sums);
        let all = [(&b"java.cls.loadedClasses\0"[..], 430)].into_iter().chain(numbers);
        let all: Vec<_> = all.chain([(FREQUENCY, frequency), (b"sun.gc.policy.collectors\0", 1)]).collect();
        let mut bytes = vec![0; 32];
        // Magic number, byte order, version 2.0, accessible.
        bytes[..8].copy_from_slice(&[0xca, 0xfe, 0xc0, 0xc0, 1, 2, 0, 1]);
        bytes[24..28].copy_from_slice(&32_u32.to_le_bytes());
        bytes[28..32].copy_from_slice(&(all.len() as u32).to_le_bytes());
        bytes.extend(all.into_iter().flat_map(|(name, value)| entry(name, value)));
        bytes
    }

    /// The memory of a JVM with these counters.
    pub(crate) fn memory(counters: &[u8]) -> RecordedMemory {
        let mut memory = RecordedMemory::default();
        let end = START.0 + counters.len() as u64;
        memory.insert(POINTERS, [START.0.to_le_bytes(), end.to_le_bytes()].concat());
        memory.insert(START, counters);
        memory
    }

    /// The sums of a JVM with the memory of [`memory`].
    pub(crate) fn find(feature: u32, memory: &RecordedMemory) -> Option<SafepointCounters> {
        SafepointCounters::find(PerfFields::for_tests(POINTERS, Avma(POINTERS.0 + 8)), feature, memory)
    }
}

#[cfg(test)]
mod tests {
    use super::testing::{counters, find, memory, with_frequency};
    use super::*;

    const LAYOUT: PerfDataLayout = PerfDataLayout::OF_SOURCES;

    #[test]
    fn sums_are_found_once_and_read_as_they_grow() {
        let before = memory(&counters([4, 30, 500]));
        let found = find(17, &before).expect("they are there");
        let sums = |safepoints, to_safepoint_ns, stopped_ns| {
            Some(SafepointSums { safepoints, to_safepoint_ns, stopped_ns })
        };
        assert_eq!(found.read(&before), sums(4, 30, 500));
        assert_eq!(found.read(&memory(&counters([5, 31, 700]))), sums(5, 31, 700));
    }

    #[test]
    fn older_jvms_count_the_time_to_the_safepoint_twice() {
        let of = |feature, sums| {
            let memory = memory(&counters(sums));
            let sums = find(feature, &memory).and_then(|found| found.read(&memory));
            sums.map(|sums| (sums.to_safepoint_ns, sums.stopped_ns))
        };
        assert_eq!(of(12, [1, 30, 500]), Some((30, 470)));
        assert_eq!(of(8, [1, 30, 0]), Some((30, 0)), "in its first pause");
        assert_eq!(of(13, [1, 30, 500]), Some((30, 500)));
        assert_eq!(of(0, [1, 30, 500]), None, "nobody knows what they mean");
    }

    #[test]
    fn ticks_are_of_the_jvms_own_length() {
        let microseconds = memory(&with_frequency([1, 30, 500], 1_000_000));
        let sums = find(25, &microseconds).and_then(|found| found.read(&microseconds));
        assert_eq!(sums.map(|sums| sums.stopped_ns), Some(500_000));
        for frequency in [0, -1, 10, i64::MAX] {
            assert!(find(25, &memory(&with_frequency([1, 30, 500], frequency))).is_none(), "{frequency}");
        }
    }

    #[test]
    fn what_is_elsewhere_by_now_or_negative_is_no_sum() {
        let found = find(17, &memory(&counters([4, 30, 500]))).expect("they are there");
        for sums in [[-1, 30, 500], [4, i64::MIN, 500], [4, 30, -500]] {
            assert_eq!(found.read(&memory(&counters(sums))), None, "{sums:?}");
        }
        let all = counters([4, 30, 500]);
        for at in [0, 32 + 56 + 20, 32 + 56 + 12] {
            // The magic number, a name, a type.
            let mut other = all.clone();
            other[at] ^= 1;
            assert_eq!(found.read(&memory(&other)), None, "{at}");
        }
        let mut moved = memory(&all);
        moved.insert(Avma(0x1000), 0x7f00_1000_u64.to_le_bytes());
        assert_eq!(found.read(&moved), None);
    }

    #[test]
    fn no_cut_or_changed_byte_leads_out_of_the_counters() {
        let all = counters([4, 30, 500]);
        let last = SafepointEntries::find(&LAYOUT, &all).expect("they are there");
        let needed = all.len() - 56;
        for cut in 0..needed {
            assert_eq!(SafepointEntries::find(&LAYOUT, &all[..cut]), None, "{cut}");
        }
        assert_eq!(SafepointEntries::find(&LAYOUT, &all[..needed]), Some(last));
        for at in 0..all.len() {
            for byte in [0, 1, 0x7f, 0xff] {
                let mut other = all.clone();
                other[at] = byte;
                let Some(found) = SafepointEntries::find(&LAYOUT, &other) else { continue };
                assert!(found.places().iter().all(|entry| entry.end <= other.len()), "{at}: {byte}");
            }
        }
    }
}
