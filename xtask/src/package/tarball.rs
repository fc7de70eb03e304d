//! The tarball of the static program, for hosts without a package manager that we have a package
//! for, and its checksum.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context as _;

use crate::files;
use crate::paths;
use crate::run::{run, stdout_text};

/// The files in the archive beside the program, and where that is in the sources.
const FILES: [(&str, &str); 6] = [
    ("LICENSE", "LICENSE"),
    ("README.md", "README.md"),
    ("jvmprof.toml", "deploy/jvmprof.toml"),
    ("jvmprof.service", "deploy/jvmprof.service"),
    ("jvmprof-collector.service", "deploy/jvmprof-collector.service"),
    ("60-jvmprof.conf", "deploy/debian/60-jvmprof.conf"),
];

/// The shells' completions by the names that their shells look for, and as [`super::generate`]
/// names them.
const COMPLETIONS: [(&str, &str); 3] = [("jvmprof", "bash"), ("_jvmprof", "zsh"), ("jvmprof.fish", "fish")];

/// Builds the archive and `SHA256SUMS` beside it, of the program and what it has generated. Its
/// bytes depend on those of its files alone.
pub(super) fn build(folder: &Path, program: &Path, generated: &Path) -> anyhow::Result<PathBuf> {
    let name = format!("jvmprof-{}-x86_64-linux", env!("CARGO_PKG_VERSION"));
    copy_contents(&folder.join(&name), program, generated)?;
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
    let sum = stdout_text(Command::new("sha256sum").arg(&file_name).current_dir(folder))?;
    files::write(&folder.join("SHA256SUMS"), sum)?;
    run(Command::new("sha256sum").args(["--check", "SHA256SUMS"]).current_dir(folder))?;
    Ok(archive)
}

/// Copies what is in the archive to an empty folder.
fn copy_contents(root: &Path, program: &Path, generated: &Path) -> anyhow::Result<()> {
    files::remove_folder(root)?;
    let (pages, completions) = (root.join("man"), root.join("completions"));
    for folder in [root, &pages, &completions] {
        files::create_folder(folder)?;
    }
    copy(program, &root.join("jvmprof"))?;
    for (to, from) in FILES {
        copy(&paths::workspace().join(from), &root.join(to))?;
    }
    for (to, from) in COMPLETIONS {
        copy(&generated.join(from), &completions.join(to))?;
    }
    let written = generated.join("man");
    let context = || format!("listing {}", written.display());
    for page in fs::read_dir(&written).with_context(context)? {
        let page = page.with_context(context)?;
        copy(&page.path(), &pages.join(page.file_name()))?;
    }
    Ok(())
}

fn copy(from: &Path, to: &Path) -> anyhow::Result<()> {
    fs::copy(from, to).with_context(|| format!("copying {}", from.display()))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_archive_has_what_the_packages_install_and_the_same_bytes_each_time() {
        let folder = tempfile::tempdir().unwrap();
        let (generated, program) = (folder.path().join("generated"), folder.path().join("program"));
        files::create_folder(&generated.join("man")).unwrap();
        for file in ["man/jvmprof.1.gz", "man/jvmprof-record.1.gz", "bash", "zsh", "fish"] {
            files::write(&generated.join(file), file).unwrap();
        }
        files::write(&program, "a program").unwrap();
        let archive = build(folder.path(), &program, &generated).unwrap();
        let bytes = fs::read(&archive).unwrap();
        let listed = stdout_text(Command::new("tar").arg("-tzf").arg(&archive)).unwrap();
        let names = listed.lines().filter_map(|name| name.split_once('/')).map(|(_, name)| name);
        let mut names: Vec<&str> = names.filter(|name| !name.is_empty() && !name.ends_with('/')).collect();
        names.sort_unstable();
        let expected = [
            "60-jvmprof.conf",
            "LICENSE",
            "README.md",
            "completions/_jvmprof",
            "completions/jvmprof",
            "completions/jvmprof.fish",
            "jvmprof",
            "jvmprof-collector.service",
            "jvmprof.service",
            "jvmprof.toml",
            "man/jvmprof-record.1.gz",
            "man/jvmprof.1.gz",
        ];
        assert_eq!(names, expected);
        let document = files::read_text(&paths::workspace().join("docs/install.md")).unwrap();
        for name in names.iter().filter(|name| !name.starts_with("man/")) {
            assert!(document.contains(&format!("`{name}`")), "docs/install.md doesn't tell of {name}");
        }
        assert_eq!(build(folder.path(), &program, &generated).unwrap(), archive);
        assert_eq!(fs::read(&archive).unwrap(), bytes);
    }
}
