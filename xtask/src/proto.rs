//! Generates the Rust code of `proto/`, which is committed under
//! `jvmprof-daemon/src/proto/generated`.
//!
//! protox parses the .proto files in Rust, so that nobody needs protoc.

use std::path::{Path, PathBuf};

use anyhow::Context as _;

/// Every .proto file of the project, relative to `proto/`.
const FILES: &[&str] = &[
    "perftools/profiles/profile.proto",
    "parca/profilestore/v1alpha1/profilestore.proto",
    "parca/debuginfo/v1alpha1/debuginfo.proto",
    "kubernetes/cri/runtime.proto",
    "pyroscope/push/push.proto",
];

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Folder of the committed generated code.
pub(crate) fn committed() -> PathBuf {
    workspace().join("jvmprof-daemon/src/proto/generated")
}

/// Writes the generated code to `out`, which must exist: one file for each protobuf package.
///
/// # Errors
/// A .proto file that can't be parsed, or a folder that can't be written.
pub(crate) fn generate(out: &Path) -> anyhow::Result<()> {
    let descriptors =
        protox::compile(FILES, [workspace().join("proto")]).context("parsing the files of proto/")?;
    tonic_prost_build::configure()
        .build_client(true)
        .build_server(true)
        .emit_rerun_if_changed(false)
        // Profiles are passed on as they came: no copy out of the request's buffer.
        .bytes(".parca.profilestore.v1alpha1")
        .bytes(".parca.debuginfo.v1alpha1")
        .bytes(".push.v1")
        .out_dir(out)
        .compile_fds(descriptors)
        .with_context(|| format!("writing generated code to {}", out.display()))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::fs;

    use super::*;

    fn files_of(folder: &Path) -> BTreeMap<String, String> {
        fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap())
            .map(|entry| {
                let text = fs::read_to_string(entry.path()).unwrap();
                (entry.file_name().into_string().unwrap(), text)
            })
            .collect()
    }

    #[test]
    fn committed_code_is_what_the_proto_files_say() {
        let fresh = tempfile::tempdir().unwrap();
        generate(fresh.path()).unwrap();
        let (fresh, committed) = (files_of(fresh.path()), files_of(&committed()));
        assert_eq!(
            fresh.keys().collect::<Vec<_>>(),
            committed.keys().collect::<Vec<_>>(),
            "run `cargo xtask proto`"
        );
        for (name, text) in &fresh {
            assert!(committed[name] == *text, "{name} isn't current: run `cargo xtask proto`");
        }
    }
}
