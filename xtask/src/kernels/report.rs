//! The report of a booted kernel, one JSON line a step, and its evaluation.

use std::fmt::Write as _;

use anyhow::{Context as _, bail, ensure};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// One step of the suite in the guest.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct GuestStep {
    pub(crate) name: String,
    pub(crate) seconds: f64,
    pub(crate) outcome: StepOutcome,
}

impl GuestStep {
    /// Returns the parts that are worth keeping as files: name and contents.
    pub(crate) fn files(&self) -> Vec<(String, &str)> {
        match &self.outcome {
            StepOutcome::Java(java) => vec![(format!("{}.folded", self.name.replace(' ', "")), &java.folded)],
            StepOutcome::Doctor(found) => {
                let programs = found["programs"].as_array().into_iter().flatten();
                let logs = programs.filter_map(|program| {
                    let log = program["refused"]["log"].as_str()?;
                    Some((format!("{}.verifier.log", program["name"].as_str()?), log))
                });
                logs.collect()
            }
            StepOutcome::Failed(_) => Vec::new(),
        }
    }
}

/// The result of a step.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum StepOutcome {
    /// Output of `jvmprof doctor --programs --json`.
    Doctor(Value),
    Java(Java),
    /// The error that stopped the step.
    Failed(String),
}

/// A JVM that was recorded.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Java {
    /// Output of `jvmprof record --json`.
    pub(crate) summary: Value,
    /// The recording's folded stacks.
    pub(crate) folded: String,
}

/// A way to start and record a JVM.
#[derive(Debug)]
pub(crate) struct JvmRecording {
    pub(crate) name: &'static str,
    pub(crate) flags: &'static [&'static str],
    pub(crate) recording: Recording,
}

/// The moment at which the recording begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Recording {
    /// The recording begins once the chain is compiled, where anything gets compiled.
    Warm,
    /// The recording begins with the JVM's first instruction.
    FromStart,
    /// As [`Self::Warm`], of what its threads wait for.
    Waits,
}

/// Each JVM that is recorded in the guest.
pub(crate) const JVM_RECORDINGS: &[JvmRecording] = &[
    JvmRecording { name: "java -Xint", flags: &["-Xint"], recording: Recording::Warm },
    JvmRecording { name: "java", flags: &[], recording: Recording::Warm },
    JvmRecording { name: "record -- java", flags: &[], recording: Recording::FromStart },
    JvmRecording { name: "java, its waits", flags: &[], recording: Recording::Waits },
];

impl JvmRecording {
    /// Returns the least share of samples with the chain: most of a JVM's start is other work.
    fn chain_percent(&self) -> u64 {
        match self.recording {
            Recording::Warm => 80,
            Recording::FromStart => 10,
            Recording::Waits => 0,
        }
    }

    /// Returns the least share of whole stacks. An emulated daemon on a busy machine publishes a
    /// new process seconds late, so that this doesn't measure losses at a JVM's start.
    fn whole_percent(&self) -> u64 {
        match self.recording {
            Recording::Warm | Recording::Waits => 99,
            Recording::FromStart => 50,
        }
    }
}

/// The chain of calls in `xtask/kernels/Chain.java`, from its root.
const CHAIN: [&str; 4] = ["Chain.main", "Chain.a", "Chain.b", "Chain.c"];

/// Number of samples that proves that the clock ticks; an emulated CPU is slow.
const LEAST_SAMPLES: u64 = 20;

/// A program in the output of `doctor --programs --json`.
#[derive(Debug, Deserialize)]
struct Program {
    name: String,
    refused: Option<Refusal>,
    instructions: u32,
    verified: u32,
    jited_bytes: u32,
    load_ms: f64,
}

#[derive(Debug, Deserialize)]
struct Refusal {
    error: String,
    log: String,
}

/// The last line of a report: all steps were taken.
pub(crate) const END: &str = "end";

/// Parses the lines that a guest has written so far, of which the last may be cut off. Returns the
/// steps, and whether these are all.
pub(crate) fn parse(text: &str) -> (Vec<GuestStep>, bool) {
    let steps = text.lines().filter_map(|line| serde_json::from_str(line.trim()).ok()).collect();
    (steps, text.lines().any(|line| line.trim() == END))
}

/// Evaluates a step: a text for the report, and an error if the step doesn't meet its requirements.
pub(crate) fn evaluate(step: &GuestStep) -> (String, anyhow::Result<()>) {
    match &step.outcome {
        StepOutcome::Doctor(found) => evaluate_doctor(found),
        StepOutcome::Java(java) => match JVM_RECORDINGS.iter().find(|mode| mode.name == step.name) {
            Some(mode) => evaluate_java(mode, java),
            None => (
                String::new(),
                Err(anyhow::anyhow!("the guest of another version reported the step {}", step.name)),
            ),
        },
        StepOutcome::Failed(why) => (String::new(), Err(anyhow::anyhow!("{why}"))),
    }
}

fn evaluate_doctor(found: &Value) -> (String, anyhow::Result<()>) {
    let mut text = String::new();
    let verdict = (|| {
        let programs: Vec<Program> = serde_json::from_value(found["programs"].clone())
            .context("parsing the programs in the output of `jvmprof doctor`")?;
        ensure!(!programs.is_empty(), "doctor found no program in the object");
        let _ = writeln!(text, "  {:<16} instructions  verified  machine code     load", "program");
        let mut refused = Vec::new();
        for program in programs {
            let Program { name, instructions, verified, jited_bytes, load_ms, .. } = &program;
            if let Some(refusal) = &program.refused {
                let _ = writeln!(text, "  {name:<16} REFUSED:\n{}", tail(&refusal.error, 20));
                let _ = writeln!(text, "{}", tail(&refusal.log, 60));
                refused.push(program.name);
            } else {
                let _ = writeln!(
                    text,
                    "  {name:<16} {instructions:>12} {verified:>9} {jited_bytes:>11} B {load_ms:>5.0} ms"
                );
            }
        }
        ensure!(refused.is_empty(), "the kernel refuses {}", refused.join(", "));
        match found["status"].as_str() {
            Some("ok" | "degraded") => Ok(()),
            _ => bail!("doctor finds that profiling doesn't work: {}", found["checks"]),
        }
    })();
    (text, verdict)
}

fn evaluate_java(mode: &JvmRecording, java: &Java) -> (String, anyhow::Result<()>) {
    let number = |key: &str| java.summary[key].as_u64().unwrap_or(0);
    let (samples, whole) = (number("samples"), number("complete"));
    // What waits weigh is nanoseconds.
    let chained = if mode.recording == Recording::Waits { 0 } else { count_chained(&java.folded) };
    let percent = |part: u64| part as f64 * 100.0 / samples.max(1) as f64;
    let text = format!(
        "  {samples} samples, {:.1} % whole, {:.1} % with the chain, losses: {}\n",
        percent(whole),
        percent(chained),
        java.summary["losses"],
    );
    let verdict = (|| {
        ensure!(samples >= LEAST_SAMPLES, "only {samples} samples of {LEAST_SAMPLES}");
        ensure!(whole * 100 >= samples * mode.whole_percent(), "{whole} of {samples} stacks are whole");
        let has_futex =
            ["[wait: futex] ", "[wait: futex, idle] "].iter().any(|leaf| java.folded.contains(leaf));
        let has_waits = java.folded.contains(";thread_native_entry;") && has_futex;
        ensure!(
            mode.recording != Recording::Waits || has_waits,
            "no thread of the JVM waits for a futex:\n{}",
            head(&java.folded, 20)
        );
        ensure!(
            chained * 100 >= samples * mode.chain_percent(),
            "{chained} of {samples} stacks have the chain {}:\n{}",
            CHAIN.join(";"),
            head(&java.folded, 20)
        );
        Ok(())
    })();
    (text, verdict)
}

/// Counts samples whose stack holds the chain, frame by frame.
fn count_chained(folded: &str) -> u64 {
    // What follows a name is no part of another one: a signature, a suffix for the frame's kind.
    let is = |frame: &str, method: &str| {
        frame.strip_prefix(method).is_some_and(|rest| !rest.starts_with(char::is_alphanumeric))
    };
    let stacks = folded.lines().filter_map(|line| line.rsplit_once(' '));
    let chained = stacks.filter(|(stack, _)| {
        let frames: Vec<&str> = stack.split(';').collect();
        frames
            .windows(CHAIN.len())
            .any(|part| part.iter().zip(CHAIN).all(|(frame, method)| is(frame, method)))
    });
    chained.filter_map(|(_, count)| count.parse::<u64>().ok()).sum()
}

/// Returns the last lines of a text, each marked as quoted.
pub(crate) fn tail(text: &str, lines: usize) -> String {
    let all: Vec<&str> = text.lines().collect();
    all[all.len().saturating_sub(lines)..].iter().map(|line| format!("    | {line}\n")).collect()
}

fn head(text: &str, lines: usize) -> String {
    text.lines().take(lines).map(|line| format!("    | {line}\n")).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn java(samples: u64, complete: u64, folded: &str) -> Java {
        let summary = json!({ "samples": samples, "complete": complete, "losses": {}, "kernel": {} });
        Java { summary, folded: folded.to_owned() }
    }

    #[test]
    fn the_chain_is_counted_frame_by_frame() {
        let whole = "start;Chain.main;Chain.a;Chain.b;Chain.c 7\n";
        assert_eq!(count_chained(whole), 7);
        assert_eq!(count_chained("Chain.main;Chain.a;Chain.b_[j];Chain.c_[i];stub 2\n"), 2);
        assert_eq!(count_chained("Chain.main;Chain.b;Chain.c 7\n"), 0, "a is missing");
        assert_eq!(count_chained("Chain.mainly;Chain.a;Chain.b;Chain.c 7\n"), 0, "another method");
        assert_eq!(count_chained("main;Interpreter;Interpreter;Interpreter;Interpreter 3\n"), 0, "no names");
    }

    #[test]
    fn a_jvm_passes_by_samples_whole_stacks_and_its_chain() {
        let warm = &JvmRecording { name: "java", flags: &[], recording: Recording::Warm };
        let chain = "Chain.main;Chain.a;Chain.b;Chain.c 90\nother 10\n";
        assert!(evaluate_java(warm, &java(100, 100, chain)).1.is_ok());
        assert!(evaluate_java(warm, &java(10, 10, chain)).1.is_err(), "too few samples");
        assert!(evaluate_java(warm, &java(100, 90, chain)).1.is_err(), "too many cut stacks");
        assert!(evaluate_java(warm, &java(100, 100, "other 100\n")).1.is_err(), "no chain");
    }

    #[test]
    fn a_refused_program_fails_with_the_end_of_the_verifiers_log() {
        let good =
            json!({ "name": "sample", "instructions": 9, "verified": 9, "jited_bytes": 9, "load_ms": 1.0 });
        let mut bad = good.clone();
        bad["refused"] = json!({ "error": "EACCES", "log": "0: (b7) r0 = 0\n1: (95) exit\nR0 is bad\n" });
        let (text, verdict) = evaluate_doctor(&json!({ "status": "ok", "programs": [good] }));
        assert!(verdict.is_ok(), "{text}");
        let (text, verdict) = evaluate_doctor(&json!({ "status": "ok", "programs": [good, bad] }));
        assert!(verdict.is_err() && text.contains("R0 is bad"), "{text}");
        assert!(evaluate_doctor(&json!({ "status": "ok", "programs": [] })).1.is_err());
        assert!(evaluate_doctor(&json!({ "status": "missing", "programs": [good] })).1.is_err());
    }

    #[test]
    fn a_report_without_its_end_is_recognized() {
        let step = GuestStep { name: "java".into(), seconds: 0.5, outcome: StepOutcome::Failed("no".into()) };
        let line = serde_json::to_string(&step).unwrap();
        let (steps, is_whole) = parse(&format!("{line}\r\n{}", &line[..line.len() / 2]));
        assert_eq!((steps.len(), is_whole), (1, false));
        let (steps, is_whole) = parse(&format!("{line}\r\n{END}\r\n"));
        assert_eq!((steps.len(), is_whole), (1, true));
    }
}
