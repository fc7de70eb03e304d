//! Unwind rows that aren't kept here.

use std::fs::File;
use std::path::Path;

use super::{FileCache, LoadError};
use crate::native::file_identity::FileKey;
use crate::native::open_file::OpenError;
use crate::native::unwind_rows::{EhFrameHdrRows, UnwindRows};

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
    pub fn eh_frame_hdr_rows(
        &self,
        key: &FileKey,
        path: &Path,
        open: impl FnOnce() -> Result<File, OpenError>,
    ) -> Result<Option<EhFrameHdrRows>, LoadError> {
        self.load(key, "unwind rows", path, open, |file| Ok(EhFrameHdrRows::load(file).ok().flatten()))
    }
}
