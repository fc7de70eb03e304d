//! The libjvm files that have uprobes: one for all JVMs that map it.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::hotspot::probed_functions::FunctionsError;
use crate::native::debuginfod::{Debuginfod, FetchState};
use crate::native::file_identity::FileIdentity;
use crate::native::file_identity::FileStat;
use crate::native::open_file::open_regular;
use crate::own_process::capabilities::uprobe_advice;
use crate::process::procfs::map_files_link;
use crate::process::{Backing, Process};
use crate::sampler::{AttachedProbes, BackgroundSampler, ProbedFunctions, SamplerError};
use crate::types::BuildId;

/// A file that a JVM needs uprobes in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ProbedFile(FileIdentity);

#[cfg(test)]
impl ProbedFile {
    pub(super) const fn for_tests() -> Self {
        Self(FileIdentity { device: 0, inode: 0, modified_ns: 0, size: 0 })
    }
}

#[cfg(test)]
impl<F: Clone> ProbedFiles<F> {
    /// Adds [`ProbedFile::for_tests`] as a file of so many users in which uprobes were refused.
    pub(super) fn refuse_for_tests(&mut self, users: u32) {
        let (functions, paths) = (ProbedFunctions::none(), Vec::new());
        let probes = FileProbes { functions, paths, users, state: ProbeState::Refused };
        self.files.insert(ProbedFile::for_tests().0, probes);
    }
}

/// The reason why a JVM's file has no uprobes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoProbes {
    /// Its debug file is being fetched: to be asked for again.
    Pending,
    Impossible(&'static str),
}

/// A set of uprobes for one purpose: how a libjvm is searched for the functions that they are at.
#[derive(Debug)]
pub(super) struct ProbeSet<F> {
    /// As log messages say it.
    pub(super) of: &'static str,
    /// The second argument is a folder with debug files that were fetched.
    pub(super) find: fn(&Path, Option<&Path>) -> Result<F, FunctionsError>,
    pub(super) functions: fn(&F) -> ProbedFunctions,
}

/// `F`: what is known of a file in which the functions were found.
#[derive(Debug)]
pub(super) struct ProbedFiles<F> {
    probes: ProbeSet<F>,
    files: HashMap<FileIdentity, FileProbes>,
    /// What was found in files that have been searched.
    found: HashMap<FileIdentity, Result<F, &'static str>>,
    /// Files whose debug files, of these build ids, were requested.
    pending: HashMap<FileIdentity, BuildId>,
    debuginfod: Option<Arc<Debuginfod>>,
    released: Vec<AttachedProbes>,
}

#[derive(Debug)]
struct FileProbes {
    functions: ProbedFunctions,
    /// Paths that lead to it, each for as long as the JVM that asked for it runs; none once it has
    /// its uprobes.
    paths: Vec<PathBuf>,
    users: u32,
    state: ProbeState,
}

#[derive(Debug)]
enum ProbeState {
    Wanted,
    Attached(AttachedProbes),
    Refused,
}

/// The reason of a file in which the kernel has refused the uprobe at a function that isn't needed.
pub(super) const REFUSED_IN_PART: &str = "one uprobe refused";

/// The reason of the JVMs of a file in which the kernel has refused uprobes.
pub(super) const REFUSED: &str = "uprobe refused";

/// Files whose functions are remembered.
const MAX_FILES: usize = 256;

impl<F: Clone> ProbedFiles<F> {
    /// Has no files. Debug files that the host hasn't come from this server.
    pub(super) fn new(probes: ProbeSet<F>, debuginfod: Option<Arc<Debuginfod>>) -> Self {
        Self {
            probes,
            files: HashMap::new(),
            found: HashMap::new(),
            pending: HashMap::new(),
            debuginfod,
            released: Vec::new(),
        }
    }

    /// Asks for uprobes in the libjvm that a process has mapped. Returns what was found in it, too.
    ///
    /// # Errors
    /// Returns why they aren't possible.
    pub(super) fn request(&mut self, process: &Process) -> Result<(ProbedFile, F), NoProbes> {
        let is_libjvm =
            |path: &str| path.rsplit('/').next().is_some_and(|name| name.starts_with("libjvm.so"));
        let mut mappings = process.mappings.iter();
        let libjvm = mappings
            .find(|mapping| mapping.backing == Backing::File && is_libjvm(&mapping.path))
            .ok_or(NoProbes::Impossible("no libjvm"))?;
        // Leads to the very file, also if it is deleted, or in another mount namespace.
        let path = map_files_link(process.pid, libjvm.start, libjvm.end);
        let identity = open_regular(&path)
            .ok()
            .and_then(|file| FileStat::of(&file).ok())
            .map(|stat| stat.identity)
            .ok_or(NoProbes::Impossible("unreadable"))?;
        let found = self.find(identity, &path, &libjvm.path)?;
        let functions = self.probes.functions;
        let probes = self.files.entry(identity).or_insert_with(|| FileProbes {
            functions: functions(&found),
            paths: Vec::new(),
            users: 0,
            state: ProbeState::Wanted,
        });
        if matches!(probes.state, ProbeState::Refused) {
            return Err(NoProbes::Impossible(REFUSED));
        }
        if matches!(probes.state, ProbeState::Wanted) {
            probes.paths.push(path);
        }
        probes.users += 1;
        Ok((ProbedFile(identity), found))
    }

    /// Returns true once a file has its uprobes.
    pub(super) fn is_attached(&self, file: ProbedFile) -> bool {
        self.files.get(&file.0).is_some_and(|probes| matches!(probes.state, ProbeState::Attached(_)))
    }

    /// Returns true if the kernel has refused a file its uprobes: whoever has asked for them has to
    /// release it.
    pub(super) fn is_refused(&self, file: ProbedFile) -> bool {
        self.files.get(&file.0).is_some_and(|probes| matches!(probes.state, ProbeState::Refused))
    }

    /// Searches a file, at `path` here and at `mapped` for its process.
    fn find(&mut self, file: FileIdentity, path: &Path, mapped: &str) -> Result<F, NoProbes> {
        if let Some(known) = self.found.get(&file) {
            return known.clone().map_err(NoProbes::Impossible);
        }
        if self.is_pending(file) {
            return Err(NoProbes::Pending);
        }
        let downloads = self.debuginfod.as_deref().map(Debuginfod::directory);
        let found = (self.probes.find)(path, downloads);
        if let Err(FunctionsError::NoSymbols(Some(id))) = found
            && self.pending.len() < MAX_FILES
            && self.pending.insert(file, id).is_none()
            && self.is_pending(file)
        {
            return Err(NoProbes::Pending);
        }
        self.pending.remove(&file);
        if self.found.len() > MAX_FILES {
            self.found.clear();
        }
        let found = found.map_err(|error| {
            tracing::info!(path = mapped, %error, "no uprobes for {}", self.probes.of);
            error.reason()
        });
        self.found.insert(file, found.clone());
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
    /// Returns the reasons of what was refused in part: see [`Self::is_refused`] for the rest.
    pub(super) fn attach_and_detach(&mut self, sampler: &BackgroundSampler) -> Vec<&'static str> {
        for attached in self.released.drain(..) {
            sampler.detach_probes(attached);
        }
        self.attach(|path, functions| sampler.attach_probes(path, functions))
    }

    fn attach(
        &mut self,
        mut attach: impl FnMut(&Path, &ProbedFunctions) -> Result<AttachedProbes, SamplerError>,
    ) -> Vec<&'static str> {
        let mut refused = Vec::new();
        for probes in self.files.values_mut().filter(|probes| matches!(probes.state, ProbeState::Wanted)) {
            // Without any path the next JVM that asks for it brings one.
            while let Some(path) = probes.paths.pop() {
                probes.state = match attach(&path, &probes.functions) {
                    Ok(attached) => {
                        tracing::debug!(path = %path.display(), "{} are seen", self.probes.of);
                        if !attached.are_complete(&probes.functions) {
                            refused.push(REFUSED_IN_PART);
                        }
                        ProbeState::Attached(attached)
                    }
                    Err(error) if error.is_missing_file() => {
                        tracing::debug!(path = %path.display(), "the JVM of a libjvm's path has ended");
                        continue;
                    }
                    Err(error) => {
                        let advice = error.is_denied_uprobe().then(uprobe_advice);
                        tracing::warn!(path = %path.display(), %error, advice, "no uprobes in a libjvm");
                        ProbeState::Refused
                    }
                };
                probes.paths = Vec::new();
            }
        }
        refused
    }
}

#[cfg(test)]
mod tests {
    use nix::libc::{ENOENT, EPERM};

    use super::*;
    use crate::sampler::PauseFunctions;
    use crate::types::FileOffset;

    const FILE: ProbedFile = ProbedFile::for_tests();

    /// A file that processes of these paths have asked for.
    fn wanted(paths: &[&str]) -> ProbedFiles<()> {
        let functions = |(): &()| ProbedFunctions::none();
        let probes = ProbeSet { of: "tests", find: |_, _| Ok(()), functions };
        let mut files = ProbedFiles::new(probes, None);
        let paths = paths.iter().map(PathBuf::from).collect();
        let probes = FileProbes { functions: functions(&()), paths, users: 1, state: ProbeState::Wanted };
        files.files.insert(FILE.0, probes);
        files
    }

    #[test]
    fn a_process_that_has_ended_refuses_its_file_to_no_other_one() {
        let mut files = wanted(&["lives", "gone"]);
        let refused = files.attach(|path, _| match path.to_str() {
            Some("lives") => Ok(AttachedProbes::none()),
            _ => Err(SamplerError::of_uprobe(ENOENT)),
        });
        assert!(refused.is_empty() && files.is_attached(FILE));

        let mut files = wanted(&["gone"]);
        assert!(files.attach(|_, _| Err(SamplerError::of_uprobe(ENOENT))).is_empty());
        assert!(!files.is_attached(FILE));
        let probes = files.files.get_mut(&FILE.0).expect("it is wanted");
        assert!(matches!(probes.state, ProbeState::Wanted));
        probes.paths.push("next".into());
        assert!(files.attach(|_, _| Ok(AttachedProbes::none())).is_empty());
        assert!(files.is_attached(FILE));
    }

    #[test]
    fn a_file_that_lacks_one_uprobe_is_named_once() {
        let mut files = wanted(&["first"]);
        let functions = ProbedFunctions::from(PauseFunctions {
            begin: Some(FileOffset(1)),
            reached: FileOffset(2),
            end: FileOffset(3),
        });
        files.files.get_mut(&FILE.0).expect("it is wanted").functions = functions;
        for refused in [vec![REFUSED_IN_PART], vec![]] {
            assert_eq!(files.attach(|_, _| Ok(AttachedProbes::none())), refused);
            assert!(files.is_attached(FILE));
        }
    }

    #[test]
    fn a_file_that_the_kernel_refuses_isnt_tried_again() {
        let mut files = wanted(&["first", "second"]);
        let mut tries = 0;
        for _ in 0..2 {
            let attach = |_: &Path, _: &ProbedFunctions| {
                tries += 1;
                Err(SamplerError::of_uprobe(EPERM))
            };
            assert!(files.attach(attach).is_empty());
            assert!(files.is_refused(FILE));
        }
        assert_eq!(tries, 1);
        let denied = [EPERM, ENOENT].map(|number| SamplerError::of_uprobe(number).is_denied_uprobe());
        assert_eq!(denied, [true, false], "only what a capability would help");
        assert!(!files.is_attached(FILE));
    }
}
