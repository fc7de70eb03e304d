//! Loading of the eBPF object, with the sizes of its maps and the values of its globals.

use std::thread;

use aya::{Ebpf, EbpfLoader, VerifierLogLevel};
use jvmprof_common::abi::PROBE_SLOTS;
use landlock::{AccessFs, Ruleset, RulesetAttr as _, RulesetError, RulesetStatus};

use super::maps::MapSizes;
use super::off_cpu::maps as off_cpu_maps;
use super::{allocation_maps, global_values, pause_maps, thread_context_map};
use crate::sampler::btf::Btf;
use crate::sampler::error::SamplerError;
use crate::sampler::online_cpus;
use crate::sampler::options::SamplerOptions;

/// Built by `cargo xtask ebpf` and committed, so that a build needs no eBPF toolchain.
static OBJECT: &[u8] = aya::include_bytes_aligned!("../../../ebpf/jvmprof.bpf.o");

/// Scratch memory of the unwinder and its caches, a slot for each CPU and then those of uprobes and
/// waits.
const SCRATCH: &str = "SCRATCH";
pub(super) const RING: &str = "SAMPLES";

/// Creates the maps and sets the globals. No program is loaded yet.
pub(super) fn load(
    options: &SamplerOptions,
    btf: &Btf,
    verifier_log: VerifierLogLevel,
) -> Result<Ebpf, SamplerError> {
    let cpus = online_cpus::possible()?;
    let globals = global_values::of(options, btf, cpus)?;
    let log_level: u8 = if options.kernel_log { aya_log::Level::Debug as u8 } else { 0 };
    let probe_slots = if options.allocation || options.off_cpu { PROBE_SLOTS } else { 0 };
    let mut loader = loader_without_kernel_types();
    for (name, value) in &globals {
        loader.override_global(name, value, true);
    }
    let sizes = MapSizes::of_machine().entries().into_iter();
    let sizes = sizes.chain(allocation_maps::sizes(options.allocation));
    let sizes = sizes.chain(off_cpu_maps::sizes(options));
    let single = [thread_context_map::size(options.thread_context), pause_maps::size(options.pauses)];
    for (name, entries) in sizes.chain(single) {
        loader.map_max_entries(name, entries);
    }
    loader
        .btf(None)
        .verifier_log_level(verifier_log)
        .override_global(aya_log::LEVEL, &log_level, true)
        .map_max_entries(RING, options.ring_bytes.next_power_of_two().max(4096))
        .map_max_entries(SCRATCH, cpus + probe_slots)
        .load(OBJECT)
        .map_err(SamplerError::Load)
}

/// Creates a loader that hasn't read the kernel's types. No relocation needs them, and they take
/// 10 MB and 20 ms, but aya reads them whenever it makes a loader (up to 0.14, the last version
/// that Rust 1.95 builds). So the loader is made by a thread that may open no file, where Landlock
/// is there.
fn loader_without_kernel_types() -> EbpfLoader<'static> {
    let make = || {
        match deny_reading_files() {
            Ok(RulesetStatus::FullyEnforced) => {}
            status => tracing::debug!(?status, "the kernel's types are read, which nothing needs"),
        }
        EbpfLoader::new()
    };
    let thread = thread::Builder::new().name("loader".to_owned()).spawn(make);
    thread.ok().and_then(|thread| thread.join().ok()).unwrap_or_default()
}

/// Keeps this thread, and only it, from opening files for reading from now on.
fn deny_reading_files() -> Result<RulesetStatus, RulesetError> {
    let ruleset = Ruleset::default().handle_access(AccessFs::ReadFile)?.create()?;
    Ok(ruleset.restrict_self()?.ruleset)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_thread_that_may_read_no_file_is_the_only_one() {
        let denied = thread::spawn(|| (deny_reading_files(), fs::read("/proc/self/status")));
        let (status, read) = denied.join().expect("the thread ends");
        let enforced = matches!(status, Ok(RulesetStatus::FullyEnforced));
        assert_eq!(read.is_err(), enforced, "{status:?}");
        assert!(fs::read("/proc/self/status").is_ok());
    }
}
