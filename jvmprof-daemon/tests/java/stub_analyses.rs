//! Analyses of JVMs' stubs that are kept on disk, and used by the next run. Needs root and the JDKs
//! of `JVMPROF_TEST_JDKS`.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::support::processes::{let_it_run, until_it_has_run};
use crate::support::recording::{Recording, WALKS_STACKS};
use crate::support::{Workload, compile_java, jdks, scratch};

/// Runs a stub of the interpreter or of string compression at nearly all times.
const PROGRAM: &str = r#"
public class Stubs {
    static long sum;
    public static void main(String[] args) {
        byte[] from = new byte[100_000], to = new byte[100_000];
        while (true) {
            for (int at = 0; at < 10_000; at += 8) System.arraycopy(from, at, to, at / 2, 50_000);
            sum += new String(to, 0, 1_000, java.nio.charset.StandardCharsets.ISO_8859_1).hashCode();
        }
    }
}
"#;

/// Records the program: its samples, how many of them are whole, and the log.
fn record(pid: u32, folder: &Path) -> (u64, u64, String) {
    let output = folder.with_extension("folded");
    let [rows, output_path] = [folder, &output].map(|path| path.to_str().expect("a path in UTF-8"));
    let pid_text = pid.to_string();
    let options = ["-F", "199", "-p", &pid_text, "--unwind-rows-cache", rows, "-o", output_path];
    let mut recording = Recording::start(&options);
    recording.wait_for(&[WALKS_STACKS]);
    let_it_run(pid, Duration::from_secs(2));
    let (log, summary) = recording.end_with_log();
    let folded = fs::read_to_string(output).expect("it is written");
    let (mut all, mut whole) = (0, 0);
    for line in folded.lines().filter(|line| line.contains(";Stubs.main")) {
        let count: u64 = line.rsplit(' ').next().and_then(|count| count.parse().ok()).expect("a count");
        all += count;
        whole += if line.contains(";start_thread;") { count } else { 0 };
    }
    (all, whole, format!("{log}{summary}"))
}

fn kept(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).expect("it is made").flatten().map(|entry| entry.path());
    entries.filter(|path| path.extension().is_some_and(|ending| ending == "stubs")).collect()
}

#[test]
fn stubs_that_an_earlier_run_has_analysed_are_known_unless_the_file_is_damaged() {
    let dir = scratch();
    let classes = compile_java(dir.path(), "Stubs", PROGRAM);
    for (feature, home) in jdks() {
        let classes = classes.to_str().expect("a path in UTF-8");
        let jvm = Workload::start(&home.join("bin/java"), &["-cp", classes, "Stubs"]);
        // The JVM has started.
        until_it_has_run(jvm.pid(), Duration::from_secs(1));
        let folder = dir.path().join(format!("rows{feature}"));
        for (is_known, is_damaged) in [(false, false), (true, false), (false, true)] {
            if is_damaged {
                for path in kept(&folder) {
                    let mut bytes = fs::read(&path).expect("it is there");
                    let middle = bytes.len() / 2;
                    bytes[middle] ^= 1;
                    fs::write(&path, bytes).expect("it is root's");
                }
            }
            let (all, whole, log) = record(jvm.pid(), &folder);
            assert_eq!(log.contains("analyses of stubs were on disk"), is_known, "JDK {feature}: {log}");
            assert_eq!(log.contains("isn't as it was written"), is_damaged, "JDK {feature}: {log}");
            assert!(all > 50 && whole * 100 >= all * 98, "JDK {feature}: {whole} of {all} are whole: {log}");
            assert_eq!(kept(&folder).len(), 1, "JDK {feature}");
        }
    }
}
