//! The resources that the kernel has counted of a process.

use std::path::PathBuf;

use anyhow::Context as _;

use crate::files;

/// Clock ticks of `/proc/PID/stat` a second: the same on each x86-64.
const TICKS_PER_SECOND: f64 = 100.0;

/// The resources that a process has taken so far.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct ProcessUsage {
    pub(super) cpu_seconds: f64,
    pub(super) peak_mib: f64,
}

impl ProcessUsage {
    pub(super) fn of(pid: u32) -> anyhow::Result<Self> {
        let read = |file: &str| files::read_text(&PathBuf::from(format!("/proc/{pid}/{file}")));
        usage_of(&read("stat")?, &read("status")?).context("parsing what the kernel says of a process")
    }
}

/// Parses `/proc/PID/stat` and `/proc/PID/status`.
fn usage_of(stat: &str, status: &str) -> Option<ProcessUsage> {
    // The name before it may hold anything.
    let (_, fields) = stat.rsplit_once(") ")?;
    let mut ticks = fields.split(' ').skip(11).map(str::parse::<u32>);
    let (user, system) = (ticks.next()?.ok()?, ticks.next()?.ok()?);
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kib: u32 = peak.split_whitespace().next()?.parse().ok()?;
    Some(ProcessUsage {
        cpu_seconds: (f64::from(user) + f64::from(system)) / TICKS_PER_SECOND,
        peak_mib: f64::from(kib) / 1024.0,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usage_is_read_of_a_process_with_an_odd_name() {
        let stat = "7 (a) b) S 1 7 7 0 -1 4194560 9 0 0 0 150 50 0 0 20 0 5 0 1 2 3";
        let usage = usage_of(stat, "Name:\ta) b\nVmHWM:\t    2048 kB\n");
        assert_eq!(usage, Some(ProcessUsage { cpu_seconds: 2.0, peak_mib: 2.0 }));
        assert_eq!(usage_of(stat, "Name:\ta) b\n"), None);
    }
}
