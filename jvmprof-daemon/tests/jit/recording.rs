//! Recording programs that generate code: one that generates functions A and B in turn at one
//! address, and any other.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::support::left::Left;
use crate::support::{compile, record_json, scratch};

/// Folded stacks, root first, and how often each was seen.
pub(crate) type Folded = Vec<(String, u64)>;

const SOURCE: &str = include_str!("programs/alternate.c");

/// The samples that were found: by (who called, what was named).
pub(crate) struct Seen {
    pub(crate) summary: Value,
    pub(crate) stacks: Folded,
}

impl Seen {
    pub(crate) fn count(&self, caller: &str, name: &str) -> u64 {
        let is_wanted = |stack: &str| stack.contains(&format!(";{caller};")) && stack.ends_with(name);
        self.stacks.iter().filter(|(stack, _)| is_wanted(stack)).map(|(_, count)| count).sum()
    }

    pub(crate) fn loss(&self, name: &str) -> u64 {
        self.summary["losses"][name].as_u64().unwrap_or(0)
    }

    /// Right, wrong, and unnamed samples of generated code.
    pub(crate) fn judged(&self) -> (u64, u64, u64) {
        let right = self.count("run_a", ";jit_a") + self.count("run_b", ";jit_b");
        let wrong = self.count("run_a", ";jit_b") + self.count("run_b", ";jit_a");
        let unknown = self.count("run_a", "[jit: unknown]") + self.count("run_b", "[jit: unknown]");
        (right, wrong, unknown)
    }
}

/// Compiles the program, so that it also runs where there is no library.
pub(crate) fn program(directory: &Path) -> PathBuf {
    compile(directory, "alternate", SOURCE, &["-O1", "-static", "-fno-omit-frame-pointer", "-fno-inline"])
}

/// Records a command until it ends.
pub(crate) fn record(what: &str, command: &[&str]) -> Seen {
    let (summary, stacks) = record_folded(scratch().path(), "997", command);
    let seen = Seen { summary, stacks };
    println!("{what}: right, wrong, unknown {:?}; {}", seen.judged(), seen.summary["losses"]);
    seen
}

/// The same for any command, which runs in this folder, sampled so often a second.
pub(crate) fn record_folded(directory: &Path, frequency: &str, command: &[&str]) -> (Value, Folded) {
    let (_left, command) = Left::by(directory, command);
    let output = directory.join("out.folded").display().to_string();
    let command = command.iter().map(String::as_str);
    let args: Vec<&str> = ["-F", frequency, "-o", &output, "--"].into_iter().chain(command).collect();
    let summary = record_json(&args);
    (summary, read_folded(Path::new(&output)))
}

/// Reads stacks that were recorded.
pub(crate) fn read_folded(path: &Path) -> Folded {
    let text = fs::read_to_string(path).expect("a folded profile");
    let parse = |line: &str| {
        let (stack, count) = line.rsplit_once(' ').expect("a count");
        (stack.to_owned(), count.parse().expect("a number"))
    };
    text.lines().map(parse).collect()
}
