//! Comparison of `perf record` and jvmprof on the same load at the same time.

use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context as _, bail};
use serde::Serialize;

use crate::bench::{Function, LoadProcess, record};
use crate::run::{command_line, stdout_text};

/// Number of functions that are compared.
const TOP: usize = 10;

/// Both profilers at 99 Hz.
#[derive(Debug, Serialize)]
pub(crate) struct PerfComparison {
    perf_samples: u64,
    jvmprof_samples: u64,
    /// jvmprof's samples over perf's.
    ratio: f64,
    perf_top: Vec<Function>,
    jvmprof_top: Vec<Function>,
    /// Functions of perf's top that aren't in jvmprof's.
    missing: Vec<String>,
}

/// Records the load with both at once, so that both measure the same machine.
pub(crate) fn compare(
    jvmprof: &Path,
    load: &Path,
    seconds: u32,
    folder: &Path,
) -> anyhow::Result<PerfComparison> {
    let load = LoadProcess::start(Command::new(load).arg((seconds + 5).to_string()))?;
    let pid = load.pid().to_string();
    let seconds = seconds.to_string();
    let data = folder.join("perf.data");
    let mut perf = Command::new("perf");
    perf.args(["record", "--quiet", "--no-buildid", "-F", "99", "-g", "-p", &pid, "-o"]).arg(&data);
    perf.args(["--", "sleep", &seconds]).stdin(Stdio::null());
    let line = command_line(&perf);
    eprintln!("$ {line} &");
    let mut perf = perf.spawn().with_context(|| format!("starting `{line}` (Debian: linux-perf)"))?;
    let ours = record(jvmprof, &["-d", &seconds, "-F", "99", "-p", &pid].map(str::to_owned));
    let status = perf.wait().with_context(|| format!("waiting for `{line}`"))?;
    let ours = ours?;
    if !status.success() {
        bail!("`{line}` failed: {status}");
    }
    drop(load);
    let mut script = Command::new("perf");
    let script = stdout_text(script.args(["script", "-F", "comm,pid,ip,sym", "-i"]).arg(&data))?;
    let (perf_samples, perf_top) = top(&script);
    let known: HashSet<&str> = ours.top.iter().map(|function| function.name.as_str()).collect();
    let missing = perf_top.iter().filter(|function| !known.contains(function.name.as_str()));
    let missing = missing.map(|function| function.name.clone()).collect();
    Ok(PerfComparison {
        perf_samples,
        jvmprof_samples: ours.samples,
        ratio: ours.samples as f64 / perf_samples.max(1) as f64,
        perf_top,
        jvmprof_top: ours.top,
        missing,
    })
}

/// Samples and the functions with most of their own in the output of `perf script`: a block a
/// sample, with one line a frame, the leaf first.
fn top(script: &str) -> (u64, Vec<Function>) {
    let mut samples = 0;
    let mut counts: HashMap<&str, (u64, u64)> = HashMap::new();
    for block in script.split("\n\n") {
        // The first line is the sample's own: command and pid.
        let frames: Vec<&str> = block.trim().lines().skip(1).filter_map(function).collect();
        let Some(leaf) = frames.first() else { continue };
        samples += 1;
        counts.entry(leaf).or_default().0 += 1;
        for name in frames.iter().collect::<HashSet<_>>() {
            counts.entry(name).or_default().1 += 1;
        }
    }
    let mut functions: Vec<Function> = counts
        .into_iter()
        .map(|(name, (own, total))| Function { name: name.to_owned(), own, total })
        .collect();
    functions.sort_by(|one, other| (other.own, &one.name).cmp(&(one.own, &other.name)));
    functions.truncate(TOP);
    (samples, functions)
}

/// Returns the function's name in a line such as `    55d0c8a3b1a9 parse_header`, without its
/// offset.
fn function(line: &str) -> Option<&str> {
    let (_, name) = line.trim().split_once(' ')?;
    Some(name.split_once("+0x").map_or(name, |(name, _)| name))
}

impl PerfComparison {
    pub(crate) fn print(&self) {
        println!(
            "\nperf {} samples, jvmprof {}: {:+.1} %",
            self.perf_samples,
            self.jvmprof_samples,
            (self.ratio - 1.0) * 100.0
        );
        println!("{:>8} {:>7}  {:<28}{:>8} {:>7}  jvmprof", "self", "total", "perf", "self", "total");
        for row in 0..self.perf_top.len().max(self.jvmprof_top.len()) {
            let cells = |functions: &[Function]| {
                functions.get(row).map_or_else(
                    || (String::new(), String::new(), String::new()),
                    |function| (function.own.to_string(), function.total.to_string(), function.name.clone()),
                )
            };
            let (perf, ours) = (cells(&self.perf_top), cells(&self.jvmprof_top));
            println!("{:>8} {:>7}  {:<28}{:>8} {:>7}  {}", perf.0, perf.1, perf.2, ours.0, ours.1, ours.2);
        }
        match self.missing.as_slice() {
            [] => println!("the same functions"),
            missing => println!("not in jvmprof's: {}", missing.join(", ")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_and_functions_are_read_from_perf_script() {
        let script = "mixed 17 \n\t    55d0 hash_key+0x1f\n\t    55e0 read_part\n\t    55f0 read_part\n\n\
                      mixed 17 \n\t    55d8 hash_key\n\t    55e0 main\n\n\
                      mixed 17 \n\t    ffffffff81 [unknown]\n";
        let (samples, functions) = top(script);
        assert_eq!(samples, 3);
        assert_eq!(functions[0], Function { name: "hash_key".to_owned(), own: 2, total: 2 });
        assert!(functions.contains(&Function { name: "read_part".to_owned(), own: 0, total: 1 }));
    }
}
