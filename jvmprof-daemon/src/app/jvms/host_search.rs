//! The JVMs that run on this host, and what can be read of each.

use std::fmt;

use serde::Serialize;

use crate::app::jvms::inspector::{JvmInspector, JvmProblem};
use crate::hotspot::probed_functions::{FunctionsError, find_allocation_functions};
use crate::hotspot::{Hotspot, HotspotError, LiveMemory, VmFlag, images};
use crate::own_process::capabilities::{
    CHECKPOINT_RESTORE, Capability, DAC_READ_SEARCH, SYS_PTRACE, advice, missing,
};
use crate::own_process::one_line;
use crate::process::procfs::{self, ProcessInfo};
use crate::process::{Backing, MappedCode, Mappings, executable_mappings::is_hotspot};
use crate::symbolize::JvmLabels;
use crate::types::Avma;

/// The capabilities that it takes to open the file that another user's process has mapped.
const FILE_CAPABILITIES: [Capability; 3] = [SYS_PTRACE, DAC_READ_SEARCH, CHECKPOINT_RESTORE];

/// A running JVM.
#[derive(Debug, Default, Serialize)]
pub(in crate::app) struct RunningJvm {
    pid: u32,
    /// Its program, as it sees it.
    executable: String,
    /// The mapped file that is the JVM.
    libjvm: String,
    version: Option<String>,
    main_class: Option<String>,
    /// Share of the stubs' and the interpreter's code that has unwind rows, in percent.
    stub_rows_percent: Option<f64>,
    /// Compiled methods can be named, with those that were inlined and their lines.
    names_compiled_code: bool,
    /// The reason why its allocations can't be seen.
    #[serde(skip_serializing_if = "Option::is_none")]
    allocation_problem: Option<String>,
    /// What would help there, if anything does.
    #[serde(skip_serializing_if = "Option::is_none")]
    allocation_fix: Option<String>,
    /// The reason why it can't be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    problem: Option<JvmProblem>,
}

/// A JVM in a few words.
#[derive(Debug)]
pub(super) struct BriefJvm {
    pub(super) pid: u32,
    /// Its program, as it sees it.
    pub(super) executable: String,
    /// `None`: it can't be read.
    pub(super) labels: Option<JvmLabels>,
    hotspot: Option<Hotspot<LiveMemory>>,
}

impl BriefJvm {
    /// Reads the flags that don't have their default values.
    pub(super) fn flags(&self) -> Vec<VmFlag> {
        self.hotspot.as_ref().map(Hotspot::flags).unwrap_or_default()
    }
}

/// Returns all JVMs with what is quickly read of them.
pub(super) fn brief() -> Vec<BriefJvm> {
    procfs::pids().into_iter().filter_map(brief_of).collect()
}

fn brief_of(pid: u32) -> Option<BriefJvm> {
    let mappings = procfs::mappings(pid).ok()?;
    let has_libjvm = mappings.iter().any(|mapping| is_hotspot(mapping));
    if !has_libjvm && !generates_code(&mappings) {
        return None;
    }
    let attached =
        images(pid).map_err(HotspotError::from).and_then(|it| Hotspot::attach(&it, LiveMemory::new(pid)));
    if !has_libjvm && attached.is_err() {
        return None;
    }
    let executable = executable(&procfs::process_info(pid).ok()?);
    let hotspot = attached.ok();
    let labels = hotspot.as_ref().map(|hotspot| JvmLabels::read(hotspot, pid).0);
    Some(BriefJvm { pid, executable, labels, hotspot })
}

/// Returns a process's main class, if it is a JVM that can be read.
pub(in crate::app) fn main_class_of(pid: u32) -> Option<String> {
    brief_of(pid)?.labels?.main_class
}

/// Returns true if there is code of no file: some runtime's, perhaps a JVM's.
fn generates_code(mappings: &Mappings) -> bool {
    mappings.iter().any(|mapping| mapping.backing == Backing::Anonymous)
}

fn executable(facts: &ProcessInfo) -> String {
    facts.executable.as_ref().map_or_else(|| facts.comm.clone(), |path| path.display().to_string())
}

/// Returns all JVMs: found by what they export, and by a mapped `libjvm.so` where that can't be
/// read.
pub(in crate::app) fn find() -> Vec<RunningJvm> {
    procfs::pids().into_iter().filter_map(|pid| RunningJvm::of(pid, &procfs::mappings(pid).ok()?)).collect()
}

impl RunningJvm {
    fn of(pid: u32, mappings: &Mappings) -> Option<Self> {
        let libjvm = mappings.iter().find(|mapping| is_hotspot(mapping));
        if libjvm.is_none() && !generates_code(mappings) {
            return None;
        }
        let read = JvmInspector::new(pid);
        if libjvm.is_none() && matches!(read, Err(HotspotError::NotHotspot(_))) {
            return None;
        }
        let executable = executable(&procfs::process_info(pid).ok()?);
        let path = libjvm.map(|mapping| mapping.path.to_string());
        let problem = libjvm.and_then(|mapping| allocation_problem(pid, mapping));
        let allocation_fix =
            problem.and_then(|problem| allocation_fix(problem, &missing(&FILE_CAPABILITIES)));
        let allocation_problem = problem.map(|problem| problem.to_string());
        let mut jvm = Self { pid, executable, allocation_problem, allocation_fix, ..Self::default() };
        match read {
            Ok(reader) => {
                jvm.libjvm = path.or_else(|| path_of(mappings, reader.image_start())).unwrap_or_default();
                jvm.stub_rows_percent = Some(reader.stub_share());
                jvm.names_compiled_code = reader.names_compiled_code();
                jvm.version = Some(reader.labels.version);
                jvm.main_class = reader.labels.main_class;
            }
            Err(error) => {
                jvm.libjvm = path.unwrap_or_default();
                jvm.problem = Some(error.into());
            }
        }
        Some(jvm)
    }
}

/// Returns why the allocations of a JVM with this library can't be seen.
fn allocation_problem(pid: u32, libjvm: &MappedCode) -> Option<FunctionsError> {
    let file = procfs::map_files_link(pid, libjvm.start, libjvm.end);
    find_allocation_functions(&file, None).err()
}

/// Returns what to do so that allocations are seen. `missing`: the [`FILE_CAPABILITIES`] that this
/// process lacks.
fn allocation_fix(problem: FunctionsError, missing: &[Capability]) -> Option<String> {
    match problem {
        FunctionsError::Unreadable if missing.is_empty() => None,
        FunctionsError::Unreadable => {
            let names: Vec<&str> = missing.iter().map(|it| it.name).collect();
            Some(format!("{} may be what that lacks: {}", names.join(" and "), advice(missing)))
        }
        FunctionsError::NoSymbols(_) => {
            Some("install the JDK's debug symbols (packages such as openjdk-8-dbg)".to_owned())
        }
        FunctionsError::NoThread => Some("use JDK 8u262 or newer".to_owned()),
    }
}

/// Returns the file whose first byte is mapped at an address: its code follows.
fn path_of(mappings: &Mappings, start: Avma) -> Option<String> {
    let code = mappings.iter().find(|mapping| mapping.start >= start)?;
    Some(code.path.to_string())
}

impl fmt::Display for RunningJvm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "  {} {} ({})", self.pid, one_line(&self.executable), one_line(&self.libjvm))?;
        if let Some(JvmProblem { reason, text }) = &self.problem {
            writeln!(f, "    can't be read ({reason}): {}", one_line(text))?;
            return match *reason {
                "read" | "denied" if !SYS_PTRACE.is_effective() => {
                    writeln!(f, "      do: {}", advice(&[SYS_PTRACE]))
                }
                "not_ready" => writeln!(f, "      it is starting: the daemon looks again"),
                _ => writeln!(
                    f,
                    "      its Java code is walked by frame pointers and named by a perf map, if at all"
                ),
            };
        }
        let [version, main_class] =
            [&self.version, &self.main_class].map(|it| one_line(it.as_deref().unwrap_or("unknown")));
        writeln!(f, "    JDK {version}, main class {main_class}")?;
        let rows = self.stub_rows_percent.unwrap_or_default();
        writeln!(
            f,
            "    stacks: by its own structures, no flag needed; {rows:.1} % of stubs and interpreter have unwind rows"
        )?;
        let names = if self.names_compiled_code {
            "with lines and inlined calls"
        } else {
            "interpreted only, it doesn't say where its debug information is"
        };
        writeln!(f, "    names of Java code: {names}")?;
        match &self.allocation_problem {
            None => writeln!(f, "    allocation: by its own functions, no flag needed"),
            Some(problem) => {
                writeln!(f, "    allocation can't be seen: {}", one_line(problem))?;
                self.allocation_fix.iter().try_for_each(|fix| writeln!(f, "      do: {fix}"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_other_processes_stay_on_their_lines() {
        let hostile = "x\u{1b}[2J\ny".to_owned();
        let of_one = |problem| RunningJvm {
            executable: hostile.clone(),
            libjvm: hostile.clone(),
            version: Some(hostile.clone()),
            main_class: Some(hostile.clone()),
            allocation_problem: Some(hostile.clone()),
            problem,
            ..RunningJvm::default()
        };
        let problem = JvmProblem { reason: "other", text: hostile.clone() };
        // As many names as lines.
        for (jvm, count) in [(of_one(None), 5), (of_one(Some(problem)), 3)] {
            let text = jvm.to_string();
            assert!(!text.contains('\u{1b}'), "{text:?}");
            let names = text.matches("x\\u{1b}[2J\\ny").count();
            assert_eq!((names, text.lines().count()), (count, count), "{text}");
        }
    }

    #[test]
    fn debug_symbols_are_no_advice_for_a_file_that_cant_be_read() {
        let fix = allocation_fix(FunctionsError::Unreadable, &[CHECKPOINT_RESTORE]).expect("it helps");
        assert!(fix.contains("CAP_CHECKPOINT_RESTORE") && !fix.contains("dbg"), "{fix}");
        assert_eq!(allocation_fix(FunctionsError::Unreadable, &[]), None, "nothing is known to help");
        let fix = allocation_fix(FunctionsError::NoSymbols(None), &[CHECKPOINT_RESTORE]);
        assert!(fix.is_some_and(|fix| fix.contains("dbg") && !fix.contains("CAP_")));
    }
}
