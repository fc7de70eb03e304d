//! Unwind rows that aren't cached.

use std::fs::File;
use std::path::Path;

use super::{FileCache, LoadError};
use crate::native::file_identity::FileKey;
use crate::native::open_file::OpenError;
use crate::native::unwind_rows::{EhFrameHdrRows, UnwindRows};

impl FileCache {
    /// Passes the unwind rows of the file with this `key` to `convert`, and returns its result.
    /// They aren't cached, however large they are, and large parts of them stay in the file.
    ///
    /// # Errors
    /// Those of [`Self::symbols`], but none is cached.
    pub fn convert_rows<T>(
        &self,
        key: &FileKey,
        path: &Path,
        open: impl FnOnce() -> Result<File, OpenError>,
        convert: impl FnOnce(&UnwindRows) -> T,
    ) -> Result<T, LoadError> {
        let converted = self.load(key, "unwind rows", path, open, |file| {
            let rows = UnwindRows::load_from_file(file, self.analyze)?;
            let converted = convert(&rows);
            rows.check()?;
            Ok(converted)
        });
        converted.inspect_err(|error| self.counters.load_error(error))
    }

    /// Returns rows that are available at once, before [`Self::convert_rows`] is done; `None` if
    /// the file has no table for that, or it can't be read, which [`Self::convert_rows`] reports.
    ///
    /// # Errors
    /// It isn't the file with this `key` any more, or can't be opened.
    pub fn eh_frame_hdr_rows(
        &self,
        key: &FileKey,
        path: &Path,
        open: impl FnOnce() -> Result<File, OpenError>,
    ) -> Result<Option<EhFrameHdrRows>, LoadError> {
        self.load(key, "unwind rows", path, open, |file| Ok(EhFrameHdrRows::load(file).ok().flatten()))
    }
}
