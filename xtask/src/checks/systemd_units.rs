//! The systemd units of `deploy/` and the drop-ins that the documents show, as systemd reads them.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, bail};

use crate::files;
use crate::paths;

const UNITS: [&str; 2] = ["jvmprof.service", "jvmprof-collector.service"];

/// Programs that the units start.
const PROGRAMS: [&str; 2] = ["usr/bin/jvmprof", "bin/kill"];

/// Makes a root of the units, with each of the drop-ins for each of them.
fn make_root(root: &Path, drop_ins: &[String]) -> anyhow::Result<()> {
    for program in PROGRAMS.map(|program| root.join(program)) {
        files::create_folder(program.parent().unwrap_or(root))?;
        files::write(&program, "#!/bin/sh\n")?;
        fs::set_permissions(&program, Permissions::from_mode(0o755))?;
    }
    let units = root.join("usr/lib/systemd/system");
    for unit in UNITS {
        let folder = units.join(format!("{unit}.d"));
        files::create_folder(&folder)?;
        let text = files::read_text(&paths::workspace().join("deploy").join(unit))?;
        files::write(&units.join(unit), text)?;
        for (number, drop_in) in drop_ins.iter().enumerate() {
            files::write(&folder.join(format!("{number}.conf")), drop_in)?;
        }
    }
    Ok(())
}

/// Checks the units with these drop-ins.
fn verify(drop_ins: &[String]) -> anyhow::Result<()> {
    let root = tempfile::tempdir().context("creating a folder for the units")?;
    make_root(root.path(), drop_ins)?;
    let mut analyze = Command::new("systemd-analyze");
    // What the units order themselves after isn't there.
    analyze.args(["verify", "--recursive-errors=no"]).arg(format!("--root={}", root.path().display()));
    let output = analyze.args(UNITS).output().context("starting systemd-analyze")?;
    let complaints = String::from_utf8_lossy(&output.stderr).into_owned();
    if output.status.success() && complaints.is_empty() { Ok(()) } else { bail!("{complaints}") }
}

/// Returns the blocks of a document that are parts of units.
fn drop_ins(document: &str) -> Vec<String> {
    let blocks = document.split("```").skip(1).step_by(2);
    let blocks = blocks.filter_map(|block| block.split_once('\n')).map(|(_, block)| block);
    blocks.filter(|block| block.starts_with("[Service]")).map(str::to_owned).collect()
}

#[test]
fn systemd_understands_the_units_and_the_drop_ins_of_the_documents() -> anyhow::Result<()> {
    let mut documented = Vec::new();
    for file in super::files(&paths::workspace().join("docs"), &[".md"]) {
        documented.extend(drop_ins(&files::read_text(&file)?));
    }
    assert!(documented.iter().any(|text| text.contains("LoadCredential=token:")), "{documented:?}");
    verify(&documented)
}

#[test]
fn a_setting_that_systemd_does_not_know_is_seen() {
    let error = verify(&["[Service]\nLoadCredentials=token:/etc/token\n".to_owned()]).unwrap_err();
    assert!(error.to_string().contains("Unknown key"), "{error}");
}
