//! Tools from crates.io that tasks call, each at one version.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::paths;
use crate::run::{run, stdout_text};

/// A binary crate whose binary has the crate's name.
#[derive(Debug)]
pub(crate) struct BinaryCrate {
    pub(crate) name: &'static str,
    pub(crate) version: &'static str,
}

/// Linker of the LLVM bitcode of several crates to one BPF object with BTF. 0.10.4 is the last
/// version that uses rustc's own libLLVM for LLVM 22, so that no other LLVM is needed.
pub(crate) const BPF_LINKER: BinaryCrate = BinaryCrate { name: "bpf-linker", version: "0.10.4" };

/// Checker of licences, bans, sources and advisories of everything in the lock files.
pub(crate) const CARGO_DENY: BinaryCrate = BinaryCrate { name: "cargo-deny", version: "0.20.2" };

/// Builder of the Debian package.
pub(crate) const CARGO_DEB: BinaryCrate = BinaryCrate { name: "cargo-deb", version: "3.8.0" };

/// Builder of the RPM package.
pub(crate) const CARGO_GENERATE_RPM: BinaryCrate =
    BinaryCrate { name: "cargo-generate-rpm", version: "0.21.1" };

impl BinaryCrate {
    /// Returns the tool's path: on `PATH` if the version there is right, else installed below the
    /// target folder.
    ///
    /// # Errors
    /// `cargo install` fails.
    pub(crate) fn ensure(&self) -> anyhow::Result<PathBuf> {
        let installed = paths::tools().join("bin").join(self.name);
        let candidates = [PathBuf::from(self.name), installed.clone()];
        if let Some(found) = candidates.into_iter().find(|path| self.is_version_of(path)) {
            return Ok(found);
        }
        let package = format!("{}@{}", self.name, self.version);
        let mut install = Command::new("cargo");
        install.args(["install", "--locked", "--force", &package, "--root"]).arg(paths::tools());
        install.arg("--target-dir").arg(paths::target().join("tools-build"));
        // A tool runs for seconds: a quick build saves more than a quick tool.
        install.args(["--profile", "dev"]).env("CARGO_PROFILE_DEV_DEBUG", "false");
        install.env("CARGO_PROFILE_DEV_DEBUG_ASSERTIONS", "false");
        // The tools are built for this machine, whatever the kernel programs are built with.
        for inherited in ["RUSTFLAGS", "CARGO_ENCODED_RUSTFLAGS", "RUSTC_BOOTSTRAP"] {
            install.env_remove(inherited);
        }
        run(&mut install)?;
        Ok(installed)
    }

    fn is_version_of(&self, path: &Path) -> bool {
        let version = stdout_text(Command::new(path).arg("--version"));
        version.is_ok_and(|line| line.split_whitespace().any(|word| word == self.version))
    }
}
