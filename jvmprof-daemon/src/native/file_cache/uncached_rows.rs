//! Unwind rows that aren't kept here.

use std::fs::File;
use std::path::Path;

use super::{FileCache, LoadError};
use crate::native::file_identity::FileKey;
use crate::native::open_file::OpenError;
use crate::native::unwind_rows::{EhFrameHdrRows, UnwindRows};

impl FileCache {
    /// Hands the unwind rows of the file known as `key` to `convert`, and gives what it makes of
    /// them. They aren't kept, however large they are, and large parts of them stay in the file.
    ///
    /// # Errors
    /// As [`Self::symbols`], but none is remembered.
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

    /// Those that can be looked up at once, before [`Self::convert_rows`] is done; `None` if the
    /// file has no table for that, or it can't be read: whoever reads all of them says why.
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
