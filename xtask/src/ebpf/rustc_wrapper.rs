//! A rustc wrapper that takes the checkout's path out of the crates' identity.
//!
//! cargo hashes the package id into `-C metadata`, and the id of a crate outside the workspace of
//! `jvmprof-ebpf` (`jvmprof-common`, and `core` built from source) holds its absolute path. From
//! there it gets into symbol names and BTF, out of reach of `--remap-path-prefix`. Name and version
//! identify these crates just as well.

use std::env;
use std::ffi::OsString;
use std::process::{Command, ExitCode};

/// Environment variable, set to anything where cargo is to call this binary as its wrapper.
pub(crate) const CALLED: &str = "JVMPROF_XTASK_IS_RUSTC_WRAPPER";

const METADATA: &str = "metadata=";

pub(crate) fn is_called() -> bool {
    env::var_os(CALLED).is_some()
}

/// Runs `ARG1 ARG2...`, which are rustc and its arguments as cargo passes them.
pub(crate) fn main() -> ExitCode {
    let mut args = env::args_os().skip(1);
    let Some(rustc) = args.next() else {
        eprintln!("error: the rustc wrapper was called without rustc");
        return ExitCode::FAILURE;
    };
    let identity = |name| env::var(name).unwrap_or_default();
    let metadata = format!("{METADATA}{}-{}", identity("CARGO_PKG_NAME"), identity("CARGO_PKG_VERSION"));
    let args = with_metadata(args.collect(), &metadata);
    match Command::new(&rustc).args(args).status() {
        Ok(status) if status.success() => ExitCode::SUCCESS,
        Ok(status) => ExitCode::from(status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1)),
        Err(error) => {
            eprintln!("error: starting {}: {error}", rustc.display());
            ExitCode::FAILURE
        }
    }
}

/// Replaces `-C metadata=` in arguments that compile for the BPF target. Build scripts and macros,
/// which run on the host, keep cargo's own.
fn with_metadata(mut args: Vec<OsString>, metadata: &str) -> Vec<OsString> {
    if args.iter().any(|arg| arg == super::TARGET) {
        for arg in &mut args {
            if arg.to_str().is_some_and(|text| text.starts_with(METADATA)) {
                *arg = OsString::from(metadata);
            }
        }
    }
    args
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<OsString> {
        line.split(' ').map(OsString::from).collect()
    }

    #[test]
    fn only_crates_for_bpf_get_another_identity() {
        let bpf = "--crate-name x -C metadata=5f7e --target bpfel-unknown-none";
        let expected = "--crate-name x -C metadata=x-1.0.0 --target bpfel-unknown-none";
        assert_eq!(with_metadata(words(bpf), "metadata=x-1.0.0"), words(expected));
        let host = "--crate-name x -C metadata=5f7e";
        assert_eq!(with_metadata(words(host), "metadata=x-1.0.0"), words(host));
    }
}
