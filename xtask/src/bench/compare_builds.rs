//! Comparison of two builds of jvmprof that profile one warm JVM by turns: the kernel's time and
//! the daemon's CPU time per sample.
//!
//! Machines are noisy, and a neighbour's load comes and goes. Only recordings that follow each
//! other are compared, and the spread of their ratios shows what a difference is worth.

use std::path::Path;

use anyhow::Context as _;

use super::{RecordSummary, jvm, number, record};

/// Samples per second and CPU: the default, and one at which a sample's own cost weighs most.
const FREQUENCIES: [u32; 2] = [99, 499];
const LOAD: &str = "mixed";
/// Upper bound of the time that a recording takes to start.
const START_SECONDS: u32 = 5;

type Measure = fn(&RecordSummary) -> Option<f64>;
const MEASURES: [(&str, Measure); 2] = [
    ("kernel ns/sample", RecordSummary::kernel_ns_per_sample),
    ("daemon ms/1000", RecordSummary::running_cpu_ms_per_1000_samples),
];

/// Costs of both builds: medians, and the ratios new to old of each round.
#[derive(Debug, PartialEq)]
struct CostRatios {
    old: f64,
    new: f64,
    ratio: f64,
    least: f64,
    most: f64,
}

impl CostRatios {
    /// Returns `None` if a round lacks one of its two values.
    fn of(rounds: &[[Option<f64>; 2]]) -> Option<Self> {
        let pairs: Vec<(f64, f64)> =
            rounds.iter().map(|[old, new]| (*old).zip(*new)).collect::<Option<_>>()?;
        let sorted = |values: &mut dyn Iterator<Item = f64>| {
            let mut values: Vec<f64> = values.collect();
            values.sort_by(f64::total_cmp);
            values
        };
        let ratios = sorted(&mut pairs.iter().map(|(old, new)| new / old));
        Some(Self {
            old: median(&sorted(&mut pairs.iter().map(|pair| pair.0)))?,
            new: median(&sorted(&mut pairs.iter().map(|pair| pair.1)))?,
            ratio: median(&ratios)?,
            least: *ratios.first()?,
            most: *ratios.last()?,
        })
    }
}

fn median(sorted: &[f64]) -> Option<f64> {
    let upper = *sorted.get(sorted.len() / 2)?;
    let lower = *sorted.get((sorted.len() - 1) / 2)?;
    Some(f64::midpoint(lower, upper))
}

/// Records the load with the old and the new build in turn, and prints how their costs compare.
///
/// # Errors
/// There is no JDK, or a recording fails.
pub(super) fn compare(
    old: &Path,
    new: &Path,
    seconds: u32,
    rounds: u32,
    folder: &Path,
) -> anyhow::Result<()> {
    let jdk = jvm::prepare(folder)?;
    let recordings = FREQUENCIES.len() as u32 * 2 * rounds;
    let jvm = jvm::start_warm(&jdk, LOAD, recordings * (seconds + START_SECONDS), folder)?;
    let mut lines = Vec::new();
    for frequency in FREQUENCIES {
        let flags = ["-F", &frequency.to_string(), "-d", &seconds.to_string(), "-p", &jvm.pid().to_string()]
            .map(str::to_owned);
        let mut summaries = Vec::new();
        for _ in 0..rounds {
            summaries.push([record(old, &flags)?, record(new, &flags)?]);
        }
        for (name, measure) in MEASURES {
            let values: Vec<[Option<f64>; 2]> =
                summaries.iter().map(|round| [measure(&round[0]), measure(&round[1])]).collect();
            let found = CostRatios::of(&values).with_context(|| format!("no samples at {frequency} Hz"))?;
            lines.push(format!(
                "{frequency:>4} {name:>17} {:>10} {:>10} {:>7.3} {:>7.3} to {:.3}",
                number(Some(found.old)),
                number(Some(found.new)),
                found.ratio,
                found.least,
                found.most,
            ));
        }
    }
    println!("\n  Hz           measure        old        new   ratio   spread ({rounds} rounds)");
    for line in lines {
        println!("{line}");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_of_recordings_that_follow_each_other() {
        let rounds = [[Some(10.0), Some(11.0)], [Some(20.0), Some(20.0)], [Some(10.0), Some(9.0)]];
        let found = CostRatios::of(&rounds).unwrap();
        assert_eq!(found, CostRatios { old: 10.0, new: 11.0, ratio: 1.0, least: 0.9, most: 1.1 });
        assert_eq!(CostRatios::of(&[[Some(1.0), None]]), None);
        assert_eq!(CostRatios::of(&[]), None);
    }
}
