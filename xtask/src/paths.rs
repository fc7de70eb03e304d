//! Paths in the checkout.

use std::env;
use std::path::{Path, PathBuf};

/// The folder of the workspace's `Cargo.toml`, absolute and without `..`.
pub(crate) fn workspace() -> PathBuf {
    let xtask = Path::new(env!("CARGO_MANIFEST_DIR"));
    xtask.parent().unwrap_or(xtask).to_owned()
}

/// The workspace's target folder; `CARGO_TARGET_DIR` is honoured as cargo honours it.
pub(crate) fn target() -> PathBuf {
    let set = env::var_os("CARGO_TARGET_DIR").filter(|dir| !dir.is_empty());
    // `join` keeps an absolute path as it is.
    workspace().join(set.map_or_else(|| PathBuf::from("target"), PathBuf::from))
}

/// Tools that tasks installed: below the target folder, so that nothing outside the checkout
/// changes.
pub(crate) fn tools() -> PathBuf {
    target().join("tools")
}

/// Folder of JDKs and classes of `cargo xtask zoo`.
pub(crate) fn zoo() -> PathBuf {
    target().join("zoo")
}

/// The part of [`zoo`] that JVMs with another root see at the same path.
pub(crate) fn zoo_shared() -> PathBuf {
    zoo().join("shared")
}

/// The kernel programs as the daemon embeds them: the file that is committed.
pub(crate) fn committed_object() -> PathBuf {
    workspace().join("jvmprof-daemon/ebpf/jvmprof.bpf.o")
}

/// The crate of the kernel programs, which isn't a member of the workspace.
pub(crate) fn ebpf_crate() -> PathBuf {
    workspace().join("jvmprof-ebpf")
}

/// cargo's home, where the sources of crates are unpacked: `CARGO_HOME`, else `~/.cargo`.
pub(crate) fn cargo_home() -> Option<PathBuf> {
    match env::var_os("CARGO_HOME").filter(|home| !home.is_empty()) {
        Some(home) => Some(PathBuf::from(home)),
        None => env::home_dir().map(|home| home.join(".cargo")),
    }
}
