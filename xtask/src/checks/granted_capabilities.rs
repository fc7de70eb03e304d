//! The capabilities that `deploy/` grants and that the documents show: exactly those that the
//! daemon asks for, as its source names them.

use std::collections::BTreeSet;

use anyhow::{Context as _, ensure};

use crate::files;
use crate::paths;

/// The settings of a unit that grant capabilities.
const SETTINGS: [&str; 2] = ["CapabilityBoundingSet=", "AmbientCapabilities="];

/// Names without `CAP_`.
type Names = BTreeSet<String>;

fn read(file: &str) -> anyhow::Result<String> {
    files::read_text(&paths::workspace().join(file))
}

fn names<'a>(words: impl Iterator<Item = &'a str>) -> Names {
    words.map(|word| word.strip_prefix("CAP_").unwrap_or(word).to_owned()).collect()
}

/// Returns the capabilities in the list `PROFILING` of the daemon's source.
fn asked_for() -> anyhow::Result<Names> {
    let source = read("jvmprof-daemon/src/own_process/capabilities.rs")?;
    let list = source.split_once("pub const PROFILING: ").and_then(|(_, rest)| rest.split_once("= ["));
    let (list, _) = list.and_then(|(_, rest)| rest.split_once("];")).context("there is no list PROFILING")?;
    let found = names(list.split(',').map(str::trim).filter(|name| !name.is_empty()));
    for name in &found {
        ensure!(source.contains(&format!("name: \"CAP_{name}\"")), "{name} has another name than CAP_{name}");
    }
    Ok(found)
}

/// Returns what a unit grants by one of its settings; `None` if it doesn't have the setting.
fn granted_by_unit(unit: &str, setting: &str) -> Option<Names> {
    let mut values = unit.lines().filter_map(|line| line.strip_prefix(setting)).peekable();
    values.peek()?;
    Some(names(values.flat_map(str::split_whitespace)))
}

/// Returns what a container's `add:` lists in a manifest.
fn granted_by_manifest(manifest: &str) -> Names {
    let lines = manifest.lines().map(str::trim).skip_while(|line| *line != "add:").skip(1);
    let listed = lines.take_while(|line| !line.ends_with(':'));
    names(listed.filter_map(|line| line.strip_prefix("- ")))
}

/// Returns what the commands of a document add.
fn granted_by_commands(document: &str) -> Names {
    let added = document.split("--cap-add ").skip(1);
    names(added.filter_map(|rest| rest.split_whitespace().next()))
}

#[test]
fn the_units_grant_what_their_programs_ask_for_and_nothing_else() -> anyhow::Result<()> {
    let daemon = read("deploy/jvmprof.service")?;
    let collector = read("deploy/jvmprof-collector.service")?;
    for setting in SETTINGS {
        assert_eq!(granted_by_unit(&daemon, setting), Some(asked_for()?), "jvmprof.service: {setting}");
        let none = Some(Names::new());
        assert_eq!(granted_by_unit(&collector, setting), none, "jvmprof-collector.service: {setting}");
    }
    Ok(())
}

#[test]
fn containers_are_granted_what_the_daemon_asks_for_and_nothing_else() -> anyhow::Result<()> {
    for manifest in ["deploy/kubernetes/daemonset.yaml", "deploy/helm/jvmprof/templates/daemonset.yaml"] {
        assert_eq!(granted_by_manifest(&read(manifest)?), asked_for()?, "{manifest}");
    }
    assert_eq!(granted_by_commands(&read("docs/install.md")?), asked_for()?, "docs/install.md");
    Ok(())
}

#[test]
fn each_capability_is_explained() -> anyhow::Result<()> {
    let document = read("docs/deploy.md")?;
    let rows = document.lines().filter_map(|line| line.strip_prefix("| `CAP_")?.split('`').next());
    assert_eq!(names(rows), asked_for()?);
    Ok(())
}

/// Uprobes need more on newer kernels, and nothing has it but where it is asked for.
#[test]
fn allocation_and_pauses_add_one_capability() -> anyhow::Result<()> {
    let document = read("docs/deploy.md")?;
    for setting in SETTINGS {
        let added = granted_by_unit(&document, setting);
        assert_eq!(added, Some(names(["SYS_ADMIN"].into_iter())), "the drop-in: {setting}");
    }
    let chart = read("deploy/helm/jvmprof/templates/_helpers.tpl")?;
    let (condition, rest) = chart.split_once("append $capabilities \"SYS_ADMIN\"").context("not added")?;
    let (_, condition) = condition.rsplit_once("{{- if ").context("always added")?;
    assert!(condition.contains("\"alloc-enabled\"") && condition.contains("\"pauses\""), "{condition}");
    ensure!(!rest.contains("SYS_ADMIN"), "the chart adds it elsewhere, too");
    Ok(())
}

#[test]
fn capabilities_are_found_wherever_they_are_granted() {
    let expected = names(["BPF", "PERFMON"].into_iter());
    let unit = "[Service]\nAmbientCapabilities=CAP_BPF\nAmbientCapabilities=CAP_PERFMON\n";
    assert_eq!(granted_by_unit(unit, "AmbientCapabilities="), Some(expected.clone()));
    assert_eq!(granted_by_unit(unit, "CapabilityBoundingSet="), None);
    let manifest = "drop:\n  - ALL\nadd:\n  # Why.\n  - BPF\n  - PERFMON\nseccompProfile:\n  - X\n";
    assert_eq!(granted_by_manifest(manifest), expected);
    assert_eq!(granted_by_commands("run --cap-add BPF \\\n    --cap-add PERFMON x"), expected);
}
