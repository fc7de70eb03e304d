//! Lookup of single rows of files that the loader is still reading, so that a stack that needs a
//! few of them needn't wait for all.

use std::collections::HashMap;
use std::fs::File;
use std::path::Path;

use jvmprof_common::rows::Row;

use crate::native::file_cache::FileCache;
use crate::native::file_identity::FileKey;
use crate::native::open_file::OpenError;
use crate::native::unwind_rows::EhFrameHdrRows;
use crate::types::Svma;

/// Bytes of memory for the frame information of all files together. That of a JVM's own library has
/// 2 to 5 MB.
const MAX_BYTES: usize = 24 << 20;

/// Files that are being read.
#[derive(Debug, Default)]
pub(in crate::symbolize) struct SingleRowLookup {
    /// Frame information of each file; `None`: it has no table for lookups, or the memory limit is
    /// reached.
    files: HashMap<FileKey, Option<EhFrameHdrRows>>,
    bytes: usize,
}

impl SingleRowLookup {
    /// Returns the row for an address of a file. `open` opens the file.
    pub(in crate::symbolize) fn row(
        &mut self,
        files: &FileCache,
        key: FileKey,
        path: &Path,
        open: impl FnOnce() -> Result<File, OpenError>,
        at: Svma,
    ) -> Option<Row> {
        if !self.files.contains_key(&key) {
            let found = files.eh_frame_hdr_rows(&key, path, open).ok().flatten();
            let found = found.filter(|found| self.bytes + found.size_bytes() <= MAX_BYTES);
            self.bytes += found.as_ref().map_or(0, EhFrameHdrRows::size_bytes);
            self.files.insert(key, found);
        }
        self.files.get(&key)?.as_ref()?.row(at)
    }

    /// Drops a file: its rows have arrived, or won't.
    pub(in crate::symbolize) fn remove(&mut self, key: &FileKey) {
        let found = self.files.remove(key).flatten();
        self.bytes -= found.map_or(0, |found| found.size_bytes());
    }
}
