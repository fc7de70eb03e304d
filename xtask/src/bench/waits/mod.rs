//! Who sees which waits: a program that measures its own, beside one profiler after the other, and
//! what each of them says of the time that was measured in its run.

mod sums;
mod tool;

use std::path::Path;

use super::BenchArgs;
use crate::zoo::{Jdk, JdkRequest};
use sums::Run;
use tool::{Setup, Tool};

/// The JDK that the program runs on where none is asked for.
const JDK: u32 = 25;

/// The methods of the program in which it waits, with the cause that their waits have.
const METHODS: [(&str, &str); 15] = [
    ("monitor", "monitor"),
    ("reentrantLock", "park"),
    ("readLock", "park"),
    ("stampedLock", "park"),
    ("semaphore", "park"),
    ("objectWait", "object_wait"),
    ("condition", "park"),
    ("take", "park"),
    ("future", "park"),
    ("parkNanos", "park"),
    ("sleep", "sleep"),
    ("socketRead", "socket"),
    ("pipeRead", "file"),
    ("select", "poll"),
    ("compute", "runnable"),
];

/// Shares of what was measured from which on it counts as seen: a sample of a method on its way
/// into a wait isn't one of the wait.
const LEAST_SHARE: f64 = 0.01;

/// Runs the program beside each profiler on each JDK, and prints who sees what.
///
/// # Errors
/// The program, a JDK or async-profiler can't be had, or a run fails.
pub(super) fn measure(args: &BenchArgs, jvmprof: &Path) -> anyhow::Result<()> {
    let wanted = match args.jdk.is_empty() {
        true => vec![JdkRequest::version(JDK)],
        false => args.jdk.clone(),
    };
    let setup = Setup::prepare(jvmprof, args.seconds)?;
    for jdk in &wanted {
        let jdk = jdk.ensure()?;
        let run = |tool: Tool| tool.run(&setup, &jdk);
        let runs = Tool::ALL.into_iter().map(run).collect::<anyhow::Result<Vec<Run>>>()?;
        print(&jdk, args.seconds, &runs);
    }
    Ok(())
}

fn print(jdk: &Jdk, seconds: u32, runs: &[Run]) {
    println!("\nJDK {}, {seconds} s: sums by method, of what it measured beside that profiler", jdk.feature);
    println!("-: not seen; in brackets the part that has the cause");
    let names: String = Tool::ALL.iter().map(|tool| format!("{:>16}", tool.name())).collect();
    println!("{:<16}{:<12}{:>11}{names}", "method", "cause", "measured");
    for (method, cause) in METHODS {
        let measured_ms = runs.first().map_or(0, |run| run.measured_ns(method)) / 1_000_000;
        let cells: String = runs.iter().map(|run| format!("{:>16}", cell(run, method))).collect();
        println!("{method:<16}{cause:<12}{measured_ms:>8} ms{cells}");
    }
}

/// Returns what a profiler saw of a method's waits, as a share.
fn cell(run: &Run, method: &str) -> String {
    let measured = run.measured_ns(method) as f64;
    let [seen, of_cause] = run.seen_ns(method).map(|ns| ns.map(|ns| ns as f64 / measured));
    match (seen.filter(|share| *share >= LEAST_SHARE), of_cause) {
        (Some(seen), Some(of_cause)) => format!("{seen:.3} ({of_cause:.2})"),
        (Some(seen), None) => format!("{seen:.3}"),
        (None, _) => "-".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_program_has_a_method_of_each_kind() {
        let source = include_str!("../../../bench/Waits.java");
        for (method, _) in METHODS {
            assert!(source.contains(&format!("static void {method}()")), "{method}");
        }
    }

    #[test]
    fn a_cell_is_the_share_of_what_was_measured() {
        let mut run = Run::parse_measured("take\t2000\t7\nsleep\t1000\t3\nselect\t1000\t3\n").unwrap();
        run.add_folded("java.lang.Thread.run;Waits.take;[wait: park: Q] 1900\n", 1).unwrap();
        run.add_folded("java.lang.Thread.run;Waits.take;[wait: runnable] 100\n", 1).unwrap();
        run.add("sleep", 900, None);
        run.add("select", 2, None);
        let cells = ["take", "sleep", "select", "compute"].map(|method| cell(&run, method));
        assert_eq!(cells, ["1.000 (0.95)", "0.900", "-", "-"]);
    }
}
