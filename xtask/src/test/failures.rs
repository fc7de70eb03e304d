//! The tests of a `cargo test` that failed, and what they said.

/// A test that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Failure {
    pub(super) name: String,
    /// What it printed when it failed: at most [`LONGEST`] bytes.
    pub(super) printed: String,
}

/// Stacks of a whole recording would hide the rest of the run's last lines.
const LONGEST: usize = 2000;

/// Finds failures in the lines of a test runner's output.
#[derive(Debug, Default)]
pub(super) struct FailureReader {
    failures: Vec<Failure>,
    /// The lines are those that the last failure printed.
    is_in_failure: bool,
}

impl FailureReader {
    /// Reads the next line.
    pub(super) fn read(&mut self, line: &str) {
        if let Some(name) = line.strip_prefix("---- ").and_then(|rest| rest.strip_suffix(" stdout ----")) {
            self.failures.push(Failure { name: name.to_owned(), printed: String::new() });
            self.is_in_failure = true;
        } else if line == "failures:" || line.starts_with("test result: ") {
            self.is_in_failure = false;
        } else if self.is_in_failure
            && let Some(failure) = self.failures.last_mut()
            && !line.is_empty()
        {
            failure.printed.push_str(line);
            failure.printed.push('\n');
        }
    }

    /// Returns what was found.
    pub(super) fn finish(mut self) -> Vec<Failure> {
        for Failure { printed, .. } in &mut self.failures {
            // What is before may be a daemon's log.
            let panic = printed.lines().find(|line| line.contains(" panicked at "));
            if let Some(at) = panic.and_then(|panic| printed.find(panic)) {
                printed.drain(..at);
            }
            printed.truncate(printed.floor_char_boundary(LONGEST));
        }
        self.failures
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTPUT: &str = "test tests::first ... ok
test tests::second ... FAILED

failures:

---- tests::second stdout ----

thread 'tests::second' panicked at src/lib.rs:1:1:
assertion `left == right` failed
  left: 1

---- tests::third stdout ----
a log
thread 'tests::third' (1) panicked at src/lib.rs:2:1:
no reason

failures:
    tests::second
    tests::third

test result: FAILED. 1 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s";

    fn failures(output: &str) -> Vec<Failure> {
        let mut reader = FailureReader::default();
        output.lines().for_each(|line| reader.read(line));
        reader.finish()
    }

    #[test]
    fn failures_have_their_names_and_what_they_printed() {
        let [second, third] = &failures(OUTPUT)[..] else { panic!("there are two") };
        assert_eq!((&*second.name, &*third.name), ("tests::second", "tests::third"));
        let expected = "thread 'tests::second' panicked at src/lib.rs:1:1:
assertion `left == right` failed
  left: 1
";
        assert_eq!(
            (&*second.printed, &*third.printed),
            (expected, "thread 'tests::third' (1) panicked at src/lib.rs:2:1:\nno reason\n")
        );
        assert_eq!(failures("test result: ok. 1 passed; 0 failed"), []);
    }

    #[test]
    fn of_what_a_failure_printed_the_begin_is_kept() {
        let long = format!("---- a stdout ----\nfirst line {}", "ä".repeat(LONGEST));
        let printed = &failures(&long)[0].printed;
        assert!(printed.len() <= LONGEST && printed.starts_with("first line ä"), "{printed}");
    }
}
