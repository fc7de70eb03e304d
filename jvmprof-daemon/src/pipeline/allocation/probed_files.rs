//! The libjvm files that have uprobes: one for all JVMs that map it.

use std::collections::HashMap;
use std::path::PathBuf;

use crate::hotspot::java_heap::find_allocation_functions;
use crate::native::file_identity::FileIdentity;
use crate::native::file_identity::FileStat;
use crate::native::open_file::open_regular;
use crate::process::procfs::map_file;
use crate::process::{Backing, Process};
use crate::sampler::{AllocationFunctions, AttachedProbes, BackgroundSampler};

/// A file that a JVM needs uprobes in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ProbedFile(FileIdentity);

#[derive(Debug, Default)]
pub(super) struct ProbedFiles {
    files: HashMap<FileIdentity, FileProbes>,
    /// Functions of files that have been searched.
    functions: HashMap<FileIdentity, Result<AllocationFunctions, &'static str>>,
    released: Vec<AttachedProbes>,
}

#[derive(Debug)]
struct FileProbes {
    functions: AllocationFunctions,
    /// A path that leads to it, for as long as the JVM that asked first runs.
    path: PathBuf,
    users: u32,
    state: ProbeState,
}

#[derive(Debug)]
enum ProbeState {
    Wanted,
    Attached(AttachedProbes),
    Refused,
}

/// Files whose functions are remembered.
const MAX_FILES: usize = 256;

impl ProbedFiles {
    /// Asks for uprobes in the libjvm that a process has mapped.
    ///
    /// # Errors
    /// Returns why they aren't possible.
    pub(super) fn request(&mut self, process: &Process) -> Result<ProbedFile, &'static str> {
        let is_libjvm =
            |path: &str| path.rsplit('/').next().is_some_and(|name| name.starts_with("libjvm.so"));
        let mut mappings = process.mappings.iter();
        let libjvm = mappings
            .find(|mapping| mapping.backing == Backing::File && is_libjvm(&mapping.path))
            .ok_or("no libjvm")?;
        // Leads to the very file, also if it is deleted, or in another mount namespace.
        let path = map_file(process.pid, libjvm.start, libjvm.end);
        let identity = open_regular(&path)
            .ok()
            .and_then(|file| FileStat::of(&file).ok())
            .map(|stat| stat.identity)
            .ok_or("unreadable")?;
        if self.functions.len() > MAX_FILES {
            self.functions.clear();
        }
        let functions = *self.functions.entry(identity).or_insert_with(|| {
            find_allocation_functions(&path).map_err(|error| {
                tracing::info!(path = &*libjvm.path, %error, "no uprobes for allocations");
                error.reason()
            })
        });
        let functions = functions?;
        let probes = self.files.entry(identity).or_insert(FileProbes {
            functions,
            path: path.clone(),
            users: 0,
            state: ProbeState::Wanted,
        });
        if matches!(probes.state, ProbeState::Refused) {
            return Err("uprobe refused");
        }
        if matches!(probes.state, ProbeState::Wanted) {
            probes.path = path;
        }
        probes.users += 1;
        Ok(ProbedFile(identity))
    }

    /// Ends a JVM's use of its file.
    pub(super) fn release(&mut self, file: ProbedFile) {
        let Some(probes) = self.files.get_mut(&file.0) else { return };
        probes.users = probes.users.saturating_sub(1);
        if probes.users == 0
            && let Some(probes) = self.files.remove(&file.0)
            && let ProbeState::Attached(attached) = probes.state
        {
            self.released.push(attached);
        }
    }

    /// Attaches and detaches; returns reasons of what was refused.
    pub(super) fn update(&mut self, sampler: &BackgroundSampler) -> Vec<&'static str> {
        for attached in self.released.drain(..) {
            sampler.detach_probes(attached);
        }
        let mut refused = Vec::new();
        for probes in self.files.values_mut().filter(|probes| matches!(probes.state, ProbeState::Wanted)) {
            probes.state = match sampler.attach_probes(&probes.path, probes.functions) {
                Ok(attached) => {
                    tracing::debug!(path = %probes.path.display(), "allocations are seen");
                    ProbeState::Attached(attached)
                }
                Err(error) => {
                    tracing::warn!(path = %probes.path.display(), error = %error, "no uprobes in a libjvm");
                    refused.push("uprobe refused");
                    ProbeState::Refused
                }
            };
        }
        refused
    }
}
