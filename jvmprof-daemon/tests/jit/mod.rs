//! A program that generates functions A and B in turn at one address, and what was seen of it.
#![allow(dead_code, reason = "each test file uses a part")]

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::support::{compile, record_json, scratch};

const SOURCE: &str = include_str!("alternate.c");

/// What was found: samples by (who called, what was named).
pub(crate) struct Seen {
    pub(crate) summary: Value,
    pub(crate) stacks: Vec<(String, u64)>,
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
    let directory = scratch();
    let folded = directory.path().join("out.folded");
    let output = folded.display().to_string();
    let summary = record_json(&[&["-F", "997", "-o", &output, "--"], command].concat());
    let text = fs::read_to_string(&folded).expect("a folded profile");
    let stacks: Vec<(String, u64)> = text
        .lines()
        .filter_map(|line| line.rsplit_once(' '))
        .map(|(stack, count)| (stack.to_owned(), count.parse().expect("a number")))
        .collect();
    let seen = Seen { summary, stacks };
    println!("{what}: right, wrong, unknown {:?}; {}", seen.judged(), seen.summary["losses"]);
    seen
}
