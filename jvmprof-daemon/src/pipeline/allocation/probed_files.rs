//! The libjvm files that have uprobes: one for all JVMs that map it.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::hotspot::java_heap::{FunctionsError, find_allocation_functions};
use crate::native::debuginfod::{Debuginfod, FetchState};
use crate::native::file_identity::FileIdentity;
use crate::native::file_identity::FileStat;
use crate::native::open_file::open_regular;
use crate::process::procfs::map_file;
use crate::process::{Backing, Process};
use crate::sampler::{AllocationFunctions, AttachedProbes, BackgroundSampler};
use crate::types::BuildId;

/// A file that a JVM needs uprobes in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ProbedFile(FileIdentity);

/// The reason why a JVM's file has no uprobes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoProbes {
    /// Its debug file is being fetched: to be asked for again.
    Pending,
    Impossible(&'static str),
}

#[derive(Debug, Default)]
pub(super) struct ProbedFiles {
    files: HashMap<FileIdentity, FileProbes>,
    /// Functions of files that have been searched.
    functions: HashMap<FileIdentity, Result<AllocationFunctions, &'static str>>,
    /// Files whose debug files, of these build ids, were requested.
    pending: HashMap<FileIdentity, BuildId>,
    debuginfod: Option<Arc<Debuginfod>>,
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
    /// Has no files. Debug files that the host hasn't come from this server.
    pub(super) fn new(debuginfod: Option<Arc<Debuginfod>>) -> Self {
        Self { debuginfod, ..Self::default() }
    }

    /// Asks for uprobes in the libjvm that a process has mapped.
    ///
    /// # Errors
    /// Returns why they aren't possible.
    pub(super) fn request(&mut self, process: &Process) -> Result<ProbedFile, NoProbes> {
        let is_libjvm =
            |path: &str| path.rsplit('/').next().is_some_and(|name| name.starts_with("libjvm.so"));
        let mut mappings = process.mappings.iter();
        let libjvm = mappings
            .find(|mapping| mapping.backing == Backing::File && is_libjvm(&mapping.path))
            .ok_or(NoProbes::Impossible("no libjvm"))?;
        // Leads to the very file, also if it is deleted, or in another mount namespace.
        let path = map_file(process.pid, libjvm.start, libjvm.end);
        let identity = open_regular(&path)
            .ok()
            .and_then(|file| FileStat::of(&file).ok())
            .map(|stat| stat.identity)
            .ok_or(NoProbes::Impossible("unreadable"))?;
        let functions = self.functions(identity, &path, &libjvm.path)?;
        let probes = self.files.entry(identity).or_insert(FileProbes {
            functions,
            path: path.clone(),
            users: 0,
            state: ProbeState::Wanted,
        });
        if matches!(probes.state, ProbeState::Refused) {
            return Err(NoProbes::Impossible("uprobe refused"));
        }
        if matches!(probes.state, ProbeState::Wanted) {
            probes.path = path;
        }
        probes.users += 1;
        Ok(ProbedFile(identity))
    }

    /// Returns the functions of a file, at `path` here and at `mapped` for its process.
    fn functions(
        &mut self,
        file: FileIdentity,
        path: &Path,
        mapped: &str,
    ) -> Result<AllocationFunctions, NoProbes> {
        if let Some(known) = self.functions.get(&file) {
            return known.map_err(NoProbes::Impossible);
        }
        if self.is_pending(file) {
            return Err(NoProbes::Pending);
        }
        let downloads = self.debuginfod.as_deref().map(Debuginfod::directory);
        let found = find_allocation_functions(path, downloads);
        if let Err(FunctionsError::NoSymbols(Some(id))) = found
            && self.pending.len() < MAX_FILES
            && self.pending.insert(file, id).is_none()
            && self.is_pending(file)
        {
            return Err(NoProbes::Pending);
        }
        self.pending.remove(&file);
        if self.functions.len() > MAX_FILES {
            self.functions.clear();
        }
        let found = found.map_err(|error| {
            tracing::info!(path = mapped, %error, "no uprobes for allocations");
            error.reason()
        });
        self.functions.insert(file, found);
        found.map_err(NoProbes::Impossible)
    }

    /// Returns true if the file's debug file is being fetched.
    fn is_pending(&self, file: FileIdentity) -> bool {
        let (Some(server), Some(id)) = (&self.debuginfod, self.pending.get(&file)) else { return false };
        server.request(*id) == FetchState::Pending
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

    /// Attaches the probes of files that are wanted, and detaches those that aren't any more.
    /// Returns the reasons of what was refused.
    pub(super) fn attach_and_detach(&mut self, sampler: &BackgroundSampler) -> Vec<&'static str> {
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
