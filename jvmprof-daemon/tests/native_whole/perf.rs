//! The same load at the same time as `perf record --call-graph dwarf` sees it, which copies each stack and unwinds it later, with
//! other code than ours.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use super::support::{Workload, jvmprof};

/// Functions that are compared, of the most frequent ones.
const TOP: usize = 20;
const SECONDS: &str = "10";
const RATE: &str = "499";
/// Standard deviations, and points of a hundred, by which two may differ. Samples of the same millisecond aren't independent.
const DEVIATIONS: f64 = 4.5;
const POINTS: f64 = 0.02;
/// Of perf's stacks that don't reach a thread's root, at most: it loses what its 16 KiB of stack don't hold, and more of a busy
/// machine's.
const CUT: f64 = 0.2;
/// Where threads begin.
const ROOTS: [&str; 3] = ["start", "clone3", "clone"];

/// Samples by function: those that it was interrupted in, and those that it was on the stack of.
#[derive(Default)]
struct Counts {
    samples: u64,
    own: BTreeMap<String, u64>,
    total: BTreeMap<String, u64>,
    /// Samples whose stack is cut, and those of them by function as in `total`.
    cut: u64,
    cut_total: BTreeMap<String, u64>,
}

impl Counts {
    /// `frames`: root last.
    fn add(&mut self, frames: &[String], count: u64) {
        let Some(leaf) = frames.first() else { return };
        self.samples += count;
        *self.own.entry(leaf.clone()).or_default() += count;
        let is_cut = !frames.last().is_some_and(|root| ROOTS.contains(&root.as_str()));
        self.cut += if is_cut { count } else { 0 };
        for frame in frames.iter().collect::<BTreeSet<_>>() {
            *self.total.entry(frame.clone()).or_default() += count;
            if is_cut {
                *self.cut_total.entry(frame.clone()).or_default() += count;
            }
        }
    }

    /// The samples that a function may have been on the stack of, beside those where it was seen there.
    fn unseen(&self, name: &str) -> u64 {
        self.cut - self.cut_total.get(name).copied().unwrap_or_default()
    }
}

/// What two tools call the same: of several names for the same bytes each chooses its own.
fn plain(name: &str) -> String {
    let name = name.split(['@', '(', '<']).next().unwrap_or_default().replace("__GI_", "");
    let name = name.split(".part.").next().unwrap_or_default();
    let name = name.split(".constprop.").next().unwrap_or_default();
    let name = name.trim_end_matches(".cold").trim_start_matches('_');
    let name = name.rsplit(' ').next().unwrap_or_default();
    match name {
        "cfree" => "free".to_owned(),
        _ => name.replace("mempcpy", "memmove").replace("memcpy", "memmove"),
    }
}

/// perf has no names for what is stripped.
fn is_name(name: &str) -> bool {
    !name.is_empty() && !name.starts_with('[')
}

fn of_perf(data: &Path) -> Counts {
    let output =
        Command::new("perf").args(["script", "--no-inline", "-F", "tid,ip,sym", "-i"]).arg(data).output();
    let output = output.expect("this test runs perf");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let mut counts = Counts::default();
    for sample in String::from_utf8_lossy(&output.stdout).split("\n\n") {
        let frame = |line: &str| {
            let (address, name) = line.trim().split_once(' ')?;
            // Kernel frames are left out.
            let address = u64::from_str_radix(address, 16).ok()?;
            (address < 1 << 63).then(|| plain(name))
        };
        // The thread comes first.
        let frames: Vec<_> = sample.trim_start_matches('\n').lines().skip(1).filter_map(frame).collect();
        counts.add(&frames, 1);
    }
    counts
}

fn of_folded(file: &Path) -> Counts {
    let mut counts = Counts::default();
    for line in fs::read_to_string(file).expect("our profile").lines() {
        let (stack, count) = line.rsplit_once(' ').expect("a count");
        let user = stack.split(';').filter(|frame| !frame.ends_with("_[k]"));
        let mut frames: Vec<_> = user.map(plain).collect();
        frames.reverse();
        counts.add(&frames, count.parse().expect("a number"));
    }
    counts
}

/// Samples a program by both, and compares the functions that perf has most of.
pub(crate) fn compare(directory: &Path, program: &Path) {
    let load = Workload::start(program, &[]);
    let pid = load.pid().to_string();
    let (data, folded) = (directory.join("perf.data"), directory.join("ours.folded"));
    let mut perf = Command::new("perf");
    perf.args([
        "record",
        "-e",
        "cpu-clock",
        "--call-graph",
        "dwarf,16384",
        "--no-buildid",
        "--no-buildid-cache",
    ]);
    perf.args(["-N", "-B", "-F", RATE, "-p", &pid, "-o"]).arg(&data).args(["--", "sleep", SECONDS]);
    let mut perf = perf.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("this test runs perf");
    let mut ours = jvmprof();
    ours.args(["record", "-p", &pid, "-F", RATE, "-d", &format!("{SECONDS}s"), "-o"]).arg(&folded);
    let recorded = ours.stdout(Stdio::null()).stderr(Stdio::null()).status();
    assert!(recorded.expect("the binary runs").success());
    assert!(perf.wait().expect("perf ends").success());
    let (ours, perfs) = (of_folded(&folded), of_perf(&data));
    assert!(ours.samples > 200 && perfs.samples > 200, "{} and {} samples", ours.samples, perfs.samples);
    assert!(perfs.cut as f64 <= CUT * perfs.samples as f64, "perf lost {} of {}", perfs.cut, perfs.samples);
    let mut wrong = Vec::new();
    for (what, ours_by, perfs_by) in [("self", &ours.own, &perfs.own), ("total", &ours.total, &perfs.total)] {
        let mut top: Vec<_> = perfs_by.iter().collect();
        top.sort_by_key(|(_, count)| std::cmp::Reverse(**count));
        for (name, count) in top.into_iter().filter(|(name, _)| is_name(name)).take(TOP) {
            let own = ours_by.get(name).copied().unwrap_or_default() as f64;
            let (n, m) = (ours.samples as f64, perfs.samples as f64);
            let unseen = if what == "total" { perfs.unseen(name) } else { 0 };
            let (p, least, most) = (own / n, *count as f64 / m, (count + unseen) as f64 / m);
            let all = (own + *count as f64) / (n + m);
            let deviation = (all * (1.0 - all) * (1.0 / n + 1.0 / m)).sqrt();
            let line = format!(
                "{what} {name}: {:.2} %, perf {:.2} to {:.2} %",
                p * 100.0,
                least * 100.0,
                most * 100.0
            );
            println!("{line}");
            let tolerance = DEVIATIONS * deviation + POINTS;
            if p < least - tolerance || p > most + tolerance {
                wrong.push(line);
            }
        }
    }
    println!("{} samples, perf {}, of which {} are cut", ours.samples, perfs.samples, perfs.cut);
    assert!(wrong.is_empty(), "{wrong:#?}");
}
