//! The global functions of the stepper: what the verifier checks once, with any arguments, instead
//! of once for each path that leads there.
//!
//! Most are made from the table [`jvmprof_common::hotspot_subprograms`], which says what each does
//! and what it reads and writes. They work on the [`Copies`](crate::scratch::Copies)
//! of the slot that is their first argument and, where the table's group says `jvm`, on the JVM's
//! entry in [`Scratch`](crate::scratch::Scratch): their callers must hold no reference to the
//! copies meanwhile.

use jvmprof_common::{
    abi::Stop,
    address::{Avma, StackAddress},
    hotspot_subprograms,
    unwind::hotspot::{
        CodeBlob, code_blobs,
        compiled::{
            self, barrier_spills, c1_pushed_words, c1_pushed_words::ArrayCopyState, epilogue, layout_at_pc,
            prologue, saved_arguments, string_indexof,
        },
        continuation::{load_barriers, stack_chunk, stack_chunk::ChunkBounds, thawing, yielding},
        frame_layout::FrameLayout,
        method_identity::method_identity,
    },
    verifier::Scalar,
};

use super::{StackSource, SubprogramTarget};
use crate::{
    scratch::{self, ScratchSlot, method_cache},
    walk::cache_lookup,
};

/// The global functions.
macro_rules! global_functions {
    (
        arguments {$(
            $(#[$pure_doc:meta])*
            fn $pure:ident($($pure_arg:ident: $pure_type:ty),*) -> $pure_result:ty = $pure_rule:path;
        )*}
        code {$(
            $(#[$code_doc:meta])*
            fn $code:ident($($code_arg:ident: $code_type:ty),*) -> $code_result:ty = $code_rule:path,
                else $code_else:expr;
        )*}
        memory {$(
            $(#[$memory_doc:meta])*
            fn $memory:ident($($memory_arg:ident: $memory_type:ty),*) -> $memory_result:ty = $memory_rule:path,
                else $memory_else:expr;
        )*}
        jvm {$(
            $(#[$jvm_doc:meta])*
            fn $jvm:ident($($jvm_arg:ident: $jvm_type:ty),*) -> $jvm_result:ty = $jvm_rule:path,
                else $jvm_else:expr;
        )*}
    ) => {
        $(
            $(#[$pure_doc])*
            #[unsafe(no_mangle)]
            #[inline(never)]
            pub extern "C" fn $pure($($pure_arg: u64),*) -> u64 {
                let result: $pure_result = $pure_rule($(<$pure_type>::from_scalar($pure_arg)),*);
                result.to_scalar()
            }
        )*
        $(
            $(#[$code_doc])*
            #[unsafe(no_mangle)]
            #[inline(never)]
            pub extern "C" fn $code(slot: u64 $(, $code_arg: u64)*) -> u64 {
                let Some(copies) = scratch::copies(ScratchSlot::from_argument(slot)) else {
                    let missing: $code_result = $code_else;
                    return missing.to_scalar();
                };
                // SAFETY: nobody writes the copies meanwhile.
                let code = unsafe { &(*copies).code };
                let result: $code_result = $code_rule(code $(, <$code_type>::from_scalar($code_arg))*);
                result.to_scalar()
            }
        )*
        $(
            $(#[$memory_doc])*
            #[unsafe(no_mangle)]
            #[inline(never)]
            pub extern "C" fn $memory(slot: u64 $(, $memory_arg: u64)*) -> u64 {
                let slot = ScratchSlot::from_argument(slot);
                let Some(copies) = scratch::copies(slot) else {
                    let missing: $memory_result = $memory_else;
                    return missing.to_scalar();
                };
                let target = &mut SubprogramTarget { copies, slot };
                let result: $memory_result = $memory_rule(target $(, <$memory_type>::from_scalar($memory_arg))*);
                result.to_scalar()
            }
        )*
        $(
            $(#[$jvm_doc])*
            #[unsafe(no_mangle)]
            #[inline(never)]
            pub extern "C" fn $jvm(slot: u64 $(, $jvm_arg: u64)*) -> u64 {
                let missing: $jvm_result = $jvm_else;
                let slot = ScratchSlot::from_argument(slot);
                let (Some(scratch), Some(copies)) = (scratch::get(slot), scratch::copies(slot)) else {
                    return missing.to_scalar();
                };
                let Some(jvm) = cache_lookup::jvm(scratch) else {
                    return missing.to_scalar();
                };
                let target = &mut SubprogramTarget { copies, slot };
                let result: $jvm_result = $jvm_rule(target, jvm $(, <$jvm_type>::from_scalar($jvm_arg))*);
                result.to_scalar()
            }
        )*
    };
}

hotspot_subprograms!(global_functions);

/// The methods of a target that call the global functions.
macro_rules! calls {
    (
        arguments {$(
            $(#[$pure_doc:meta])*
            fn $pure:ident($($pure_arg:ident: $pure_type:ty),*) -> $pure_result:ty = $pure_rule:path;
        )*}
        code {$(
            $(#[$code_doc:meta])*
            fn $code:ident($($code_arg:ident: $code_type:ty),*) -> $code_result:ty = $code_rule:path,
                else $code_else:expr;
        )*}
        memory {$(
            $(#[$memory_doc:meta])*
            fn $memory:ident($($memory_arg:ident: $memory_type:ty),*) -> $memory_result:ty = $memory_rule:path,
                else $memory_else:expr;
        )*}
        jvm {$(
            $(#[$jvm_doc:meta])*
            fn $jvm:ident($($jvm_arg:ident: $jvm_type:ty),*) -> $jvm_result:ty = $jvm_rule:path,
                else $jvm_else:expr;
        )*}
    ) => {
        $(
            #[inline(always)]
            fn $pure(&self, $($pure_arg: $pure_type),*) -> $pure_result {
                Scalar::from_scalar($crate::walk::target::subprograms::$pure($($pure_arg.to_scalar()),*))
            }
        )*
        $(
            #[inline(always)]
            fn $code(&self, $($code_arg: $code_type),*) -> $code_result {
                Scalar::from_scalar($crate::walk::target::subprograms::$code(
                    self.slot().to_argument() $(, $code_arg.to_scalar())*
                ))
            }
        )*
        $(
            #[inline(always)]
            fn $memory(&mut self, $($memory_arg: $memory_type),*) -> $memory_result {
                Scalar::from_scalar($crate::walk::target::subprograms::$memory(
                    self.slot().to_argument() $(, $memory_arg.to_scalar())*
                ))
            }
        )*
        $(
            #[inline(always)]
            fn $jvm(&mut self, _: &Jvm $(, $jvm_arg: $jvm_type)*) -> $jvm_result {
                Scalar::from_scalar($crate::walk::target::subprograms::$jvm(
                    self.slot().to_argument() $(, $jvm_arg.to_scalar())*
                ))
            }
        )*
    };
}
pub(crate) use calls;

/// Writes another stretch of the stack to [`Copies::window`](crate::scratch::Copies::window);
/// returns 1 if it could be read.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn refill_window(slot: u64, address: u64) -> u64 {
    let Some(copies) = scratch::copies(ScratchSlot::from_argument(slot)) else {
        return 0;
    };
    // SAFETY: nobody else uses the copies meanwhile.
    u64::from(unsafe { (*copies).window.refill(&mut StackSource, StackAddress(address)) })
}

/// Writes what identifies a method to [`Copies::method`](crate::scratch::Copies::method), and to
/// `method_was_cached` whether it was in `method_cache`; returns 0 if it can't be read. See
/// [`HotspotTarget::identify_method`].
///
/// [`HotspotTarget::identify_method`]:
/// jvmprof_common::unwind::hotspot::HotspotTarget::identify_method
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn identify_method(slot: u64, method: u64, is_entered: u64) -> u64 {
    let slot = ScratchSlot::from_argument(slot);
    let (Some(scratch), Some(copies)) = (scratch::get(slot), scratch::copies(slot)) else {
        return 0;
    };
    let Some(jvm) = cache_lookup::jvm(scratch) else {
        return 0;
    };
    let method = Avma(method);
    // SAFETY: nobody else uses the copies meanwhile.
    let cache = unsafe { &mut (*copies).method_cache };
    let generation = method_cache::generation(cache, scratch.process.epoch, jvm);
    let barrier_var = &mut scratch.barrier_var;
    let cached = if is_entered == 0 { cache.get(method, generation, barrier_var) } else { None };
    let found =
        cached.or_else(|| method_identity(method, &jvm.layout, &mut SubprogramTarget { copies, slot }));
    let Some(identity) = found else {
        return 0;
    };
    if cached.is_none() {
        cache.insert(method, generation, identity, barrier_var);
    }
    // SAFETY: as above.
    unsafe {
        (*copies).method = identity;
        (*copies).method_was_cached = u64::from(cached.is_some());
    }
    1
}
