//! Arguments of `jvmprof record`.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};

use super::sampling::SamplingArgs;
use super::values::{DAY, ProcessArg, duration};
use crate::profile::jvm_activity::ThreadKind;

/// An event that can be recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum EventArg {
    /// CPU time
    Cpu,
    /// Allocation in the heaps of JVMs
    Alloc,
    /// Time that threads wait off the CPU
    Offcpu,
    /// Contention of locks in JVMs
    Lock,
    /// All time of threads, on the CPU and off it
    Wall,
}

/// Reads an event; profilers have others, too.
fn parse_event(text: &str) -> Result<EventArg, String> {
    EventArg::from_str(text, false).map_err(|_| {
        "must be cpu (CPU time), alloc (allocation in the heaps of JVMs), offcpu (time that threads \
         wait), lock (contention of locks in JVMs), wall (all time of threads), or several of them: cpu,alloc"
            .to_owned()
    })
}

/// A kind of threads of JVMs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum ThreadKindArg {
    /// Threads of Java code
    Java,
    /// Virtual threads that are mounted
    Virtual,
    /// The collector's threads
    Gc,
    /// The JIT compilers' threads
    Compiler,
    /// Other threads of HotSpot's own
    Vm,
    /// Threads of native code
    Native,
}

impl ThreadKindArg {
    pub(in crate::app) const fn kind(self) -> ThreadKind {
        match self {
            Self::Java => ThreadKind::Java,
            Self::Virtual => ThreadKind::Virtual,
            Self::Gc => ThreadKind::Gc,
            Self::Compiler => ThreadKind::Compiler,
            Self::Vm => ThreadKind::Vm,
            Self::Native => ThreadKind::Native,
        }
    }
}

/// The destination of `--json` where it names no file.
const STDOUT: &str = "-";

const EXAMPLES: &str = "\
Examples:
  jvmprof record -p 4711 -d 30s -o x.html                one process, as a page for a browser
  jvmprof record -p MyService -d 30s -o x.pb.gz          a JVM by its main class, for pprof tools
  jvmprof record --java -p 4711 -d 30s                   which Java methods cost most, with all
                                                         that the kernel and the JVM do for them
  jvmprof record -e cpu,alloc -p 4711 -d 30s -o x.pb.gz  and what it allocates, by class
  jvmprof record -e offcpu -p 4711 -d 30s -o x.svg       what its threads wait for
  jvmprof record -e wall -p 4711 -d 30s -o x.html        where all time of its threads goes
  jvmprof record --threads -p 4711 -d 30s -o x.html      each thread by itself
  jvmprof record --thread-kind gc,compiler -d 30s        what the JVMs' own threads do
  jvmprof record -d 10s -o host.svg                      the whole host
  jvmprof record -o build.folded -- make -j8             a command, from its first instruction

Without -p and COMMAND the whole host is profiled. Needs root, or CAP_BPF, CAP_PERFMON,
CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH: see `jvmprof doctor`.

Exit code: that of COMMAND if it ended by itself (127: there is no such command, 126: it can't be
run, 128 and the signal's number: a signal ended it); else 0 done, 1 failed, 64 the command line
can't be carried out.";

/// Arguments of `jvmprof record`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct RecordArgs {
    /// Profile only this process: its pid, or the name of a program or of a JVM's main class
    /// (repeatable)
    #[arg(
        short,
        long = "pid",
        value_name = "PID|NAME",
        conflicts_with = "command",
        allow_negative_numbers = true
    )]
    pub processes: Vec<ProcessArg>,

    /// What to record: `cpu`, `alloc` (allocation in the heaps of JVMs), `offcpu` (time that
    /// threads wait off the CPU), `lock` (contention of locks in JVMs), `wall` (of each thread all
    /// its time: needs -p or COMMAND; every wait counts, however short), or several of them:
    /// `cpu,alloc,offcpu`
    #[arg(short, long = "event", value_name = "EVENT", value_delimiter = ',', default_value = "cpu",
          value_parser = parse_event)]
    pub events: Vec<EventArg>,

    /// How long, such as 10s, 5m or 1500ms [default: until Ctrl-C, or until the command or
    /// processes end]
    #[arg(short, long, value_name = "TIME", value_parser = duration(Duration::from_millis(1)..=365 * DAY))]
    pub duration: Option<Duration>,

    /// Where to write: .pb.gz (pprof), .folded, .svg or .html by its ending (repeatable); without
    /// it only the summary is printed
    #[arg(short, long = "output", value_name = "FILE")]
    pub outputs: Vec<PathBuf>,

    /// Show Java's frames only, without those that start threads, in the summary, .folded and .svg:
    /// time of the kernel, native code and the JVM's stubs is their nearest Java caller's. pprof
    /// has all frames; so has the page, whose key `j` shows the same
    #[arg(long)]
    pub java: bool,

    /// Show threads apart: each has a frame at the root of its stacks in .folded, .svg and .html,
    /// labels `thread_name` and `thread_id` in pprof, and a line in the summary
    #[arg(long)]
    pub threads: bool,

    /// Record only threads of JVMs that are of this kind (repeatable, or several: `gc,compiler`):
    /// what is written and summarised has no others, and the summary says how many stacks that
    /// leaves out
    #[arg(long = "thread-kind", value_name = "KIND", value_delimiter = ',')]
    pub thread_kinds: Vec<ThreadKindArg>,

    /// Print the summary as one JSON object on stdout, or write it to a file, apart from what
    /// COMMAND prints
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true, default_missing_value = STDOUT)]
    pub json: Option<PathBuf>,

    /// Start this command and profile it and its children, from its first instruction to its end;
    /// it gets SIGTERM if the recording ends first
    #[arg(last = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,

    #[command(flatten)]
    pub sampling: SamplingArgs,
}

impl RecordArgs {
    /// The file for the summary as JSON, if it is to be one.
    pub(in crate::app) fn json_file(&self) -> Option<&PathBuf> {
        self.json.as_ref().filter(|path| path.as_os_str() != STDOUT)
    }

    /// Returns true if the summary is to be printed as JSON.
    pub(in crate::app) fn prints_json(&self) -> bool {
        self.json.is_some() && self.json_file().is_none()
    }
}
