//! Unwind rows that aren't kept here.

use std::fs::File;
use std::path::Path;

use super::{FileCache, FileKey, LoadError};
use crate::native::open::OpenError;
use crate::native::rows::{SoughtRows, UnwindRows};

impl FileCache {
    /// As [`Self::rows`], for whoever makes something else of them at once: they aren't kept,
    /// however large they are.
    ///
    /// # Errors
    /// As [`Self::symbols`], but none is remembered.
    pub fn read_rows(
        &self,
        key: &FileKey,
        path: &Path,
        open: impl FnOnce() -> Result<File, OpenError>,
    ) -> Result<UnwindRows, LoadError> {
        let rows =
            self.load(key, "unwind rows", path, open, |file| UnwindRows::load_with(file, self.analyze));
        rows.inspect_err(|error| self.counting.load_error(error))
    }

    /// Those that can be looked up at once, before [`Self::read_rows`] is done; `None` if the file
    /// has no table for that, or it can't be read: whoever reads all of them says why.
    ///
    /// # Errors
    /// It isn't the file known as `key` any more, or can't be opened.
    pub fn sought_rows(
        &self,
        key: &FileKey,
        path: &Path,
        open: impl FnOnce() -> Result<File, OpenError>,
    ) -> Result<Option<SoughtRows>, LoadError> {
        self.load(key, "unwind rows", path, open, |file| Ok(SoughtRows::load(file).ok().flatten()))
    }
}
