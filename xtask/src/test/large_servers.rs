//! Tests that push to servers which take minutes to build: where one of these isn't there, exactly
//! its tests are left out, and named as not run.

use crate::setup::servers::{LARGE, Server};

/// Tests of a server: its name, their binary, and what the full names of these tests, and of no
/// other of that binary, contain.
const TESTS: [(&str, &str, &str); 7] = [
    ("parca", "servers", "parca::"),
    ("parca", "servers", "parca_limits::"),
    ("pyroscope", "servers", "pyroscope::"),
    ("parca", "servers", "all_at_once::"),
    ("pyroscope", "servers", "all_at_once::"),
    ("parca", "daemon", "debug_file_uploads::parca_names_what_daemons_leave_to_it"),
    (
        "parca",
        "daemon",
        "delivery::proxy::parca_behind_a_tls_proxy_answers_with_the_samples_that_the_local_store_has",
    ),
];

/// Returns the tests of a binary whose server isn't there, each behind its server's name: texts for
/// `--skip`, which leaves out the tests that have them in their names.
pub(super) fn tests_without_server(binary: &str) -> Vec<(&'static str, &'static str)> {
    tests_without(binary, |server| !server.path().is_file())
}

fn tests_without(binary: &str, is_missing: impl Fn(&Server) -> bool) -> Vec<(&'static str, &'static str)> {
    let missing: Vec<&str> = LARGE.iter().filter(|server| is_missing(server)).map(|it| it.name).collect();
    let of_binary = TESTS.iter().filter(|(_, of, _)| *of == binary);
    let left_out = of_binary.filter(|(server, ..)| missing.contains(server));
    left_out.map(|(server, _, test)| (*server, *test)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::paths;

    #[test]
    fn only_tests_of_a_missing_server_are_left_out() {
        assert!(tests_without("daemon", |_| false).is_empty());
        assert!(tests_without("daemon", |server| server.name == "pyroscope").is_empty());
        let of_parca = ["parca::", "parca_limits::", "all_at_once::"].map(|tests| ("parca", tests));
        assert_eq!(tests_without("servers", |server| server.name == "parca"), of_parca);
        assert_eq!(tests_without("daemon", |_| true).len(), 2);
        assert!(tests_without("java", |_| true).is_empty());
    }

    /// A name that a test doesn't have any more would leave out none.
    #[test]
    fn each_name_is_one_of_a_module_or_of_a_test() {
        let tests = paths::workspace().join("jvmprof-daemon/tests");
        for (_, binary, name) in TESTS {
            let (module, test) = name.rsplit_once("::").expect("a module's path");
            let file = tests.join(binary).join(format!("{}.rs", module.replace("::", "/")));
            let text = std::fs::read_to_string(&file).unwrap_or_else(|error| panic!("{name}: {error}"));
            assert!(text.contains(&format!("fn {test}")), "{name}");
        }
    }
}
