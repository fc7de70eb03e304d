//! Two profiles beside each other: what changed, and what may be chance.
//!
//! The page computes the same (`assets/tree/compare.js`); the tests of both have the same figures.

use serde::Serialize;

use super::call_tree::ComparedFunction;

/// Differences below this many standard errors may be chance: one in 370 functions that didn't
/// change exceeds it.
pub const SIGNIFICANT_Z: f64 = 3.0;

/// Events of both sides together below which the test means nothing.
const LEAST_EVENTS: f64 = 10.0;

/// Data of one side, beside its counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct ComparedSide {
    /// The time that a count stands for; 0 for bytes and objects.
    pub period_ns: u64,
    /// The time that was profiled.
    pub duration_ns: u64,
    /// Events that the counts were made of: the same number, where each counts for itself.
    pub events: u64,
    /// The sum of its counts.
    pub total: u64,
}

impl ComparedSide {
    /// The count of an event, on average.
    fn per_event(&self) -> f64 {
        if self.events == 0 { 1.0 } else { (self.total as f64 / self.events as f64).max(1e-9) }
    }

    /// Seconds that a count stands for, or 1: it is what is counted itself.
    fn unit(&self) -> f64 {
        if self.period_ns == 0 { 1.0 } else { self.period_ns as f64 / 1e9 }
    }

    fn seconds(&self) -> f64 {
        (self.duration_ns as f64 / 1e9).max(1e-9)
    }

    /// Returns true if nothing is a share of it, or if nothing was profiled at all.
    fn is_empty(&self, by: Normalisation) -> bool {
        self.total == 0 && (by == Normalisation::Share || self.duration_ns == 0)
    }
}

/// The divisor of the counts of two sides that are compared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Normalisation {
    /// All counts of the side: which share a function has.
    #[default]
    Share,
    /// The time that was profiled: how many CPUs a function takes, or bytes and objects a second.
    Time,
}

/// Two sides, the base first.
#[derive(Clone, Copy, Debug)]
pub struct Comparison {
    pub sides: [ComparedSide; 2],
    pub by: Normalisation,
}

impl Comparison {
    /// Returns the number that is compared: a share of 1, CPUs, or a number a second.
    pub fn value(&self, side: usize, count: u64) -> f64 {
        let of = &self.sides[side];
        match self.by {
            Normalisation::Share => count as f64 / of.total.max(1) as f64,
            Normalisation::Time => count as f64 * of.unit() / of.seconds(),
        }
    }

    /// Returns which of the sides have nothing that could be compared.
    pub fn empty_sides(&self) -> [bool; 2] {
        self.sides.map(|side| side.is_empty(self.by))
    }

    /// Returns the difference in standard errors, as if both sides had the same share or rate: the
    /// two-proportion z-test, or the one of two Poisson rates. Counts that several events make up
    /// are taken as so many events of equal weight. 0 where there are too few.
    pub fn z(&self, counts: [u64; 2]) -> f64 {
        if self.empty_sides().contains(&true) {
            return 0.0;
        }
        let [before, after] = &self.sides;
        let events = [counts[0] as f64 / before.per_event(), counts[1] as f64 / after.per_event()];
        let all = events[0] + events[1];
        let size = match self.by {
            Normalisation::Share => [before.events.max(1) as f64, after.events.max(1) as f64],
            // Events that one CPU would have, or one a second.
            Normalisation::Time => {
                [before, after].map(|side| side.seconds() / (side.unit() * side.per_event()))
            }
        };
        let pooled = all / (size[0] + size[1]);
        let variance = match self.by {
            Normalisation::Share => pooled * (1.0 - pooled),
            Normalisation::Time => pooled,
        };
        let error = (variance.max(0.0) * (1.0 / size[0] + 1.0 / size[1])).sqrt();
        if all < LEAST_EVENTS || error <= 0.0 {
            return 0.0;
        }
        (events[1] / size[1] - events[0] / size[0]) / error
    }
}

/// A function that changed.
#[derive(Clone, Debug, PartialEq)]
pub struct ChangedFunction<'a> {
    pub name: &'a str,
    pub values: [f64; 2],
    pub z: f64,
}

/// Returns the functions whose own samples, with those of the JVM and the kernel on their behalf,
/// changed by more than chance: the largest changes first.
pub fn changed_functions<'a>(
    functions: impl Iterator<Item = ComparedFunction<'a>>,
    comparison: &Comparison,
) -> Vec<ChangedFunction<'a>> {
    let changed = |function: ComparedFunction<'a>| {
        let [before, after] = function.attributed;
        let values = [comparison.value(0, before), comparison.value(1, after)];
        let z = comparison.z(function.attributed);
        (z.abs() >= SIGNIFICANT_Z).then_some(ChangedFunction { name: function.name, values, z })
    };
    let mut changed: Vec<_> = functions.filter_map(changed).collect();
    let size = |function: &ChangedFunction<'_>| (function.values[1] - function.values[0]).abs();
    changed.sort_by(|a, b| size(b).total_cmp(&size(a)).then_with(|| a.name.cmp(b.name)));
    changed
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIDE: ComparedSide =
        ComparedSide { period_ns: 10_000_000, duration_ns: 10_000_000_000, events: 1_000, total: 1_000 };

    fn close(value: f64, expected: f64) {
        assert!((value - expected).abs() < 1e-3, "{value}, not {expected}");
    }

    #[test]
    fn shares_are_compared_by_the_two_proportion_test() {
        let sides = [SIDE, ComparedSide { events: 2_000, total: 2_000, ..SIDE }];
        let shares = Comparison { sides, by: Normalisation::Share };
        close(shares.value(0, 100), 0.1);
        close(shares.value(1, 300), 0.15);
        // (0.15 - 0.1) / sqrt(0.13333 * 0.86667 * (1 / 1000 + 1 / 2000))
        close(shares.z([100, 300]), 3.798);
        close(shares.z([100, 200]), 0.0);
        close(shares.z([0, 9]), 0.0);
    }

    #[test]
    fn rates_are_compared_in_time() {
        let sides = [SIDE, ComparedSide { duration_ns: 20_000_000_000, ..SIDE }];
        let times = Comparison { sides, by: Normalisation::Time };
        close(times.value(0, 100), 0.1);
        close(times.value(1, 100), 0.05);
        // (100 / 20 - 100 / 10) / sqrt(200 / 30 * (1 / 10 + 1 / 20)), whatever the unit.
        close(times.z([100, 200]), 0.0);
    }

    #[test]
    fn counts_that_are_estimates_have_the_weight_of_their_events() {
        let side = ComparedSide { events: 100, total: 100_000_000, ..SIDE };
        let bytes = Comparison { sides: [side, side], by: Normalisation::Share };
        let samples = ComparedSide { total: 100, ..side };
        let samples = Comparison { sides: [samples, samples], by: Normalisation::Share };
        close(bytes.z([10_000_000, 30_000_000]), samples.z([10, 30]));
    }

    #[test]
    fn nothing_is_more_than_a_side_without_samples() {
        let none = ComparedSide { events: 0, total: 0, ..SIDE };
        let [shares, times] =
            [Normalisation::Share, Normalisation::Time].map(|by| Comparison { sides: [none, SIDE], by });
        assert_eq!((shares.empty_sides(), shares.z([0, 1_000])), ([true, false], 0.0));
        assert_eq!(times.empty_sides(), [false; 2], "a time in which nothing ran can be compared");
        assert!(times.z([0, 1_000]) > SIGNIFICANT_Z);
        let never = ComparedSide { duration_ns: 0, ..none };
        let times = Comparison { sides: [SIDE, never], by: Normalisation::Time };
        assert_eq!((times.empty_sides(), times.z([1_000, 0])), ([false, true], 0.0));
    }

    #[test]
    fn what_may_be_chance_is_left_out() {
        let comparison = Comparison { sides: [SIDE, SIDE], by: Normalisation::Share };
        let function = |name, attributed| ComparedFunction { name, attributed };
        let functions = [
            function("same", [100, 110]),
            function("more", [100, 200]),
            function("gone", [300, 10]),
            function("few", [0, 9]),
        ];
        let changed = changed_functions(functions.into_iter(), &comparison);
        assert_eq!(changed.iter().map(|it| it.name).collect::<Vec<_>>(), ["gone", "more"]);
        assert!(changed[0].z < -3.0 && changed[1].z > 3.0);
    }
}
