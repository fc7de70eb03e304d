//! Recordings that are as long as it takes: what is to be seen begins once the recorder is ready,
//! by what it logs, and the test ends them. Stacks are named while their program runs.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use tempfile::TempDir;

use super::processes::{INTERVAL, PATIENCE, children, cpu_time, until_it_ends};
use super::{KilledChild, compile_java_for, jvmprof, scratch, signal};

/// Modules that log how far the recorder has come.
const FILTER: &str = "warn,jvmprof_daemon::hotspot=debug,jvmprof_daemon::jit=debug,\
                      jvmprof_daemon::pipeline::jvm_followers=debug,jvmprof_daemon::pipeline::off_cpu=debug,\
                      jvmprof_daemon::pipeline::pauses=debug,jvmprof_daemon::pipeline::probed_files=debug,\
                      jvmprof_daemon::symbolize::publish_to_kernel=debug";

/// Logged of a JVM whose frames are walked and named from then on.
pub(crate) const WALKS_STACKS: &str = "the kernel program can walk a JVM's stacks";
/// Logged of a JVM of whose waits the monitor or blocker is known from then on.
pub(crate) const READS_BLOCKERS: &str = "what its threads wait for is read";
/// Logged of a libjvm once it has its uprobes.
pub(crate) const SEES_ALLOCATIONS: &str = "allocations are seen";
pub(crate) const SEES_PAUSES: &str = "pauses are seen";
/// Logged of a JVM whose own sums of its pauses are read from then on.
pub(crate) const READS_STOPS: &str = "for how long a JVM stops its threads is read";
/// Logged of a JVM that can have no uprobes.
pub(crate) const SEES_NO_ALLOCATIONS: &str = "a JVM's allocations can't be seen";

/// A `jvmprof record` that runs.
pub(crate) struct Recording {
    recorder: KilledChild,
    dir: TempDir,
    began: Instant,
    /// The processes that it had started when that was last looked up.
    commands: Vec<u32>,
}

impl Recording {
    /// Starts it with these arguments.
    pub(crate) fn start(args: &[&str]) -> Self {
        let dir = scratch();
        let log = File::create(dir.path().join("log")).expect("the folder is writable");
        let mut record = jvmprof();
        record.arg("record").arg(format!("--json={}", dir.path().join("summary").display())).args(args);
        record.env("JVMPROF_LOG", FILTER).stdout(Stdio::null()).stderr(log);
        let recorder = KilledChild(record.spawn().expect("the binary runs"));
        Self { recorder, dir, began: Instant::now(), commands: Vec::new() }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.recorder.id()
    }

    /// Returns for how long it has run.
    pub(crate) fn elapsed(&self) -> Duration {
        self.began.elapsed()
    }

    /// Returns for how long it has had a CPU.
    pub(crate) fn cpu_time(&self) -> Duration {
        cpu_time(self.pid())
    }

    /// Returns what it, and a command that it has started, have written to standard error.
    pub(crate) fn log(&self) -> String {
        String::from_utf8_lossy(&fs::read(self.dir.path().join("log")).expect("it was made")).into_owned()
    }

    /// Waits until something is so while it goes on.
    pub(crate) fn wait_until(&mut self, what: &str, is_so: impl Fn(&Self) -> bool) {
        let began = Instant::now();
        while !is_so(self) {
            let ended = self.recorder.try_wait().expect("it is a child");
            if ended.is_none() {
                self.commands = children(self.pid());
            }
            assert!(ended.is_none(), "{what}: the recording has ended, {ended:?}: {}", self.log());
            assert!(began.elapsed() < PATIENCE, "not within {PATIENCE:?}: {what}: {}", self.log());
            std::thread::sleep(INTERVAL);
        }
    }

    /// Waits until it has logged each of these messages.
    pub(crate) fn wait_for(&mut self, messages: &[&str]) {
        for message in messages {
            self.wait_until(message, |recording| recording.log().contains(message));
        }
    }

    /// Waits until it has logged each of these messages of each of these processes.
    pub(crate) fn wait_for_all(&mut self, pids: &[u32], messages: &[&str]) {
        for (pid, message) in pids.iter().flat_map(|pid| messages.iter().map(move |it| (pid, it))) {
            let of_pid = format!("pid={pid}");
            let is_it = |line: &str| line.contains(message) && line.split(' ').any(|word| word == of_pid);
            let is_logged = |recording: &Self| recording.log().lines().any(is_it);
            self.wait_until(&format!("{message}, {of_pid}"), is_logged);
        }
    }

    /// Ends it, and then a command that it has started; returns its summary.
    pub(crate) fn end(self) -> Value {
        self.end_with_log().1
    }

    /// As [`Self::end`], and returns all that it has logged.
    pub(crate) fn end_with_log(self) -> (String, Value) {
        signal(self.pid(), "INT");
        self.wait_for_end()
    }

    /// Waits until it has ended by itself; returns all that it has logged, and its summary.
    pub(crate) fn wait_for_end(mut self) -> (String, Value) {
        let log = self.dir.path().join("log");
        let status = until_it_ends(&mut self.recorder, || fs::read_to_string(&log).unwrap_or_default());
        let log = self.log();
        assert!(status.success(), "{status}: {log}");
        self.commands.clear();
        let text = fs::read_to_string(self.dir.path().join("summary")).expect("it is written");
        (log, serde_json::from_str(&text).unwrap_or_else(|error| panic!("{text}: {error}")))
    }
}

impl Drop for Recording {
    /// Ends the command of a test that has failed: without its recorder it would run on.
    fn drop(&mut self) {
        if matches!(self.recorder.try_wait(), Ok(None)) {
            self.commands = children(self.pid());
        }
        for command in &self.commands {
            let _ = kill(Pid::from_raw(command.cast_signed()), Signal::SIGKILL);
        }
    }
}

/// The class `Recorder`, by which a program waits for the recorder and for the recording's end.
/// Files are the program's last two arguments: see [`Gate`]. Also what the kernel counts of the
/// calling thread.
const RECORDER: &str = r#"
class Recorder {
    static java.io.File file(String[] args, int fromEnd) { return new java.io.File(args[args.length - fromEnd]); }
    /** Until the recorder is ready. Without its test the program ends. */
    static void await(String[] args) throws Exception {
        java.io.File begin = file(args, 2), folder = begin.getParentFile();
        while (!begin.exists()) { if (!folder.exists()) System.exit(1); Thread.sleep(10); }
    }
    /** Says that the work is done, and runs on: stacks are named while it does. */
    static void done(String[] args) throws Exception {
        java.io.File done = file(args, 1);
        done.createNewFile();
        while (done.exists()) Thread.sleep(50);
        System.exit(1);
    }
    static java.io.RandomAccessFile schedstat() throws java.io.IOException { return new java.io.RandomAccessFile("/proc/thread-self/schedstat", "r"); }
    /** For how long a thread has waited for a CPU: the kernel's number of its run queue's. */
    static long delayOf(java.io.RandomAccessFile schedstat) throws java.io.IOException {
        byte[] bytes = new byte[64];
        schedstat.seek(0);
        int length = schedstat.read(bytes);
        return Long.parseLong(new String(bytes, 0, length, "US-ASCII").split(" ")[1]);
    }
    /** What the machine's host took of its CPUs: a thread's CPU time is without it, and to the
        kernel the thread was running all the same. */
    static long stolen() throws java.io.IOException {
        String cpus = java.nio.file.Files.readAllLines(java.nio.file.Paths.get("/proc/stat")).get(0);
        return Long.parseLong(cpus.trim().split(" +")[8]) * 10_000_000L;
    }
}
"#;

/// Compiles a class together with [`RECORDER`].
pub(crate) fn compile_recorded(dir: &Path, class: &str, source: &str) -> PathBuf {
    compile_recorded_for(8, dir, class, source)
}

/// As [`compile_recorded`], for JDKs from this release on.
pub(crate) fn compile_recorded_for(release: u32, dir: &Path, class: &str, source: &str) -> PathBuf {
    compile_java_for(release, dir, class, &[source, RECORDER].concat())
}

/// The two files by which a test and its program know how far the other one is.
pub(crate) struct Gate {
    dir: TempDir,
}

impl Gate {
    pub(crate) fn new() -> Self {
        Self { dir: scratch() }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// The program's last arguments.
    pub(crate) fn args(&self) -> [String; 2] {
        ["begin", "done"].map(|name| self.file(name).to_str().expect("a path in UTF-8").to_owned())
    }

    /// Lets the program begin.
    pub(crate) fn open(&self) {
        fs::write(self.file("begin"), "").expect("the folder is writable");
    }

    /// Returns true once the program has done its work.
    pub(crate) fn is_done(&self) -> bool {
        self.file("done").exists()
    }
}

/// Records a command that was compiled by [`compile_recorded`] until its work is done, which begins
/// when all of these messages have been logged; returns the summary. The command comes last in
/// `args`, and gets two more arguments.
pub(crate) fn record_work(args: &[&str], ready: &[&str]) -> Value {
    let gate = Gate::new();
    let [begin, done] = gate.args();
    let mut recording = Recording::start(&[args, &[&*begin, &*done]].concat());
    recording.wait_for(ready);
    gate.open();
    recording.wait_until("the program has done its work", |_| gate.is_done());
    recording.end()
}
