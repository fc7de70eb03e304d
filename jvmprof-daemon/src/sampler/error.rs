//! Errors of starting and running the sampler.

use std::io;

use super::ebpf::btf::BtfError;

/// Errors of starting or running the sampler.
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
    #[error("finding the kernel's function {function}: {source}")]
    KernelFunction { function: &'static str, source: io::Error },
    #[error("starting the thread that reads the rings: {source}")]
    Thread { source: io::Error },
    #[error("reading {path}: {source}")]
    Cpus { path: &'static str, source: io::Error },
}

/// Returns a hint if a refusal is due to a patch of Debian and Ubuntu: from level 3 on (the default
/// of both) their kernels require CAP_SYS_ADMIN.
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
