//! Waits of threads whose control group has used up its CPU quota, beside what the kernel counts.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::sched::{CpuSet, sched_getaffinity};
use nix::unistd::Pid;

use super::text;
use crate::support::recording::{READS_BLOCKERS, WALKS_STACKS, compile_recorded, record_work};
use crate::support::waits::{KEEP_ALL, waited};
use crate::support::{jdks, scratch};

/// Computes under a quota, and writes what the kernel counted meanwhile.
const ORACLE: &str = r#"
import java.nio.file.*;

public class Oracle {
    static volatile long sink;
    static void computes(long until) { while (System.nanoTime() < until) for (int i = 0; i < 10_000; i++) sink += i; }
    static void write(String file, String text) throws Exception { Files.write(Paths.get(file), text.getBytes()); }
    static long throttled(String file, String name) throws Exception {
        for (String line : Files.readAllLines(Paths.get(file))) if (line.startsWith(name + " ")) return Long.parseLong(line.substring(name.length() + 1));
        throw new Error(name);
    }
    // The group's files: its processes, to which 0 adds the writer, its quota, its statistics.
    public static void main(String[] args) throws Exception {
        Recorder.await(args);
        write(args[0], "0");
        write(args[1], args[3]);
        long before = throttled(args[2], args[4]);
        computes(System.nanoTime() + 4_000_000_000L);
        long after = throttled(args[2], args[4]);
        write(args[5], "" + (after - before));
        Recorder.done(args);
    }
}
"#;

/// A control group of this test, and how its limit is set.
struct Group {
    path: PathBuf,
    /// The file of the quota, and 20 ms in 100 as it is written there.
    quota: [&'static str; 2],
    /// What it counts in its statistics, and its nanoseconds.
    counter: (&'static str, f64),
}

impl Group {
    fn new(name: &str) -> Self {
        let v1 = Path::new("/sys/fs/cgroup/cpu");
        let is_v1 = v1.join("cpu.cfs_quota_us").exists();
        let root = if is_v1 { v1 } else { Path::new("/sys/fs/cgroup") };
        let path = root.join(format!("{name}-{}", std::process::id()));
        if !is_v1 {
            // Where it is enabled already this changes nothing.
            let _ = fs::write(root.join("cgroup.subtree_control"), "+cpu");
        }
        fs::create_dir(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        if is_v1 {
            Self { path, quota: ["cpu.cfs_quota_us", "20000"], counter: ("throttled_time", 1.0) }
        } else {
            Self { path, quota: ["cpu.max", "20000 100000"], counter: ("throttled_usec", 1e3) }
        }
    }

    fn file(&self, name: &str) -> String {
        text(&self.path.join(name)).to_owned()
    }
}

impl Drop for Group {
    /// Its last process may still be ending.
    fn drop(&mut self) {
        let mut tries = 0..100;
        while fs::remove_dir(&self.path).is_err() && tries.next().is_some() {
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

/// The first CPU that this process may use.
fn a_cpu() -> String {
    let allowed = sched_getaffinity(Pid::from_raw(0)).expect("this thread's");
    let cpu = (0..CpuSet::count()).find(|cpu| allowed.is_set(*cpu) == Ok(true));
    cpu.expect("this thread runs").to_string()
}

#[test]
fn a_wait_for_quota_is_told_from_one_for_a_cpu() {
    let dir = scratch();
    let classes = compile_recorded(dir.path(), "Oracle", ORACLE);
    let cpu = a_cpu();
    for (feature, home) in jdks() {
        let group = Group::new(&format!("jvmprof-quota-{feature}"));
        let (folded, counted) = (dir.path().join("x.folded"), dir.path().join("counted"));
        let java = home.join("bin/java");
        let [file, quota] = group.quota;
        let (procs, file, stat) = (group.file("cgroup.procs"), group.file(file), group.file("cpu.stat"));
        // A wait that ends on another CPU counts as one for a CPU: where there is much else to do,
        // that would be many.
        let java = ["--", "taskset", "-c", &cpu, text(&java), "-cp", text(&classes), "Oracle"];
        let arguments = [&procs, &file, &stat, quota, group.counter.0, text(&counted)];
        let program = [&KEEP_ALL[..], &["-e", "offcpu", "-o", text(&folded)], &java, &arguments].concat();
        let summary = record_work(&program, &[WALKS_STACKS, READS_BLOCKERS]);
        let counted = fs::read_to_string(&counted).expect("the program has ended well");
        let counted = counted.parse::<f64>().expect("a number") * group.counter.1;
        let folded = fs::read_to_string(&folded).expect("written");
        let causes = waited(&folded, "Oracle.computes");
        let quota = causes.get("cpu_quota").copied().unwrap_or_default();
        let ratio = quota / counted;
        let seen = format!("JDK {feature}: {ratio:.4} of {:.0} ms, {causes:?}", counted / 1e6);
        println!("{seen}");
        assert!(counted > 1e9, "the group was hardly out of quota: {seen}");
        assert!((0.85..1.02).contains(&ratio), "{seen}, {}", summary["losses"]);
    }
}
