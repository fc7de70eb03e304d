//! Programs and maps of the loaded object by name, with errors that say which one was refused.

use aya::Ebpf;
use aya::programs::ProgramError;

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

/// Returns the program of this name.
pub(super) fn program<'a, T>(ebpf: &'a mut Ebpf, name: &'static str) -> Result<T, SamplerError>
where
    T: TryFrom<&'a mut aya::programs::Program, Error = ProgramError>,
{
    let program = ebpf.program_mut(name).ok_or(SamplerError::Object { kind: "program", name })?;
    program.try_into().map_err(program_error(name))
}

/// Takes the map of this name out of the object.
pub(super) fn take_map<T>(ebpf: &mut Ebpf, name: &'static str) -> Result<T, SamplerError>
where
    T: TryFrom<aya::maps::Map, Error = aya::maps::MapError>,
{
    let map = ebpf.take_map(name).ok_or(SamplerError::Object { kind: "map", name })?;
    map.try_into().map_err(map_error(name))
}

/// Returns a constructor of errors that name this program.
pub(super) fn program_error(program: &'static str) -> impl Fn(ProgramError) -> SamplerError {
    move |source| SamplerError::Program { program, source: Box::new(source) }
}

/// Returns a constructor of errors that name this map.
pub(super) fn map_error(map: &'static str) -> impl Fn(aya::maps::MapError) -> SamplerError {
    move |source| SamplerError::Map { map, source }
}
