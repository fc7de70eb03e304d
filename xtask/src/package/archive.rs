//! The archive of the static program, for hosts without a package manager that we have a package
//! for, and its checksum.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context as _;

use crate::files;
use crate::paths;
use crate::run::{output, run};

/// What is in the archive, beside the program, and where that is in the sources.
const FILES: [(&str, &str); 6] = [
    ("LICENSE", "LICENSE"),
    ("README.md", "README.md"),
    ("jvmprof.toml", "deploy/jvmprof.toml"),
    ("jvmprof.service", "deploy/jvmprof.service"),
    ("jvmprof-collector.service", "deploy/jvmprof-collector.service"),
    ("60-jvmprof.conf", "deploy/debian/60-jvmprof.conf"),
];

/// Builds the archive and `SHA256SUMS` beside it. Its bytes depend on those of its files alone.
pub(super) fn build(folder: &Path, program: &Path) -> anyhow::Result<PathBuf> {
    let name = format!("jvmprof-{}-x86_64-linux", env!("CARGO_PKG_VERSION"));
    let root = folder.join(&name);
    files::remove_folder(&root)?;
    files::create_folder(&root)?;
    let copy = |to: &str, from: &Path| {
        std::fs::copy(from, root.join(to)).with_context(|| format!("copying {}", from.display()))
    };
    copy("jvmprof", program)?;
    for (to, from) in FILES {
        copy(to, &paths::workspace().join(from))?;
    }
    let archive = folder.join(format!("{name}.tar.gz"));
    // Without a time in gzip's header.
    let mut tar = Command::new("tar");
    tar.args([
        "--create",
        "--use-compress-program=gzip -n",
        "--sort=name",
        "--mtime=@0",
        "--owner=0",
        "--group=0",
        "--numeric-owner",
    ]);
    tar.arg("--file").arg(&archive).arg(&name);
    run(tar.current_dir(folder))?;
    let file_name = format!("{name}.tar.gz");
    let sum = output(Command::new("sha256sum").arg(&file_name).current_dir(folder))?;
    files::write(&folder.join("SHA256SUMS"), sum)?;
    run(Command::new("sha256sum").args(["--check", "SHA256SUMS"]).current_dir(folder))?;
    Ok(archive)
}
