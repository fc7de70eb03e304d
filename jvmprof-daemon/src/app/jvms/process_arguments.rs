//! The processes that a command line names: by pid, by program, and JVMs by their main class.

use std::fs;

use super::host_search::main_class_of;
use crate::app::args::ProcessArg;
use crate::app::errors::UsageError;
use crate::own_process::one_line;
use crate::process::procfs;

/// Candidates that a message lists.
const MAX_LISTED: usize = 20;
/// Bytes of a name that the kernel keeps: `TASK_COMM_LEN` without the zero.
const COMM_BYTES: usize = 15;

/// A process that has a name.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Candidate {
    pid: u32,
    comm: String,
    main_class: Option<String>,
}

/// Returns the pids of the processes that are named.
///
/// # Errors
/// One isn't there or is a thread; a name is nobody's, or that of several.
pub(in crate::app) fn pids_of(named: &[ProcessArg]) -> Result<Vec<u32>, UsageError> {
    let mut candidates = None;
    let mut pids = Vec::new();
    for process in named {
        let pid = match process {
            ProcessArg::Pid(pid) => {
                check_process(*pid)?;
                *pid
            }
            ProcessArg::Name(name) => find(name, candidates.get_or_insert_with(running))?,
        };
        if !pids.contains(&pid) {
            pids.push(pid);
        }
    }
    Ok(pids)
}

/// Checks that a process exists and isn't a thread of another one.
fn check_process(pid: u32) -> Result<(), UsageError> {
    let Ok(status) = fs::read_to_string(format!("/proc/{pid}/status")) else {
        return Err(UsageError(format!("there is no process {pid}: `jvmprof ps` lists the JVMs")));
    };
    let tgid = status.lines().find_map(|line| line.strip_prefix("Tgid:")).map(str::trim);
    match tgid.and_then(|tgid| tgid.parse::<u32>().ok()) {
        Some(tgid) if tgid != pid => {
            let text = format!("{pid} is a thread of process {tgid}: record that one with -p {tgid}");
            Err(UsageError(text))
        }
        _ => Ok(()),
    }
}

/// All processes but this one, with their names.
fn running() -> Vec<Candidate> {
    let own = std::process::id();
    let pids = procfs::pids().into_iter().filter(|pid| *pid != own);
    let candidates = pids.filter_map(|pid| {
        let comm = fs::read_to_string(format!("/proc/{pid}/comm")).ok()?.trim_end().to_owned();
        Some(Candidate { pid, comm, main_class: main_class_of(pid) })
    });
    candidates.collect()
}

fn find(name: &str, candidates: &[Candidate]) -> Result<u32, UsageError> {
    let by_class: Vec<_> = candidates.iter().filter(|it| it.has_main_class(name)).collect();
    let by_comm = || candidates.iter().filter(|it| it.has_comm(name)).collect();
    let found = if by_class.is_empty() { by_comm() } else { by_class };
    match found.as_slice() {
        [one] => Ok(one.pid),
        [] => Err(UsageError(format!(
            "no process is called {name:?}, and no JVM that can be read has it as its main class: \
             `jvmprof ps` lists the JVMs"
        ))),
        several => {
            let lines = several.iter().take(MAX_LISTED).map(|it| {
                let class = one_line(it.main_class.as_deref().unwrap_or_default());
                format!("\n  {:>8}  {:<16} {class}", it.pid, one_line(&it.comm)).trim_end().to_owned()
            });
            let list = lines.collect::<String>();
            let more = several.len().saturating_sub(MAX_LISTED);
            let more = if more > 0 { format!("\n  and {more} more") } else { String::new() };
            Err(UsageError(format!(
                "{} processes are called {name:?}: choose by pid, with several -p for several{list}{more}",
                several.len()
            )))
        }
    }
}

impl Candidate {
    /// Returns true if this is the main class: by the whole name of the class, or what stands
    /// behind its last dot; of a jar by its file's name, with its ending or without.
    fn has_main_class(&self, name: &str) -> bool {
        let Some(class) = self.main_class.as_deref() else { return false };
        let short = match class.strip_suffix(".jar") {
            Some(stem) => stem,
            None => class.rsplit('.').next().unwrap_or(class),
        };
        class == name || short == name
    }

    /// The kernel cuts names.
    fn has_comm(&self, name: &str) -> bool {
        self.comm == name
            || (name.len() > COMM_BYTES && self.comm.as_bytes() == &name.as_bytes()[..COMM_BYTES])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidate(pid: u32, comm: &str, main_class: Option<&str>) -> Candidate {
        Candidate { pid, comm: comm.to_owned(), main_class: main_class.map(ToOwned::to_owned) }
    }

    #[test]
    fn a_name_is_a_main_class_before_it_is_a_program() {
        let running = [
            candidate(1, "java", Some("com.acme.Shop")),
            candidate(2, "java", Some("com.acme.Search")),
            candidate(3, "Shop", None),
            candidate(4, "a-long-program-", None),
            candidate(5, "java", Some("pet-clinic-1.2.jar")),
        ];
        let found = |name: &str| find(name, &running).map_err(|error| error.to_string());
        assert_eq!(found("Shop"), Ok(1));
        assert_eq!(found("com.acme.Search"), Ok(2));
        assert_eq!(found("a-long-program-name"), Ok(4));
        let several = found("java").unwrap_err();
        assert_eq!((found("pet-clinic-1.2"), found("pet-clinic-1.2.jar")), (Ok(5), Ok(5)));
        assert!(found("jar").is_err());
        assert!(several.starts_with("3 processes are called \"java\": choose by pid"), "{several}");
        assert!(several.contains("1  java             com.acme.Shop"), "{several}");
        assert!(found("acme").unwrap_err().starts_with("no process is called \"acme\""));
        let hostile = [candidate(6, "a\u{1b}[2J\nb", Some("X")), candidate(7, "java", Some("a.X"))];
        let several = find("X", &hostile).map_err(|error| error.to_string()).unwrap_err();
        assert!(several.contains("\n         6  a\\u{1b}[2J\\nb    X\n"), "{several:?}");
    }
}
