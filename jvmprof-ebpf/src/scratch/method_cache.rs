//! Cache of the methods of interpreted frames.
//!
//! Finding which method is at an address takes seven reads all over the JVM's metadata, since a
//! class may have been unloaded and another one have got its memory. The lowest frames of nearly
//! every Java thread are interpreted, the same ones in each sample. What was found of a method
//! holds until the JVM loads a class ([`Jvm::loaded_classes`]).

use jvmprof_common::{
    address::Avma, frame::mix, jvm::Jvm, unwind::hotspot::method_identity::MethodIdentity,
    verifier::BarrierVar,
};

use crate::user_memory::read_word;

/// A power of two.
const METHODS: usize = 256;

#[repr(C)]
#[derive(Clone, Copy)]
struct CachedMethod {
    address: Avma,
    /// [`generation`] at that time; never [`UNKNOWN`].
    generation: u64,
    identity: MethodIdentity,
}

#[repr(C)]
pub struct MethodCache {
    /// The generation of this sample's process; [`UNKNOWN`] if it can't be read; 0 if it hasn't
    /// been yet.
    generation: u64,
    methods: [CachedMethod; METHODS],
}

/// The generation of a JVM that keeps no count.
const UNKNOWN: u64 = 1;

impl MethodCache {
    /// Forgets the generation: the process is another one, or has run since.
    #[inline(always)]
    pub fn begin_sample(&mut self) {
        self.generation = 0;
    }

    #[inline(always)]
    fn slot(&mut self, address: Avma, barrier_var: &mut BarrierVar) -> &mut CachedMethod {
        &mut self.methods[barrier_var.opaque(mix(0, address.0)) as usize & (METHODS - 1)]
    }

    /// Returns the method that was at this address in this generation.
    #[inline(always)]
    pub fn get(
        &mut self,
        address: Avma,
        generation: u64,
        barrier_var: &mut BarrierVar,
    ) -> Option<MethodIdentity> {
        let cached = self.slot(address, barrier_var);
        let is_cached = cached.address == address && cached.generation == generation && generation != UNKNOWN;
        is_cached.then_some(cached.identity)
    }

    #[inline(always)]
    pub fn insert(
        &mut self,
        address: Avma,
        generation: u64,
        identity: MethodIdentity,
        barrier_var: &mut BarrierVar,
    ) {
        if generation != UNKNOWN {
            *self.slot(address, barrier_var) = CachedMethod { address, generation, identity };
        }
    }
}

/// Returns a number that is another one whenever the process was published anew or has loaded a
/// class. It must be read before the methods that are cached by it.
#[inline(always)]
pub fn generation(cache: &mut MethodCache, epoch: u32, jvm: &Jvm) -> u64 {
    if cache.generation == 0 {
        cache.generation = match loaded_classes(jvm) {
            // The epoch is never 0, nor are there 2^31 classes.
            Some(loaded) => u64::from(epoch) << 32 | u64::from(loaded as u32) << 1,
            None => UNKNOWN,
        };
    }
    cache.generation
}

#[inline(always)]
fn loaded_classes(jvm: &Jvm) -> Option<u64> {
    if jvm.loaded_classes == 0 {
        return None;
    }
    read_word(Avma(jvm.loaded_classes))
}
