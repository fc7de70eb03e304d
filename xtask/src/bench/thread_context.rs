//! What the contexts of threads cost the kernel program: recordings of one program without and with
//! `--thread-context` by turns, for each way in which threads find their variable.
//!
//! The program is the one of the daemon's tests, whose threads begin and end requests. It has one
//! CPU, the profiler another: so the kernel program runs between the same two instructions in both
//! recordings of a pair.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use prost::encoding::{WireType, encode_key, encode_varint};

use super::statistics::Summary;
use super::{BenchArgs, LoadProcess, RecordSummary, record_by};
use crate::files;
use crate::paths;
use crate::run::run;

/// Sources below the daemon's tests: threads with requests, and what publishes their contexts.
const REQUESTS: &str = "record/thread_context_requests.c";
const WRITER: &str = "support/thread_context/writer.c";
/// The schema of threads that publish their contexts in a variable, and one of others.
const SCHEMA: &str = "tlsdesc_v1_dev";
const OTHER_SCHEMA: &str = "nodejs_v1";
/// The time in which the program publishes its process context.
const WARM_UP: Duration = Duration::from_secs(1);
/// Of the samples with `--thread-context` one in so many has a context at least, where threads
/// publish some: else the variable wasn't found.
const LEAST_READ: u64 = 4;

/// A program: how its threads find their variable, if they publish contexts in one.
#[derive(Debug)]
struct Case {
    name: &'static str,
    schema: &'static str,
    /// Flags of the library that publishes contexts, if that isn't a part of the program.
    library: Option<&'static [&'static str]>,
}

const CASES: [Case; 4] = [
    Case { name: "no variable", schema: OTHER_SCHEMA, library: None },
    Case { name: "the program's", schema: SCHEMA, library: None },
    Case { name: "a library's, TLSDESC", schema: SCHEMA, library: Some(&["-mtls-dialect=gnu2"]) },
    Case { name: "a library's, DTPMOD64", schema: SCHEMA, library: Some(&["-mtls-dialect=gnu"]) },
];

/// The costs of one case, in nanoseconds of the kernel program a sample.
#[derive(Debug, Default)]
struct Costs {
    without: Vec<f64>,
    differences: Vec<f64>,
    samples: u64,
    samples_with_context: u64,
}

/// Records each program in pairs, and prints the differences in the kernel program's time.
///
/// # Errors
/// There are less than two CPUs, a program can't be built, a recording fails, or contexts weren't
/// read.
pub(super) fn measure(pairs: u32, args: &BenchArgs, jvmprof: &Path, folder: &Path) -> anyhow::Result<()> {
    let status = files::read_text(Path::new("/proc/self/status"))?;
    let cpus = first_and_last_cpu(&status).context("/proc/self/status lists no CPUs")?;
    ensure!(cpus[0] != cpus[1], "the program and the profiler need a CPU each, and this process has one");
    let mut lines = Vec::new();
    for case in &CASES {
        let program = case.start(&folder.join("thread-context"), cpus[0])?;
        thread::sleep(WARM_UP);
        let mut costs = Costs::default();
        for pair in 0..pairs {
            costs.add_pair(pair % 2 == 1, |is_read| {
                let mut flags = vec!["-F".to_owned(), args.frequency.to_string()];
                flags.extend(["-d".to_owned(), args.seconds.to_string()]);
                flags.extend(["-p".to_owned(), program.pid().to_string()]);
                flags.extend(is_read.then(|| "--thread-context".to_owned()));
                record_by(on_cpu(cpus[1], jvmprof), &flags)
            })?;
        }
        drop(program);
        if case.schema == SCHEMA {
            let Costs { samples, samples_with_context, .. } = costs;
            ensure!(
                samples_with_context >= samples / LEAST_READ,
                "{}: of {samples} samples {samples_with_context} have a context: it wasn't read",
                case.name
            );
        }
        lines.push(costs.line(case.name));
    }
    println!(
        "\n{pairs} pairs of {} s at {} Hz; kernel ns/sample, mean +- its 95 % interval (median)",
        args.seconds, args.frequency
    );
    println!("{:<24}{:>26}{:>26}{:>16}", "variable", "without", "more with contexts", "with context %");
    for line in lines {
        println!("{line}");
    }
    Ok(())
}

impl Case {
    /// Builds the program and starts it on a CPU.
    fn start(&self, folder: &Path, cpu: u32) -> anyhow::Result<LoadProcess> {
        files::create_folder(folder)?;
        let [program, library] = ["requests", "libwriter.so"].map(|name| folder.join(name));
        match self.library {
            Some(flags) => {
                compile(&library, &[WRITER], &[&["-shared", "-fPIC"], flags].concat())?;
                compile(&program, &[REQUESTS], &["-DLOADED", "-ldl"])?;
            }
            None => compile(&program, &[REQUESTS, WRITER], &["-rdynamic"])?,
        }
        LoadProcess::start(on_cpu(cpu, &program).arg(process_context(self.schema)).arg(library))
    }
}

impl Costs {
    /// Adds a recording without contexts and one with them. `is_with_first`: in the other order.
    fn add_pair(
        &mut self,
        is_with_first: bool,
        record: impl Fn(bool) -> anyhow::Result<RecordSummary>,
    ) -> anyhow::Result<()> {
        let (with, without) = if is_with_first {
            let with = record(true)?;
            (with, record(false)?)
        } else {
            let without = record(false)?;
            (record(true)?, without)
        };
        let cost = |of: &RecordSummary| {
            of.kernel_ns_per_sample().context("a recording has no samples: was the program ended?")
        };
        let before = cost(&without)?;
        self.without.push(before);
        self.differences.push(cost(&with)? - before);
        self.samples += with.samples;
        self.samples_with_context += with.thread_context_samples.unwrap_or_default();
        Ok(())
    }

    fn line(&self, name: &str) -> String {
        let [without, difference] = [&self.without, &self.differences].map(|values| Summary::of(values));
        let share = self.samples_with_context as f64 * 100.0 / self.samples.max(1) as f64;
        format!("{name:<24}{:>26}{:>26}{share:>16.1}", without.to_string(), difference.to_string())
    }
}

fn compile(output: &Path, sources: &[&str], flags: &[&str]) -> anyhow::Result<()> {
    let tests = paths::workspace().join("jvmprof-daemon/tests");
    let sources: Vec<PathBuf> = sources.iter().map(|source| tests.join(source)).collect();
    let mut gcc = Command::new("gcc");
    gcc.args(["-O2", "-fno-optimize-sibling-calls", "-pthread", "-o"]).arg(output);
    run(gcc.args(sources).args(flags)).context("compiling a load (Debian: gcc and libc6-dev)")
}

/// Returns a command that runs a program on one CPU alone.
fn on_cpu(cpu: u32, program: &Path) -> Command {
    let mut command = Command::new("taskset");
    command.args(["--cpu-list", &cpu.to_string()]).arg(program);
    command
}

/// Returns the first and the last of the CPUs that a process may run on, by its
/// `/proc/PID/status`.
fn first_and_last_cpu(status: &str) -> Option<[u32; 2]> {
    let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?.trim();
    let mut numbers = list.split([',', '-']).map(|number| number.parse::<u32>().ok());
    let first = numbers.next()??;
    Some([first, numbers.next_back().unwrap_or(Some(first))?])
}

/// Returns a process context (`opentelemetry.proto.processcontext.v1development.ProcessContext`) in
/// hexadecimal digits: how threads publish their contexts, and the names of attributes.
fn process_context(schema: &str) -> String {
    // AnyValue: string_value = 1, array_value = 5; ArrayValue: values = 1.
    let text = |text: &str| field(1, text.as_bytes());
    let names = ["http.request.method", "http.route"].map(|name| field(1, &text(name))).concat();
    let attributes =
        [("threadlocal.schema_version", text(schema)), ("threadlocal.attribute_key_map", field(5, &names))];
    // ProcessContext: attributes = 2; KeyValue: key = 1, value = 2.
    let attribute =
        |(name, value): (&str, Vec<u8>)| field(2, &[field(1, name.as_bytes()), field(2, &value)].concat());
    attributes.map(attribute).concat().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns a field of a protobuf message.
fn field(number: u32, bytes: &[u8]) -> Vec<u8> {
    let mut encoded = Vec::new();
    encode_key(number, WireType::LengthDelimited, &mut encoded);
    encode_varint(bytes.len() as u64, &mut encoded);
    encoded.extend_from_slice(bytes);
    encoded
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::collections::BTreeMap;

    use super::*;
    use crate::bench::{Daemon, KernelProgramStats};

    fn summary(run_time_ns: u64, thread_context_samples: Option<u64>) -> RecordSummary {
        RecordSummary {
            samples: 100,
            complete: 100,
            thread_context_samples,
            losses: BTreeMap::new(),
            kernel: KernelProgramStats { run_time_ns, run_count: 200, taken: 100 },
            daemon: Daemon { cpu_ms: 1.0, startup_cpu_ms: None, peak_rss_bytes: 1 },
            top: Vec::new(),
        }
    }

    #[test]
    fn a_pair_is_a_difference_whichever_recording_comes_first() {
        let (mut costs, order) = (Costs::default(), RefCell::new(Vec::new()));
        for (is_with_first, more) in [(false, 700), (true, 900)] {
            let record = |is_read: bool| {
                order.borrow_mut().push(is_read);
                Ok(if is_read { summary(5000 + more, Some(80)) } else { summary(5000, None) })
            };
            costs.add_pair(is_with_first, record).unwrap();
        }
        assert_eq!(order.into_inner(), [false, true, true, false]);
        assert_eq!((&costs.without, &costs.differences), (&vec![50.0, 50.0], &vec![7.0, 9.0]));
        let line = costs.line("the program's");
        assert!(line.contains("+8.0 +- ") && line.ends_with(" 80.0"), "{line}");
    }

    #[test]
    fn the_first_and_the_last_cpu_of_a_list_are_found() {
        let found =
            |list: &str| first_and_last_cpu(&format!("Name:\tx\nCpus_allowed_list:\t{list}\nMems:\t0\n"));
        for (list, expected) in [("0-7", [0, 7]), ("3", [3, 3]), ("1,4-5,9", [1, 9]), ("2-3,6", [2, 6])] {
            assert_eq!(found(list), Some(expected), "{list}");
        }
        assert_eq!((found(""), first_and_last_cpu("Name:\tx\n")), (None, None));
    }

    #[test]
    fn a_process_context_is_a_message_with_two_attributes() {
        let key = "threadlocal.schema_version";
        let hex = |text: &str| text.bytes().map(|byte| format!("{byte:02x}")).collect::<String>();
        let context = process_context("x");
        // The attribute, its key, and a value with a text.
        let expected = format!("12210a1a{}12030a0178", hex(key));
        assert!(context.starts_with(&expected), "{context}");
        let names = [hex("http.request.method"), hex("http.route")];
        let end = format!("0a150a13{}0a0c0a0a{}", names[0], names[1]);
        assert!(context.ends_with(&end), "{context}");
    }
}
