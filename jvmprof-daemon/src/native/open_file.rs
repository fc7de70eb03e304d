//! Safe opening of other processes' files: it never blocks on a FIFO, never touches a device, and
//! never leaves the root of the container that the path belongs to.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use nix::fcntl::{OFlag, OpenHow, ResolveFlag, open, openat2};
use nix::sys::stat::Mode;

/// Error of opening a file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    #[error("opening {path}: {source}")]
    Open { path: PathBuf, source: io::Error },
    #[error("opening {path}: it isn't a regular file")]
    NotRegular { path: PathBuf },
    #[error(
        "opening {path}: it belongs to uid {found}, not to uid {expected} of the process that should have written it"
    )]
    ForeignOwner { path: PathBuf, found: u32, expected: u32 },
}

impl OpenError {
    /// Returns true if there is no such file.
    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::Open { source, .. } if source.kind() == io::ErrorKind::NotFound)
    }

    /// Returns the kind of error, as a short word for counters.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Open { .. } => "open",
            Self::NotRegular { .. } => "not_regular",
            Self::ForeignOwner { .. } => "foreign_owner",
        }
    }
}

/// Opens `path` for reading if it is a regular file. Symbolic links are followed, so that
/// `/proc/PID/map_files/…` and `/proc/PID/exe` work.
///
/// # Errors
/// [`OpenError::NotRegular`] without ever having opened what is there, [`OpenError::Open`] else.
pub fn open_regular(path: &Path) -> Result<File, OpenError> {
    find_regular(path)?.open()
}

/// A regular file that isn't open for reading yet.
#[derive(Debug)]
pub struct UnopenedFile {
    handle: File,
    path: PathBuf,
}

impl UnopenedFile {
    /// Wraps a regular file that was opened before. `path` is for messages.
    pub fn of(handle: File, path: PathBuf) -> Self {
        Self { handle, path }
    }

    /// Opens it for reading.
    ///
    /// # Errors
    /// [`OpenError::Open`].
    pub fn open(&self) -> Result<File, OpenError> {
        // The descriptor's own link leads to the very file that was checked, whatever the path
        // leads to by now.
        let link = format!("/proc/self/fd/{}", self.handle.as_raw_fd());
        let flags = OFlag::O_RDONLY | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
        let file = open(link.as_str(), flags, Mode::empty());
        file.map(File::from).map_err(|errno| failed(&self.path, errno.into()))
    }

    /// Returns a handle for metadata only.
    pub fn handle(&self) -> &File {
        &self.handle
    }
}

/// Finds the file of [`open_regular`] without opening it.
///
/// # Errors
/// Those of [`open_regular`].
pub fn find_regular(path: &Path) -> Result<UnopenedFile, OpenError> {
    // O_PATH opens nothing: no FIFO waits, no device is started.
    let handle = open(path, OFlag::O_PATH | OFlag::O_CLOEXEC, Mode::empty());
    found(handle.map_err(|errno| failed(path, errno.into()))?, path)
}

/// Opens `relative` below the directory `root` (a process's `/proc/PID/root`) if it is a regular
/// file.
///
/// Absolute links and `..` inside are resolved as the process itself would (`RESOLVE_IN_ROOT`,
/// Linux 5.6), so none leads out of a container; the last component may not be a link.
///
/// # Errors
/// Those of [`open_regular`].
pub fn open_in_root(root: &Path, relative: &Path) -> Result<File, OpenError> {
    find_in_root(root, relative)?.open()
}

/// Finds the file of [`open_in_root`] without opening it.
///
/// # Errors
/// Those of [`open_regular`].
pub fn find_in_root(root: &Path, relative: &Path) -> Result<UnopenedFile, OpenError> {
    find_in(root, relative, OFlag::O_NOFOLLOW)
}

/// Opens the directory `relative` below the directory `root`, as the process whose root that is
/// would find it: each link is followed, and none leads out. The handle names the directory and
/// reads nothing (`O_PATH`).
///
/// # Errors
/// [`OpenError::Open`].
pub fn open_folder_in_root(root: &Path, relative: &Path) -> Result<OwnedFd, OpenError> {
    resolve(root, relative, OFlag::O_DIRECTORY)
}

/// Opens the file of [`open_in_root`]; the last component may be a link, too, to a file below
/// `root`: debug files by build id are links on some distributions.
///
/// # Errors
/// Those of [`open_regular`].
pub fn open_in_root_following(root: &Path, relative: &Path) -> Result<File, OpenError> {
    find_in(root, relative, OFlag::empty())?.open()
}

fn find_in(root: &Path, relative: &Path, more: OFlag) -> Result<UnopenedFile, OpenError> {
    let shown = root.join(relative.strip_prefix("/").unwrap_or(relative));
    found(resolve(root, relative, more)?, &shown)
}

fn resolve(root: &Path, relative: &Path, more: OFlag) -> Result<OwnedFd, OpenError> {
    let flags = OFlag::O_PATH | OFlag::O_CLOEXEC | OFlag::O_DIRECTORY;
    let root_folder = open(root, flags, Mode::empty()).map_err(|errno| failed(root, errno.into()))?;
    let how = OpenHow::new()
        .flags(OFlag::O_PATH | OFlag::O_CLOEXEC | more)
        .resolve(ResolveFlag::RESOLVE_IN_ROOT | ResolveFlag::RESOLVE_NO_MAGICLINKS);
    openat2(root_folder.as_fd(), relative, how)
        .map_err(|errno| failed(&root.join(relative.strip_prefix("/").unwrap_or(relative)), errno.into()))
}

/// Opens the file of [`open_in_root`] if it belongs to `owner` (a uid as this process sees it) or
/// to root.
///
/// # Errors
/// Those of [`open_regular`], and [`OpenError::ForeignOwner`].
pub fn open_in_root_owned(root: &Path, relative: &Path, owner: u32) -> Result<File, OpenError> {
    let file = open_in_root(root, relative)?;
    let path = || root.join(relative.strip_prefix("/").unwrap_or(relative));
    let found = file.metadata().map_err(|source| failed(&path(), source))?.uid();
    if found != owner && found != 0 {
        return Err(OpenError::ForeignOwner { path: path(), found, expected: owner });
    }
    Ok(file)
}

fn found(handle: OwnedFd, path: &Path) -> Result<UnopenedFile, OpenError> {
    let handle = File::from(handle);
    let metadata = handle.metadata().map_err(|source| failed(path, source))?;
    match metadata.is_file() {
        true => Ok(UnopenedFile { handle, path: path.into() }),
        false => Err(OpenError::NotRegular { path: path.into() }),
    }
}

fn failed(path: &Path, source: io::Error) -> OpenError {
    OpenError::Open { path: path.into(), source }
}
