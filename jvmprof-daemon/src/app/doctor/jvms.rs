//! The JVMs that run here, and what can be seen of each.

use std::fmt;
use std::fs;

use serde::Serialize;

use crate::process::procfs;
use crate::process::{Mappings, mappings::is_hotspot};

/// A running JVM.
#[derive(Debug, Serialize)]
pub(super) struct Jvm {
    pid: u32,
    /// Its program, as it sees it.
    executable: String,
    libjvm: String,
    /// Code keeps frame pointers: stacks of compiled code are whole.
    frame_pointers: bool,
    /// Lines in its perf map; 0 without one.
    perf_map_bytes: u64,
}

/// All that can be read.
pub(super) fn find() -> Vec<Jvm> {
    let Ok(all) = ::procfs::process::all_processes() else {
        return Vec::new();
    };
    let pids = all.flatten().filter_map(|process| u32::try_from(process.pid).ok());
    pids.filter_map(|pid| Jvm::of(pid, &procfs::mappings(pid).ok()?)).collect()
}

impl Jvm {
    fn of(pid: u32, mappings: &Mappings) -> Option<Self> {
        let libjvm = mappings.iter().find(|mapping| is_hotspot(mapping))?;
        let facts = procfs::facts(pid).ok()?;
        let map = format!("/proc/{pid}/root/tmp/perf-{}.map", facts.inner_pid);
        Some(Self {
            pid,
            executable: facts
                .executable
                .map_or_else(|| facts.comm.clone(), |path| path.display().to_string()),
            libjvm: libjvm.path.to_string(),
            frame_pointers: keeps_frame_pointers(pid),
            perf_map_bytes: fs::metadata(map).map_or(0, |map| map.len()),
        })
    }
}

/// By its command line and the variables that add to it.
fn keeps_frame_pointers(pid: u32) -> bool {
    const FLAG: &[u8] = b"-XX:+PreserveFramePointer";
    let has = |file: &str| {
        let bytes = fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
        bytes.windows(FLAG.len()).any(|window| window == FLAG)
    };
    has("cmdline") || has("environ")
}

impl fmt::Display for Jvm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "  {} {} ({})", self.pid, self.executable, self.libjvm)?;
        if self.frame_pointers {
            writeln!(f, "    stacks: whole, by frame pointers")?;
        } else {
            writeln!(f, "    stacks: cut where compiled code keeps no frame pointer")?;
            writeln!(f, "      do: start it with -XX:+PreserveFramePointer")?;
        }
        if self.perf_map_bytes > 0 {
            writeln!(
                f,
                "    names of Java code: from its perf map ({} KiB)",
                self.perf_map_bytes.div_ceil(1024)
            )
        } else {
            writeln!(f, "    names of Java code: none")?;
            writeln!(f, "      do: jcmd {} Compiler.perfmap (JDK 17 and newer)", self.pid)
        }
    }
}
