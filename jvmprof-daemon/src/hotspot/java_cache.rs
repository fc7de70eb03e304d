//! Cache of what was read of the JVMs' code, limited in bytes and shared by all of them.
//!
//! Keys say which code is meant, not only where it is: a compile id, which a JVM never uses twice,
//! or the check over what a method is. So an entry is never wrong, it is only not asked for any
//! more.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::code_cache::nmethod::{NmethodDebugInfo, NmethodId};
use super::methods::method::MethodInfo;
use super::stubs::{AnalysesOnDisk, PieceShapes, StubRows};
use super::vmstructs::symtab_variables::VariablesByBuild;
use crate::generational_cache::GenerationalCache;
use crate::intern::Interner;
use crate::types::Avma;

/// An entry that nobody asks for so long is code of JVMs that have ended, or that has been compiled
/// anew.
const IDLE: Duration = Duration::from_secs(600);

/// Identifies a JVM: never used twice.
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
    pub(crate) methods: GenerationalCache<MethodKey, Arc<MethodInfo>>,
    pub(crate) nmethods: GenerationalCache<(JvmKey, NmethodId), Arc<NmethodDebugInfo>>,
    /// Methods of the JDK are the same in all JVMs of its version.
    infos: Mutex<Interner<MethodInfo>>,
    shapes: Arc<PieceShapes>,
    pub(crate) symtab_variables: VariablesByBuild,
}

impl JavaCache {
    /// A cache of at most so many bytes: half of them for methods, half for debug information.
    /// Whole frames are remembered by those who ask.
    pub fn new(bytes: u64) -> Self {
        Self {
            methods: GenerationalCache::new(bytes / 2, IDLE, |info: &Arc<MethodInfo>| info.size_bytes()),
            nmethods: GenerationalCache::new(bytes / 2, IDLE, |debug: &Arc<NmethodDebugInfo>| {
                debug.size_bytes()
            }),
            infos: Mutex::default(),
            shapes: Arc::default(),
            symtab_variables: VariablesByBuild::default(),
        }
    }

    /// The cache, with analyses of stubs that an earlier run has kept on disk. To be called before
    /// the first JVM is read.
    #[must_use]
    pub fn with_stub_analyses(mut self, on_disk: Arc<AnalysesOnDisk>) -> Self {
        self.shapes = Arc::new(PieceShapes::with_analyses(on_disk));
        self
    }

    /// Writes new analyses of stubs to disk, in the background.
    pub fn store_stub_analyses(&self) {
        self.shapes.store_new();
    }

    /// Returns the rows of a new JVM, none yet.
    pub(crate) fn new_stub_rows(&self) -> StubRows {
        StubRows::sharing(&self.shapes)
    }

    /// The one of all JVMs' methods that is equal.
    pub(crate) fn share(&self, info: MethodInfo) -> Arc<MethodInfo> {
        self.infos.lock().unwrap_or_else(PoisonError::into_inner).share(Arc::new(info))
    }

    /// Bytes held, and how many may be.
    pub fn size(&self) -> (u64, u64) {
        let (methods, nmethods) = (self.methods.size(), self.nmethods.size());
        (methods.0 + nmethods.0, methods.1 + nmethods.1)
    }

    /// Forgets what nobody has asked for long. To be called now and then.
    pub fn age(&self) {
        self.methods.rotate_if_due();
        self.nmethods.rotate_if_due();
    }
}

impl Default for JavaCache {
    fn default() -> Self {
        Self::new(32 << 20)
    }
}
