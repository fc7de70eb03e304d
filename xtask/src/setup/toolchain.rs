//! The Rust toolchain and the sources of `core` that the kernel programs are built with.
//!
//! The object is the same byte for byte only with exactly one rustc, so this task looks for that
//! one. There is no `rust-toolchain.toml`: everything else builds with any stable Rust from the
//! workspace's `rust-version` on, and a pin would force a download on everyone, and fail where
//! rustup's server isn't reached although a stable of the very same version is installed.

use std::env;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, bail};

use crate::files;
use crate::paths;
use crate::run::{run, stdout_text};

/// Version of rustc (LLVM 22.1) that the committed object is built with.
pub(crate) const RUSTC: &str = "1.95.0";

/// Environment variable with the sources of `core`: a folder `library/` of rustc's own, or a
/// `.tar.xz` of it.
pub(crate) const RUST_SRC: &str = "JVMPROF_RUST_SRC";

/// cargo and rustc of version [`RUSTC`].
#[derive(Debug)]
pub(crate) struct Toolchain {
    /// The value of `RUSTUP_TOOLCHAIN` that selects it, or `None` if plain `cargo` and `rustc` are
    /// it.
    rustup_name: Option<&'static str>,
}

impl Toolchain {
    /// Returns the active toolchain if its version is right, else rustup's one of that version,
    /// which is installed if need be.
    ///
    /// # Errors
    /// No rustc of that version is here and rustup can't install it.
    pub(crate) fn find() -> anyhow::Result<Self> {
        let active = Self { rustup_name: None };
        let found = active.version();
        if found.as_deref().is_ok_and(|version| version == RUSTC) {
            return Ok(active);
        }
        let pinned = Self { rustup_name: Some(RUSTC) };
        if pinned.version().is_ok_and(|version| version == RUSTC) {
            return Ok(pinned);
        }
        run(Command::new("rustup").args(["toolchain", "install", RUSTC, "--profile", "minimal"]))
            .with_context(|| {
                let found = found.unwrap_or_else(|_| "none".to_owned());
                format!("the kernel programs need rustc {RUSTC} exactly, the active one is {found}")
            })?;
        Ok(pinned)
    }

    /// Returns a command of this toolchain: `cargo` or `rustc`.
    pub(crate) fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        if let Some(name) = self.rustup_name {
            command.env("RUSTUP_TOOLCHAIN", name);
        }
        // `cargo xtask` hands its own toolchain's paths down.
        for inherited in ["CARGO", "RUSTC", "RUSTDOC", "RUSTFLAGS", "CARGO_ENCODED_RUSTFLAGS"] {
            command.env_remove(inherited);
        }
        command
    }

    fn version(&self) -> anyhow::Result<String> {
        let line = stdout_text(self.command("rustc").arg("--version"))?;
        let version = line.split_whitespace().nth(1).map(str::to_owned);
        version.with_context(|| format!("finding the version in `{line}`"))
    }

    /// Returns the folder `library/` with the sources of `core`, without symbolic links in its
    /// path: the toolchain's own, else `$JVMPROF_RUST_SRC`, else the one that rustup installs.
    ///
    /// # Errors
    /// `$JVMPROF_RUST_SRC` doesn't hold them, or they are nowhere and rustup can't install them.
    pub(crate) fn core_sources(&self) -> anyhow::Result<PathBuf> {
        let found = self.find_library()?;
        // With a link in it, rustc would see two names of the same file: its own and the working
        // directory's.
        fs::canonicalize(&found).with_context(|| format!("resolving {}", found.display()))
    }

    fn find_library(&self) -> anyhow::Result<PathBuf> {
        let sysroot = PathBuf::from(stdout_text(self.command("rustc").args(["--print", "sysroot"]))?);
        let own = sysroot.join("lib/rustlib/src/rust/library");
        if is_library(&own) {
            return Ok(own);
        }
        if let Some(given) = env::var_os(RUST_SRC).filter(|given| !given.is_empty()) {
            return given_library(Path::new(&given)).with_context(|| format!("using ${RUST_SRC}"));
        }
        let mut add = Command::new("rustup");
        add.args(["component", "add", "rust-src", "--toolchain"]);
        add.arg(self.rustup_name.map_or(sysroot.file_name().unwrap_or_default(), OsStr::new));
        match run(&mut add) {
            Ok(()) if is_library(&own) => Ok(own),
            Ok(()) => bail!("rustup added rust-src, but {} has no core/Cargo.toml", own.display()),
            Err(error) => Err(error.context(format!(
                "no sources of `core` for rustc {RUSTC}: not in {}, ${RUST_SRC} isn't set, and rustup can't \
                 install them. Set ${RUST_SRC} to a folder `library/` of exactly this version (Debian's package \
                 rust-src has one in usr/src/rustc-{RUSTC}/library) or to a .tar.xz of it",
                own.display()
            ))),
        }
    }
}

fn is_library(folder: &Path) -> bool {
    folder.join("core/Cargo.toml").is_file()
}

/// Returns the sources that the environment names; an archive is unpacked below the target folder.
fn given_library(given: &Path) -> anyhow::Result<PathBuf> {
    if given.is_dir() {
        let folder = [given.to_owned(), given.join("library")].into_iter().find(|dir| is_library(dir));
        return folder.with_context(|| format!("no core/Cargo.toml in {}", given.display()));
    }
    if !given.is_file() {
        bail!("{} is neither a folder nor a file", given.display());
    }
    let archive = given.metadata().with_context(|| format!("reading {}", given.display()))?;
    // Another archive is another folder: what an earlier one held is never mixed in.
    let unpacked = paths::target().join(format!("rust-src-{RUSTC}-{}", archive.len()));
    let library = unpacked.join("library");
    if !is_library(&library) {
        let partial = unpacked.with_extension("partial");
        files::remove_folder(&partial)?;
        files::create_folder(&partial)?;
        run(Command::new("tar").arg("-xJf").arg(given).arg("-C").arg(&partial))
            .context("unpacking needs tar and xz (Debian: xz-utils)")?;
        if !is_library(&partial.join("library")) {
            bail!("{} doesn't hold library/core/Cargo.toml", given.display());
        }
        fs::rename(&partial, &unpacked)
            .with_context(|| format!("renaming {} to {}", partial.display(), unpacked.display()))?;
    }
    Ok(library)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_without_core_is_refused_by_name() {
        let error = given_library(&paths::workspace().join("xtask")).unwrap_err();
        assert!(error.to_string().contains("no core/Cargo.toml"), "{error}");
        let error = given_library(Path::new("/nonexistent/library.tar.xz")).unwrap_err();
        assert!(error.to_string().contains("/nonexistent/library.tar.xz is neither"), "{error}");
    }
}
