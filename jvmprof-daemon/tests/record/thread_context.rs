//! Contexts of threads: each sample has the trace of the request that it interrupted, none between
//! two requests, and no mixture of two while the record is written. Needs root, gcc and musl-gcc.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use crate::support::thread_context::{
    Samples, WITH_LABELS, WRITER, are_of_one_request_or_none, are_of_request, gcc, process_context,
    samples_of, samples_of_pprof, samples_with_and_without,
};
use crate::support::{Workload, record_json, scratch};

const REQUESTS: &str = "record/thread_context_requests.c";

/// The build of a program: the flags of the library that publishes contexts, if that isn't a part
/// of the program; if it is loaded while the program runs; the compiler.
type Build<'a> = (&'a str, Option<&'a [&'a str]>, bool, &'a str);

/// Returns the program and its library.
fn build((_, library_flags, is_loaded, compiler): Build<'_>, folder: &Path) -> [PathBuf; 2] {
    let [program, library] = ["requests", "libwriter.so"].map(|name| folder.join(name));
    let path = folder.to_str().expect("a path in UTF-8");
    let rpath = format!("-Wl,-rpath,{path}");
    if let Some(flags) = library_flags {
        gcc(compiler, &library, &[WRITER], &[&["-shared", "-fPIC"], flags].concat());
    }
    match (library_flags, is_loaded) {
        (None, _) => gcc(compiler, &program, &[REQUESTS, WRITER], &["-rdynamic"]),
        (_, true) => gcc(compiler, &program, &[REQUESTS], &["-DLOADED", "-ldl"]),
        (_, false) => gcc(compiler, &program, &[REQUESTS], &["-L", path, &rpath, "-lwriter"]),
    }
    [program, library]
}

#[test]
fn each_sample_has_the_trace_of_its_request_however_the_variable_is_accessed() {
    let builds: [Build<'_>; 7] = [
        ("in the program", None, false, "gcc"),
        ("linked library", Some(&[]), false, "gcc"),
        ("loaded library", Some(&[]), true, "gcc"),
        ("linked library with descriptors", Some(&["-mtls-dialect=gnu2"]), false, "gcc"),
        ("loaded library with descriptors", Some(&["-mtls-dialect=gnu2"]), true, "gcc"),
        ("linked library, initial-exec", Some(&["-ftls-model=initial-exec"]), false, "gcc"),
        ("loaded library, musl", Some(&[]), true, "musl-gcc"),
    ];
    assert_each_sample_has_its_request(&builds);
}

/// Records have 71 bytes, and as many more as they have filler: the kernel program reads the first
/// 128 at once, but not beyond their page, and the rest of longer ones.
#[test]
fn each_sample_has_the_trace_of_its_request_wherever_the_record_is() {
    let builds: [Build<'_>; 5] = [
        ("up to the end of memory", Some(&["-DBEFORE_PAGE_END=72", "-DLAST_PAGE"]), false, "gcc"),
        ("attributes on the next page", Some(&["-DBEFORE_PAGE_END=40"]), false, "gcc"),
        ("from one page to the next", Some(&["-DBEFORE_PAGE_END=20"]), false, "gcc"),
        ("long", Some(&["-DFILLER=250"]), true, "gcc"),
        (
            "long, up to the end of memory",
            Some(&["-DFILLER=120", "-DBEFORE_PAGE_END=194", "-DLAST_PAGE"]),
            false,
            "gcc",
        ),
    ];
    assert_each_sample_has_its_request(&builds);
}

fn assert_each_sample_has_its_request(builds: &[Build<'_>]) {
    let folders: Vec<_> = builds.iter().map(|_| scratch()).collect();
    let built: Vec<[PathBuf; 2]> =
        builds.iter().zip(&folders).map(|(how, folder)| build(*how, folder.path())).collect();
    let [context, of_another_schema] = ["tlsdesc_v1_dev", "nodejs_v1"].map(process_context);
    let load = |[program, library]: &'_ [PathBuf; 2], context| {
        (program.clone(), vec![context, library.to_str().expect("a path in UTF-8").to_owned()])
    };
    let mut loads: Vec<_> = built.iter().map(|files| load(files, context.clone())).collect();
    loads.push(load(&built[0], of_another_schema));
    let loads: Vec<_> = loads
        .iter()
        .map(|(program, arguments)| (program.as_path(), arguments.iter().map(String::as_str).collect()))
        .collect();
    let mut samples = samples_with_and_without(&loads, 1);
    let of_another_schema = samples.pop().expect("the last program's").of_requests;
    assert!(!of_another_schema.is_empty() && of_another_schema.iter().all(|(_, labels)| labels.is_empty()));
    let mut outside = [0, 0];
    for ((name, ..), samples) in builds.iter().zip(samples) {
        assert_are_of_their_requests(name, &samples);
        outside = [outside[0] + samples.in_attach.len(), outside[1] + samples.between.len()];
    }
    assert!(outside.iter().all(|samples| *samples > 0), "there are some of both kinds: {outside:?}");
}

fn assert_are_of_their_requests(name: &str, samples: &Samples) {
    let Samples { of_requests, in_attach, between } = samples;
    let wrong: Vec<_> =
        of_requests.iter().filter(|(number, labels)| !are_of_request(*number, labels)).collect();
    assert!(wrong.is_empty(), "{name}: {} of {} wrong: {:?}", wrong.len(), of_requests.len(), wrong[0]);
    let requests: BTreeSet<usize> = of_requests.iter().map(|(number, _)| *number).collect();
    assert_eq!(requests.len(), 8, "{name}: each has a trace of its own: {requests:?}");
    let torn: Vec<_> = in_attach.iter().filter(|labels| !are_of_one_request_or_none(labels)).collect();
    assert!(torn.is_empty(), "{name}: {} of {} torn: {:?}", torn.len(), in_attach.len(), torn[0]);
    let over: Vec<_> = between.iter().filter(|labels| !labels.is_empty()).collect();
    assert!(over.is_empty(), "{name}: {} of {} are over: {:?}", over.len(), between.len(), over[0]);
}

/// That many contexts a thread attaches and detaches at least, in a second of its CPU time.
const SWITCHES: u64 = 100_000;

#[test]
fn each_sample_has_the_trace_of_its_request_while_threads_switch_100_000_times_a_second() {
    let dir = scratch();
    let (program, rates) = (dir.path().join("requests"), dir.path().join("rates"));
    let flags = ["-rdynamic", "-DROUNDS=200", "-DROUNDS_BETWEEN=100"];
    gcc("gcc", &program, &[REQUESTS, WRITER], &flags);
    let (context, path) = (process_context("tlsdesc_v1_dev"), rates.to_str().expect("a path in UTF-8"));
    let samples = samples_of(&[(&program, vec![&context, "", path])], &WITH_LABELS).remove(0);
    assert_are_of_their_requests("in the program", &samples);
    assert!(!samples.in_attach.is_empty() && !samples.between.is_empty(), "there are some of both kinds");
    let rates = fs::read(rates).expect("the program has written them");
    let rates: Vec<u64> = rates.as_chunks().0.iter().take(2).map(|rate| u64::from_le_bytes(*rate)).collect();
    assert!(rates.iter().all(|rate| *rate >= SWITCHES), "switches in a second, by thread: {rates:?}");
}

#[test]
fn a_request_that_waits_for_ever_is_known_while_it_does() {
    let dir = scratch();
    let (program, output) = (dir.path().join("waits"), dir.path().join("waits.pb.gz"));
    gcc("gcc", &program, &["record/thread_context_wait.c", WRITER], &["-rdynamic"]);
    let load = Workload::start(&program, &[&process_context("tlsdesc_v1_dev")]);
    let (pid, path) = (load.pid().to_string(), output.to_str().expect("a path in UTF-8"));
    let record = ["-e", "offcpu", "-d", "4s", "-p", &pid, "-o", path];
    let summary = record_json(&[&record[..], &["--thread-context"]].concat());
    let samples = samples_of_pprof(&fs::read(&output).expect("written")).of_requests;
    assert!(!samples.is_empty(), "the thread is seen while it waits");
    assert!(summary["thread_context_samples"].as_u64().is_some_and(|labelled| labelled > 0), "{summary}");
    for (number, labels) in &samples {
        let id = |name: &str| labels.get(name).map(String::as_str);
        let ids = (id("trace_id"), id("span_id"));
        let expected = ("a3".repeat(16), "13".repeat(8));
        assert_eq!((*number, ids), (3, (Some(&*expected.0), Some(&*expected.1))), "{labels:?}");
    }
}

#[test]
fn samples_have_no_labels_of_requests_unless_asked() {
    let dir = scratch();
    let [program, _] = build(("in the program", None, false, "gcc"), dir.path());
    let context = process_context("tlsdesc_v1_dev");
    let samples = samples_of(&[(&program, vec![&context])], &[]).remove(0).of_requests;
    assert!(!samples.is_empty());
    assert!(samples.iter().all(|(_, labels)| labels.is_empty()), "{samples:?}");
    let output = dir.path().join("requests.pb.gz");
    let load = Workload::start(&program, &[&context]);
    let (pid, path) = (load.pid().to_string(), output.to_str().expect("a path in UTF-8"));
    let summary = record_json(&["-d", "1s", "-p", &pid, "-o", path]);
    assert!(summary["thread_context_samples"].is_null(), "{summary}");
}
