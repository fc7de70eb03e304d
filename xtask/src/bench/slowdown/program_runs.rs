//! Run times of a process's kernel programs, by the kernel's own statistics.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::fd::OwnedFd;
use std::time::Duration;

use anyhow::Context as _;
use aya::programs::loaded_programs;
use aya::sys::{Stats, enable_stats};

/// The runs of a program since it was loaded, while statistics were enabled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ProgramRuns {
    pub(super) time: Duration,
    pub(super) runs: u64,
}

impl ProgramRuns {
    /// Returns the runs since those.
    pub(super) fn since(self, before: Self) -> Self {
        Self { time: self.time.saturating_sub(before.time), runs: self.runs.saturating_sub(before.runs) }
    }

    /// Returns the mean time of a run; `None` if there was none.
    pub(super) fn ns_per_run(self) -> Option<f64> {
        (self.runs > 0).then(|| self.time.as_nanos() as f64 / self.runs as f64)
    }
}

/// Has the kernel measure all programs of the host until the descriptor is closed.
///
/// # Errors
/// The kernel refuses it.
pub(super) fn measure_programs() -> anyhow::Result<OwnedFd> {
    enable_stats(Stats::RunTime).context("enabling the kernel's statistics of its programs")
}

/// Returns the runs of the programs that a process holds, by their names.
///
/// # Errors
/// The process has ended.
pub(super) fn of_process(pid: u32) -> anyhow::Result<BTreeMap<String, ProgramRuns>> {
    let ids = program_ids(pid)?;
    let mut found = BTreeMap::<String, ProgramRuns>::new();
    // One that is unloaded meanwhile can't be asked any more.
    for info in loaded_programs().flatten() {
        if ids.contains(&info.id()) {
            let of_name = found.entry(info.name_as_str().unwrap_or_default().to_owned()).or_default();
            of_name.time += info.run_time();
            of_name.runs += info.run_count();
        }
    }
    Ok(found)
}

/// Returns the ids of a process's programs, by what the kernel says of its descriptors.
fn program_ids(pid: u32) -> anyhow::Result<BTreeSet<u32>> {
    let folder = format!("/proc/{pid}/fdinfo");
    let mut ids = BTreeSet::new();
    for file in fs::read_dir(&folder).with_context(|| format!("listing {folder}"))? {
        // Descriptors come and go.
        let Ok(text) = file.and_then(|file| fs::read_to_string(file.path())) else { continue };
        ids.extend(program_id(&text));
    }
    Ok(ids)
}

fn program_id(fdinfo: &str) -> Option<u32> {
    let id = fdinfo.lines().find_map(|line| line.strip_prefix("prog_id:"));
    id.and_then(|id| id.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_descriptor_of_a_program_has_its_id() {
        let fdinfo = "pos:\t0\nflags:\t02000002\nprog_type:\t17\nprog_jited:\t1\nprog_id:\t421\n";
        assert_eq!(program_id(fdinfo), Some(421));
        assert_eq!(program_id("pos:\t0\nmap_id:\t7\n"), None);
    }

    #[test]
    fn the_time_of_a_run_is_that_of_the_runs_in_between() {
        let runs = |ns, runs| ProgramRuns { time: Duration::from_nanos(ns), runs };
        assert_eq!(runs(900, 10).since(runs(400, 5)).ns_per_run(), Some(100.0));
        assert_eq!(runs(900, 10).since(runs(900, 10)).ns_per_run(), None);
    }
}
