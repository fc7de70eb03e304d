//! The slowdown of threads that wake one another, by profiles of waits: rounds of a program that
//! only takes turns, once alone and once beside each profiler, and the run times of the kernel
//! programs by the kernel's own statistics.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, bail};

use super::super::statistics::Summary;
use super::profiler::{self, Profiler};
use super::program_runs::{self, ProgramRuns};
use super::{beside, percent};
use crate::bench::{BenchArgs, compile};
use crate::run::stdout_text;

/// Switches a second of each CPU, about: the threads work for the rest of the time.
const SWITCHES_PER_SECOND: f64 = 100_000.0;
/// About as long as the programs of the other rounds.
const RUN: Duration = Duration::from_secs(5);
/// Turns of each thread in the runs that find out how long a turn and its work take, and that work.
const TRIAL_TURNS: u64 = 50_000;
const TRIAL_WORK: u64 = 5_000;
/// Runs while the kernel measures its programs: that takes time of each switch itself, so that they
/// aren't among the rounds.
const MEASURED_RUNS: usize = 3;
/// How the names of the programs of waits begin.
const WAIT_PROGRAMS: &str = "wait_";

/// The program that takes turns.
#[derive(Clone, Debug)]
struct SwitchLoad {
    program: PathBuf,
    /// Of each thread.
    turns: u64,
    /// Of each turn.
    work: u64,
}

/// One run of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct SwitchRun {
    wall: Duration,
    switches: u64,
    cpus: u64,
}

/// Differences of a profiler's runs to those without one.
#[derive(Debug, Default)]
struct SwitchDifferences {
    wall_percent: Vec<f64>,
    ns_per_switch: Vec<f64>,
    profiler_ms: Vec<f64>,
}

impl SwitchLoad {
    /// Compiles the program, and finds out how much work makes its switches as many as wanted.
    fn prepare(folder: &Path) -> anyhow::Result<Self> {
        let program = compile("switches", folder)?;
        let trial = |work| Self { program: program.clone(), turns: TRIAL_TURNS, work }.run();
        // The first run finds the CPUs asleep.
        trial(0)?;
        let (idle, busy) = (trial(0)?.ns_per_switch(), trial(TRIAL_WORK)?.ns_per_switch());
        let work = work_of_a_turn(idle, busy);
        let work = work.with_context(|| {
            format!("a switch took {idle:.0} ns without work and {busy:.0} with it: others use these CPUs")
        })?;
        let turns = RUN.as_secs_f64() * SWITCHES_PER_SECOND / 2.0;
        Ok(Self { program, turns: turns as u64, work })
    }

    fn run(&self) -> anyhow::Result<SwitchRun> {
        let mut command = Command::new(&self.program);
        let text = stdout_text(command.args([self.turns, self.work].map(|number| number.to_string())))?;
        SwitchRun::parse(&text).with_context(|| format!("{} printed {text}", self.program.display()))
    }
}

/// Returns the work by which a switch comes as often as wanted, if it takes so many nanoseconds
/// without work, and with that of a trial; `None` if the two say nothing of it.
fn work_of_a_turn(idle_ns: f64, busy_ns: f64) -> Option<u64> {
    let (wanted_ns, work_ns) = (1e9 / SWITCHES_PER_SECOND, busy_ns - idle_ns);
    let work = TRIAL_WORK as f64 * (wanted_ns - idle_ns) / work_ns;
    (work_ns > idle_ns / 10.0).then_some(work.max(0.0) as u64)
}

impl SwitchRun {
    /// Reads what the program prints: nanoseconds, switches, CPUs.
    fn parse(text: &str) -> Option<Self> {
        let numbers: Vec<u64> = text.split(' ').map(|word| word.parse().ok()).collect::<Option<_>>()?;
        let [wall_ns, switches, cpus] = numbers[..] else { return None };
        let is_run = wall_ns > 0 && switches > 0 && cpus > 0;
        is_run.then(|| Self { wall: Duration::from_nanos(wall_ns), switches, cpus })
    }

    /// Returns the time of a CPU for each of its switches.
    fn ns_per_switch(&self) -> f64 {
        self.wall.as_nanos() as f64 * self.cpus as f64 / self.switches as f64
    }

    fn switches_per_second(&self) -> f64 {
        self.switches as f64 / self.wall.as_secs_f64()
    }
}

impl SwitchDifferences {
    fn add(&mut self, alone: &SwitchRun, run: &SwitchRun, profiler: Duration) {
        self.wall_percent.push(percent(alone.wall, run.wall));
        // By the same switches: a profiler's own threads bring more.
        let more_ns = run.wall.as_nanos() as f64 - alone.wall.as_nanos() as f64;
        self.ns_per_switch.push(more_ns * alone.cpus as f64 / alone.switches as f64);
        self.profiler_ms.push(profiler.as_secs_f64() * 1e3);
    }
}

/// Runs the rounds, prints the differences with 95 % confidence intervals, and what the kernel says
/// of the programs.
///
/// # Errors
/// The program fails, or the daemon does.
pub(in crate::bench) fn measure(args: &BenchArgs, jvmprof: &Path, folder: &Path) -> anyhow::Result<()> {
    let load = SwitchLoad::prepare(folder)?;
    let profilers = profiler::of_waits(jvmprof, folder);
    let (mut rates, mut differences) = (Vec::new(), BTreeMap::<usize, SwitchDifferences>::new());
    for round in 0..args.pairs as usize {
        let order = (0..profilers.len()).map(|place| (place + round) % profilers.len());
        let mut runs = BTreeMap::new();
        for index in order {
            runs.insert(index, beside(&profilers[index], |_| load.run())?);
        }
        let (alone, _) = runs.remove(&profiler::NONE).context("no run without a profiler")?;
        rates.push(alone.switches_per_second());
        for (index, (run, profiler)) in runs {
            differences.entry(index).or_default().add(&alone, &run, profiler);
        }
    }
    print(&profilers, &rates, &differences);
    let waits = profilers.last().context("no profiler of waits")?;
    print_programs(&program_costs(&load, waits)?);
    Ok(())
}

fn print(profilers: &[Profiler], rates: &[f64], differences: &BTreeMap<usize, SwitchDifferences>) {
    let rate = Summary::of(rates).median;
    println!("{rate:.0} switches a second alone, {} rounds: mean +- its 95 % interval (median)", rates.len());
    println!("{:<28}{:>26}{:>26}{:>22}", "", "wall time, %", "ns a switch more", "profiler's CPU, ms");
    for (index, of_profiler) in differences {
        let [wall, switch, own] =
            [&of_profiler.wall_percent, &of_profiler.ns_per_switch, &of_profiler.profiler_ms]
                .map(|values| Summary::of(values));
        let (wall, switch) = (wall.to_string(), switch.to_string());
        let own = format!("{:.0} +- {:.0}", own.mean, own.half_interval);
        println!("{:<28}{wall:>26}{switch:>26}{own:>22}", profilers[*index].to_string());
    }
}

/// Runs of the kernel programs of waits, by name: nanoseconds of each, and runs for each switch of
/// the load.
type ProgramCosts = BTreeMap<String, Vec<[f64; 2]>>;

/// Measures the kernel programs of a daemon that profiles waits, while the load runs.
fn program_costs(load: &SwitchLoad, waits: &Profiler) -> anyhow::Result<ProgramCosts> {
    let _measured = program_runs::measure_programs()?;
    let mut costs = ProgramCosts::new();
    for _ in 0..MEASURED_RUNS {
        let (runs, _) = beside(waits, |pid| {
            let pid = pid.context("the daemon has no process")?;
            let before = program_runs::of_process(pid)?;
            let switches = load.run()?.switches;
            let after = program_runs::of_process(pid)?;
            Ok(of_waits(&before, &after, switches))
        })?;
        if runs.is_empty() {
            bail!("the daemon has loaded no program named {WAIT_PROGRAMS}*, or none has run");
        }
        for (name, cost) in runs {
            costs.entry(name).or_default().push(cost);
        }
    }
    Ok(costs)
}

/// Returns what each program of waits took between two times, in which there were so many switches.
fn of_waits(
    before: &BTreeMap<String, ProgramRuns>,
    after: &BTreeMap<String, ProgramRuns>,
    switches: u64,
) -> Vec<(String, [f64; 2])> {
    let cost = |(name, after): (&String, &ProgramRuns)| {
        let runs = after.since(before.get(name).copied().unwrap_or_default());
        let ns = runs.ns_per_run().filter(|_| name.starts_with(WAIT_PROGRAMS))?;
        Some((name.clone(), [ns, runs.runs as f64 / switches as f64]))
    };
    after.iter().filter_map(cost).collect()
}

fn print_programs(costs: &ProgramCosts) {
    println!(
        "\nby the kernel's statistics, which read a clock before and after each run ({MEASURED_RUNS} runs)"
    );
    println!("{:<28}{:>26}{:>26}", "program", "ns a run: median (all)", "runs a switch");
    for (name, runs) in costs {
        let [ns, per_switch] = [0_usize, 1].map(|at| runs.iter().map(|run| run[at]).collect::<Vec<f64>>());
        let all = ns.iter().map(|ns| format!("{ns:.0}")).collect::<Vec<_>>().join(" ");
        let ns = format!("{:.0} ({all})", Summary::of(&ns).median);
        println!("{name:<28}{ns:>26}{:>26.3}", Summary::of(&per_switch).median);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_work_of_a_turn_fills_the_time_between_switches() {
        // 10 µs a switch: 2 µs are its own, and a trial's work takes 4 µs.
        assert_eq!(work_of_a_turn(2_000.0, 6_000.0), Some(2 * TRIAL_WORK));
        assert_eq!(work_of_a_turn(12_000.0, 16_000.0), Some(0), "a slow machine");
        assert_eq!(work_of_a_turn(2_000.0, 1_900.0), None, "work that takes no time");
    }

    #[test]
    fn what_the_program_prints_is_a_run() {
        let run = SwitchRun::parse("5000000000 1000000 2").expect("a run");
        assert!((run.ns_per_switch() - 10_000.0).abs() < 1e-9, "{run:?}");
        assert!((run.switches_per_second() - 200_000.0).abs() < 1e-6, "{run:?}");
        for text in ["", "1 2", "1 2 3 4", "1 x 2", "0 1 1", "1 0 1"] {
            assert_eq!(SwitchRun::parse(text), None, "{text}");
        }
    }

    #[test]
    fn a_switch_takes_longer_by_what_the_program_does_on_each_cpu() {
        let run = |ms| SwitchRun { wall: Duration::from_millis(ms), switches: 1_000_000, cpus: 2 };
        let mut differences = SwitchDifferences::default();
        differences.add(&run(5_000), &run(5_100), Duration::from_millis(7));
        assert!((differences.wall_percent[0] - 2.0).abs() < 1e-9, "{differences:?}");
        assert!((differences.ns_per_switch[0] - 200.0).abs() < 1e-9, "{differences:?}");
        assert_eq!(differences.profiler_ms, [7.0]);
    }

    #[test]
    fn programs_of_waits_that_have_run_are_listed() {
        let runs = |ns, runs| ProgramRuns { time: Duration::from_nanos(ns), runs };
        let of = |all: &[(&str, ProgramRuns)]| -> BTreeMap<String, ProgramRuns> {
            all.iter().map(|(name, runs)| ((*name).to_owned(), *runs)).collect()
        };
        let before = of(&[("wait_begin", runs(1_000, 10)), ("wait_leaf", runs(0, 0))]);
        let after = of(&[("wait_begin", runs(3_000, 30)), ("wait_leaf", runs(0, 0)), ("sample", runs(9, 9))]);
        assert_eq!(of_waits(&before, &after, 40), [("wait_begin".to_owned(), [100.0, 0.5])]);
    }
}
