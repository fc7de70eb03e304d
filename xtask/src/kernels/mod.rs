//! `cargo xtask kernels`: Debian's kernels under qemu. Every program of the object has to load in
//! each, and a JVM's stack has to be whole there.
//!
//! The design is that of aya's own tests: a kernel boots with an initramfs whose first process runs
//! the suite. Here that process is this binary; it reports over a second serial port.

mod debian;
pub(crate) mod guest;
mod initramfs;
pub(crate) mod qemu;
mod report;

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context as _, bail};

use crate::files;
use crate::run::run;
use crate::setup::build;
use crate::setup::installed_jdks::{self, InstalledJdk};
use crate::setup::packages;
use initramfs::Image;
use report::evaluate;

pub(crate) use debian::{Line, debian_mirror, newest};

/// Parts of a JDK that no program needs at run time.
const NOT_NEEDED: &[&str] =
    &["jmods", "src.zip", "lib/src.zip", "lib/ct.sym", "demo", "man", "include", "legal", "docs"];

/// Libraries that the JVM or the loader opens by name at run time, anywhere in a JDK. Their own
/// dependencies go into the image, too.
const JDK_LIBRARIES: &[&str] =
    &["libjvm.so", "libjava.so", "libverify.so", "libzip.so", "libnet.so", "libnio.so"];

#[derive(Debug, clap::Args)]
pub(crate) struct KernelsArgs {
    /// Boot only this line of kernels (repeatable) [default: all]
    #[arg(long = "kernel", value_name = "LINE")]
    kernels: Vec<Line>,
    /// Profile this JDK (by its folder) instead of the oldest that is found
    #[arg(long, value_name = "HOME")]
    jdk: Option<PathBuf>,
}

pub(crate) fn main(args: &KernelsArgs) -> anyhow::Result<()> {
    let lines = if args.kernels.is_empty() { &Line::ALL[..] } else { &args.kernels };
    run_suite(lines, args.jdk.as_deref(), build::fast)
}

/// Checks one line of kernels, for every commit.
pub(crate) fn short(jvmprof: &Path) -> anyhow::Result<()> {
    run_suite(&[Line::V6_12], None, || Ok(jvmprof.to_owned()))
}

/// Installs missing packages, builds, and runs the suite on the newest kernel of each line.
///
/// # Errors
/// A step failed on some kernel, or none could be booted.
fn run_suite(
    lines: &[Line],
    jdk: Option<&Path>,
    jvmprof: impl FnOnce() -> anyhow::Result<PathBuf>,
) -> anyhow::Result<()> {
    packages::install(packages::FOR_KERNELS)?;
    let jdk = chosen_jdk(jdk)?;
    let jvmprof = stripped(&jvmprof()?)?;
    let initramfs = image(&jvmprof, &jdk)?;
    let mut failures = Vec::new();
    for line in lines {
        let checked = debian::newest(*line).and_then(|kernel| check_kernel(&kernel, *line, &initramfs));
        failures.extend(checked.err().map(|error| format!("kernel {}: {error:#}", line.version())));
    }
    if failures.is_empty() { Ok(()) } else { bail!("{}", failures.join("\n")) }
}

fn check_kernel(kernel: &debian::DebianKernel, line: Line, initramfs: &Path) -> anyhow::Result<()> {
    let folder = debian::folder().join(line.version());
    // Nothing of an earlier boot is taken for this one's.
    files::remove_folder(&folder)?;
    files::create_folder(&folder)?;
    let started = Instant::now();
    let (steps, trouble) = qemu::boot(kernel, initramfs, &folder)?;
    println!("\n{} with its suite: {:.0} s", kernel.release, started.elapsed().as_secs_f64());
    let mut failed = Vec::new();
    for step in &steps {
        let (text, verdict) = evaluate(step);
        match verdict {
            Ok(()) => print!("ok     {} ({:.1} s)\n{text}", step.name, step.seconds),
            Err(error) => {
                println!("FAILED {} ({:.1} s): {error:#}\n{text}", step.name, step.seconds);
                failed.push(step.name.as_str());
            }
        }
        for (name, contents) in step.files() {
            let file = folder.join(name);
            files::write(&file, contents)?;
        }
    }
    if let Some(trouble) = trouble {
        println!("FAILED boot: {trouble}");
        failed.push("boot");
    }
    if failed.is_empty() {
        return Ok(());
    }
    bail!("{}: failed: {}; see {}", kernel.release, failed.join(", "), folder.display())
}

fn chosen_jdk(home: Option<&Path>) -> anyhow::Result<InstalledJdk> {
    if let Some(home) = home {
        return installed_jdks::at(home).with_context(|| format!("{} is no JDK", home.display()));
    }
    installed_jdks::ensure()?.into_iter().next().context("no JDK is here")
}

/// Strips debug information: emulated CPUs are slow, and images should be small.
fn stripped(program: &Path) -> anyhow::Result<PathBuf> {
    let folder = debian::folder().join("stripped");
    files::create_folder(&folder)?;
    let name = program.file_name().with_context(|| format!("{} has no name", program.display()))?;
    let to = folder.join(name);
    run(Command::new("strip").arg("--strip-all").arg("-o").arg(&to).arg(program))?;
    Ok(to)
}

/// Builds the initramfs for all kernels; returns its path.
fn image(jvmprof: &Path, jdk: &InstalledJdk) -> anyhow::Result<PathBuf> {
    let mut image = Image::default();
    for folder in guest::FOLDERS {
        image.add_folder(Path::new(folder));
    }
    let init = stripped(&env::current_exe().context("finding this binary")?)?;
    image.add_program(&init, Path::new("/init"))?;
    image.add_program(jvmprof, Path::new(guest::JVMPROF))?;
    let home = Path::new(guest::JDK);
    image.add_tree(&jdk.home, home, NOT_NEEDED)?;
    image.add_libraries(&jdk.home.join("bin/java"))?;
    for library in image.sources_named(JDK_LIBRARIES) {
        image.add_libraries(&library)?;
    }
    let classes = debian::folder().join("classes");
    installed_jdks::compile("kernels/Chain.java", &classes)?;
    image.add_tree(&classes, Path::new(guest::CLASSES), &[])?;
    let archive = debian::folder().join("initramfs.cpio");
    let size = image.write(&archive)?;
    eprintln!("{}: {} MiB, JDK {} of {}", archive.display(), size >> 20, jdk.feature, jdk.home.display());
    Ok(archive)
}
