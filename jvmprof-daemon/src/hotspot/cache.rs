//! What is remembered of the JVMs' code, limited in bytes and shared by all of them.
//!
//! Keys say which code is meant, not only where it is: a compile id, which a JVM never uses twice, or the check over
//! what a method is. So an entry is never wrong, it is only not asked for any more.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use moka::policy::EvictionPolicy;
use moka::sync::Cache;

use super::method::MethodInfo;
use super::nmethod::{Debug, NmethodId};
use super::stubs::{Shapes, StubRows};
use crate::intern::Interner;
use crate::types::{Avma, FastHasher};

/// What moka itself keeps per entry, roughly.
const ENTRY_BYTES: usize = 250;

/// What nobody asks for so long is code of JVMs that have ended, or that has been compiled anew.
const IDLE: Duration = Duration::from_secs(600);

/// Tells JVMs apart: never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct JvmKey(pub(crate) u64);

/// A method of one JVM.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct MethodKey {
    pub(crate) jvm: JvmKey,
    pub(crate) method: Avma,
    pub(crate) check: u64,
}

/// Names and debug information of all JVMs.
#[derive(Debug)]
pub struct JavaCache {
    pub(crate) methods: Cache<MethodKey, Arc<MethodInfo>, FastHasher>,
    pub(crate) nmethods: Cache<(JvmKey, NmethodId), Arc<Debug>, FastHasher>,
    /// Methods of the JDK are the same in all JVMs of its version.
    infos: Mutex<Interner<MethodInfo>>,
    shapes: Arc<Shapes>,
}

impl JavaCache {
    /// A cache of at most so many bytes: half of them for methods, half for debug information. Whole frames are remembered by
    /// those who ask.
    pub fn new(bytes: u64) -> Self {
        let methods = |_: &MethodKey, info: &Arc<MethodInfo>| weight(info.size_bytes());
        let nmethods = |_: &(JvmKey, NmethodId), debug: &Arc<Debug>| weight(debug.size_bytes());
        Self {
            methods: Cache::builder()
                .max_capacity(bytes / 2)
                .weigher(methods)
                .eviction_policy(EvictionPolicy::lru())
                .time_to_idle(IDLE)
                .build_with_hasher(FastHasher::default()),
            nmethods: Cache::builder()
                .max_capacity(bytes / 2)
                .weigher(nmethods)
                .eviction_policy(EvictionPolicy::lru())
                .time_to_idle(IDLE)
                .build_with_hasher(FastHasher::default()),
            infos: Mutex::default(),
            shapes: Arc::default(),
        }
    }

    /// Of a JVM that is new.
    pub(crate) fn stub_rows(&self) -> StubRows {
        StubRows::sharing(&self.shapes)
    }

    /// The one of all JVMs' methods that is equal.
    pub(crate) fn share(&self, info: MethodInfo) -> Arc<MethodInfo> {
        self.infos.lock().unwrap_or_else(PoisonError::into_inner).share(Arc::new(info))
    }

    /// Bytes held, and how many may be.
    pub fn size(&self) -> (u64, u64) {
        let limit = |limit: Option<u64>| limit.unwrap_or(u64::MAX);
        let limits = [self.methods.policy(), self.nmethods.policy()];
        (
            self.methods.weighted_size() + self.nmethods.weighted_size(),
            limits.iter().fold(0, |sum, policy| sum + limit(policy.max_capacity())),
        )
    }
}

impl Default for JavaCache {
    fn default() -> Self {
        Self::new(32 << 20)
    }
}

fn weight(bytes: usize) -> u32 {
    u32::try_from(bytes + ENTRY_BYTES).unwrap_or(u32::MAX)
}
