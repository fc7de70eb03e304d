//! Profilers inside the JVM, each in the same run as jvmprof: Java Flight Recorder, and
//! async-profiler from Maven Central. They aren't run together: beside JFR async-profiler sees the
//! JVM's start only.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use serde_json::Value;

use super::recorded::RecordedAllocations;
use crate::setup::{async_profiler, flight_recording};
use crate::zoo::Jdk;

/// JFR's events of allocation: one since JDK 16, two before.
const JFR_EVENTS: &str =
    "jdk.ObjectAllocationSample,jdk.ObjectAllocationInNewTLAB,jdk.ObjectAllocationOutsideTLAB";

/// A profiler inside the JVM, and the file that it writes.
#[derive(Clone, Debug)]
pub(super) enum Agent {
    FlightRecorder { recording: PathBuf },
    AsyncProfiler { library: PathBuf, collapsed: PathBuf },
}

impl Agent {
    /// Returns both. Gets async-profiler, if it isn't there.
    ///
    /// # Errors
    /// Maven isn't installed, or its repository isn't reached.
    pub(super) fn ensure_all(folder: &Path) -> anyhow::Result<[Self; 2]> {
        let library = async_profiler::library()?;
        let (recording, collapsed) = (folder.join("run.jfr"), folder.join("agent.collapsed"));
        Ok([Self::FlightRecorder { recording }, Self::AsyncProfiler { library, collapsed }])
    }

    pub(super) const fn name(&self) -> &'static str {
        match self {
            Self::FlightRecorder { .. } => "JFR",
            Self::AsyncProfiler { .. } => "async-profiler",
        }
    }

    /// Returns the option of a JVM that runs with it, after removing what an earlier run has
    /// written.
    pub(super) fn option(&self) -> OsString {
        let (Self::FlightRecorder { recording: file } | Self::AsyncProfiler { collapsed: file, .. }) = self;
        let _ = fs::remove_file(file);
        let file = file.display();
        match self {
            Self::FlightRecorder { .. } => {
                format!("-XX:StartFlightRecording=filename={file},settings=profile").into()
            }
            Self::AsyncProfiler { library, .. } => {
                let options = "start,event=alloc,alloc=512k,total,collapsed";
                format!("-agentpath:{}={options},file={file}", library.display()).into()
            }
        }
    }

    /// Reads what it has written.
    ///
    /// # Errors
    /// It has written nothing, or what can't be understood.
    pub(super) fn read(&self, jdk: &Jdk) -> anyhow::Result<RecordedAllocations> {
        let text = match self {
            Self::FlightRecorder { recording } => {
                folded(&flight_recording::events(&jdk.home, recording, JFR_EVENTS)?)
            }
            Self::AsyncProfiler { collapsed, .. } => {
                let text = fs::read_to_string(collapsed);
                let text = text.with_context(|| format!("reading {}", collapsed.display()))?;
                // Objects that got a new buffer, and those outside.
                text.replace("_[i] ", " ").replace("_[k] ", " ")
            }
        };
        let mut recorded = RecordedAllocations::default();
        recorded.add_folded(&text)?;
        Ok(recorded)
    }
}

/// Makes folded stacks of JFR's events: the class of the object is their leaf.
fn folded(events: &[Value]) -> String {
    let stack = |event: &Value| {
        let values = &event["values"];
        let bytes = ["weight", "tlabSize", "allocationSize"].iter().find_map(|key| values[*key].as_u64())?;
        let mut stack = flight_recording::methods(event)?;
        stack.push(source_name(values["objectClass"]["name"].as_str()?));
        Some(format!("{} {bytes}\n", stack.join(";")))
    };
    events.iter().filter_map(stack).collect()
}

/// `[[Ljava/lang/String;` as `java.lang.String[][]`, `[B` as `byte[]`.
fn source_name(class: &str) -> String {
    let element = class.trim_start_matches('[');
    let dimensions = class.len() - element.len();
    let element = match element {
        "B" if dimensions > 0 => "byte",
        "C" if dimensions > 0 => "char",
        "D" if dimensions > 0 => "double",
        "F" if dimensions > 0 => "float",
        "I" if dimensions > 0 => "int",
        "J" if dimensions > 0 => "long",
        "S" if dimensions > 0 => "short",
        "Z" if dimensions > 0 => "boolean",
        other if dimensions > 0 => other.strip_prefix('L').unwrap_or(other).trim_end_matches(';'),
        other => other,
    };
    format!("{}{}", element.replace('/', "."), "[]".repeat(dimensions))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_have_the_names_of_the_language() {
        for (class, name) in [
            ("[B", "byte[]"),
            ("[[I", "int[][]"),
            ("[Ljava/lang/String;", "java.lang.String[]"),
            ("java/lang/Long", "java.lang.Long"),
            ("B", "B"),
        ] {
            assert_eq!(source_name(class), name);
        }
    }

    #[test]
    fn events_become_stacks_that_end_in_their_class() {
        let method =
            |class: &str, name: &str| serde_json::json!({"method": {"type": {"name": class}, "name": name}});
        let event = serde_json::json!({"values": {
            "weight": 4096,
            "objectClass": {"name": "[J"},
            "stackTrace": {"frames": [method("Allocations$Worker", "longs"), method("java/lang/Thread", "run")]},
        }});
        let text = folded(&[event]);
        assert_eq!(text, "java.lang.Thread.run;Allocations$Worker.longs;long[] 4096\n");
    }
}
