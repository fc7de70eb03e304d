//! The jitdump of one process: found by the page of it that the process maps as code, as a mark for profilers.

use std::fs::{self, File};
use std::path::Path;
use std::sync::Arc;

use super::budget::{Budget, Share};
use super::jitdump::{DumpError, JitDump, MOST_READ};
use super::pace::{Pace, Urgency, thread_cpu_ns};
use crate::native::open::{OpenError, open_in_root_owned, open_regular};
use crate::process::mappings::is_jitdump;
use crate::process::{MappedCode, Process};

/// Most open files of a process that are looked at.
const MAX_DESCRIPTORS: usize = 4096;

/// A jitdump that is read.
#[derive(Debug)]
pub struct ProcessDump {
    dump: JitDump,
    share: Share,
    pace: Pace,
}

/// The mapping that tells that a process writes a jitdump: executable, of a file called `jit-PID.dump`.
pub fn marker(process: &Process) -> Option<&Arc<MappedCode>> {
    process.mappings.iter().find(|mapping| is_jitdump(&mapping.path))
}

impl ProcessDump {
    /// Opens the file that `marker` maps.
    ///
    /// # Errors
    /// It is gone, no regular file, or may not be read.
    pub fn open(process: &Process, marker: &MappedCode, budget: Budget) -> Result<Self, OpenError> {
        let dump = JitDump::new(open(process, marker)?, [process.inner_pid(), process.pid]);
        Ok(Self { dump, share: Share::new(budget), pace: Pace::default() })
    }

    /// Reads what is new: a bounded piece, and nothing if the file has cost so much lately that it has to wait: false
    /// then. `is_last_chance`: names are settled by what is known afterwards.
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
        self.dump.set_memory_limit(self.share.limit());
        self.dump.set_read_limit(most.min(MOST_READ));
        let done = self.dump.refresh();
        self.share.set(self.dump.size_bytes());
        let read = self.dump.counters().bytes_read - read;
        self.pace.spend(read, thread_cpu_ns().saturating_sub(cpu_ns));
        done.map(|()| true)
    }

    pub fn dump(&self) -> &JitDump {
        &self.dump
    }

    pub fn dump_mut(&mut self) -> &mut JitDump {
        &mut self.dump
    }
}

fn open(process: &Process, marker: &MappedCode) -> Result<File, OpenError> {
    // The very file, deleted or not; that takes CAP_CHECKPOINT_RESTORE. Most writers keep it open, too.
    let map_file = format!("/proc/{}/map_files/{:x}-{:x}", process.pid, marker.start.0, marker.end.0);
    if let Ok(file) = open_regular(Path::new(&map_file)) {
        return Ok(file);
    }
    match open_descriptor(process.pid, &marker.path) {
        Some(file) => Ok(file),
        None => open_in_root_owned(&process.root(), Path::new(&*marker.path), process.uid().unwrap_or(0)),
    }
}

/// The file of this name that the process has open, deleted or not.
fn open_descriptor(pid: u32, path: &str) -> Option<File> {
    let wanted = file_name(path);
    let links = fs::read_dir(format!("/proc/{pid}/fd")).ok()?.flatten().take(MAX_DESCRIPTORS);
    let is_wanted = |link: &Path| {
        let target = fs::read_link(link).ok();
        target.and_then(|target| Some(file_name(target.to_str()?) == wanted)).unwrap_or(false)
    };
    links.map(|link| link.path()).filter(|link| is_wanted(link)).find_map(|link| open_regular(&link).ok())
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
