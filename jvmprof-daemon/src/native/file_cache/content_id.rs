//! Identities of files' contents, of this run or an earlier one.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{FileCache, LoadError};
use crate::native::byte_source::RegularFile;
use crate::native::elf::ElfFile;
use crate::native::file_identity::{ContentId, ContentIdsOnDisk, FileStat};

/// Time of hashing a file from which on the hash is kept on disk.
const KEPT_FROM: Duration = Duration::from_millis(1);

impl FileCache {
    /// Sets the folder of hashes that an earlier run has made.
    #[must_use]
    pub fn with_content_ids(mut self, on_disk: Option<Arc<ContentIdsOnDisk>>) -> Self {
        self.content_ids = on_disk;
        self
    }

    /// Returns the identity of a file's contents. `check` fails if the file isn't as it was
    /// `before` any more.
    pub(super) fn content_id(
        &self,
        source: RegularFile<'_>,
        before: FileStat,
        check: impl FnOnce() -> Result<(), LoadError>,
    ) -> Result<ContentId, LoadError> {
        let on_disk = self.content_ids.as_deref();
        if let Some(stored) = on_disk.and_then(|on_disk| on_disk.get(before, self.with_lines)) {
            check()?;
            return Ok(stored);
        }
        let began = Instant::now();
        let content = match ElfFile::parse(source) {
            Ok(parsed) => ContentId::of(&parsed, before, self.with_lines),
            // Without sections that can be read there still are headers.
            Err(_) => ContentId::File(before.identity),
        };
        check()?;
        if let Some(on_disk) = on_disk.filter(|_| began.elapsed() >= KEPT_FROM) {
            on_disk.store(before, self.with_lines, content);
        }
        Ok(content)
    }
}
