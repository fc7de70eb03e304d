//! `jvmprof ps`: the running JVMs in a table.

use std::collections::BTreeMap;
use std::fmt;
use std::thread;
use std::time::{Duration, Instant};

use serde::Serialize;

use super::hidden::HiddenProcesses;
use super::host_search;
use crate::app::args::PsArgs;
use crate::app::stdout::print_text_or_json;
use crate::process::procfs;

/// Time over which the use of CPUs is measured.
const CPU_INTERVAL: Duration = Duration::from_millis(500);

/// A JVM as a line of the table.
#[derive(Debug, Serialize)]
struct JvmLine {
    pid: u32,
    /// `None`: it can't be read.
    version: Option<String>,
    main_class: Option<String>,
    executable: String,
    /// CPU time over half a second, in percent of one CPU.
    cpu_percent: f64,
}

#[derive(Debug, Serialize)]
struct JvmTable {
    jvms: Vec<JvmLine>,
    #[serde(skip_serializing_if = "Option::is_none")]
    hidden: Option<HiddenProcesses>,
}

/// Runs the subcommand.
pub(in crate::app) fn run(args: &PsArgs) -> anyhow::Result<()> {
    let found = host_search::brief();
    let times = || -> BTreeMap<u32, Duration> {
        found.iter().filter_map(|jvm| Some((jvm.pid, procfs::cpu_time(jvm.pid).ok()?))).collect()
    };
    let (before, began) = (times(), Instant::now());
    if !found.is_empty() {
        thread::sleep(CPU_INTERVAL);
    }
    let (after, elapsed) = (times(), began.elapsed());
    let percent = |pid: u32| {
        let used = after.get(&pid).zip(before.get(&pid)).map(|(after, before)| after.saturating_sub(*before));
        used.unwrap_or_default().as_secs_f64() * 100.0 / elapsed.as_secs_f64().max(1e-3)
    };
    let jvms = found.iter().map(|jvm| JvmLine {
        pid: jvm.pid,
        version: jvm.labels.as_ref().map(|labels| labels.version.clone()),
        main_class: jvm.labels.as_ref().and_then(|labels| labels.main_class.clone()),
        executable: jvm.executable.clone(),
        cpu_percent: percent(jvm.pid),
    });
    let table = JvmTable { jvms: jvms.collect(), hidden: HiddenProcesses::now() };
    print_text_or_json(&table, args.json)
}

impl fmt::Display for JvmTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.hidden, self.jvms.is_empty()) {
            (None, true) => writeln!(f, "no JVM runs")?,
            (Some(_), true) => writeln!(f, "no JVM is to be seen")?,
            (_, false) => {
                let width = self.jvms.iter().filter_map(|jvm| Some(jvm.version.as_ref()?.len())).max();
                let width = width.unwrap_or(0).max("VERSION".len());
                writeln!(f, "{:>8} {:>6}  {:<width$}  MAIN CLASS", "PID", "%CPU", "VERSION")?;
                for JvmLine { pid, version, main_class, executable, cpu_percent } in &self.jvms {
                    let version = version.as_deref().unwrap_or("?");
                    let class = main_class.as_deref().unwrap_or(executable);
                    writeln!(f, "{pid:>8} {cpu_percent:>6.1}  {version:<width$}  {class}")?;
                }
            }
        }
        match &self.hidden {
            Some(hidden) => write!(f, "{hidden}"),
            None => Ok(()),
        }
    }
}
