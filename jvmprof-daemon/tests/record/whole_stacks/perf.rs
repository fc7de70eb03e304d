//! The same load at the same time as `perf record` sees it, which copies each stack and unwinds it
//! later, with other code than ours.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use jvmprof_daemon::native::symbols::demangle::demangle;

use crate::support::processes::until_it_has_run;
use crate::support::{Workload, jvmprof};

/// Functions that are compared, of the most frequent ones.
const TOP: usize = 20;
const SECONDS: &str = "10";
const RATE: &str = "499";
/// Standard deviations, and points of a hundred, by which two may differ. Samples of the same
/// millisecond aren't independent.
const DEVIATIONS: f64 = 4.5;
const POINTS: f64 = 0.02;
/// Of perf's stacks that don't reach a thread's root, at most: it loses what its 16 KiB of stack
/// don't hold, and more of a busy machine's.
const CUT: f64 = 0.2;
/// Where the first thread of a program and others begin.
const THREADS: [&str; 3] = ["start", "clone3", "clone"];
/// Where threads and goroutines begin.
const ROOTS: [&str; 6] = ["start", "clone3", "clone", "runtime.goexit", "runtime.mstart", "runtime.mcall"];
/// What code is called that a runtime generates and nobody names here.
pub(crate) const GENERATED: &str = "generated code";

/// The way in which perf finds the callers of a frame.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum CallGraph {
    /// By `.eh_frame`.
    Dwarf,
    /// By frame pointers: of a function that has no frame, or none yet, they tell the caller's
    /// caller.
    FramePointer,
}

/// The load that is compared.
pub(crate) struct Load<'a> {
    pub(crate) program: &'a Path,
    pub(crate) arguments: &'a [&'a str],
    pub(crate) call_graph: CallGraph,
    /// Functions behind which perf finds no caller, though they have one: their callers are left
    /// out of our stacks, too.
    pub(crate) last: &'a [&'a str],
}

impl<'a> Load<'a> {
    /// A program all of whose frames perf can find.
    pub(crate) fn of(program: &'a Path) -> Self {
        Self { program, arguments: &[], call_graph: CallGraph::Dwarf, last: &[] }
    }

    /// What is compared of a stack; `None` if nothing is.
    fn stack(&self, mut frames: Vec<String>, count: f64) -> Option<Stack> {
        if let Some(last) = frames.iter().position(|frame| self.last.contains(&frame.as_str())) {
            frames.truncate(last + 1);
        }
        (!frames.is_empty()).then_some(Stack { frames, count })
    }
}

/// A stack, root last, and how many samples had it.
struct Stack {
    frames: Vec<String>,
    count: f64,
}

impl Stack {
    fn root(&self) -> &str {
        self.frames.last().map_or("", String::as_str)
    }
}

/// Samples by function: those that it was interrupted in, and those that it was on the stack of.
#[derive(Default)]
struct Counts {
    samples: f64,
    own: BTreeMap<String, f64>,
    total: BTreeMap<String, f64>,
    /// Of those, where it was nowhere but next to the interrupted function.
    next: BTreeMap<String, f64>,
    /// Samples whose stack is cut, and those of them by function as in `total`.
    cut: f64,
    cut_total: BTreeMap<String, f64>,
}

fn of(counts: &BTreeMap<String, f64>, name: &str) -> f64 {
    counts.get(name).copied().unwrap_or_default()
}

impl Counts {
    fn new(load: &Load<'_>, stacks: &[Stack]) -> Self {
        let mut counts = Self::default();
        for stack in stacks {
            counts.add(load, stack);
        }
        counts
    }

    fn add(&mut self, load: &Load<'_>, stack: &Stack) {
        let (Stack { frames, count }, root) = (stack, stack.root());
        self.samples += count;
        *self.own.entry(frames[0].clone()).or_default() += count;
        let is_cut = ![&ROOTS, load.last].iter().any(|ends| ends.contains(&root));
        self.cut += if is_cut { *count } else { 0.0 };
        for frame in frames.iter().collect::<BTreeSet<_>>() {
            *self.total.entry(frame.clone()).or_default() += count;
            if is_cut {
                *self.cut_total.entry(frame.clone()).or_default() += count;
            }
            if frames.iter().enumerate().all(|(at, it)| it != frame || at == 1) {
                *self.next.entry(frame.clone()).or_default() += count;
            }
        }
    }

    /// The samples that a function may have been on the stack of, beside those where it was seen
    /// there.
    fn unseen(&self, name: &str) -> f64 {
        self.cut - of(&self.cut_total, name)
    }
}

/// Gives each kind of thread the share that it has in the others' samples: which of them had the
/// CPU differs from moment to moment where there are more than CPUs, and both begin and end a
/// little apart.
fn balance(ours: &mut [Stack], perfs: &[Stack]) {
    let of_thread = |stacks: &[Stack], root: Option<&str>| -> f64 {
        let is_it =
            |stack: &&Stack| THREADS.contains(&stack.root()) && root.is_none_or(|root| root == stack.root());
        stacks.iter().filter(is_it).map(|stack| stack.count).sum()
    };
    let factors = THREADS.map(|root| {
        let share = |stacks| of_thread(stacks, Some(root)) / of_thread(stacks, None).max(1.0);
        let (own, wanted) = (share(&*ours), share(perfs));
        if own > 0.0 && wanted > 0.0 { wanted / own } else { 1.0 }
    });
    for stack in ours {
        let factor = THREADS.iter().zip(factors).find(|(root, _)| **root == stack.root());
        stack.count *= factor.map_or(1.0, |(_, factor)| factor);
    }
}

/// Names of the same code: each tool chooses its own of several.
struct Aliases(BTreeMap<String, String>);

impl Aliases {
    /// By the program's own symbols.
    fn of(program: &Path) -> Self {
        let output = Command::new("nm").arg("--defined-only").arg(program).output();
        let output = output.expect("this test runs nm");
        let mut by_address = BTreeMap::<_, BTreeSet<_>>::new();
        for line in String::from_utf8_lossy(&output.stdout).lines() {
            if let [address, "T" | "t" | "W" | "w", name] = line.split(' ').collect::<Vec<_>>()[..] {
                by_address.entry(address.to_owned()).or_default().insert(plain(name));
            }
        }
        let several = by_address.into_values().filter(|names| names.len() > 1);
        let pairs = several.flat_map(|names| {
            let first = names.first().cloned().unwrap_or_default();
            names.into_iter().map(move |name| (name, first.clone()))
        });
        Self(pairs.collect())
    }

    fn name(&self, raw: &str) -> String {
        let name = plain(raw);
        self.0.get(&name).cloned().unwrap_or(name)
    }
}

/// What two tools call the same.
fn plain(raw: &str) -> String {
    let demangled = demangle(raw);
    let name = demangled.as_deref().unwrap_or(raw);
    let name = name.split('@').next().unwrap_or_default().replace("__GI_", "");
    let name = name.split(".part.").next().unwrap_or_default();
    let name = name.split(".constprop.").next().unwrap_or_default();
    let name = name.trim_end_matches(".cold").trim_end_matches(".abi0").trim_start_matches('_');
    match name {
        "cfree" => "free".to_owned(),
        _ => name.replace("mempcpy", "memmove").replace("memcpy", "memmove"),
    }
}

/// perf has no names for what is stripped.
fn is_name(name: &str) -> bool {
    !name.is_empty() && !name.starts_with('[')
}

fn of_perf(load: &Load<'_>, aliases: &Aliases, data: &Path) -> Vec<Stack> {
    let fields = ["script", "--no-demangle", "--no-inline", "-F", "tid,ip,sym,dso", "-i"];
    let output = Command::new("perf").args(fields).arg(data).output().expect("this test runs perf");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let mut stacks = Vec::new();
    for sample in String::from_utf8_lossy(&output.stdout).split("\n\n") {
        let frame = |line: &str| {
            let (address, place) = line.trim().split_once(' ')?;
            // Kernel frames are left out.
            let address = u64::from_str_radix(address, 16).ok()?;
            let (name, file) = place.rsplit_once(" (").unwrap_or((place, ""));
            // perf looks for its name in /tmp/perf-PID.map.
            let name = if file.ends_with(".map)") { GENERATED.to_owned() } else { aliases.name(name) };
            (address < 1 << 63).then_some(name)
        };
        // The thread comes first.
        let frames = sample.trim_start_matches('\n').lines().skip(1).filter_map(frame);
        stacks.extend(load.stack(frames.collect(), 1.0));
    }
    stacks
}

fn of_folded(load: &Load<'_>, aliases: &Aliases, file: &Path) -> Vec<Stack> {
    let mut stacks = Vec::new();
    for line in fs::read_to_string(file).expect("our profile").lines() {
        let (stack, count) = line.rsplit_once(' ').expect("a count");
        let user = stack.split(';').filter(|frame| !frame.ends_with("_[k]"));
        let name = |frame| if frame == "[jit: unknown]" { GENERATED.to_owned() } else { aliases.name(frame) };
        let mut frames: Vec<_> = user.map(name).collect();
        frames.reverse();
        stacks.extend(load.stack(frames, count.parse().expect("a number")));
    }
    stacks
}

/// Samples a program by both.
fn record(directory: &Path, load: &Load<'_>) -> (Counts, Counts) {
    let aliases = Aliases::of(load.program);
    let running = Workload::start(load.program, load.arguments);
    // perf sees no threads that begin after it has.
    until_it_has_run(running.pid(), Duration::from_secs(1));
    let pid = running.pid().to_string();
    let (data, folded) = (directory.join("perf.data"), directory.join("ours.folded"));
    let call_graph = match load.call_graph {
        CallGraph::Dwarf => "dwarf,16384",
        CallGraph::FramePointer => "fp",
    };
    let mut perf = Command::new("perf");
    perf.args([
        "record",
        "-e",
        "cpu-clock",
        "--call-graph",
        call_graph,
        "--no-buildid",
        "--no-buildid-cache",
    ]);
    perf.args(["-N", "-B", "-F", RATE, "-p", &pid, "-o"]).arg(&data).args(["--", "sleep", SECONDS]);
    let mut perf = perf.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("this test runs perf");
    let mut ours = jvmprof();
    ours.args(["record", "-p", &pid, "-F", RATE, "-d", &format!("{SECONDS}s"), "-o"]).arg(&folded);
    let recorded = ours.output().expect("the binary runs");
    assert!(recorded.status.success(), "{}", String::from_utf8_lossy(&recorded.stderr));
    assert!(perf.wait().expect("perf ends").success());
    let (mut ours, perfs) = (of_folded(load, &aliases, &folded), of_perf(load, &aliases, &data));
    balance(&mut ours, &perfs);
    (Counts::new(load, &ours), Counts::new(load, &perfs))
}

/// Samples a program by both, and compares the functions that perf has most of.
pub(crate) fn compare(directory: &Path, load: &Load<'_>) {
    let (ours, perfs) = record(directory, load);
    let (n, m) = (ours.samples, perfs.samples);
    assert!(n > 200.0 && m > 200.0, "{n} and {m} samples");
    assert!(perfs.cut <= CUT * m, "perf lost {} of {m}", perfs.cut);
    let mut wrong = Vec::new();
    for (what, ours_by, perfs_by) in [("self", &ours.own, &perfs.own), ("total", &ours.total, &perfs.total)] {
        let mut top: Vec<_> = perfs_by.iter().filter(|(name, _)| is_name(name)).collect();
        top.sort_by(|(_, one), (_, other)| other.total_cmp(one));
        assert!(top.len() >= TOP, "perf names {} functions", top.len());
        for (name, count) in top.into_iter().take(TOP) {
            let most = of(ours_by, name);
            let may_be_missed = what == "total" && load.call_graph == CallGraph::FramePointer;
            let least = most - if may_be_missed { of(&ours.next, name) } else { 0.0 };
            let unseen = if what == "total" { perfs.unseen(name) } else { 0.0 };
            let (ours_least, ours_most) = (least / n, most / n);
            let (perfs_least, perfs_most) = (count / m, (count + unseen) / m);
            let all = (most + count) / (n + m);
            let deviation = (all * (1.0 - all) * (1.0 / n + 1.0 / m)).sqrt();
            let apart = (perfs_least - ours_most).max(ours_least - perfs_most).max(0.0);
            let [least, most, perfs_least, perfs_most] =
                [ours_least, ours_most, perfs_least, perfs_most].map(|share| share * 100.0);
            let line = format!(
                "{what} {name}: {least:.2} to {most:.2} %, perf {perfs_least:.2} to {perfs_most:.2} %, \
                 {:.1} deviations apart",
                if apart > 0.0 { apart / deviation } else { 0.0 }
            );
            println!("{line}");
            if apart > DEVIATIONS * deviation + POINTS {
                wrong.push(line);
            }
        }
    }
    println!("{n:.0} samples, of which {:.0} are cut; perf {m}, of which {} are cut", ours.cut, perfs.cut);
    assert!(wrong.is_empty(), "{wrong:#?}");
}
