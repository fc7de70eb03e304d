//! Errors of starting and running the sampler.

use std::io;

use super::ebpf::btf::BtfError;

/// Why sampling could not start or go on.
#[derive(Debug, thiserror::Error)]
pub enum SamplerError {
    #[error("reading kernel type information: {0}")]
    Btf(#[from] BtfError),
    #[error("loading the kernel programs: {0}")]
    Load(#[from] aya::EbpfError),
    #[error("loading kernel program {program}: {source}")]
    Program {
        program: &'static str,
        #[source]
        source: Box<aya::programs::ProgramError>,
    },
    #[error(
        "the eBPF object has no {kind} {name}: it is older than this program, rebuild it with `cargo xtask ebpf`"
    )]
    Object { kind: &'static str, name: &'static str },
    #[error("using kernel map {map}: {source}")]
    Map {
        map: &'static str,
        #[source]
        source: aya::maps::MapError,
    },
    #[error("opening a {event} perf event on CPU {cpu}: {source}{}", paranoia(source))]
    PerfEvent { event: &'static str, cpu: u32, source: io::Error },
    #[error("starting the thread that empties the rings: {source}")]
    Thread { source: io::Error },
    #[error("reading {path}: {source}")]
    Cpus { path: &'static str, source: io::Error },
}

/// Why capabilities weren't enough, where it is for a patch that Debian and Ubuntu carry: from 3 on
/// (the default of both) their kernels ask for CAP_SYS_ADMIN.
fn paranoia(refusal: &io::Error) -> String {
    let level =
        || std::fs::read_to_string("/proc/sys/kernel/perf_event_paranoid").ok()?.trim().parse::<i32>().ok();
    match level() {
        Some(level @ 3..) if refusal.kind() == io::ErrorKind::PermissionDenied => format!(
            "; kernel.perf_event_paranoid is {level}, at which this kernel wants CAP_SYS_ADMIN: set it to 2 or less"
        ),
        _ => String::new(),
    }
}
