//! Waits in folded stacks, beside what programs measure of their own.

use std::collections::BTreeMap;

/// Options by which every wait is kept.
pub(crate) const KEEP_ALL: [&str; 6] =
    ["--offcpu-min", "0s", "--offcpu-interval", "1us", "--offcpu-max-events", "1000000"];

/// Difference between what is measured and what is recorded, as a part of the time.
pub(crate) const TOLERANCE: f64 = 0.02;

/// The waits that a program has measured, in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Measured {
    pub(crate) wall: f64,
    /// For how long the thread ran meanwhile.
    pub(crate) cpu: f64,
    /// For how long it waited for a CPU.
    pub(crate) delay: f64,
}

impl Measured {
    /// Reads such sums: a method and its three numbers on each line.
    pub(crate) fn read(text: &str) -> BTreeMap<&str, Self> {
        let sums = text.lines().map(|line| {
            let (method, numbers) = line.split_once(' ').expect("a method and its sums");
            let numbers = numbers.split(' ').map(|number| number.parse().expect("a number"));
            let numbers: Vec<f64> = numbers.collect();
            let [wall, cpu, delay] = numbers[..] else { panic!("three numbers: {line}") };
            (method, Self { wall, cpu, delay })
        });
        sums.collect()
    }

    /// Returns for how long it waited for something else than a CPU.
    pub(crate) fn blocked(&self) -> f64 {
        self.wall - self.cpu - self.delay
    }
}

/// Sums of a file of folded stacks, of those with this frame, by what their leaves say: the cause,
/// and the class of the monitor or blocker after it. That a wait is idle is left out.
pub(crate) fn waited_for(folded: &str, frame: &str) -> BTreeMap<String, f64> {
    let frame = format!(";{frame};");
    let mut sums = BTreeMap::new();
    for line in folded.lines().filter(|line| line.contains(&frame)) {
        let (stack, value) = line.rsplit_once(' ').expect("a stack and its value");
        let leaf = stack.rsplit(';').next().expect("a frame");
        let leaf = leaf.strip_prefix("[wait: ").and_then(|leaf| leaf.strip_suffix(']'));
        let value: f64 = value.parse().expect("a number");
        let leaf = leaf.expect("the leaf is the cause").replacen(", idle", "", 1);
        *sums.entry(leaf).or_default() += value;
    }
    sums
}

/// The same by cause.
pub(crate) fn waited(folded: &str, frame: &str) -> BTreeMap<String, f64> {
    let mut sums = BTreeMap::new();
    for (leaf, value) in waited_for(folded, frame) {
        let cause = leaf.split_once(": ").map_or(&*leaf, |(cause, _)| cause);
        *sums.entry(cause.to_owned()).or_default() += value;
    }
    sums
}
