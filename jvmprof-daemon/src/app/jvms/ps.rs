//! `jvmprof ps`: the running JVMs in a table.

use std::collections::BTreeMap;
use std::fmt;
use std::thread;
use std::time::{Duration, Instant};

use serde::Serialize;

use super::host_search;
use super::inaccessible_processes::InaccessibleProcesses;
use crate::app::args::PsArgs;
use crate::app::stdout::print_text_or_json;
use crate::hotspot::VmFlag;
use crate::own_process::one_line;
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
    /// Flags that say which JVM this is.
    flags: Vec<VmFlag>,
}

#[derive(Debug, Serialize)]
struct JvmList {
    jvms: Vec<JvmLine>,
    #[serde(skip_serializing_if = "Option::is_none")]
    hidden: Option<InaccessibleProcesses>,
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
        flags: jvm.flags().into_iter().filter(is_listed).collect(),
    });
    let table = JvmList { jvms: jvms.collect(), hidden: InaccessibleProcesses::now() };
    print_text_or_json(&table, args.json)
}

/// Returns true for the collector, the heap's limit, and what somebody set.
fn is_listed(flag: &VmFlag) -> bool {
    flag.is_set_by_user() || flag.is_collector() || flag.name == "MaxHeapSize"
}

/// Returns a flag as the option that sets it: `-XX:+UseZGC`, `-XX:MaxHeapSize=512m`.
fn option(flag: &VmFlag) -> String {
    const MEBIBYTE: u64 = 1 << 20;
    let VmFlag { name, value, .. } = flag;
    let (name, value) = (one_line(name), value.as_str());
    match (value, value.parse::<u64>()) {
        ("true", _) => format!("-XX:+{name}"),
        ("false", _) => format!("-XX:-{name}"),
        (_, Ok(bytes)) if bytes >= MEBIBYTE && bytes % MEBIBYTE == 0 => {
            format!("-XX:{name}={}m", bytes / MEBIBYTE)
        }
        _ => format!("-XX:{name}={}", one_line(value)),
    }
}

impl fmt::Display for JvmList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.hidden, self.jvms.is_empty()) {
            (None, true) => writeln!(f, "no JVM runs")?,
            (Some(_), true) => writeln!(f, "no JVM is to be seen")?,
            (_, false) => {
                let versions: Vec<_> =
                    self.jvms.iter().map(|jvm| one_line(jvm.version.as_deref().unwrap_or("?"))).collect();
                let width = versions.iter().map(|version| version.len()).max();
                let width = width.unwrap_or(0).max("VERSION".len());
                writeln!(f, "{:>8} {:>6}  {:<width$}  MAIN CLASS AND FLAGS", "PID", "%CPU", "VERSION")?;
                for (jvm, version) in self.jvms.iter().zip(&versions) {
                    let JvmLine { pid, main_class, executable, cpu_percent, flags, .. } = jvm;
                    let class = one_line(main_class.as_deref().unwrap_or(executable));
                    write!(f, "{pid:>8} {cpu_percent:>6.1}  {version:<width$}  {class}")?;
                    flags.iter().try_for_each(|flag| write!(f, " {}", option(flag)))?;
                    writeln!(f)?;
                }
            }
        }
        match &self.hidden {
            Some(hidden) => write!(f, "{hidden}"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hotspot::FlagOrigin;

    #[test]
    fn flags_stand_as_the_options_that_set_them() {
        let option = |name: &str, value: &str| {
            option(&VmFlag { name: name.into(), value: value.into(), origin: FlagOrigin::CommandLine })
        };
        assert_eq!(option("UseZGC", "true"), "-XX:+UseZGC");
        assert_eq!(option("TieredCompilation", "false"), "-XX:-TieredCompilation");
        assert_eq!(option("MaxHeapSize", "536870912"), "-XX:MaxHeapSize=512m");
        assert_eq!(option("ParallelGCThreads", "2"), "-XX:ParallelGCThreads=2");
        assert_eq!(option("ThreadStackSize", "1048577"), "-XX:ThreadStackSize=1048577");
        assert_eq!(option("OnError", "a\u{1b}[2J"), "-XX:OnError=a\\u{1b}[2J");
        assert_eq!(option("\u{1b}[2J", "true"), "-XX:+\\u{1b}[2J");
    }

    #[test]
    fn names_of_other_processes_stay_on_their_lines() {
        let jvm = |version: Option<&str>, main_class: Option<&str>, executable: &str| JvmLine {
            pid: 7,
            version: version.map(ToOwned::to_owned),
            main_class: main_class.map(ToOwned::to_owned),
            executable: executable.to_owned(),
            cpu_percent: 0.0,
            flags: Vec::new(),
        };
        let jvms = vec![
            jvm(Some("17\u{1b}[8m"), Some("Shop\u{1b}[2J\n   1  0.0  17  sshd"), "/bin/java"),
            jvm(None, None, "/tmp/\u{1b}]0;x\u{7}\njava"),
        ];
        let expected = "     PID   %CPU  VERSION      MAIN CLASS AND FLAGS\n       \
            7    0.0  17\\u{1b}[8m  Shop\\u{1b}[2J\\n   1  0.0  17  sshd\n       \
            7    0.0  ?            /tmp/\\u{1b}]0;x\\u{7}\\njava\n";
        assert_eq!(JvmList { jvms, hidden: None }.to_string(), expected);
    }
}
