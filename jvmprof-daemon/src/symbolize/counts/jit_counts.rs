//! Counters of generated code: entries that were read, and losses.

use std::collections::{BTreeMap, BTreeSet};

use crate::jit::jitdump::JitDumpCounters;
use crate::jit::jitdump::process_jitdump::ProcessJitDump;
use crate::jit::perf_map::PerfMapCounters;
use crate::jit::perf_map::process_perf_map::{ProcessPerfMap, ProcessPerfMapCounters};

/// Maximum number of refused files that are remembered.
const MAX_REFUSED: usize = 1024;

/// A file by process, device and inode.
type RefusedFile = (u32, (u64, u64));

/// Counters of all processes, since the start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JitCounts {
    /// Entries of perf maps and jitdumps.
    pub entries: u64,
    /// Lines of perf maps that were refused: malformed, too long, or beyond the memory limit.
    pub refused_lines: u64,
    pub bytes_read: u64,
    /// Perf maps that were there but could not be read or belong to another user.
    pub unusable: u64,
    /// Perf maps of an earlier process with the same pid.
    pub stale: u64,
    /// jitdumps that could not be used, by reason.
    pub unusable_dumps: BTreeMap<&'static str, u64>,
    /// Refused files that were opened. A process is inspected for samples from before its exec,
    /// too, when it has the new program's mappings.
    refused_files: BTreeSet<RefusedFile>,
    /// Records of jitdumps that were malformed or beyond the memory limit.
    pub refused_records: u64,
    /// Code whose unwinding information couldn't be used.
    pub unusable_unwinding: u64,
    /// Superseded entries that were dropped early, since the memory limit was reached.
    pub history_over_limit: u64,
    /// Frames whose name is one of two: the writer's times don't decide which.
    pub ambiguous: u64,
    /// Stacks that were walked by unwinding information that may not be that of the code at the
    /// time.
    pub ambiguous_stacks: u64,
    /// Frames that no entry covers.
    pub unknown: u64,
}

impl JitCounts {
    /// Counts a jitdump that can't be used, each file of a process once. `id`: its device and
    /// inode, if it was opened.
    pub(in crate::symbolize) fn refuse_dump(
        &mut self,
        pid: u32,
        id: Option<(u64, u64)>,
        reason: &'static str,
    ) {
        if self.refused_files.len() >= MAX_REFUSED {
            self.refused_files.clear();
        }
        if id.is_none_or(|id| self.refused_files.insert((pid, id))) {
            *self.unusable_dumps.entry(reason).or_default() += 1;
        }
    }

    /// Returns the losses, by name.
    pub fn losses(&self) -> impl Iterator<Item = (String, u64)> {
        let counts = [
            ("refused_perf_map_lines", self.refused_lines),
            ("unusable_perf_maps", self.unusable),
            ("stale_perf_maps", self.stale),
            ("refused_jitdump_records", self.refused_records),
            ("unusable_jit_unwinding", self.unusable_unwinding),
            ("jit_history_over_limit", self.history_over_limit),
            ("ambiguous_jit_frames", self.ambiguous),
            ("ambiguous_jit_stacks", self.ambiguous_stacks),
            ("unknown_jit_frames", self.unknown),
        ];
        let dumps = self
            .unusable_dumps
            .iter()
            .map(|(reason, count)| (format!("unusable_jitdumps: {reason}"), *count));
        counts.map(|(name, count)| (name.to_owned(), count)).into_iter().chain(dumps)
    }
}

/// The part of one process's counters that is in [`JitCounts`] already.
#[derive(Debug, Default)]
pub(in crate::symbolize) struct ReportedCounts {
    lines: PerfMapCounters,
    map: ProcessPerfMapCounters,
    dump: JitDumpCounters,
}

impl ReportedCounts {
    /// Adds the difference since the last call.
    pub(in crate::symbolize) fn report(
        &mut self,
        map: &ProcessPerfMap,
        dump: Option<&ProcessJitDump>,
        counts: &mut JitCounts,
    ) {
        let (lines, dump) = (map.map().counters(), dump.map_or(self.dump, |dump| dump.dump().counters()));
        let map = map.counters();
        let refused_lines = |it: &PerfMapCounters| it.malformed + it.too_long + it.over_limit;
        let refused_records = |it: &JitDumpCounters| it.malformed + it.over_limit;
        counts.entries += lines.entries - self.lines.entries + dump.entries - self.dump.entries;
        counts.bytes_read +=
            lines.bytes_read - self.lines.bytes_read + dump.bytes_read - self.dump.bytes_read;
        counts.refused_lines += refused_lines(&lines) - refused_lines(&self.lines);
        counts.refused_records += refused_records(&dump) - refused_records(&self.dump);
        counts.unusable_unwinding += dump.unusable_unwinding - self.dump.unusable_unwinding;
        counts.history_over_limit += lines.history_over_limit - self.lines.history_over_limit;
        counts.history_over_limit += dump.history_over_limit.saturating_sub(self.dump.history_over_limit);
        counts.unusable += map.unusable - self.map.unusable;
        counts.stale += map.stale - self.map.stale;
        *self = Self { lines, map, dump };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dump_that_cannot_be_used_is_counted_once_for_each_process_that_maps_it() {
        let mut counts = JitCounts::default();
        counts.refuse_dump(1, Some((8, 100)), "other process");
        counts.refuse_dump(1, Some((8, 100)), "other process");
        counts.refuse_dump(2, Some((8, 100)), "other process");
        counts.refuse_dump(1, Some((8, 101)), "CPU timestamps");
        counts.refuse_dump(1, None, "gone");
        counts.refuse_dump(1, None, "gone");
        assert_eq!(
            counts.unusable_dumps,
            BTreeMap::from([("other process", 2), ("CPU timestamps", 1), ("gone", 2)])
        );
    }

    #[test]
    fn what_is_remembered_of_refused_dumps_is_bounded() {
        let mut counts = JitCounts::default();
        for inode in 0..3 * MAX_REFUSED as u64 {
            counts.refuse_dump(1, Some((8, inode)), "other process");
        }
        assert_eq!(counts.unusable_dumps["other process"], 3 * MAX_REFUSED as u64);
        assert!(counts.refused_files.len() <= MAX_REFUSED);
    }
}
