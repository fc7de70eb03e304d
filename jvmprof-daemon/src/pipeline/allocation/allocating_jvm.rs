//! One JVM whose allocations are followed.

use std::collections::HashMap;
use std::sync::Arc;

use jvmprof_common::allocation::{
    AllocatedTotals, AllocationRecord, AllocationTarget, CountedKey, ObjectTotals, TlabRecord,
};

use super::AllocationOptions;
use super::allocation_intervals::AllocationIntervals;
use super::estimate::{BufferGroup, CensusSums, StratumTable, WindowCensus, WindowTotals, probability};
use super::second_phase::{SCREENED, SecondPhase};
use crate::hotspot::LiveMemory;
use crate::hotspot::java_heap::{CensusError, HeapLayout, JavaClass, KlassReader, TlabCensus, TlabScreen};
use crate::pipeline::probed_files::ProbedFile;
use crate::process::ProcessKey;
use crate::sampler::{AllocationMaps, SamplerError};
use crate::types::Avma;

/// A JVM whose allocations are followed, or can't be.
#[derive(Debug, Default)]
pub(super) struct AllocatingJvm {
    pub(super) pid: u32,
    /// `task_struct.start_boottime`, ns.
    pub(super) start_ns: u64,
    /// The file that its uprobes are in.
    pub(super) file: Option<ProbedFile>,
    heap: Option<JavaHeap>,
    since_ns: u64,
    interval: u64,
    census_interval: u64,
    /// Totals at the end of the last window.
    before: AllocatedTotals,
    counted_before: HashMap<CountedKey, ObjectTotals>,
    counted_classes: HashMap<CountedKey, Arc<JavaClass>>,
    /// What this window's censuses have counted.
    census: WindowCensus,
    second_phase: SecondPhase,
    /// Bytes of buffers that were given up, without large first objects, as its censuses know them.
    inside_before: u64,
    cut_before: u64,
    /// Those of them since the intervals were adjusted.
    given_up: u64,
    /// Events that were kept since the intervals were adjusted.
    kept: u32,
}

#[derive(Debug)]
struct JavaHeap {
    layout: HeapLayout,
    memory: LiveMemory,
    klasses: KlassReader,
    census: TlabCensus,
    screen: TlabScreen,
}

/// What became of a buffer that chance has chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ChosenBuffer {
    /// Its objects were counted.
    Counted,
    /// It was screened, and not counted.
    Screened,
}

impl JavaHeap {
    /// Returns the group of a buffer.
    fn group(&mut self, tlab: &TlabRecord) -> Result<BufferGroup, CensusError> {
        if tlab.uncounted() < SCREENED {
            return Ok(BufferGroup::Unscreened);
        }
        let Self { layout, memory, klasses, screen, .. } = self;
        let is_large = screen.has_large_object(tlab, layout, klasses, memory)?;
        Ok(if is_large { BufferGroup::LargeObject } else { BufferGroup::SmallObjects })
    }

    /// Returns the class of objects that are each an event.
    fn class_of_counted(&mut self, of: CountedKey, totals: ObjectTotals) -> Option<Arc<JavaClass>> {
        let class = self.klasses.read(Avma(of.klass), &self.layout, &self.memory)?;
        let is_one = totals.objects == 1;
        (!is_one || class.fits(totals.bytes, &self.layout)).then_some(class)
    }
}

impl AllocatingJvm {
    pub(super) fn new(pid: u32, start_ns: u64, since_ns: u64) -> Self {
        Self { pid, start_ns, since_ns, ..Self::default() }
    }

    pub(super) fn set_heap(&mut self, layout: HeapLayout, memory: LiveMemory) {
        let (klasses, census, screen) =
            (KlassReader::default(), TlabCensus::default(), TlabScreen::default());
        self.heap = Some(JavaHeap { layout, memory, klasses, census, screen });
    }

    /// Returns how many events were kept since the distances were adjusted.
    pub(super) const fn kept(&self) -> u32 {
        self.kept
    }

    pub(super) const fn interval(&self) -> u64 {
        self.interval
    }

    /// Has the kernel programs follow it.
    pub(super) fn set_target(
        &mut self,
        maps: &mut AllocationMaps,
        intervals: &AllocationIntervals,
    ) -> Result<(), SamplerError> {
        let Some(heap) = &self.heap else { return Ok(()) };
        if self.interval == 0 {
            self.interval = intervals.first_interval();
        }
        let can_count = heap.layout.collections_at.is_some();
        self.census_interval = if can_count { intervals.census_interval() } else { 0 };
        let target = AllocationTarget {
            start_ns: self.start_ns,
            since_ns: self.since_ns,
            interval: self.interval,
            census_interval: self.census_interval,
            collections_at: heap.layout.collections_at.map_or(0, |at| at.0),
            allocated_bytes_offset: heap.layout.allocated_bytes as u32,
            reserved: 0,
        };
        maps.set_target(self.pid, target)
    }

    /// Adjusts how many events are kept.
    pub(super) fn adjust(
        &mut self,
        maps: &mut AllocationMaps,
        intervals: &AllocationIntervals,
        options: &AllocationOptions,
    ) {
        if self.file.is_none() {
            return;
        }
        let interval = intervals.interval_after(self.interval, std::mem::take(&mut self.kept), options);
        let has_census = self.heap.as_ref().is_some_and(|heap| heap.layout.collections_at.is_some());
        let census_interval = if has_census { intervals.census_interval() } else { 0 };
        if interval != self.interval || census_interval != self.census_interval {
            tracing::trace!(pid = self.pid, interval, census_interval, "allocation's distances");
            self.interval = interval;
            if let Err(error) = self.set_target(maps, intervals) {
                tracing::warn!(pid = self.pid, %error, "a JVM's allocations aren't followed any more");
            }
        }
    }

    /// Returns the class of an event's object, if it is one that such an object can be of.
    pub(super) fn class_of(&mut self, record: &AllocationRecord) -> Option<Arc<JavaClass>> {
        self.kept += 1;
        let heap = self.heap.as_mut()?;
        let class = heap.klasses.read(Avma(record.klass), &heap.layout, &heap.memory);
        let fitting = class.clone().filter(|class| class.fits(record.object_bytes, &heap.layout));
        if fitting.is_none() {
            tracing::debug!(pid = self.pid, ?record, ?class, "an object of an unknown class");
        }
        fitting
    }

    /// Counts the objects in a buffer that was given up, or leaves it at screening it.
    pub(super) fn count_tlab(
        &mut self,
        tlab: &TlabRecord,
        strata: &mut StratumTable,
    ) -> Result<ChosenBuffer, CensusError> {
        let heap = self.heap.as_mut().ok_or(CensusError::Unreadable)?;
        let group = heap.group(tlab)?;
        self.census.add_chosen(tlab, group);
        let first = probability(tlab.uncounted(), tlab.interval);
        let second = self.second_phase.probability(group, first, self.census.has_census(group));
        if rand::random::<f64>() >= second {
            return Ok(ChosenBuffer::Screened);
        }
        let JavaHeap { layout, memory, klasses, census, .. } = heap;
        let found = census.count(Avma(tlab.start), tlab.used, tlab.collections, layout, klasses, memory)?;
        self.census.add(tlab, (group, second), &found, strata);
        Ok(ChosenBuffer::Counted)
    }

    /// Adds the bytes of buffers that were given up since the last call to its censuses.
    pub(super) fn add_given_up(&mut self, maps: &AllocationMaps) {
        let uncounted =
            |totals: AllocatedTotals| (totals.inside.saturating_sub(totals.large_first), totals.cut);
        let before = (self.inside_before, self.cut_before);
        let (inside, cut) = maps.totals(self.pid).map_or(before, uncounted);
        // A large first object is counted when its buffer begins, the buffer when it is given up.
        let inside = inside.max(self.inside_before);
        let given_up = inside - std::mem::replace(&mut self.inside_before, inside);
        let cut = cut.saturating_sub(std::mem::replace(&mut self.cut_before, cut));
        self.census.add_given_up(given_up);
        // Chance chooses among the others alone.
        self.given_up += given_up.saturating_sub(cut);
    }

    /// Returns these bytes since the last call, if its buffers can be counted.
    pub(super) fn take_given_up(&mut self) -> u64 {
        let given_up = std::mem::take(&mut self.given_up);
        if self.census_interval == 0 { 0 } else { given_up }
    }

    pub(super) fn take_census(&mut self, maps: &AllocationMaps) -> CensusSums {
        self.add_given_up(maps);
        self.census.take()
    }

    /// Reads the classes of such objects that are new: later they may have been unloaded,
    /// or the process has ended.
    pub(super) fn read_counted_classes(&mut self, counted: &[(CountedKey, ObjectTotals)]) {
        let Some(heap) = &mut self.heap else { return };
        for &(of, totals) in counted.iter().filter(|(of, _)| of.pid == self.pid) {
            if !self.counted_classes.contains_key(&of)
                && let Some(class) = heap.class_of_counted(of, totals)
            {
                self.counted_classes.insert(of, class);
            }
        }
    }

    /// Returns what it has allocated since the last window's end.
    pub(super) fn take_totals(
        &mut self,
        maps: &AllocationMaps,
        counted: &[(CountedKey, ObjectTotals)],
        strata: &mut StratumTable,
        key: ProcessKey,
    ) -> WindowTotals {
        let now = maps.totals(self.pid).unwrap_or_default();
        let before = std::mem::replace(&mut self.before, now);
        for &(of, totals) in counted.iter().filter(|(of, _)| of.pid == self.pid) {
            let earlier = self.counted_before.insert(of, totals).unwrap_or_default();
            let objects = totals.objects.saturating_sub(earlier.objects);
            let Some(heap) = self.heap.as_mut().filter(|_| objects != 0) else { continue };
            let bytes = totals.bytes.saturating_sub(earlier.bytes);
            let class = self.counted_classes.get(&of).cloned().or_else(|| heap.class_of_counted(of, totals));
            let name = class.as_deref().map(|class| &class.name);
            strata.add_counted(key, name, &of, objects, bytes);
        }
        WindowTotals {
            inside: now.inside.saturating_sub(before.inside),
            outside: now.outside.saturating_sub(before.outside),
            cut: now.cut.saturating_sub(before.cut),
            unclassified: now.unclassified.saturating_sub(before.unclassified),
            unfollowed_events: now.unfollowed_events.saturating_sub(before.unfollowed_events),
        }
    }
}
