//! `cargo xtask package`: what is shipped. It builds one static program, its Debian and RPM
//! packages, an archive of it with a checksum, and the root of the image; `--check` installs,
//! upgrades and removes the RPM in a root of its own, and both packages on a booted Debian.

mod deb;
pub(crate) mod kubernetes_manifests;
mod machine;
mod rpm;
mod rpm_scripts;
mod tarball;

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, bail};

use crate::files;
use crate::paths;
use crate::run::{self, run, stdout_text};
use crate::setup::packages;
use crate::setup::tools::BinaryCrate;

/// Target of the build. Naming it keeps the program's flags away from build scripts.
const TARGET: &str = "x86_64-unknown-linux-gnu";
/// Cargo's profile of the program that the tests run.
const TESTED_PROFILE: &str = "checked";
/// Upper bound of the image's size in bytes.
const MAX_IMAGE: u64 = 40 << 20;

#[derive(Debug, clap::Args)]
pub(crate) struct PackageArgs {
    /// Cargo's profile: `fast` is built in a fraction of the time
    #[arg(long, default_value = "release", value_name = "NAME")]
    profile: String,
    /// Pack this static program instead of building one
    #[arg(long, value_name = "FILE")]
    program: Option<PathBuf>,
    /// Install, upgrade and remove the RPM in a root of its own, and boot a Debian under qemu to
    /// install, start, upgrade, remove and purge both packages there (as root)
    #[arg(long)]
    check: bool,
}

pub(crate) fn main(args: &PackageArgs) -> anyhow::Result<()> {
    packages::install(packages::FOR_PACKAGES)?;
    let folder = paths::target().join("package");
    files::create_folder(&folder)?;
    let program = program(&args.profile, args.program.as_deref())?;
    let generated = generate(&program)?;
    let (deb, rpm) = distribution_packages(&folder, &args.profile)?;
    let archive = tarball::build(&folder, &program, &generated)?;
    let root = image_root(&folder, &program)?;
    check_size(&root)?;
    println!("program: {}\nimage's root: {}", program.display(), root.display());
    println!("packages: {}, {}\narchive: {}", deb.display(), rpm.display(), archive.display());
    if args.check {
        let next = deb::build(&folder, &args.profile, 2)?;
        rpm_scripts::check(&folder, &rpm)?;
        machine::check(&folder, &deb, &next, &rpm)?;
    }
    Ok(())
}

/// Makes the archive, the image's root and, if wanted, both packages for every commit: of the
/// program that the tests run instead of a static one, so that nothing is built again; for the same
/// reason the image's size isn't checked. The RPM is installed, upgraded and removed in a root of
/// its own.
pub(crate) fn smoke(tested: &Path, with_packages: bool) -> anyhow::Result<()> {
    // Nothing of it is to be shipped: it lies apart from what `main` makes.
    let folder = paths::target().join("package-smoke");
    files::create_folder(&folder)?;
    let program = copy_program(TESTED_PROFILE, tested)?;
    strip(&program)?;
    let generated = generate(&program)?;
    tarball::build(&folder, &program, &generated)?;
    image_root(&folder, &program)?;
    if with_packages {
        packages::install(packages::FOR_PACKAGES)?;
        let (_, rpm) = distribution_packages(&folder, TESTED_PROFILE)?;
        rpm_scripts::check(&folder, &rpm)?;
    }
    Ok(())
}

/// Packs the program of this profile into a Debian and an RPM package, and compares the two.
fn distribution_packages(folder: &Path, profile: &str) -> anyhow::Result<(PathBuf, PathBuf)> {
    let deb = deb::build(folder, profile, 1)?;
    let rpm = rpm::build(folder, profile)?;
    rpm::check(&rpm, &deb)?;
    Ok((deb, rpm))
}

/// Returns where the program of a profile lies that is packed.
fn packed_program(profile: &str) -> PathBuf {
    paths::target().join(TARGET).join(profile).join("jvmprof")
}

/// Builds the static program, unless one is `given`, and strips it.
fn program(profile: &str, given: Option<&Path>) -> anyhow::Result<PathBuf> {
    let program = match given {
        None => {
            build(profile)?;
            packed_program(profile)
        }
        Some(given) => copy_program(profile, given)?,
    };
    strip(&program)?;
    let needed = stdout_text(Command::new("readelf").arg("--dynamic").arg(&program))?;
    if needed.contains("(NEEDED)") {
        bail!("{} isn't static: {needed}", program.display());
    }
    Ok(program)
}

/// Copies a program to where the packed one of this profile lies.
fn copy_program(profile: &str, given: &Path) -> anyhow::Result<PathBuf> {
    let program = packed_program(profile);
    files::create_folder(program.parent().unwrap_or(&program))?;
    // What cargo built there is a link to its own copy, which stays as it is.
    let _ = fs::remove_file(&program);
    fs::copy(given, &program).with_context(|| format!("copying {}", given.display()))?;
    Ok(program)
}

/// Removes debug information. Function names stay, for backtraces.
fn strip(program: &Path) -> anyhow::Result<()> {
    run(Command::new("strip").arg("--strip-debug").arg(program))
}

fn build(profile: &str) -> anyhow::Result<()> {
    let mut cargo = run::cargo();
    cargo.args(["build", "--locked", "--package", "jvmprof-daemon", "--bin", "jvmprof"]);
    cargo.args(["--profile", profile, "--target", TARGET]);
    run(cargo.env("RUSTFLAGS", "-C target-feature=+crt-static").current_dir(paths::workspace()))
}

/// Lets the program write its manual pages and the shells' completions into a folder beside itself,
/// and returns that: `man`, `bash`, `zsh`, `fish`.
fn generate(program: &Path) -> anyhow::Result<PathBuf> {
    let folder = program.with_file_name("generated");
    files::remove_folder(&folder)?;
    let pages = folder.join("man");
    run(Command::new(program).arg("man-pages").arg(&pages))?;
    // Both distributions want them packed. cargo-deb packs none that lies below the target folder.
    run(Command::new("gzip").args(["--best", "--no-name", "--recursive"]).arg(&pages))?;
    for shell in ["bash", "zsh", "fish"] {
        let script = stdout_text(Command::new(program).args(["completions", shell]))?;
        let file = folder.join(shell);
        files::write(&file, script)?;
    }
    Ok(folder)
}

/// Returns `PATH` with the folder of one of cargo's commands.
fn path_with(tool: &BinaryCrate) -> anyhow::Result<OsString> {
    let tool = tool.ensure()?;
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = tool.parent().map(Path::to_owned).into_iter().chain(std::env::split_paths(&path));
    std::env::join_paths(folders).context("joining the folders of PATH")
}

/// Builds the image's root with the script that the Dockerfile runs.
fn image_root(folder: &Path, program: &Path) -> anyhow::Result<PathBuf> {
    let root = folder.join("root");
    files::remove_folder(&root)?;
    let script = paths::workspace().join("deploy/container/root.sh");
    run(Command::new(script).arg(program).arg("/etc/ssl/certs/ca-certificates.crt").arg(&root))?;
    Ok(root)
}

fn check_size(root: &Path) -> anyhow::Result<()> {
    let sizes = stdout_text(Command::new("du").args(["--summarize", "--bytes"]).arg(root))?;
    let bytes: u64 = sizes
        .split_whitespace()
        .next()
        .and_then(|word| word.parse().ok())
        .with_context(|| format!("parsing the output of du: {sizes}"))?;
    println!("the image's root: {:.1} MB", bytes as f64 / 1e6);
    if bytes >= MAX_IMAGE {
        bail!("{} has {bytes} bytes, more than {MAX_IMAGE}", root.display());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_install_the_packages_that_are_built() {
        let mut named = Vec::new();
        for document in ["docs/deploy.md", "docs/install.md"] {
            let text = files::read_text(&paths::workspace().join(document)).unwrap();
            let words = text.split_whitespace().filter_map(|word| word.strip_prefix("./"));
            let packages = words.filter(|word| word.ends_with(".deb") || word.ends_with(".rpm"));
            named.extend(packages.map(|package| (document, package.to_owned())));
        }
        named.sort_unstable();
        let (deb, rpm) = (deb::file_name(1), rpm::FILE.to_owned());
        let expected = [("docs/deploy.md", deb.clone()), ("docs/install.md", deb), ("docs/install.md", rpm)];
        assert_eq!(named, expected);
    }
}
