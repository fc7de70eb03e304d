//! Programs and maps of the loaded object by name, with errors that say which one was refused.

use aya::Ebpf;
use aya::maps::{MapData, ProgramArray};
use aya::programs::{Program, ProgramError, ProgramFd};

use crate::sampler::counts::ProgramRunTime;
use crate::sampler::error::SamplerError;

/// A value with the layout that the kernel programs use.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub(super) struct PodValue<T>(pub(super) T);

macro_rules! impl_pod {
    ($($type:ty),*) => {
        $(
            // SAFETY: the type is `repr(C)` (or an array of integers), has no padding, and any
            // bytes are a value of it.
            unsafe impl aya::Pod for PodValue<$type> {}
        )*
    };
}
pub(super) use impl_pod;

/// Implements `Debug` for a type with maps, whose contents aren't shown.
macro_rules! impl_opaque_debug {
    ($type:ident) => {
        impl std::fmt::Debug for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.debug_struct(stringify!($type)).finish_non_exhaustive()
            }
        }
    };
}
pub(super) use impl_opaque_debug;

fn find_program<'a>(ebpf: &'a mut Ebpf, name: &'static str) -> Result<&'a mut Program, SamplerError> {
    ebpf.program_mut(name).ok_or(SamplerError::Object { kind: "program", name })
}

/// Returns the program of this name, which is of this kind.
pub(super) fn program<'a, T>(ebpf: &'a mut Ebpf, name: &'static str) -> Result<T, SamplerError>
where
    T: TryFrom<&'a mut Program, Error = ProgramError>,
{
    find_program(ebpf, name)?.try_into().map_err(program_error(name))
}

/// Takes the map of this name out of the object.
pub(super) fn take_map<T>(ebpf: &mut Ebpf, name: &'static str) -> Result<T, SamplerError>
where
    T: TryFrom<aya::maps::Map, Error = aya::maps::MapError>,
{
    let map = ebpf.take_map(name).ok_or(SamplerError::Object { kind: "map", name })?;
    map.try_into().map_err(map_error(name))
}

/// Loads a program of a kind that needs no more than the object has.
pub(super) fn load_kind(program: &mut Program) -> Result<(), ProgramError> {
    match program {
        Program::PerfEvent(program) => program.load(),
        Program::RawTracePoint(program) => program.load(),
        Program::TracePoint(program) => program.load(),
        Program::UProbe(program) => program.load(),
        _ => Err(ProgramError::UnexpectedProgramType),
    }
}

/// Loads the program of this name.
pub(super) fn load_program(ebpf: &mut Ebpf, name: &'static str) -> Result<ProgramFd, SamplerError> {
    let program = find_program(ebpf, name)?;
    let error = program_error(name);
    load_kind(program).map_err(&error)?;
    program.fd().map_err(&error)?.try_clone().map_err(|source| error(source.into()))
}

/// Loads the targets of tail calls, and puts them into this map by their index.
pub(super) fn load_tail_calls(
    ebpf: &mut Ebpf,
    map: &'static str,
    names: [&'static str; 3],
) -> Result<ProgramArray<MapData>, SamplerError> {
    let mut targets: ProgramArray<_> = take_map(ebpf, map)?;
    for (index, name) in (0..).zip(names) {
        targets.set(index, &load_program(ebpf, name)?, 0).map_err(map_error(map))?;
    }
    Ok(targets)
}

/// Returns a constructor of errors that name this program.
pub(super) fn program_error(program: &'static str) -> impl Fn(ProgramError) -> SamplerError {
    move |source| SamplerError::Program { program, source: Box::new(source) }
}

/// Returns a constructor of errors that name this map.
pub(super) fn map_error(map: &'static str) -> impl Fn(aya::maps::MapError) -> SamplerError {
    move |source| SamplerError::Map { map, source }
}

/// Returns the sum of these programs' run times; `None` if one isn't loaded.
pub(super) fn run_time(ebpf: &Ebpf, names: &[&str]) -> Option<ProgramRunTime> {
    let mut sum = ProgramRunTime::default();
    for name in names {
        let info = ebpf.program(name)?.info().ok()?;
        sum.run_time_ns += info.run_time().as_nanos() as u64;
        sum.run_count += info.run_count();
    }
    Some(sum)
}
