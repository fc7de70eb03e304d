//! The waits that the program has measured in one run, and what the profiler beside it says.

use std::collections::BTreeMap;

use anyhow::{Context as _, bail};

use super::METHODS;

/// The class of the program, whose methods are the kinds of waits.
const PROGRAM: &str = "Waits.";

/// One run of the program.
#[derive(Debug, Default)]
pub(super) struct Run {
    measured_ns: BTreeMap<&'static str, u64>,
    seen: BTreeMap<&'static str, Seen>,
}

/// What a profiler says of one method.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    ns: u64,
    /// Of these, those that have the cause; `None` if it names none.
    of_cause_ns: Option<u64>,
}

impl Run {
    /// Reads what the program prints, between what its JVM or an agent does.
    ///
    /// # Errors
    /// A line has no number, or a method's is missing.
    pub(super) fn parse(text: &str) -> anyhow::Result<Self> {
        let run = Self::parse_measured(text)?;
        if let Some((method, _)) = METHODS.iter().find(|(method, _)| run.measured_ns(method) == 0) {
            bail!("the program hasn't measured {method}: {text}");
        }
        Ok(run)
    }

    /// Reads the lines of some methods.
    ///
    /// # Errors
    /// A line has no number.
    pub(super) fn parse_measured(text: &str) -> anyhow::Result<Self> {
        let mut run = Self::default();
        for line in text.lines() {
            let words: Vec<&str> = line.split('\t').collect();
            let [method, ns, _count] = words[..] else { continue };
            let Some(method) = known(method) else { continue };
            let ns = ns.parse().with_context(|| format!("reading {line:?}"))?;
            run.measured_ns.insert(method, ns);
        }
        Ok(run)
    }

    /// Returns the time that a method was measured to wait.
    pub(super) fn measured_ns(&self, method: &str) -> u64 {
        self.measured_ns.get(method).copied().unwrap_or(0)
    }

    /// Returns the time that the profiler says, and the part of it that has the cause, if it says
    /// causes.
    pub(super) fn seen_ns(&self, method: &str) -> [Option<u64>; 2] {
        let seen = self.seen.get(method);
        [seen.map(|seen| seen.ns), seen.and_then(|seen| seen.of_cause_ns)]
    }

    /// Adds a time of a method. `has_cause`: it has the cause that the method's waits have; `None`
    /// if the profiler names none.
    pub(super) fn add(&mut self, method: &str, ns: u64, has_cause: Option<bool>) {
        let Some(method) = known(method) else { return };
        let seen = self.seen.entry(method).or_default();
        seen.ns += ns;
        if let Some(has_cause) = has_cause {
            *seen.of_cause_ns.get_or_insert(0) += if has_cause { ns } else { 0 };
        }
    }

    /// Adds folded stacks, of which each value stands for so many nanoseconds.
    ///
    /// # Errors
    /// A line can't be understood.
    pub(super) fn add_folded(&mut self, text: &str, value_ns: u64) -> anyhow::Result<()> {
        for line in text.lines() {
            let (stack, value) = line.rsplit_once(' ').with_context(|| format!("reading {line:?}"))?;
            let value: u64 = value.parse().with_context(|| format!("reading {line:?}"))?;
            let mut frames = stack.split(';');
            if let Some(method) = method_of(frames.clone()) {
                let leaf = frames.next_back().unwrap_or_default();
                self.add(method, value * value_ns, has_cause(leaf, method));
            }
        }
        Ok(())
    }
}

/// Returns the method of the program in which a stack waits: the one that is known.
pub(super) fn method_of<'a>(frames: impl Iterator<Item = &'a str>) -> Option<&'static str> {
    frames.filter_map(|frame| known(frame.strip_prefix(PROGRAM)?)).last()
}

fn known(method: &str) -> Option<&'static str> {
    METHODS.iter().find(|(name, _)| *name == method).map(|(name, _)| *name)
}

/// Returns true if a leaf names the cause that the waits of a method have; `None` if it names none.
fn has_cause(leaf: &str, method: &str) -> Option<bool> {
    let wait = leaf.strip_prefix("[wait: ")?;
    let cause = wait.split([':', ',', ']']).next()?;
    Some(METHODS.contains(&(method, cause)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_has_what_the_program_measured_of_each_method() {
        let lines: String = METHODS.iter().map(|(method, _)| format!("{method}\t5\t1\n")).collect();
        let text = format!("Started recording 1.\n{lines}other\t7\t1\n");
        let run = Run::parse(&text).unwrap();
        assert_eq!((run.measured_ns("take"), run.measured_ns("other")), (5, 0));
        assert!(Run::parse("take\t5\t1\n").is_err(), "others are missing");
        assert!(Run::parse_measured("take\tx\t1\n").is_err());
    }

    #[test]
    fn stacks_are_summed_by_method_and_cause() {
        let mut run = Run::default();
        let text = "main;Waits.monitor;[wait: monitor: Waits$Stock] 30\n\
            main;Waits.monitor;[wait: runnable] 10\n\
            main;Waits.main;Waits.pause;java.lang.Thread.sleep;[wait: sleep] 5\n\
            main;Waits.take;java.util.concurrent.LinkedBlockingQueue.take;[wait: park, idle: Q] 7\n";
        run.add_folded(text, 2).unwrap();
        assert_eq!(run.seen_ns("monitor"), [Some(80), Some(60)]);
        assert_eq!(run.seen_ns("take"), [Some(14), Some(14)]);
        assert_eq!(run.seen_ns("sleep"), [None, None], "the method of that name isn't there");
        run.add_folded("main;Waits.sleep;java.lang.Thread.sleep;nanosleep 3\n", 1).unwrap();
        assert_eq!(run.seen_ns("sleep"), [Some(3), None], "a profiler that names no causes");
        assert!(run.add_folded("main;Waits.sleep x\n", 1).is_err());
    }

    #[test]
    fn all_methods_are_different() {
        let all: std::collections::BTreeSet<&str> = METHODS.iter().map(|(method, _)| *method).collect();
        assert_eq!(all.len(), METHODS.len());
        assert_eq!(method_of("a;Waits.run;Waits.select;poll".split(';')), Some("select"));
        assert_eq!(method_of("a;Waits.run;Waitsselect".split(';')), None);
    }
}
