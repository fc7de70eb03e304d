//! Reports of a process's mapped code, for people.

use std::fmt;

use serde::Serialize;

use super::native::mapped_files::{self, Module};
use super::{ProcessSymbols, Symbolizer};
use crate::own_process::one_line;
use crate::process::{Backing, Process};
use crate::types::Avma;

/// One executable mapping and the state of its code.
#[derive(Clone, Debug, Serialize)]
pub struct ModuleReport {
    pub start: u64,
    pub end: u64,
    pub path: String,
    pub build_id: Option<String>,
    /// Number of functions with names; `None` for generated code.
    pub symbols: Option<usize>,
    /// Reason why the file can't be used.
    pub problem: Option<&'static str>,
}

/// Code at an address.
#[derive(Clone, Debug, Serialize)]
pub struct NativePlace {
    pub path: String,
    /// Name of the function, or the offset in the file.
    pub name: String,
    /// Unwind rule that finds the caller.
    pub rule: String,
    /// Reason why there is no name.
    pub problem: Option<&'static str>,
}

impl Symbolizer {
    /// Describes the code at an address of a process; `None` where no code is mapped.
    pub fn explain(&mut self, process: &Process, pc: Avma) -> Option<NativePlace> {
        let code = process.mappings.find(pc)?;
        let new = || ProcessSymbols::new(&self.memory);
        let symbols = self.processes.entry(process.key).or_insert_with(new);
        let rule =
            mapped_files::rule(process, &mut symbols.modules, (&self.files, None), &mut self.counts, pc);
        let (rule, path) = (format!("{rule:?}"), code.path.to_string());
        if code.backing == Backing::Anonymous {
            let name = "generated code".to_owned();
            return Some(NativePlace { path, name, rule, problem: None });
        }
        let module = symbols.modules.get(process, code, &self.files, &mut self.counts);
        let (name, problem) = match Module::name(&module, process, &self.files, &self.names, pc) {
            // The last one has the code, the others were inlined.
            Ok(Some(lines)) => (lines.last().map_or_else(String::new, |line| line.name.to_string()), None),
            Ok(None) => (module.offset_name(pc), Some("no symbol")),
            Err(reason) => (module.offset_name(pc), Some(reason)),
        };
        Some(NativePlace { path, name, rule, problem })
    }

    /// Reports each executable mapping of a process, and its perf map.
    pub fn inspect(&mut self, process: &Process, now_ns: u64) -> Vec<ModuleReport> {
        let new = || ProcessSymbols::new(&self.memory);
        let symbols = self.processes.entry(process.key).or_insert_with(new);
        symbols.jit.read_all(process, &self.jit, now_ns, &mut self.counts.perf_maps);
        symbols.jit.refresh(process, now_ns, &mut self.counts.perf_maps);
        let mut reports = Vec::new();
        for code in process.mappings.iter() {
            let mut report = ModuleReport {
                start: code.start.0,
                end: code.end.0,
                path: code.path.to_string(),
                build_id: None,
                symbols: None,
                problem: None,
            };
            if code.backing != Backing::Anonymous {
                let module = symbols.modules.get(process, code, &self.files, &mut self.counts);
                report.build_id = module.mapping().build_id.map(|id| id.to_string());
                match module.symbols(process, &self.files, &self.names) {
                    Ok(symbols) => report.symbols = Some(symbols.len()),
                    Err(reason) => report.problem = Some(reason),
                }
            }
            reports.push(report);
        }
        reports
    }
}

impl fmt::Display for ModuleReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#014x}-{:#014x} {}", self.start, self.end, one_line(&self.path))?;
        if let Some(id) = &self.build_id {
            write!(f, ", build id {id}")?;
        }
        match (self.symbols, self.problem) {
            (Some(count), _) => write!(f, ", {count} functions"),
            (None, Some(problem)) => write!(f, ", can't be used: {problem}"),
            (None, None) => write!(f, ", generated code"),
        }
    }
}
