//! Reading a process's information and mappings from `/proc`.

use std::sync::Arc;
use std::time::Instant;

use jvmprof_common::unwind_tables::NS_PER_TICK;

use super::{Process, ProcessTableCounts};
use crate::process::executable_mappings::{MappedCode, Mappings};
use crate::process::procfs::{self, ProcessInfo, ProcfsError};

/// Shortest interval of reading a process's mappings again for an unknown address, in ns.
const MAPS_INTERVAL_NS: u64 = 1_000_000_000;
/// Reads of a program's information after one in the middle of its exec. A program may take away
/// its own arguments (`PR_SET_MM_ARG_START`), and looks the same for ever.
const MAX_READS_IN_EXEC: u8 = 8;
/// Reading one process's mappings takes at most 1/MAPS_SHARE of wall time.
const MAPS_SHARE: u64 = 100;

impl Process {
    /// Returns true if its information is to be read: it never was, or may be of another program,
    /// or was read in the middle of an exec, which is over some samples later.
    pub(super) fn takes_info(&mut self) -> bool {
        let reads_again = self.was_read_in_exec() && self.reads_in_exec < MAX_READS_IN_EXEC;
        self.reads_in_exec += u8::from(reads_again);
        std::mem::take(&mut self.needs_info) || reads_again
    }

    fn was_read_in_exec(&self) -> bool {
        self.info.as_ref().is_some_and(|info| info.is_in_exec)
    }

    pub(super) fn read_info(&mut self, counts: &mut ProcessTableCounts) {
        let was_read_in_exec = self.was_read_in_exec();
        match procfs::process_info(self.pid) {
            // It has ended since: what was read in its exec says more than what is left of it.
            Ok(info) if was_read_in_exec && info.executable.is_none() => {}
            // `/proc` rounds down to ticks. Another start time is another process with this pid.
            Ok(info) if self.start_ns.is_none_or(|ns| ns / NS_PER_TICK == info.start_ticks) => {
                let parent = self.inherited_info.take();
                self.info = match parent.filter(|parent| !is_same_program(parent, &info)) {
                    // A child that has begun its own program since the sample was taken.
                    Some(parent) => Some(Arc::new(with_program_of(info, &parent))),
                    None => {
                        let before = self.info.as_ref();
                        self.has_missed_exec = before.is_some_and(|it| !is_same_program(it, &info));
                        self.comm = info.comm.as_str().into();
                        Some(Arc::new(info))
                    }
                };
            }
            // Its first sample has found it.
            Ok(_) | Err(ProcfsError::Gone(_)) if was_read_in_exec => {}
            Ok(_) => counts.unreadable += 1,
            Err(error) => {
                counts.unreadable += 1;
                tracing::debug!(pid = self.pid, %error, "a sampled process can't be read");
            }
        }
    }

    /// Returns true if an event's mapping was read from `/proc`, without a build id, after the
    /// event.
    pub(super) fn was_read_after(&self, time_ns: u64, new: &MappedCode) -> bool {
        time_ns <= self.maps_merged_ns
            && self.mappings.find(new.start).is_some_and(|known| {
                known.build_id.is_none() && **known == MappedCode { build_id: None, ..new.clone() }
            })
    }

    pub(super) fn drop_mappings(&mut self) {
        self.mappings = Mappings::default();
        self.needs_maps = true;
        self.generation += 1;
        self.version += 1;
    }

    pub(super) fn read_mappings(&mut self, now_ns: u64, counts: &mut ProcessTableCounts) {
        let keeps_events = !std::mem::take(&mut self.needs_maps);
        counts.reads += 1;
        let began = Instant::now();
        let read = procfs::mappings_and_contexts(self.pid);
        // A process that makes this slow is read less often.
        let taken = u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.next_maps_read_ns =
            now_ns.saturating_add(taken.saturating_mul(MAPS_SHARE).max(MAPS_INTERVAL_NS));
        match read {
            Ok((mappings, contexts)) => {
                self.context.found(self.pid, &contexts, now_ns, &mut counts.contexts);
                counts.mappings_over_limit += u64::from(mappings.is_cut());
                let mut merged = self.with_known_build_ids(&mappings);
                if keeps_events {
                    // `/proc` shows the present, and events up to now are still to come: the
                    // mappings of events so far are as of the sample's time.
                    self.mappings.iter().for_each(|known| _ = merged.insert((**known).clone()));
                    self.maps_merged_ns = now_ns.saturating_add(taken);
                } else {
                    self.maps_replaced_ns = now_ns;
                }
                self.mappings = merged;
                self.generation += 1;
                self.version += 1;
            }
            Err(error) => tracing::debug!(pid = self.pid, %error, "the mappings of a process can't be read"),
        }
    }

    /// Returns mappings with the build ids of known ones: `/proc` has none, and those of events
    /// stay valid for the same mapping.
    fn with_known_build_ids(&self, read: &Mappings) -> Mappings {
        let mut merged = Mappings::default();
        for mapping in read.iter() {
            let build_id = self
                .mappings
                .find(mapping.start)
                .filter(|known| {
                    known.path == mapping.path && known.file_offset(mapping.start) == mapping.offset
                })
                .and_then(|known| known.build_id);
            merged.insert(MappedCode { build_id, ..(**mapping).clone() });
        }
        merged
    }
}

/// Returns false if two programs are known, and differ. That its file was deleted or replaced makes
/// none another one.
fn is_same_program(one: &ProcessInfo, other: &ProcessInfo) -> bool {
    let path = |info: &ProcessInfo| {
        let path = info.executable.as_ref()?.to_string_lossy().into_owned();
        // Appended by the kernel (fs/d_path.c).
        Some(path.strip_suffix(" (deleted)").map_or(path.clone(), str::to_owned))
    };
    path(one).zip(path(other)).is_none_or(|(one, other)| one == other)
}

/// Returns the information of a process with the program of another one.
fn with_program_of(info: ProcessInfo, other: &ProcessInfo) -> ProcessInfo {
    ProcessInfo {
        comm: other.comm.clone(),
        executable: other.executable.clone(),
        cmdline: other.cmdline.clone(),
        service: other.service.clone(),
        // Another read brings the child's own program, and not the rest of its parent's.
        is_in_exec: false,
        ..info
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_whose_file_was_replaced_is_the_same() {
        let own = procfs::process_info(std::process::id()).expect("it is us");
        let of = |path: Option<&str>| ProcessInfo { executable: path.map(Into::into), ..own.clone() };
        for (one, other, is_same) in [
            (Some("/bin/java"), Some("/bin/java"), true),
            (Some("/bin/java"), Some("/bin/java (deleted)"), true),
            (Some("/bin/java"), Some("/bin/sh"), false),
            (Some("/bin/java"), None, true),
        ] {
            assert_eq!(is_same_program(&of(one), &of(other)), is_same, "{one:?} {other:?}");
        }
    }
}
