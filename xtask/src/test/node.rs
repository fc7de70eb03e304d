//! The tests of the daemon's pages that are written for node.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context as _;

use super::cargo_tests::counted;
use super::suites::{Count, SuiteTests};
use crate::paths;

/// Runs the tests written for node: `*.test.mjs` of the daemon's page.
pub(super) fn tests(tests: &mut SuiteTests) -> anyhow::Result<()> {
    let mut files = Vec::new();
    find_node_tests(&paths::workspace().join("jvmprof-daemon"), &mut files)?;
    if files.is_empty() {
        eprintln!("there are none");
        return Ok(());
    }
    files.sort();
    let mut node = Command::new("node");
    node.args(["--test", "--test-reporter=tap"]).args(&files).current_dir(paths::workspace());
    counted(&mut node, tests, node_line)
}

fn find_node_tests(folder: &Path, files: &mut Vec<PathBuf>) -> anyhow::Result<()> {
    for entry in fs::read_dir(folder).with_context(|| format!("reading {}", folder.display()))? {
        let entry = entry.with_context(|| format!("reading {}", folder.display()))?;
        let (path, name) = (entry.path(), entry.file_name());
        if path.is_dir() {
            if name != "node_modules" && name != "target" {
                find_node_tests(&path, files)?;
            }
        } else if name.to_string_lossy().ends_with(".test.mjs") {
            files.push(path);
        }
    }
    Ok(())
}

/// Parses `# pass 3` and `# fail 0` of node's TAP summary.
fn node_line(line: &str) -> Option<Count> {
    let (what, number) = line.strip_prefix("# ")?.split_once(' ')?;
    let number = number.parse().ok()?;
    match what {
        "pass" => Some(Count { passed: number, failed: 0 }),
        "fail" => Some(Count { passed: 0, failed: number }),
        _ => None,
    }
}

#[cfg(test)]
mod unit_tests {
    use super::*;

    #[test]
    fn results_of_node_are_read() {
        assert_eq!(node_line("# pass 7"), Some(Count { passed: 7, failed: 0 }));
        assert_eq!(node_line("# fail 2"), Some(Count { passed: 0, failed: 2 }));
        assert_eq!(node_line("# Subtest: passes 3"), None);
    }
}
