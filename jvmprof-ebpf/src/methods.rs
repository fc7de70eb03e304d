//! Methods that were met in interpreted frames lately.
//!
//! Telling which method is at an address takes seven reads all over the JVM's metadata, since a class may have been unloaded and
//! another one have taken its place. The lowest frames of nearly every Java thread are interpreted, the same ones in each sample.
//! What was found of a method holds until the JVM loads a class ([`Jvm::loaded_classes`]).

use aya_ebpf::helpers::bpf_probe_read_user;
use jvmprof_common::{
    jvm::{Jvm, MethodIdentity, mix},
    unwind::memory::Veil,
};

/// A power of two.
const METHODS: usize = 256;

#[repr(C)]
#[derive(Clone, Copy)]
struct RecentMethod {
    address: u64,
    /// What [`generation`] was; never [`UNKNOWN`].
    generation: u64,
    identity: MethodIdentity,
}

#[repr(C)]
pub struct RecentMethods {
    /// Of this sample's process; [`UNKNOWN`] if it can't be told; 0 if it hasn't been read yet.
    generation: u64,
    methods: [RecentMethod; METHODS],
}

/// The generation of a JVM that doesn't tell.
const UNKNOWN: u64 = 1;

impl RecentMethods {
    /// The process is another one, or has run since.
    #[inline(always)]
    pub fn begin_sample(&mut self) {
        self.generation = 0;
    }

    #[inline(always)]
    fn slot(&mut self, address: u64, veil: &mut Veil) -> &mut RecentMethod {
        &mut self.methods[veil.hide(mix(0, address)) as usize & (METHODS - 1)]
    }

    /// The method that was met at this address in this generation.
    #[inline(always)]
    pub fn recall(&mut self, address: u64, generation: u64, veil: &mut Veil) -> Option<MethodIdentity> {
        let recent = self.slot(address, veil);
        let is_known = recent.address == address && recent.generation == generation && generation != UNKNOWN;
        is_known.then_some(recent.identity)
    }

    #[inline(always)]
    pub fn remember(&mut self, address: u64, generation: u64, identity: MethodIdentity, veil: &mut Veil) {
        if generation != UNKNOWN {
            *self.slot(address, veil) = RecentMethod { address, generation, identity };
        }
    }
}

/// Another one whenever the process was told of anew or has loaded a class. It must be read before the methods that are
/// remembered by it.
#[inline(always)]
pub fn generation(recent: &mut RecentMethods, epoch: u32, jvm: &Jvm) -> u64 {
    if recent.generation == 0 {
        recent.generation = match loaded_classes(jvm) {
            // The epoch is never 0, nor are there 2^31 classes.
            Some(loaded) => u64::from(epoch) << 32 | u64::from(loaded as u32) << 1,
            None => UNKNOWN,
        };
    }
    recent.generation
}

#[inline(always)]
fn loaded_classes(jvm: &Jvm) -> Option<u64> {
    if jvm.loaded_classes == 0 {
        return None;
    }
    // SAFETY: the helper reads any user address without faulting and reports failure.
    unsafe { bpf_probe_read_user(jvm.loaded_classes as *const u64) }.ok()
}
