//! `cargo xtask ebpf`: builds the kernel programs, the same byte for byte in any folder.
//!
//! The object is committed, so that building jvmprof needs no bootstrap compiler, no rust-src and
//! no linker for BPF. The same bytes come out of the same rustc and bpf-linker wherever the
//! checkout, cargo's home and the toolchain are: paths are remapped here, and `rustc_wrapper` takes
//! them out of the crates' identities.

mod object_sections;
pub(crate) mod rustc_wrapper;

use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, bail};

use crate::files;
use crate::paths;
use crate::run::run;
use crate::setup::toolchain::Toolchain;
use crate::setup::tools;

/// Little-endian BPF.
pub(crate) const TARGET: &str = "bpfel-unknown-none";

/// The binary of the crate `jvmprof-ebpf`.
const BINARY: &str = "jvmprof";

#[derive(Debug, clap::Args)]
pub(crate) struct EbpfArgs {
    /// Rebuild and compare with the committed object, which is left as it is
    #[arg(long)]
    check: bool,
}

pub(crate) fn main(args: &EbpfArgs) -> anyhow::Result<()> {
    if args.check { check() } else { update() }
}

fn update() -> anyhow::Result<()> {
    let object = build()?;
    let committed = paths::committed_object();
    if fs::read(&committed).is_ok_and(|old| old == object) {
        eprintln!("{} is current ({} bytes)", committed.display(), object.len());
        return Ok(());
    }
    if let Some(folder) = committed.parent() {
        files::create_folder(folder)?;
    }
    files::write(&committed, &object)?;
    eprintln!("{} written ({} bytes): commit it", committed.display(), object.len());
    Ok(())
}

/// Rebuilds the object and compares it with the committed one.
///
/// # Errors
/// They differ; the error names the sections and the path of the new object.
pub(crate) fn check() -> anyhow::Result<()> {
    let object = build()?;
    let committed = paths::committed_object();
    let old = fs::read(&committed).with_context(|| format!("reading {}", committed.display()))?;
    if old == object {
        eprintln!("{} is what the sources say ({} bytes)", committed.display(), object.len());
        return Ok(());
    }
    let fresh = build_folder().join("jvmprof.bpf.o");
    files::write(&fresh, &object)?;
    let sections = object_sections::differing_sections(&old, &object).map(|names| names.join(", "));
    bail!(
        "{} ({} bytes) isn't what the sources say: {} ({} bytes) differs in {}; run `cargo xtask ebpf` and commit",
        committed.display(),
        old.len(),
        fresh.display(),
        object.len(),
        sections.unwrap_or_else(|error| format!("an unknown way ({error:#})"))
    )
}

fn build_folder() -> PathBuf {
    paths::target().join("ebpf")
}

/// Builds and strips the object.
fn build() -> anyhow::Result<Vec<u8>> {
    run(&mut cargo("build")?)?;
    let linked = build_folder().join(TARGET).join("release").join(BINARY);
    let linked = fs::read(&linked).with_context(|| format!("reading {}", linked.display()))?;
    object_sections::without_dwarf(&linked)
}

/// Lints the kernel programs, which `cargo clippy` at the workspace doesn't reach.
///
/// # Errors
/// clippy reports a warning.
pub(crate) fn clippy() -> anyhow::Result<()> {
    run(cargo("clippy")?.args(["--", "-D", "warnings"]))
}

/// Returns a cargo command for the kernel programs' target, with `core` from source.
fn cargo(command: &str) -> anyhow::Result<Command> {
    let toolchain = Toolchain::find()?;
    let library = toolchain.core_sources()?;
    let linker = tools::BPF_LINKER.ensure()?;
    let krate = paths::ebpf_crate();
    // With it, the sources of crates have folders, and those can be remapped.
    run(toolchain.command("cargo").arg("fetch").arg("--locked").current_dir(&krate))?;

    let mut cargo = toolchain.command("cargo");
    cargo.arg(command);
    cargo.args(["--release", "--locked", "-Z", "build-std=core", "--target", TARGET]);
    cargo.arg("--target-dir").arg(build_folder()).current_dir(&krate);
    // Allows -Z on stable.
    cargo.env("RUSTC_BOOTSTRAP", "1");
    // Makes -Z build-std read `core` here instead of in the sysroot: the toolchain itself is left
    // as it is.
    cargo.env("__CARGO_TESTS_ONLY_SRC_ROOT", &library);
    cargo.env("CARGO_ENCODED_RUSTFLAGS", flags(&linker, &library)?);
    cargo.env("RUSTC_WRAPPER", env::current_exe().context("finding this binary")?);
    cargo.env(rustc_wrapper::CALLED, "1");
    Ok(cargo)
}

/// Returns rustc's flags for the target, in the format of `CARGO_ENCODED_RUSTFLAGS`.
fn flags(linker: &Path, library: &Path) -> anyhow::Result<OsString> {
    let mut flags: Vec<OsString> = Vec::new();
    let mut linker_flag = OsString::from("-Clinker=");
    linker_flag.push(linker);
    flags.push(linker_flag);
    // Callbacks of bpf_loop need BTF's func_info, which the linker makes from debug info.
    flags.extend(["-Clink-arg=--btf", "-Cdebuginfo=2", "-Cpanic=abort"].map(OsString::from));
    // Otherwise memmove and memset are loops over bytes, whatever their lengths.
    flags.push("-Clink-arg=--disable-expand-memcpy-in-order".into());
    for (from, to) in remapped(library)? {
        let mut flag = OsString::from("--remap-path-prefix=");
        flag.push(from);
        flag.push("=");
        flag.push(to);
        flags.push(flag);
    }
    Ok(flags.join("\u{1f}".as_ref()))
}

/// Returns every folder whose path may get into the object, with its replacement.
///
/// LLVM puts the text of source lines into BTF if it can open the file, so nothing may exist at the
/// replacements' paths.
fn remapped(library: &Path) -> anyhow::Result<Vec<(PathBuf, &'static str)>> {
    let mut folders = vec![(paths::workspace(), "/remapped/jvmprof"), (library.to_owned(), "/remapped/rust")];
    if let Some(home) = paths::cargo_home() {
        // One folder a registry, named by a hash of its address: a mirror has another.
        let sources = home.join("registry/src");
        for folder in fs::read_dir(&sources).with_context(|| format!("reading {}", sources.display()))? {
            let folder = folder.with_context(|| format!("reading {}", sources.display()))?;
            folders.push((folder.path(), "/remapped/crates"));
        }
    }
    // A path is seen as it was given or as the working directory, without symbolic links.
    let mut pairs = Vec::new();
    for (folder, name) in folders {
        let real = fs::canonicalize(&folder).with_context(|| format!("resolving {}", folder.display()))?;
        if real != folder {
            pairs.push((real, name));
        }
        pairs.push((folder, name));
    }
    // rustc takes the last that matches: of nested folders the inner one.
    pairs.sort_by_key(|(folder, _)| folder.as_os_str().len());
    Ok(pairs)
}
