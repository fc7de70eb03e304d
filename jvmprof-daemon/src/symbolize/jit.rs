//! Frames of generated code, named by the process's perf map.

use std::path::PathBuf;
use std::sync::Arc;

use super::frame;
use crate::jitmap::names::display_name;
use crate::jitmap::perf_map::{PerfMap, PerfMapLimits};
use crate::native::open::open_in_root_owned;
use crate::process::{MappedCode, Process};
use crate::profile::model::{Frame, FrameKind, Mapping};
use crate::types::Avma;

const UNKNOWN_JAVA: &str = "[unknown Java: not in the perf map]";
const UNKNOWN_JIT: &str = "[jit: unknown]";
/// A perf map is looked at again at most this often when an address isn't in it.
const LOOK_INTERVAL_NS: u64 = 500_000_000;

/// What was read from perf maps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct JitCounts {
    pub entries: u64,
    /// Lines that were refused: malformed, too long, or beyond the memory limit.
    pub refused_lines: u64,
    pub bytes_read: u64,
    /// Perf maps that were there but could not be read or belong to another user.
    pub unusable: u64,
}

/// The generated code of one process.
#[derive(Debug, Default)]
pub(super) struct JitNames {
    map: Option<PerfMap>,
    next_look_ns: u64,
}

impl JitNames {
    /// The frame of an address in generated code, or one without a name.
    pub(super) fn frame(
        &mut self,
        process: &Process,
        code: &MappedCode,
        address: Avma,
        now_ns: u64,
        counts: &mut JitCounts,
    ) -> Result<Arc<Frame>, Arc<Frame>> {
        let is_jvm = process.is_jvm();
        let (kind, path, unknown) = if is_jvm {
            (FrameKind::Java, "jvm", UNKNOWN_JAVA)
        } else {
            (FrameKind::Jit, "[jit]", UNKNOWN_JIT)
        };
        let mapping = Mapping {
            start: code.start,
            limit: code.end,
            offset: code.offset,
            path: path.into(),
            build_id: None,
        };
        let unnamed = frame(kind, address, Some(Arc::new(mapping)), unknown.into(), unknown.into());
        if let Some(named) = self.named(address, &unnamed) {
            return Ok(named);
        }
        if now_ns >= self.next_look_ns {
            self.refresh(process, now_ns, counts);
            if let Some(named) = self.named(address, &unnamed) {
                return Ok(named);
            }
        }
        Err(unnamed)
    }

    /// The same frame with its name, if the map has it by now.
    pub(super) fn named(&self, address: Avma, unnamed: &Frame) -> Option<Arc<Frame>> {
        let raw = self.map.as_ref()?.lookup(address)?.raw;
        Some(frame(unnamed.kind, address, unnamed.mapping.clone(), display_name(raw).into(), raw.into()))
    }

    /// Reads what is new in the map.
    pub(super) fn refresh(&mut self, process: &Process, now_ns: u64, counts: &mut JitCounts) {
        self.next_look_ns = now_ns + LOOK_INTERVAL_NS;
        let path = PathBuf::from(format!("/tmp/perf-{}.map", process.inner_pid()));
        let file = match open_in_root_owned(&process.root(), &path, process.uid().unwrap_or(0)) {
            Ok(file) => file,
            Err(error) if error.is_not_found() => return,
            Err(error) => {
                counts.unusable += 1;
                tracing::debug!(pid = process.pid, %error, "a perf map can't be used");
                return;
            }
        };
        let map = self.map.get_or_insert_with(|| PerfMap::new(PerfMapLimits::default()));
        let before = map.counters();
        if let Err(error) = map.refresh(&file) {
            counts.unusable += 1;
            tracing::debug!(pid = process.pid, %error, "a perf map can't be read");
        }
        let after = map.counters();
        counts.entries += after.entries - before.entries;
        counts.bytes_read += after.bytes_read - before.bytes_read;
        let refused =
            |it: &crate::jitmap::perf_map::PerfMapCounters| it.malformed + it.too_long + it.over_limit;
        counts.refused_lines += refused(&after) - refused(&before);
    }
}

/// True for a frame that [`JitNames::named`] may still name.
pub(super) fn is_unnamed(frame: &Frame) -> bool {
    frame.lines.first().is_some_and(|line| matches!(&*line.name, UNKNOWN_JAVA | UNKNOWN_JIT))
}
