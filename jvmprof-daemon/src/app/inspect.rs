//! `jvmprof inspect PID`: what is known of one process.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use anyhow::Context;
use serde::Serialize;

use super::cli::InspectArgs;
use super::pipeline::labels_of;
use super::sampling::node_name;
use crate::process::{Process, ProcessTable};
use crate::sampler::now_ns;
use crate::symbolize::{ModuleReport, Symbolizer};

/// Symbols of one process's files at a time.
const FILE_CACHE_BYTES: u64 = 64 << 20;

#[derive(Debug, Serialize)]
struct Report {
    pid: u32,
    /// Its pid in its own pid namespace.
    inner_pid: u32,
    uid: Option<u32>,
    executable: Option<PathBuf>,
    /// Labels of its series.
    labels: BTreeMap<String, String>,
    perf_map_entries: u64,
    mappings: Vec<ModuleReport>,
}

/// Runs the subcommand.
pub(super) fn run(args: &InspectArgs) -> anyhow::Result<()> {
    let facts = crate::process::procfs::facts(args.pid)?;
    // Looked at as if it had just been sampled: what is shown is what the profiler knows.
    let mut table = ProcessTable::default();
    let process = table.existing(args.pid, &facts, now_ns());
    let report = Report::new(process, &mut Symbolizer::new(FILE_CACHE_BYTES));
    if args.json {
        println!("{}", serde_json::to_string(&report).context("cannot encode the report")?);
    } else {
        print!("{report}");
    }
    Ok(())
}

impl Report {
    fn new(process: &Process, symbolizer: &mut Symbolizer) -> Self {
        let modules = symbolizer.inspect(process, now_ns());
        Self {
            pid: process.pid,
            inner_pid: process.inner_pid(),
            uid: process.uid(),
            executable: process.executable(),
            labels: labels_of(process, &node_name()),
            perf_map_entries: symbolizer.counts().perf_maps.entries,
            mappings: modules,
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let executable =
            self.executable.as_ref().map_or_else(|| "?".to_owned(), |path| path.display().to_string());
        writeln!(f, "process {} ({executable})", self.pid)?;
        if self.inner_pid != self.pid {
            writeln!(f, "  pid in its namespace  {}", self.inner_pid)?;
        }
        if let Some(uid) = self.uid {
            writeln!(f, "  uid                   {uid}")?;
        }
        writeln!(f, "  perf map entries      {}", self.perf_map_entries)?;
        writeln!(f, "  labels")?;
        for (name, value) in &self.labels {
            writeln!(f, "    {name:<20}{value}")?;
        }
        writeln!(f, "  executable mappings")?;
        self.mappings.iter().try_for_each(|module| writeln!(f, "    {module}"))
    }
}
