//! Unwind rows that are kept on disk, and used by the next run. Needs root and gcc.

use std::fs;
use std::path::{Path, PathBuf};

use crate::support::{compile, jvmprof, scratch};

/// Compares within libc's `qsort`, all the time.
const PROGRAM: &str = r"
#include <stdlib.h>
static int by_value(const void *one, const void *two) { return *(const int *)one - *(const int *)two; }
int main(void) {
    static int numbers[200000];
    for (int round = 0; round < 40; round++) {
        for (int i = 0; i < 200000; i++) numbers[i] = rand();
        qsort(numbers, 200000, sizeof *numbers, by_value);
    }
    return 0;
}
";

/// Records the program; returns its folded stacks and the log.
fn record(program: &Path, folder: &Path) -> (String, String) {
    let output = folder.with_extension("folded");
    let mut command = jvmprof();
    command.args(["record", "-F", "499", "--unwind-rows-cache"]).arg(folder).arg("-o").arg(&output);
    let ended = command.arg("--").arg(program).env("JVMPROF_LOG", "debug").output().expect("the binary runs");
    let log = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert!(ended.status.success(), "{log}");
    (fs::read_to_string(output).expect("it is written"), log)
}

fn rows(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).expect("it is made").flatten().map(|entry| entry.path());
    entries.filter(|path| path.extension().is_some_and(|ending| ending == "rows")).collect()
}

fn has_line(log: &str, what: &str) -> bool {
    log.lines().any(|line| line.contains(what) && line.contains("/libc"))
}

#[test]
fn rows_of_an_earlier_run_are_used_unless_they_are_damaged() {
    let dir = scratch();
    let program = compile(dir.path(), "sorting", PROGRAM, &["-O1"]);
    let folder = dir.path().join("rows");
    let (first, log) = record(&program, &folder);
    assert!(has_line(&log, "unwind rows were read") && !has_line(&log, "were on disk"), "{log}");
    assert!(!rows(&folder).is_empty());
    let (second, log) = record(&program, &folder);
    assert!(has_line(&log, "unwind rows were on disk"), "{log}");
    for path in rows(&folder) {
        let mut bytes = fs::read(&path).expect("it is there");
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        fs::write(&path, bytes).expect("it is root's");
    }
    let (third, log) = record(&program, &folder);
    assert!(has_line(&log, "unwind rows were read") && log.contains("isn't as it was written"), "{log}");
    for (run, folded) in [first, second, third].iter().enumerate() {
        let sorting = folded.lines().filter(|line| line.contains(";by_value "));
        let (mut all, mut whole) = (0, 0);
        for line in sorting {
            let count: u64 = line.rsplit(' ').next().and_then(|count| count.parse().ok()).expect("a count");
            all += count;
            whole += if line.starts_with("_start;") && line.contains(";main;") { count } else { 0 };
        }
        assert!(all > 50 && whole * 100 >= all * 98, "run {run}: {whole} of {all} are whole: {folded}");
    }
}
