//! A process that publishes a context, for tests.

use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Write as _};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use opentelemetry_proto::tonic::common::v1::any_value::Value;

use super::payload::encoded;
use crate::types::Avma;

/// A running `test_writer.c`.
pub(crate) struct ContextWriter {
    child: Child,
    lines: ChildStdin,
    answers: BufReader<ChildStdout>,
    _folder: tempfile::TempDir,
}

impl ContextWriter {
    pub(crate) fn start() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let (source, program) = (folder.path().join("writer.c"), folder.path().join("writer"));
        std::fs::write(&source, include_str!("test_writer.c")).expect("a file");
        let mut gcc = Command::new("gcc");
        gcc.args(["-O1", "-pthread", "-o"]).args([&program, &source]);
        assert!(gcc.status().expect("gcc").success());
        let mut child = Command::new(program)
            .env("OTEL_SERVICE_NAME", "of-environment")
            .env("OTEL_RESOURCE_ATTRIBUTES", "service.namespace=of-environment,team=core")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("it runs");
        let lines = child.stdin.take().expect("a pipe");
        let answers = BufReader::new(child.stdout.take().expect("a pipe"));
        let mut writer = Self { child, lines, answers, _folder: folder };
        // The kernel may not have set up the new program before it answers.
        writer.send("started");
        writer
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends a line and returns when the process has done what it says, with the header's address.
    pub(crate) fn send(&mut self, line: &str) -> Avma {
        writeln!(self.lines, "{line}").expect("it reads");
        let mut answer = String::new();
        self.answers.read_line(&mut answer).expect("it answers");
        let address = answer.strip_prefix("done ").map(str::trim_end).expect(line);
        Avma(u64::from_str_radix(address.trim_start_matches("0x"), 16).unwrap_or(0))
    }

    /// Publishes a context with these attributes in a mapping of this kind.
    pub(crate) fn publish(&mut self, kind: &str, attributes: &[(&str, &str)]) -> Avma {
        self.send(&format!("publish {kind} {}", payload(attributes)))
    }

    /// Changes the context to these attributes.
    pub(crate) fn update(&mut self, attributes: &[(&str, &str)]) {
        self.send(&format!("update {}", payload(attributes)));
    }
}

impl Drop for ContextWriter {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns a payload in hexadecimal digits.
pub(super) fn payload(attributes: &[(&str, &str)]) -> String {
    let values = attributes.iter().map(|(name, value)| (*name, Value::StringValue((*value).to_owned())));
    hex(&encoded(&values.collect::<Vec<_>>()))
}

pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}
