//! One debug file from the first server that has it.

use std::fs::File;
use std::io::{self, Read, Write};
use std::sync::Arc;

use ureq::Agent;
use url::Url;

use super::DebuginfodOptions;
use crate::cache_directory::CacheDirectory;
use crate::native::byte_source::RegularFile;
use crate::native::debug_files::fetched_name;
use crate::native::elf::{ElfError, ElfFile};
use crate::native::http_client;
use crate::types::BuildId;

/// Error of fetching a debug file; a later attempt may succeed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FetchError {
    #[error("requesting {url}: {source}")]
    Request { url: Arc<str>, source: Box<ureq::Error> },
    #[error("fetching {url}: it has {size} bytes, more than the limit of {limit}")]
    TooLarge { url: Arc<str>, size: u64, limit: u64 },
    #[error("storing {url}: {source}")]
    Store { url: Arc<str>, source: io::Error },
    #[error("checking the file from {url}: {source}")]
    Elf { url: Arc<str>, source: ElfError },
    #[error("checking the file from {url}: it has another build id")]
    OtherBuild { url: Arc<str> },
}

#[derive(Debug)]
pub(super) struct Fetcher {
    urls: Vec<Url>,
    agent: Agent,
    directory: CacheDirectory,
}

impl Fetcher {
    pub(super) fn new(options: DebuginfodOptions, directory: CacheDirectory) -> Self {
        let agent = http_client::agent(options.timeout, options.stall_timeout);
        Self { urls: options.urls, agent, directory }
    }

    /// Fetches a file and returns its size; `None` if no server has it.
    ///
    /// # Errors
    /// The last server's error, if none has the file and some failed.
    pub(super) fn fetch(&self, id: BuildId) -> Result<Option<u64>, FetchError> {
        let mut failure = None;
        for server in &self.urls {
            match self.fetch_from(server, id) {
                Ok(None) => {}
                Ok(Some(bytes)) => return Ok(Some(bytes)),
                Err(error) => failure = Some(error),
            }
        }
        failure.map_or(Ok(None), Err)
    }

    fn fetch_from(&self, server: &Url, id: BuildId) -> Result<Option<u64>, FetchError> {
        let mut url = server.clone();
        if let Ok(mut path) = url.path_segments_mut() {
            path.pop_if_empty().extend(["buildid", &id.to_string(), "debuginfo"]);
        }
        let shown = shown(&url);
        let failed = |source| FetchError::Request { url: Arc::clone(&shown), source: Box::new(source) };
        let response = match self.agent.get(url.as_str()).call() {
            Ok(response) => response,
            Err(ureq::Error::StatusCode(404)) => return Ok(None),
            Err(source) => return Err(failed(source)),
        };
        let limit = self.directory.limit_of_one();
        let too_large = |size| FetchError::TooLarge { url: Arc::clone(&shown), size, limit };
        let mut body = response.into_body();
        if let Some(size) = body.content_length().filter(|size| *size > limit) {
            return Err(too_large(size));
        }
        let store = |source| FetchError::Store { url: Arc::clone(&shown), source };
        let mut part = self.directory.begin().map_err(store)?;
        let size = copy(&mut body.with_config().limit(limit + 1).reader(), part.as_file_mut(), limit)
            .map_err(store)?;
        if size > limit {
            return Err(too_large(size));
        }
        check(part.as_file(), id, &shown)?;
        self.directory.persist(part, &fetched_name(id)).map_err(store)?;
        Ok(Some(size))
    }
}

/// Formats the URL for messages, without a password that it may have.
fn shown(url: &Url) -> Arc<str> {
    let mut shown = url.clone();
    // Only URLs without a host can't have one.
    let _ = shown.set_password(None);
    shown.as_str().into()
}

/// Copies up to `limit` bytes and one more, which shows that there are too many.
fn copy(body: &mut impl Read, file: &mut File, limit: u64) -> io::Result<u64> {
    let size = io::copy(&mut body.take(limit.saturating_add(1)), file)?;
    file.flush()?;
    Ok(size)
}

fn check(file: &File, id: BuildId, shown: &Arc<str>) -> Result<(), FetchError> {
    let source =
        RegularFile::new(file).map_err(|source| FetchError::Store { url: Arc::clone(shown), source })?;
    let parsed =
        ElfFile::parse(source).map_err(|source| FetchError::Elf { url: Arc::clone(shown), source })?;
    match parsed.build_id() == Some(id) {
        true => Ok(()),
        false => Err(FetchError::OtherBuild { url: Arc::clone(shown) }),
    }
}
