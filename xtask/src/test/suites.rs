//! The suites of a run: what they found, how long they took, and what was left out.

use std::io::{self, Write as _};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Context as _;

use super::failures::Failure;

/// Tests that ran.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Count {
    pub(super) passed: u64,
    pub(super) failed: u64,
}

/// The tests of a suite, as far as they are known.
#[derive(Debug, Default)]
pub(super) struct SuiteTests {
    pub(super) count: Count,
    pub(super) failures: Vec<Failure>,
    /// Of the failures those that passed when they ran again.
    pub(super) passed_alone: Vec<Failure>,
}

impl SuiteTests {
    /// Takes the result of the failures' second run instead of that of their first one.
    pub(super) fn add_second_run(&mut self, again: &Self) {
        let failed_again = |failure: &Failure| again.failures.iter().any(|other| other.name == failure.name);
        let (failed, passed) = self.failures.drain(..).partition(failed_again);
        (self.failures, self.passed_alone) = (failed, passed);
        self.count.passed += again.count.passed;
        self.count.failed = again.count.failed;
    }
}

/// A suite that has run.
#[derive(Debug)]
struct SuiteResult {
    name: String,
    took: Duration,
    tests: SuiteTests,
    error: Option<String>,
}

/// The suites of one run.
#[derive(Debug)]
pub(super) struct Suites {
    began: Instant,
    /// From this time on, what can be left out is.
    time_limit: Option<Duration>,
    finished: Vec<SuiteResult>,
    /// What was left out, and why.
    not_run: Vec<String>,
}

impl Suites {
    pub(super) fn new(time_limit: Option<Duration>) -> Self {
        Self { began: Instant::now(), time_limit, finished: Vec::new(), not_run: Vec::new() }
    }

    /// Runs a suite, which adds its tests; a failure is kept for the end.
    pub(super) fn run(&mut self, name: &str, work: impl FnOnce(&mut SuiteTests) -> anyhow::Result<()>) {
        eprintln!("\n== {name}");
        let (started, mut tests) = (Instant::now(), SuiteTests::default());
        let error = work(&mut tests).err().map(|error| format!("{error:#}"));
        if let Some(error) = &error {
            eprintln!("error: {error}");
        }
        let finished = SuiteResult { name: name.to_owned(), took: started.elapsed(), tests, error };
        eprintln!("== {}", finished.line());
        self.finished.push(finished);
    }

    pub(super) fn check(&mut self, name: &str, work: impl FnOnce() -> anyhow::Result<()>) {
        self.run(name, |_| work());
    }

    /// Runs a check, or leaves it out if the run has come to its time limit.
    pub(super) fn check_in_time(&mut self, name: &str, work: impl FnOnce() -> anyhow::Result<()>) {
        match self.time_limit.filter(|limit| self.began.elapsed() >= *limit) {
            None => self.check(name, work),
            Some(limit) => {
                let minutes = limit.as_secs() / 60;
                self.leave_out([format!("{name}: the run had taken {minutes} minutes before it")]);
            }
        }
    }

    /// Notes what doesn't run, and why.
    pub(super) fn leave_out(&mut self, lines: impl IntoIterator<Item = String>) {
        self.not_run.extend(lines);
    }

    /// Prints times and failures, and last the line that CI reads as the run's result.
    pub(super) fn close(&self) -> anyhow::Result<ExitCode> {
        eprintln!("\n== {:.1} minutes:", self.began.elapsed().as_secs_f64() / 60.0);
        for suite in &self.finished {
            eprintln!("{:>6.0} s  {}", suite.took.as_secs_f64(), suite.line());
        }
        let mut failed = self.finished.iter().map(|suite| suite.tests.count.failed).sum::<u64>();
        for suite in &self.finished {
            if let Some(error) = &suite.error {
                eprintln!("failed: {}: {error}", suite.name);
                // A check that failed, or a test binary that died, counts no test: the run must
                // not close with "0 failed" all the same.
                failed += u64::from(suite.tests.count.failed == 0);
            }
        }
        for suite in &self.finished {
            for Failure { name, printed } in &suite.tests.failures {
                eprintln!("failed: {}: {name}:\n{printed}", suite.name);
            }
            for Failure { name, printed } in &suite.tests.passed_alone {
                eprintln!("failed, and passed when it ran alone: {}: {name}:\n{printed}", suite.name);
            }
        }
        for what in &self.not_run {
            eprintln!("NOT RUN: {what}");
        }
        let passed = self.finished.iter().map(|suite| suite.tests.count.passed).sum::<u64>();
        println!("{passed} passed, {failed} failed");
        io::stdout().flush().context("writing to standard output")?;
        Ok(if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

impl SuiteResult {
    fn line(&self) -> String {
        let Count { passed, failed } = self.tests.count;
        let outcome = if self.error.is_some() { "FAILED" } else { "ok" };
        let counts =
            if passed + failed > 0 { format!(", {passed} passed, {failed} failed") } else { String::new() };
        format!("{}: {outcome}{counts}", self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_fails_twice_has_failed() {
        let failure = |name: &str| Failure { name: name.to_owned(), printed: String::new() };
        let run = |passed, names: &[&str]| SuiteTests {
            count: Count { passed, failed: names.len() as u64 },
            failures: names.iter().map(|name| failure(name)).collect(),
            passed_alone: Vec::new(),
        };
        let mut tests = run(7, &["a", "b"]);
        tests.add_second_run(&run(1, &["b"]));
        assert_eq!(tests.count, Count { passed: 8, failed: 1 });
        assert_eq!((tests.failures, tests.passed_alone), (vec![failure("b")], vec![failure("a")]));
    }

    #[test]
    fn only_what_may_be_left_out_is_and_only_after_the_time_limit() {
        for (limit, left_out) in [(None, 0), (Some(Duration::from_secs(3600)), 0), (Some(Duration::ZERO), 1)]
        {
            let mut suites = Suites::new(limit);
            suites.check("needed", || Ok(()));
            suites.check_in_time("may be left out", || Ok(()));
            assert_eq!((suites.finished.len(), suites.not_run.len()), (2 - left_out, left_out));
        }
    }
}
