//! The jitdump of one process: found by the page of it that the process maps as code, as a mark for profilers.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use super::budget::{Budget, Share};
use super::jitdump::{DumpError, JitDump};
use crate::native::open::{OpenError, open_in_root_owned, open_regular};
use crate::process::mappings::is_jitdump;
use crate::process::{MappedCode, Process};

/// A jitdump that is read.
#[derive(Debug)]
pub struct ProcessDump {
    dump: JitDump,
    share: Share,
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
        Ok(Self { dump, share: Share::new(budget) })
    }

    /// Reads what is new: a bounded piece.
    ///
    /// # Errors
    /// As [`JitDump::refresh`].
    pub fn check(&mut self) -> Result<(), DumpError> {
        self.dump.set_memory_limit(self.share.limit());
        let done = self.dump.refresh();
        self.share.set(self.dump.size_bytes());
        done
    }

    pub fn dump(&self) -> &JitDump {
        &self.dump
    }

    pub fn dump_mut(&mut self) -> &mut JitDump {
        &mut self.dump
    }
}

fn open(process: &Process, marker: &MappedCode) -> Result<File, OpenError> {
    // The very file, deleted or not.
    let map_file = format!("/proc/{}/map_files/{:x}-{:x}", process.pid, marker.start.0, marker.end.0);
    open_regular(Path::new(&map_file)).or_else(|_| {
        open_in_root_owned(&process.root(), Path::new(&*marker.path), process.uid().unwrap_or(0))
    })
}
