//! Folders and files of the tasks, with errors that say which one.

use std::fs;
use std::path::Path;

use anyhow::Context as _;

/// Creates a folder and those that it is in, unless they are there.
pub(crate) fn create_folder(folder: &Path) -> anyhow::Result<()> {
    fs::create_dir_all(folder).with_context(|| format!("creating {}", folder.display()))
}

/// Removes a folder with all that is in it, if it is there.
pub(crate) fn remove_folder(folder: &Path) -> anyhow::Result<()> {
    if folder.exists() {
        fs::remove_dir_all(folder).with_context(|| format!("removing {}", folder.display()))?;
    }
    Ok(())
}

pub(crate) fn read_text(file: &Path) -> anyhow::Result<String> {
    fs::read_to_string(file).with_context(|| format!("reading {}", file.display()))
}

pub(crate) fn write(file: &Path, contents: impl AsRef<[u8]>) -> anyhow::Result<()> {
    fs::write(file, contents).with_context(|| format!("writing {}", file.display()))
}
