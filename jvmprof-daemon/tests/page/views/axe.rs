//! axe-core, which looks for faults of roles, names, landmarks and contrast.

use std::path::PathBuf;

use crate::browser::Browser;

/// Reads the script of axe-core, at the version that `xtask/test-packages` has.
pub(super) fn script() -> String {
    let folder = std::env::var_os("JVMPROF_TEST_PACKAGES")
        .expect("JVMPROF_TEST_PACKAGES names the folder with npm's packages; `cargo xtask test` makes it");
    let path = PathBuf::from(folder).join("node_modules/axe-core/axe.min.js");
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Returns what is wrong with the page as it is now.
pub(super) fn violations(browser: &mut Browser, script: &str) -> Vec<String> {
    if browser.evaluate("Boolean(globalThis.axe)") != true {
        browser.evaluate(&format!("{{ {script} }} 0"));
    }
    let violations = browser.evaluate(
        "axe.run(document, { resultTypes: ['violations'] }).then(({ violations }) => violations.map((it) => \
         `${it.id}: ${it.nodes.slice(0, 4).map((node) => `${node.html.slice(0, 120)} (${node.any.map((any) => any.message).join()})`).join(' | ')}`))",
    );
    serde_json::from_value(violations).expect("axe-core lists violations")
}
