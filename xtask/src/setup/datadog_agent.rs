//! Datadog's Java agent, with the API by which a program makes spans of it: for a test of what it
//! publishes, which runs where that is asked for.

use std::env;
use std::path::{Path, PathBuf};

use crate::paths;
use crate::setup::maven;

/// Environment variable with the folder of the jars; a value set beforehand is used as it is.
pub(crate) const VARIABLE: &str = "JVMPROF_TEST_DATADOG_AGENT";

/// The test binary, and what the full names of the tests that need the jars, and of no other of it,
/// contain.
pub(crate) const TESTS: (&str, &str) = ("java", "thread_context::datadog::");

/// Artifacts of Maven Central, and the files that they become.
const JARS: [(&str, &str); 3] = [
    ("com.datadoghq:dd-java-agent:1.68.1", "dd-java-agent.jar"),
    ("io.opentelemetry:opentelemetry-api:1.32.0", "opentelemetry-api.jar"),
    ("io.opentelemetry:opentelemetry-context:1.32.0", "opentelemetry-context.jar"),
];

/// Returns the folder, if all jars are in it.
pub(crate) fn found() -> Option<PathBuf> {
    let folder = env::var_os(VARIABLE).map_or_else(|| paths::tools().join("datadog-agent"), PathBuf::from);
    has_all(&folder).then_some(folder)
}

/// Gets the jars that are missing.
///
/// # Errors
/// Maven isn't installed, or its repository isn't reached.
pub(crate) fn ensure() -> anyhow::Result<()> {
    let folder = paths::tools().join("datadog-agent");
    let missing = JARS.iter().filter(|(_, file)| !folder.join(file).is_file());
    match env::var_os(VARIABLE) {
        Some(_) => Ok(()),
        None => missing.into_iter().try_for_each(|(artifact, _)| maven::copy(artifact, &folder)),
    }
}

fn has_all(folder: &Path) -> bool {
    JARS.iter().all(|(_, file)| folder.join(file).is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A name that no test has would leave out none.
    #[test]
    fn the_tests_that_are_left_out_are_those_of_a_module() {
        let (binary, tests) = TESTS;
        let file = tests.trim_end_matches("::").replace("::", "/");
        let path = paths::workspace().join("jvmprof-daemon/tests").join(binary).join(file);
        let text = std::fs::read_to_string(path.with_extension("rs")).unwrap();
        assert!(text.contains(&format!("\"{VARIABLE}\"")) && text.contains("#[test]"));
        assert!(JARS.iter().all(|(_, jar)| text.contains(jar)));
    }

    #[test]
    fn a_folder_without_one_of_the_jars_is_none() {
        let folder = tempfile::tempdir().unwrap();
        for (_, jar) in JARS {
            assert!(!has_all(folder.path()));
            std::fs::write(folder.path().join(jar), "").unwrap();
        }
        assert!(has_all(folder.path()));
    }
}
