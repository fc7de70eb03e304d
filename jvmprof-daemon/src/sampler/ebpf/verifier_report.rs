//! Reports of this kernel's verifier and JIT on each program of the object: size, verified
//! instructions and load time, and the verifier's reason if it refuses one.

use std::time::Instant;

use aya::programs::{Program, ProgramError, ProgramInfo};
use aya::{Ebpf, VerifierLogLevel};
use serde::Serialize;

use super::loader::load;
use super::object::load_kind;
use super::off_cpu::programs::{SWITCH, switch_tracepoint};
use super::programs::{MAPPED, mapped_function};
use crate::sampler::btf::Btf;
use crate::sampler::error::SamplerError;
use crate::sampler::options::SamplerOptions;

/// Size of an eBPF instruction: `struct bpf_insn`, include/uapi/linux/bpf.h.
const INSTRUCTION_BYTES: u32 = 8;
/// Most bytes of the verifier's log that are kept, from its end, which has the reason.
const LOG_BYTES: usize = 256 * 1024;

/// Report on one program.
#[derive(Debug, Serialize)]
pub struct ProgramReport {
    pub name: String,
    /// Reason why it isn't loaded; the figures below are zero then.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refused: Option<LoadRefusal>,
    /// Instructions after the verifier's rewriting.
    pub instructions: u32,
    /// Instructions that the verifier processed, on each path separately; the kernel's limit is
    /// 1,000,000.
    pub verified: u32,
    /// Machine code, in bytes; 0 where the kernel interprets.
    pub jited_bytes: u32,
    /// Time that the kernel took to verify and compile it, in milliseconds.
    pub load_ms: f64,
}

/// Reason why a program isn't loaded.
#[derive(Debug, Serialize)]
pub struct LoadRefusal {
    /// The error, with the verifier's summary.
    pub error: String,
    /// End of the verifier's log, up to the instruction that it refused; empty if something else
    /// refused.
    pub log: String,
}

/// Loads every program of the object separately, so that a refused one doesn't hide the others.
///
/// # Errors
/// Returns an error if the object's maps or the kernel's type information can't be loaded.
pub fn load_each(options: &SamplerOptions) -> Result<Vec<ProgramReport>, SamplerError> {
    // Without the log, which for a large program exceeds the largest buffer: that would be an error
    // of its own.
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
        Err(error) => Some(LoadRefusal { log: verifier_log(options, btf, &name)?, error: error.to_string() }),
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

/// Loads a program of one of the kinds in the object.
fn load_one(ebpf: &mut Ebpf, btf: &Btf, name: &str) -> Result<(), ProgramError> {
    match ebpf.program_mut(name) {
        Some(Program::FEntry(program)) => {
            let function = mapped_function(btf).map_err(std::io::Error::other)?;
            program.load(MAPPED, &function)
        }
        Some(Program::BtfTracePoint(program)) => {
            let tracepoint = switch_tracepoint(btf).map_err(std::io::Error::other)?;
            program.load(SWITCH, &tracepoint)
        }
        Some(program) => load_kind(program),
        None => Err(ProgramError::UnexpectedProgramType),
    }
}

/// Returns the verifier's log of a program that it refused.
fn verifier_log(options: &SamplerOptions, btf: &Btf, name: &str) -> Result<String, SamplerError> {
    let mut ebpf = load(options, btf, VerifierLogLevel::DEBUG | VerifierLogLevel::STATS)?;
    match load_one(&mut ebpf, btf, name) {
        Err(ProgramError::LoadError { verifier_log: log, .. }) => {
            let log = log.to_string();
            Ok(log[log.ceil_char_boundary(log.len().saturating_sub(LOG_BYTES))..].to_owned())
        }
        _ => Ok(String::new()),
    }
}
