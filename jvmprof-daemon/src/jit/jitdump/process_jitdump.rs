//! The jitdump of one process: found by the page of it that the process maps as code, as a mark for
//! profilers.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::{DumpError, JitDump, MOST_READ};
use crate::clock::thread_cpu_ns;
use crate::jit::cpu_budget::{Pace, Urgency};
use crate::jit::memory_budget::{Budget, Share};
use crate::native::open_file::{OpenError, open_in_root_owned, open_regular};
use crate::process::executable_mappings::is_jitdump;
use crate::process::{MappedCode, Process};

/// Most open files of a process that are looked at.
const MAX_DESCRIPTORS: usize = 4096;
/// It is looked at most this often whether a dump has been given up.
const LOOK_INTERVAL_NS: u64 = 100_000_000;

/// A jitdump that is read.
#[derive(Debug)]
pub struct ProcessDump {
    dump: JitDump,
    share: Share,
    pace: Pace,
    pid: u32,
    marker: Arc<MappedCode>,
    next_look_ns: u64,
}

/// The mapping that tells that a process writes a jitdump: executable, of a file called
/// `jit-PID.dump`.
pub fn marker(process: &Process) -> Option<&Arc<MappedCode>> {
    process.mappings.iter().find(|mapping| is_jitdump(&mapping.path))
}

impl ProcessDump {
    /// Opens the file that `marker` maps.
    ///
    /// # Errors
    /// It is gone, no regular file, or may not be read.
    pub fn open(process: &Process, marker: &Arc<MappedCode>, budget: Budget) -> Result<Self, OpenError> {
        let dump = JitDump::new(open(process, marker)?, [process.inner_pid(), process.pid]);
        let (pid, marker) = (process.pid, Arc::clone(marker));
        Ok(Self { dump, share: Share::new(budget), pace: Pace::default(), pid, marker, next_look_ns: 0 })
    }

    /// Reads what is new: a bounded piece, and nothing if the file has cost so much lately that it
    /// has to wait: false then. `is_last_chance`: names are settled by what is known afterwards.
    ///
    /// # Errors
    /// As [`JitDump::refresh`].
    pub fn check(&mut self, now_ns: u64, is_last_chance: bool) -> Result<bool, DumpError> {
        let urgency = if is_last_chance { Urgency::LastChance } else { Urgency::Later };
        let most = self.pace.allowance(now_ns, urgency);
        if most == 0 {
            return Ok(false);
        }
        let (cpu_ns, read) = (thread_cpu_ns(), self.dump.counters().bytes_read);
        // Before the last of it is read.
        let is_given_up = self.is_given_up(now_ns);
        self.dump.set_memory_limit(self.share.limit());
        self.dump.set_read_limit(most.min(MOST_READ));
        let done = self.dump.refresh();
        if is_given_up {
            self.dump.writer_has_ended();
        }
        self.share.set(self.dump.size_bytes());
        let read = self.dump.counters().bytes_read - read;
        self.pace.spend(read, thread_cpu_ns().saturating_sub(cpu_ns));
        done.map(|()| true)
    }

    /// Whether a dump that says less than it should gets no more: its writer has it neither mapped
    /// nor open. (.NET ends it in the middle of the record of code that it can't read itself, and
    /// goes on with its perf map.)
    fn is_given_up(&mut self, now_ns: u64) -> bool {
        if !self.dump.is_collecting() || now_ns < self.next_look_ns {
            return false;
        }
        self.next_look_ns = now_ns + LOOK_INTERVAL_NS;
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
    // The very file, deleted or not; that takes CAP_CHECKPOINT_RESTORE. Most writers keep it open,
    // too.
    if let Ok(file) = open_regular(&map_file(process.pid, marker)) {
        return Ok(file);
    }
    match open_descriptor(process.pid, &marker.path) {
        Some(file) => Ok(file),
        None => open_in_root_owned(&process.root(), Path::new(&*marker.path), process.uid().unwrap_or(0)),
    }
}

fn map_file(pid: u32, marker: &MappedCode) -> PathBuf {
    format!("/proc/{pid}/map_files/{:x}-{:x}", marker.start.0, marker.end.0).into()
}

/// Whether the process has nothing mapped there any more, for sure.
fn is_unmapped(pid: u32, marker: &MappedCode) -> bool {
    let path = map_file(pid, marker);
    // Kernels may have no such folder.
    let is_told = path.parent().is_some_and(Path::is_dir);
    is_told && fs::symlink_metadata(path).is_err_and(|error| error.kind() == ErrorKind::NotFound)
}

/// The links to files of this name that the process has open, deleted or not; `None` if that can't
/// be told.
fn descriptors(pid: u32, path: &str) -> Option<impl Iterator<Item = PathBuf>> {
    let wanted = file_name(path).to_owned();
    let links = fs::read_dir(format!("/proc/{pid}/fd")).ok()?.flatten().take(MAX_DESCRIPTORS);
    let is_wanted = move |link: &PathBuf| {
        let target = fs::read_link(link).ok();
        target.and_then(|target| Some(file_name(target.to_str()?) == wanted)).unwrap_or(false)
    };
    Some(links.map(|link| link.path()).filter(is_wanted))
}

fn has_open(pid: u32, path: &str) -> Option<bool> {
    Some(descriptors(pid, path)?.next().is_some())
}

/// The file of this name that the process has open.
fn open_descriptor(pid: u32, path: &str) -> Option<File> {
    descriptors(pid, path)?.find_map(|link| open_regular(&link).ok())
}

/// Without what the kernel adds to the name of a deleted file.
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
