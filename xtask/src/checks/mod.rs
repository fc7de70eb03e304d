//! Checks of the sources and documents as a whole, which run as tests of xtask.

mod documents;
mod granted_capabilities;
mod import_graph;
mod rust_source;
mod structure;
mod systemd_units;
mod type_names;
mod width;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context as _;

/// Returns the files below a folder with one of these endings, sorted; build folders are left out.
fn files(folder: &Path, endings: &[&str]) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).into_iter().flatten().filter_map(Result::ok) {
            let (path, name) = (entry.path(), entry.file_name().to_string_lossy().into_owned());
            if path.is_dir() {
                if !["target", "node_modules", ".git"].contains(&name.as_str()) {
                    folders.push(path);
                }
            } else if endings.iter().any(|ending| name.ends_with(ending)) {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

/// Returns a file's path below the checkout's root.
fn relative(file: &Path, workspace: &Path) -> anyhow::Result<String> {
    let path = file.strip_prefix(workspace);
    Ok(path.with_context(|| format!("{} is outside of the checkout", file.display()))?.display().to_string())
}
