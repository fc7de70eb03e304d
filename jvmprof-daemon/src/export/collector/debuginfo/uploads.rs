//! Uploads that were announced and aren't complete yet.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Write as _};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rand::RngExt as _;
use tempfile::NamedTempFile;
use tonic::Status;

use crate::native::byte_source::RegularFile;
use crate::native::debug_files::DebugFileLocator;
use crate::native::debug_files::directory::DebugDirectory;
use crate::native::dwarf_lines::LineTable;
use crate::native::elf::{ElfError, ElfFile};
use crate::types::BuildId;

/// Uploads at a time.
const MAX_UPLOADS: usize = 64;
/// How long one may take; then its build id may be uploaded by someone else. As Parca has it.
const MAX_DURATION: Duration = Duration::from_secs(15 * 60);

/// DWARF that is checked, in bytes. What is larger has no lines.
const MAX_DWARF: u64 = 256 << 20;

/// Why a step of an upload isn't accepted. The codes are Parca's, where it has the case.
#[derive(Debug, thiserror::Error)]
pub(super) enum UploadRefusal {
    #[error("{0:?} is no build id: pairs of hexadecimal digits are")]
    BuildId(String),
    #[error("only debug files are kept here, no executables, sources or source maps")]
    Kind,
    #[error("hash must be set")]
    Hash,
    #[error("size must be set, and be {limit} bytes at most")]
    Size { limit: u64 },
    #[error("upload should not have been attempted to be initiated: {0}")]
    NotWanted(&'static str),
    #[error("too many uploads at a time")]
    TooMany,
    #[error("no such upload was announced, or it took too long")]
    Unknown,
    #[error("the first message of an upload must be its info, all others data")]
    Order,
    #[error("{received} bytes were sent of {announced} that were announced")]
    Length { received: u64, announced: u64 },
    #[error("not a debug file: {0}")]
    Elf(#[from] ElfError),
    #[error("the file has another build id")]
    OtherBuild,
    #[error("storing a debug file: {0}")]
    Io(#[from] io::Error),
}

impl From<UploadRefusal> for Status {
    fn from(refusal: UploadRefusal) -> Self {
        let text = refusal.to_string();
        match refusal {
            UploadRefusal::NotWanted(_) | UploadRefusal::Unknown => Self::failed_precondition(text),
            UploadRefusal::TooMany => Self::resource_exhausted(text),
            UploadRefusal::Io(_) => Self::internal(text),
            _ => Self::invalid_argument(text),
        }
    }
}

/// Whether a file is wanted, and why (not).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Wish {
    pub(super) is_wanted: bool,
    pub(super) reason: &'static str,
}

#[derive(Debug)]
pub(super) struct Uploads {
    directory: Arc<DebugDirectory>,
    /// By upload id.
    open: Mutex<HashMap<String, Upload>>,
    /// Held while DWARF is checked, which takes memory.
    checking: Mutex<()>,
}

#[derive(Debug)]
struct Upload {
    build_id: BuildId,
    size: u64,
    began: Instant,
    state: State,
}

#[derive(Debug)]
enum State {
    Announced,
    Receiving,
    Received(NamedTempFile),
}

/// A file that is being received.
#[derive(Debug)]
pub(super) struct Receiving {
    part: NamedTempFile,
    size: u64,
    received: u64,
}

impl Uploads {
    pub(super) fn new(directory: Arc<DebugDirectory>) -> Self {
        Self { directory, open: Mutex::default(), checking: Mutex::default() }
    }

    /// The open uploads, without those that took too long.
    fn lock(&self) -> MutexGuard<'_, HashMap<String, Upload>> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.retain(|_, upload| upload.began.elapsed() < MAX_DURATION);
        open
    }

    pub(super) fn wish(&self, id: BuildId) -> Wish {
        if self.directory.file_of(id).exists() {
            return Wish { is_wanted: false, reason: "there is a debug file for this build id already" };
        }
        if self.lock().values().any(|upload| upload.build_id == id) {
            return Wish { is_wanted: false, reason: "a debug file for this build id is on its way" };
        }
        Wish { is_wanted: true, reason: "there is no debug file for this build id" }
    }

    /// Gives the upload's id.
    pub(super) fn begin(&self, id: BuildId, size: i64, hash: &str) -> Result<String, UploadRefusal> {
        if hash.is_empty() {
            return Err(UploadRefusal::Hash);
        }
        let limit = self.directory.limit_of_one();
        let size = u64::try_from(size).ok().filter(|size| (1..=limit).contains(size));
        let size = size.ok_or(UploadRefusal::Size { limit })?;
        let wish = self.wish(id);
        if !wish.is_wanted {
            return Err(UploadRefusal::NotWanted(wish.reason));
        }
        let mut open = self.lock();
        // What is on its way needs room beside what is there.
        let announced = open.values().fold(size, |sum, upload| sum.saturating_add(upload.size));
        if open.len() >= MAX_UPLOADS || announced > limit {
            return Err(UploadRefusal::TooMany);
        }
        let upload_id = format!("{:032x}", rand::rng().random::<u128>());
        let upload = Upload { build_id: id, size, began: Instant::now(), state: State::Announced };
        open.insert(upload_id.clone(), upload);
        Ok(upload_id)
    }

    pub(super) fn receive(&self, id: BuildId, upload_id: &str) -> Result<Receiving, UploadRefusal> {
        let mut open = self.lock();
        let upload = open.get_mut(upload_id).filter(|upload| upload.build_id == id);
        let upload = upload.ok_or(UploadRefusal::Unknown)?;
        // Once only: two streams for one upload can't both be right.
        if !matches!(upload.state, State::Announced) {
            return Err(UploadRefusal::Unknown);
        }
        let part = self.directory.begin()?;
        upload.state = State::Receiving;
        Ok(Receiving { part, size: upload.size, received: 0 })
    }

    /// Gives the bytes that arrived. Without this call an upload that broke off can be announced
    /// again once it is stale.
    pub(super) fn received(&self, upload_id: &str, done: Receiving) -> Result<u64, UploadRefusal> {
        let Receiving { part, size: announced, received } = done;
        if received != announced {
            self.lock().remove(upload_id);
            return Err(UploadRefusal::Length { received, announced });
        }
        match self.lock().get_mut(upload_id) {
            Some(upload) => {
                upload.state = State::Received(part);
                Ok(received)
            }
            None => Err(UploadRefusal::Unknown),
        }
    }

    /// Forgets an upload, so that it can be announced again.
    pub(super) fn abandon(&self, upload_id: &str) {
        self.lock().remove(upload_id);
    }

    /// Checks what arrived, and keeps it. Blocking.
    pub(super) fn finish(&self, id: BuildId, upload_id: &str) -> Result<(), UploadRefusal> {
        let upload = {
            let mut open = self.lock();
            let is_it = open
                .get(upload_id)
                .is_some_and(|upload| upload.build_id == id && matches!(upload.state, State::Received(_)));
            is_it.then(|| open.remove(upload_id)).flatten()
        };
        let Some(Upload { state: State::Received(part), .. }) = upload else {
            return Err(UploadRefusal::Unknown);
        };
        {
            let _checking = self.checking.lock().unwrap_or_else(PoisonError::into_inner);
            check(part.as_file(), id)?;
        }
        self.directory.keep(part, id)?;
        Ok(())
    }
}

fn check(file: &File, id: BuildId) -> Result<(), UploadRefusal> {
    let parsed = ElfFile::parse(RegularFile::new(file)?)?;
    if parsed.build_id() != Some(id) {
        return Err(UploadRefusal::OtherBuild);
    }
    match LineTable::load(&parsed, Path::new("/"), &DebugFileLocator::default(), MAX_DWARF) {
        Err(error @ ElfError::TooDeep { .. }) => Err(error.into()),
        // Without lines there still are names.
        _ => Ok(()),
    }
}

impl Receiving {
    pub(super) fn write(&mut self, bytes: &[u8]) -> Result<(), UploadRefusal> {
        self.received = self.received.saturating_add(bytes.len() as u64);
        if self.received > self.size {
            return Err(UploadRefusal::Length { received: self.received, announced: self.size });
        }
        Ok(self.part.write_all(bytes)?)
    }
}
