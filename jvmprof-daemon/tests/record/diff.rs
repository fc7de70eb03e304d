//! `jvmprof diff` on two files.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use jvmprof_daemon::event_type::EventType;
use jvmprof_daemon::profile::model::{Batch, Frame, FrameKind, LabelSet, Line, Sample, Series};
use jvmprof_daemon::profile::pprof::{for_file, to_bytes};
use jvmprof_daemon::proto::pprof::Profile;

/// A recording of these functions, each called by `main`, with their samples.
fn recording(folder: &Path, name: &str, functions: &[(&str, u64)]) -> PathBuf {
    let frame = |name: &str| {
        let lines = vec![Line::named(name)];
        Arc::new(Frame { kind: FrameKind::Java, address: None, mapping: None, lines })
    };
    let sample = |&(name, events): &(&str, u64)| {
        Sample::of_events([frame(name), frame("main")].into(), events, events * 10_000_000)
    };
    let samples = functions.iter().map(sample).collect();
    let batch = Batch {
        event: EventType::Cpu,
        start: SystemTime::now(),
        duration: Duration::from_secs(10),
        period: 10_000_000,
        series: vec![Series { labels: LabelSet::new(), samples }],
    };
    let path = folder.join(name);
    std::fs::write(&path, to_bytes(&for_file(&batch)).unwrap()).unwrap();
    path
}

fn diff(arguments: &[&Path]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_jvmprof")).arg("diff").args(arguments).output().unwrap()
}

#[test]
fn what_changed_by_more_than_chance_is_printed_and_a_page_written() {
    let folder = tempfile::tempdir().unwrap();
    let before = recording(folder.path(), "a.pb.gz", &[("acme.Order.total", 100), ("acme.Cart.add", 900)]);
    let after = recording(folder.path(), "b.pb.gz", &[("acme.Order.total", 300), ("acme.Cart.add", 880)]);
    let page = folder.path().join("d.html");
    let output = diff(&[&before, &after, Path::new("-o"), &page]);
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("before: a.pb.gz: 1000 samples, 1000 events in 10.0 s"), "{text}");
    assert!(text.contains(" 10.00 %  25.42 % +15.42 %"), "{text}");
    assert!(text.contains("2 of 3 functions differ by more than chance"), "{text}");
    assert!(std::fs::read_to_string(&page).unwrap().contains("id=\"profile\""));

    let output = diff(&[&before, &after, Path::new("--by"), Path::new("time")]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("   0.100    0.300   +0.200") && text.contains("1 of 3 functions"), "{text}");
    let output = diff(&[&before, &before]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("No function differs by more than chance."), "{text}");
}

#[test]
fn what_cannot_be_compared_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let before = recording(folder.path(), "a.pb.gz", &[("acme.Order.total", 100)]);
    let missing = folder.path().join("none.pb.gz");
    let text = folder.path().join("x.txt");
    std::fs::write(&text, "no profile").unwrap();
    let page = folder.path().join("x.html");
    std::fs::write(&page, "<!doctype html>").unwrap();
    let empty = folder.path().join("empty.pb.gz");
    std::fs::write(&empty, to_bytes(&Profile::default()).unwrap()).unwrap();
    for (arguments, code, says) in [
        (&[&*before, &*missing][..], 1, "cannot read"),
        (&[&*before, &*text], 1, "is no pprof file"),
        (&[&*before, &*page], 1, "is no pprof file (.pb.gz), but a page"),
        (&[&*before, &*empty], 1, "the second profile is empty"),
        (&[&*before, &*before, Path::new("-o"), Path::new("d.svg")], 64, "must end in .html"),
    ] {
        let output = diff(arguments);
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(code) && error.contains(says), "{output:?}");
    }
}
