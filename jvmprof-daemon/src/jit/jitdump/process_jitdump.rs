//! The jitdump of one process: found by its first page, which the process maps executable as a
//! marker for profilers, and read within the process's budgets of memory and CPU time.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::{JitDump, JitDumpError, MAX_READ_BYTES};
use crate::clock::thread_cpu_ns;
use crate::jit::MAX_FILE_BYTES;
use crate::jit::reading_budget::{ReadUrgency, ReadingBudget};
use crate::memory_budget::{MemoryBudget, MemoryReservation};
use crate::native::open_file::{OpenError, open_in_root_owned, open_regular};
use crate::process::executable_mappings::is_jitdump;
use crate::process::procfs::map_files_link;
use crate::process::{MappedCode, Process};

/// Most open files of a process that are searched.
const MAX_DESCRIPTORS: usize = 4096;
/// Shortest interval of checking whether the process has closed its jitdump, in ns.
const CLOSE_CHECK_INTERVAL_NS: u64 = 100_000_000;

/// A jitdump that is being read.
#[derive(Debug)]
pub struct ProcessJitDump {
    dump: JitDump,
    memory: MemoryReservation,
    reading_budget: ReadingBudget,
    pid: u32,
    marker: Arc<MappedCode>,
    next_close_check_ns: u64,
}

/// Returns the mapping by which a process marks that it writes a jitdump: executable, of a file
/// called `jit-PID.dump`.
pub fn jitdump_marker(process: &Process) -> Option<&Arc<MappedCode>> {
    process.mappings.iter().find(|mapping| is_jitdump(&mapping.path))
}

impl ProcessJitDump {
    /// Opens the file that `marker` maps.
    ///
    /// # Errors
    /// Returns an error if the file is gone, isn't a regular file, or may not be read.
    pub fn open(
        process: &Process,
        marker: &Arc<MappedCode>,
        budget: MemoryBudget,
    ) -> Result<Self, OpenError> {
        let dump = JitDump::new(open(process, marker)?, [process.inner_pid(), process.pid]);
        let (pid, marker) = (process.pid, Arc::clone(marker));
        Ok(Self {
            dump,
            memory: MemoryReservation::new(budget),
            reading_budget: ReadingBudget::default(),
            pid,
            marker,
            next_close_check_ns: 0,
        })
    }

    /// Reads a bounded piece of what is new. Returns false if the process's budget is used up.
    /// `is_final`: frames are named afterwards by the entries that have been read.
    ///
    /// # Errors
    /// Returns the errors of [`JitDump::refresh`].
    pub fn read_new(&mut self, now_ns: u64, is_final: bool) -> Result<bool, JitDumpError> {
        let urgency = if is_final { ReadUrgency::Final } else { ReadUrgency::Deferrable };
        let most = self.reading_budget.bytes_allowed(now_ns, urgency);
        if most == 0 {
            return Ok(false);
        }
        let (cpu_ns, read) = (thread_cpu_ns(), self.dump.counters().bytes_read);
        // Checked before the last records are read.
        let is_abandoned = self.is_abandoned(now_ns);
        self.dump.set_memory_limit(self.memory.available().min(MAX_FILE_BYTES));
        self.dump.set_read_limit(most.min(MAX_READ_BYTES));
        let done = self.dump.refresh();
        if is_abandoned {
            self.dump.mark_writer_ended();
        }
        self.memory.set(self.dump.size_bytes());
        let read = self.dump.counters().bytes_read - read;
        self.reading_budget.charge(read, thread_cpu_ns().saturating_sub(cpu_ns));
        done.map(|()| true)
    }

    /// Returns true if nothing more will be written to a dump that lacks records: its writer has it
    /// neither mapped nor open. (.NET ends it in the middle of the record of code that it can't
    /// read itself, and goes on with its perf map.)
    fn is_abandoned(&mut self, now_ns: u64) -> bool {
        if !self.dump.is_buffering() || now_ns < self.next_close_check_ns {
            return false;
        }
        self.next_close_check_ns = now_ns + CLOSE_CHECK_INTERVAL_NS;
        is_unmapped(self.pid, &self.marker) && has_open(self.pid, &self.marker.path) == Some(false)
    }

    pub fn pid(&self) -> u32 {
        self.pid
    }

    pub fn dump(&self) -> &JitDump {
        &self.dump
    }

    pub fn dump_mut(&mut self) -> &mut JitDump {
        &mut self.dump
    }
}

fn open(process: &Process, marker: &MappedCode) -> Result<File, OpenError> {
    // The mapped file itself, deleted or not, which takes CAP_CHECKPOINT_RESTORE. Most writers keep
    // it open, too.
    if let Ok(file) = open_regular(&map_files_link(process.pid, marker.start, marker.end)) {
        return Ok(file);
    }
    match open_descriptor(process.pid, &marker.path) {
        Some(file) => Ok(file),
        None => open_in_root_owned(&process.root(), Path::new(&*marker.path), process.uid().unwrap_or(0)),
    }
}

/// Returns true if the process certainly has nothing mapped there any more.
fn is_unmapped(pid: u32, marker: &MappedCode) -> bool {
    let path = map_files_link(pid, marker.start, marker.end);
    // Not every kernel has this directory.
    let is_listed = path.parent().is_some_and(Path::is_dir);
    is_listed && fs::symlink_metadata(path).is_err_and(|error| error.kind() == ErrorKind::NotFound)
}

/// Returns the links to files of this name that the process has open, deleted or not; `None` if its
/// descriptors can't be listed.
fn descriptors(pid: u32, path: &str) -> Option<impl Iterator<Item = PathBuf>> {
    let searched = file_name(path).to_owned();
    let links = fs::read_dir(format!("/proc/{pid}/fd")).ok()?.flatten().take(MAX_DESCRIPTORS);
    let is_searched = move |link: &PathBuf| {
        let target = fs::read_link(link).ok();
        target.and_then(|target| Some(file_name(target.to_str()?) == searched)).unwrap_or(false)
    };
    Some(links.map(|link| link.path()).filter(is_searched))
}

fn has_open(pid: u32, path: &str) -> Option<bool> {
    Some(descriptors(pid, path)?.next().is_some())
}

/// Opens the file of this name that the process has open.
fn open_descriptor(pid: u32, path: &str) -> Option<File> {
    descriptors(pid, path)?.find_map(|link| open_regular(&link).ok())
}

/// Returns a path's file name without the suffix that the kernel adds for a deleted file.
fn file_name(path: &str) -> &str {
    let name = path.rsplit_once('/').map_or(path, |(_, name)| name);
    name.strip_suffix(" (deleted)").unwrap_or(name)
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};

    use super::*;

    #[test]
    fn a_file_that_its_writer_has_deleted_is_found_among_those_that_it_has_open() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("jit-4000000.dump");
        let mut file = File::create(&path).expect("a file");
        file.write_all(b"records").expect("written");
        let of_mapping = format!("{} (deleted)", path.display());
        fs::remove_file(&path).expect("deleted");
        for path in ["/tmp/jit-4000000.dump", &of_mapping] {
            let mut text = String::new();
            let found = open_descriptor(std::process::id(), path);
            found.expect("it is open").read_to_string(&mut text).expect("read");
            assert_eq!(text, "records");
        }
        assert!(open_descriptor(std::process::id(), "/tmp/jit-4000001.dump").is_none());
    }
}
