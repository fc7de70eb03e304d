//! `jvmprof inspect PID`: reports what the profiler knows of one process.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use serde::Serialize;

use super::args::InspectArgs;
use super::jvms::inspector::{CodeReport, JvmInspector, JvmProblem, JvmReport};
use super::jvms::process_arguments::pids_of;
use super::pipeline_options::node_name;
use super::stdout::print_text_or_json;
use crate::clock::monotonic_ns;
use crate::own_process::capabilities::{SYS_PTRACE, advice};
use crate::own_process::one_line;
use crate::pipeline::labels::labels_of;
use crate::process::procfs::{self, ProcfsError};
use crate::process::{Process, ProcessTable};
use crate::symbolize::{ModuleReport, NativePlace, SymbolMemoryLimits, Symbolizer};
use crate::types::Avma;

/// Symbols of one process's files at a time.
const FILE_CACHE_BYTES: u64 = 64 << 20;

#[derive(Debug, Serialize)]
struct ProcessReport {
    pid: u32,
    /// Its pid in its own pid namespace.
    inner_pid: u32,
    uid: Option<u32>,
    executable: Option<PathBuf>,
    /// The reason why its memory and mappings can't be seen.
    #[serde(skip_serializing_if = "Option::is_none")]
    hidden: Option<String>,
    /// Labels of its series.
    labels: BTreeMap<String, String>,
    perf_map_entries: u64,
    jvm: Option<JvmReport>,
    /// The reason why there is no `jvm`.
    jvm_problem: Option<JvmProblem>,
    /// The code at the requested address.
    #[serde(skip_serializing_if = "Option::is_none")]
    place: Option<AddressReport>,
    mappings: Vec<ModuleReport>,
}

#[derive(Debug, Serialize)]
struct AddressReport {
    pc: u64,
    /// In the JVM's code cache.
    code: Option<CodeReport>,
    /// Elsewhere.
    native: Option<NativePlace>,
}

/// Runs the subcommand.
pub(super) fn run(args: &InspectArgs) -> anyhow::Result<()> {
    let [pid] = pids_of(std::slice::from_ref(&args.process))?[..] else {
        anyhow::bail!("{} is no single process", args.process);
    };
    let facts = procfs::process_info(pid)?;
    // As if it had just been sampled: the report shows what the profiler knows.
    let mut table = ProcessTable::default();
    let process = table.insert_running(pid, &facts, monotonic_ns());
    let report = ProcessReport::new(
        process,
        &mut Symbolizer::new(&SymbolMemoryLimits::of_files(FILE_CACHE_BYTES)),
        args.pc.map(Avma),
    );
    print_text_or_json(&report, args.json)
}

impl ProcessReport {
    fn new(process: &Process, symbolizer: &mut Symbolizer, pc: Option<Avma>) -> Self {
        let modules = symbolizer.inspect(process, monotonic_ns());
        let mut inspector = JvmInspector::new(process.pid);
        let jvm_labels = inspector.as_ref().ok().map(|inspector| &inspector.labels);
        let mut labels = labels_of(process, jvm_labels, &node_name());
        let hidden = match procfs::mappings(process.pid) {
            Err(ProcfsError::Denied { .. }) => Some(advice(&[SYS_PTRACE])),
            _ => None,
        };
        if hidden.is_some() {
            // What isn't seen isn't native for that.
            labels.remove("runtime");
        }
        let place = pc.map(|pc| {
            // Code of a JVM that can't be read is described by its mapping.
            let code = inspector.as_mut().ok().and_then(|inspector| inspector.explain(pc).ok().flatten());
            let native = if code.is_none() { symbolizer.explain(process, pc) } else { None };
            AddressReport { pc: pc.0, code, native }
        });
        let (jvm, jvm_problem) = match inspector.and_then(|mut inspector| inspector.report()) {
            Ok(jvm) => (Some(jvm), None),
            Err(error) => (None, Some(error.into())),
        };
        Self {
            pid: process.pid,
            inner_pid: process.inner_pid(),
            uid: process.uid(),
            executable: process.executable(),
            hidden,
            labels,
            perf_map_entries: symbolizer.counts().perf_maps.entries,
            jvm,
            jvm_problem,
            place,
            mappings: modules,
        }
    }
}

impl fmt::Display for AddressReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "  address {:#x}", self.pc)?;
        match (&self.code, &self.native) {
            (Some(code), _) => write!(f, "{code}"),
            (None, Some(NativePlace { path, name, rule, problem })) => {
                let problem = problem.map_or_else(String::new, |problem| format!(" ({problem})"));
                writeln!(f, "    {}{problem}", one_line(name))?;
                writeln!(f, "    in                  {}", one_line(path))?;
                writeln!(f, "    unwind rule         {rule}")
            }
            (None, None) => writeln!(f, "    no code is mapped there"),
        }
    }
}

impl fmt::Display for ProcessReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let executable =
            self.executable.as_ref().map_or_else(|| "?".to_owned(), |path| path.display().to_string());
        writeln!(f, "process {} ({})", self.pid, one_line(&executable))?;
        if let Some(advice) = &self.hidden {
            writeln!(f, "  its memory and mappings can't be seen, for lack of {}", SYS_PTRACE.name)?;
            writeln!(f, "    do: {advice}")?;
        }
        if self.inner_pid != self.pid {
            writeln!(f, "  pid in its namespace  {}", self.inner_pid)?;
        }
        if let Some(uid) = self.uid {
            writeln!(f, "  uid                   {uid}")?;
        }
        writeln!(f, "  perf map entries      {}", self.perf_map_entries)?;
        writeln!(f, "  labels")?;
        for (name, value) in &self.labels {
            writeln!(f, "    {:<20}{}", one_line(name), one_line(value))?;
        }
        if let Some(jvm) = &self.jvm {
            write!(f, "{jvm}")?;
        }
        if let Some(JvmProblem { text, .. }) = self.jvm_problem.as_ref().filter(|_| self.hidden.is_none()) {
            writeln!(f, "  no JVM can be read    {}", one_line(text))?;
        }
        if let Some(place) = &self.place {
            write!(f, "{place}")?;
        }
        if self.hidden.is_some() {
            return Ok(());
        }
        writeln!(f, "  executable mappings")?;
        self.mappings.iter().try_for_each(|module| writeln!(f, "    {module}"))
    }
}
