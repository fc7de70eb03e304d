//! What this kernel's verifier and JIT make of each program of the object: the figures by which a
//! change of the programs is judged, and the verifier's reasons where it refuses one.

use std::time::Instant;

use aya::programs::{Program, ProgramError, ProgramInfo};
use aya::{Ebpf, VerifierLogLevel};
use serde::Serialize;

use super::btf::Btf;
use super::loader::{MAPPED, load, mapped_function};
use crate::sampler::error::SamplerError;
use crate::sampler::options::SamplerOptions;

/// Size of an eBPF instruction: `struct bpf_insn`, include/uapi/linux/bpf.h.
const INSTRUCTION_BYTES: u32 = 8;
/// How much of the verifier's log is kept, in bytes; its end says why it refused.
const LOG_BYTES: usize = 256 * 1024;

/// One program in this kernel.
#[derive(Debug, Serialize)]
pub struct ProgramReport {
    pub name: String,
    /// Why it isn't loaded; the figures below are zero then.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refused: Option<Refusal>,
    /// Instructions after the verifier's rewriting.
    pub instructions: u32,
    /// Instructions that the verifier walked through, each path for itself; a kernel gives up at
    /// 1,000,000.
    pub verified: u32,
    /// Machine code, in bytes; 0 where the kernel interprets.
    pub jited_bytes: u32,
    /// How long the kernel took to verify and compile it, in milliseconds.
    pub load_ms: f64,
}

/// Why a program isn't loaded.
#[derive(Debug, Serialize)]
pub struct Refusal {
    /// The error, and what the verifier said of it.
    pub error: String,
    /// The end of the verifier's walk to the instruction it refused; empty if it wasn't the
    /// verifier.
    pub log: String,
}

/// Loads every program of the object, each for itself: one that is refused keeps no other from
/// being told of.
///
/// # Errors
/// The object itself can't be loaded: its maps, or the kernel's type information.
pub fn load_each(options: &SamplerOptions) -> Result<Vec<ProgramReport>, SamplerError> {
    // Without the walk, which for a large program doesn't fit the largest buffer: that would be an
    // error of its own.
    let btf = Btf::of_running_kernel()?;
    let mut ebpf = load(options, &btf, VerifierLogLevel::STATS)?;
    let mut names: Vec<String> = ebpf.programs().map(|(name, _)| name.to_owned()).collect();
    names.sort();
    names.into_iter().map(|name| report(&mut ebpf, options, &btf, name)).collect()
}

fn report(
    ebpf: &mut Ebpf,
    options: &SamplerOptions,
    btf: &Btf,
    name: String,
) -> Result<ProgramReport, SamplerError> {
    let started = Instant::now();
    let loaded = load_one(ebpf, btf, &name);
    let load_ms = started.elapsed().as_secs_f64() * 1e3;
    let info = ebpf.program(&name).and_then(|program| program.info().ok());
    let refused = match loaded {
        Ok(()) => None,
        Err(error) => Some(Refusal { log: walk(options, btf, &name)?, error: error.to_string() }),
    };
    Ok(ProgramReport {
        name,
        refused,
        instructions: info.as_ref().and_then(ProgramInfo::size_translated).unwrap_or(0) / INSTRUCTION_BYTES,
        verified: info.as_ref().and_then(ProgramInfo::verified_instruction_count).unwrap_or(0),
        jited_bytes: info.as_ref().map_or(0, ProgramInfo::size_jitted),
        load_ms,
    })
}

/// The kinds of programs that need nothing but themselves and the kernel's types.
fn load_one(ebpf: &mut Ebpf, btf: &Btf, name: &str) -> Result<(), ProgramError> {
    match ebpf.program_mut(name) {
        Some(Program::PerfEvent(program)) => program.load(),
        Some(Program::RawTracePoint(program)) => program.load(),
        Some(Program::TracePoint(program)) => program.load(),
        Some(Program::KProbe(program)) => program.load(),
        Some(Program::UProbe(program)) => program.load(),
        Some(Program::FEntry(program)) => {
            let function = mapped_function(btf).map_err(std::io::Error::other)?;
            program.load(MAPPED, &function)
        }
        _ => Err(ProgramError::UnexpectedProgramType),
    }
}

/// The verifier's walk through a program that it refused.
fn walk(options: &SamplerOptions, btf: &Btf, name: &str) -> Result<String, SamplerError> {
    let mut ebpf = load(options, btf, VerifierLogLevel::DEBUG | VerifierLogLevel::STATS)?;
    match load_one(&mut ebpf, btf, name) {
        Err(ProgramError::LoadError { verifier_log, .. }) => {
            let log = verifier_log.to_string();
            Ok(log[log.ceil_char_boundary(log.len().saturating_sub(LOG_BYTES))..].to_owned())
        }
        _ => Ok(String::new()),
    }
}
