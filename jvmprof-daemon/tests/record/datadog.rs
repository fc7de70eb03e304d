//! Contexts that a released tracer publishes, Datadog's for Python: each sample has the trace, the
//! span and the local root span of its request, by what the program has noted itself. Needs root,
//! `JVMPROF_TEST_PYTHON`, and the packages of `JVMPROF_TEST_PACKAGES`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use crate::support::scratch;
use crate::support::thread_context::{Samples, profiles_of, samples_of_pprof};

const REQUESTS: &str = "tests/record/datadog_requests.py";

/// The number of a request and the local root of its span, by the ids of trace and span.
type Oracle = BTreeMap<(String, String), (usize, String)>;

fn oracle(file: &Path) -> Oracle {
    let text = fs::read_to_string(file).expect("the program has written it");
    let noted = |line: &str| {
        let words: Vec<&str> = line.split(' ').collect();
        let [number, trace, span, root] = words[..] else { panic!("{line}") };
        ((trace.to_owned(), span.to_owned()), (number.parse().expect(line), root.to_owned()))
    };
    text.lines().map(noted).collect()
}

fn variable(name: &str) -> PathBuf {
    let value = std::env::var_os(name);
    value.unwrap_or_else(|| panic!("{name} is what this test needs: run `cargo xtask test`")).into()
}

#[test]
fn samples_of_python_code_have_the_trace_span_and_root_that_datadogs_tracer_has_given_their_request() {
    let dir = scratch();
    let (program, noted) = (Path::new(env!("CARGO_MANIFEST_DIR")).join(REQUESTS), dir.path().join("oracle"));
    let packages = format!("PYTHONPATH={}", variable("JVMPROF_TEST_PACKAGES").join("python").display());
    let python = variable("JVMPROF_TEST_PYTHON");
    let [python, program, file] =
        [&python, &program, &noted].map(|path| path.to_str().expect("a path in UTF-8"));
    // With trampolines, so that functions have names.
    let arguments = vec!["DD_SERVICE=till", &packages, python, "-X", "perf", program, file];
    let options = ["--thread-context-attributes", "datadog.local_root_span_id"];
    let profiles = profiles_of(&[(Path::new("env"), arguments)], &options).remove(0);
    let oracle = oracle(&noted);
    let (mut requests, mut spans, mut outside) = (BTreeSet::new(), BTreeSet::new(), 0);
    for (series, pprof) in profiles {
        assert_eq!(series.get("service_name").map(String::as_str), Some("till"), "{series:?}");
        let Samples { of_requests, between, .. } = samples_of_pprof(&pprof);
        for (number, labels) in of_requests {
            let id = |name: &str| labels.get(name).cloned().unwrap_or_default();
            let span = (id("trace_id"), id("span_id"));
            let noted = oracle.get(&span);
            let (noted_number, root) = noted.unwrap_or_else(|| panic!("request {number}: {labels:?}"));
            assert_eq!((*noted_number, labels.len()), (number, 3), "{labels:?}");
            assert_eq!(id("datadog_local_root_span_id"), *root, "{labels:?}");
            requests.insert(number);
            spans.insert(span.1 == *root);
        }
        assert!(between.iter().all(BTreeMap::is_empty), "{between:?}");
        outside += between.len();
    }
    assert_eq!(requests.len(), 8, "each has spans of its own: {requests:?}");
    assert_eq!(spans.len(), 2, "roots, and others");
    assert!(outside > 0);
}
