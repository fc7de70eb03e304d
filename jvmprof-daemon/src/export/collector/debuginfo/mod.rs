//! Debug files that daemons upload: Parca's `DebuginfoService` in front of a folder, and the names
//! in them for profiles whose frames have none.

mod names;
mod service;
#[cfg(test)]
mod tests;
mod uploads;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::native::debug_files::directory::DebugDirectory;
use names::Names;
use uploads::Uploads;

/// The folder's name beside the profiles.
const FOLDER: &str = "debuginfo";

/// Uploaded debug files. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Debuginfo {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    uploads: Uploads,
    names: Names,
}

/// The folder can't be used.
#[derive(Debug, thiserror::Error)]
#[error("opening the folder {} for debug files: {source}", path.display())]
pub struct DebuginfoError {
    path: PathBuf,
    source: io::Error,
}

impl Debuginfo {
    /// Opens the folder of debug files beside the profiles in `store`. `limit_bytes`: of all debug
    /// files together; the oldest leave first, and one may take half of it.
    ///
    /// # Errors
    /// The folder can't be made or read.
    pub fn open(store: &Path, limit_bytes: u64) -> Result<Self, DebuginfoError> {
        let path = store.join(FOLDER);
        let directory = DebugDirectory::open(&path, limit_bytes);
        let directory = Arc::new(directory.map_err(|source| DebuginfoError { path, source })?);
        let uploads = Uploads::new(Arc::clone(&directory));
        let names = Names::new(directory);
        Ok(Self { inner: Arc::new(Inner { uploads, names }) })
    }

    /// Gives names to frames that have none, as far as there are debug files for them. Blocking.
    pub(super) fn name(&self, profile: &mut crate::proto::pprof::Profile) {
        self.inner.names.name(profile);
    }
}
