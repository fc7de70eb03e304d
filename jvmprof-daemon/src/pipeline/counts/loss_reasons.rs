//! The reasons for which samples are missing or stacks incomplete, by the names under which
//! docs/losses.md and `jvmprof record` list them.

use std::collections::BTreeMap;

use jvmprof_common::abi::Counter;

use super::Counts;
use crate::symbolize::StackOutcome;

impl Counts {
    /// Returns all that is missing or incomplete, by name; zeros left out.
    pub fn losses(&self) -> BTreeMap<String, u64> {
        let mut losses = self.all_losses();
        losses.retain(|_, count| *count > 0);
        losses
    }

    /// Returns [`Self::losses`] with zeros.
    fn all_losses(&self) -> BTreeMap<String, u64> {
        let sampler = &self.sampler;
        let mut losses = BTreeMap::from([
            ("ring_buffer_full".to_owned(), sampler.get(Counter::RingBufferFull)),
            ("unwinder_unavailable".to_owned(), sampler.get(Counter::UnwinderUnavailable)),
            ("kernel_stack_unreadable".to_owned(), sampler.get(Counter::KernelStackUnreadable)),
            ("filter_full".to_owned(), sampler.get(Counter::FilterFull)),
            ("shed".to_owned(), sampler.shed.total()),
            ("malformed_records".to_owned(), sampler.malformed.total()),
            ("process_events_lost".to_owned(), sampler.records_lost),
            ("malformed_process_events".to_owned(), sampler.malformed_records),
            ("late_events".to_owned(), sampler.late),
            ("unreadable_processes".to_owned(), self.table.unreadable),
            ("mappings_over_limit".to_owned(), self.table.mappings_over_limit),
            ("mapping_resets".to_owned(), self.table.resets),
            ("refused_contexts".to_owned(), self.table.contexts.refused),
            ("torn_contexts".to_owned(), self.table.contexts.torn),
            ("context_attributes_left_out".to_owned(), self.table.contexts.left_out),
            ("unwind_tables_without_room".to_owned(), self.symbols.tables.no_room),
            ("unpublished_processes".to_owned(), self.symbols.tables.unpublished_processes),
            ("refused_unwind_rows".to_owned(), self.symbols.tables.refused_rows),
            ("without_container_metadata".to_owned(), self.targets.without_container_metadata),
            ("dropped_by_rules".to_owned(), self.dropped()),
            ("over_series_limit".to_owned(), self.over_series_limit),
            ("window_full".to_owned(), self.window_full),
            ("other_threads".to_owned(), self.targets.other_threads),
            ("cut_labels".to_owned(), self.targets.cut_labels),
            ("waiting_full".to_owned(), self.waiting_full),
            ("thread_contexts_unreadable".to_owned(), sampler.get(Counter::ThreadContextUnreadable)),
            ("thread_contexts_left_out".to_owned(), self.thread_contexts.left_out),
            ("thread_contexts_without_variable".to_owned(), self.thread_contexts.without_variable),
            ("thread_contexts_over_limit".to_owned(), self.thread_contexts.over_limit),
            ("thread_contexts_refused".to_owned(), self.thread_contexts.refused),
            ("pauses_lost".to_owned(), self.pauses.lost),
            ("pauses_unnamed".to_owned(), self.pauses.unnamed),
            ("off_cpu_unfollowed_switches".to_owned(), self.off_cpu.unfollowed_switches),
            ("off_cpu_lost_waits".to_owned(), self.off_cpu.lost_waits),
            ("off_cpu_unreported_parts".to_owned(), self.off_cpu.unreported_parts),
            ("off_cpu_unnamed_blockers".to_owned(), self.off_cpu.unnamed_blockers),
            ("off_cpu_jvms_without_blockers".to_owned(), self.off_cpu.jvms_without_blockers),
        ]);
        losses.extend(self.allocation_losses());
        let unseen = self.pauses.unfollowed_jvms.iter();
        losses.extend(unseen.map(|(reason, count)| (format!("pauses_unseen_jvms: {reason}"), *count)));
        let unknown = self.pauses.unknown_sums.iter();
        losses.extend(unknown.map(|(reason, count)| (format!("pauses_unknown_sums: {reason}"), *count)));
        losses.extend(self.symbols.perf_maps.losses());
        for (outcome, samples) in &self.outcomes {
            if let StackOutcome::Truncated(reason) = outcome {
                losses.insert(format!("truncated: {reason}"), samples.total());
            }
        }
        let by_reason = [
            ("unusable_files", &self.symbols.unusable_files),
            ("unreadable_jvms", &self.symbols.unreadable_jvms),
            ("unnamed", &self.symbols.unnamed),
        ];
        for (what, counts) in by_reason {
            losses.extend(counts.iter().map(|(reason, count)| (format!("{what}: {reason}"), *count)));
        }
        losses
    }

    fn allocation_losses(&self) -> impl Iterator<Item = (String, u64)> {
        let allocation = &self.allocation;
        let by_name = [
            ("allocation_unknown_classes", allocation.unknown_classes),
            ("allocation_unfollowed_events", allocation.unfollowed + allocation.unfollowed_threads),
            ("allocation_bytes_without_census", allocation.bytes_without_census),
            ("allocation_unclassified_bytes", allocation.unclassified_bytes),
            ("allocation_skipped_censuses", allocation.skipped_censuses),
            ("allocation_tlabs_lost", self.sampler.get(Counter::TlabsLost)),
        ];
        let by_reason = [
            ("allocation_unseen_jvms", &allocation.unfollowed_jvms),
            ("allocation_unseen_thread_ends", &allocation.unseen_thread_ends),
            ("allocation_failed_censuses", &allocation.failed_censuses),
        ];
        let by_reason = by_reason.into_iter().flat_map(|(what, counts)| {
            counts.iter().map(move |(reason, count)| (format!("{what}: {reason}"), *count))
        });
        by_name.map(|(name, count)| (name.to_owned(), count)).into_iter().chain(by_reason)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::event_type::{EventType, SamplesByEvent};
    use crate::export::delivery::Losses;

    const DOCUMENT: &str = include_str!("../../../../docs/losses.md");

    /// Returns the names in the document's tables of counters.
    fn documented() -> BTreeSet<String> {
        let mut names = BTreeSet::new();
        let mut is_table = false;
        for line in DOCUMENT.lines() {
            is_table = line.starts_with("| counted as |") || (is_table && line.starts_with('|'));
            if let Some(name) =
                line.strip_prefix("| `").filter(|_| is_table).and_then(|row| row.split('`').next())
            {
                assert!(names.insert(name.to_owned()), "{name} is documented twice");
            }
        }
        names
    }

    #[test]
    fn the_document_has_each_loss_and_no_other() {
        let mut counts = Counts::default();
        counts.symbols.perf_maps.unusable_dumps.insert("REASON", 1);
        counts.symbols.unusable_files.insert("REASON", 1);
        counts.symbols.unreadable_jvms.insert("REASON", 1);
        counts.symbols.unnamed.insert("REASON", 1);
        counts.allocation.unfollowed_jvms.insert("REASON", 1);
        counts.allocation.unseen_thread_ends.insert("REASON", 1);
        counts.allocation.failed_censuses.insert("REASON", 1);
        counts.pauses.unfollowed_jvms.insert("REASON", 1);
        counts.pauses.unknown_sums.insert("REASON", 1);
        let mut counted: BTreeSet<String> = counts.all_losses().into_keys().collect();
        counted.extend(Losses::<u64>::default().iter().map(|(name, _)| name.to_owned()));
        assert_eq!(documented(), counted);
        // What is cut off has a table of its own.
        let two = SamplesByEvent::of(EventType::Cpu, 1) + SamplesByEvent::of(EventType::Allocation, 1);
        counts.outcomes = BTreeMap::from([(StackOutcome::Truncated("stack unreadable"), two)]);
        assert_eq!(counts.losses()["truncated: stack unreadable"], 2);
        assert!(DOCUMENT.contains("\n| stack unreadable |"));
    }
}
