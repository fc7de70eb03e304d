//! `go tool pprof` reads what is written. Needs Go.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use crate::profile::folded_stacks::{self, Annotation};
use crate::profile::model::{Batch, Frame, FrameKind, Line};
use crate::profile::pprof::{for_file, for_push, to_bytes};
use crate::profile::testing::{batch, inlined, line, located, mapping, series};
use crate::proto::pprof::Profile;
use crate::types::Avma;

fn go_tool_pprof(arguments: &[&str], profile: &Path) -> String {
    let output = Command::new("go")
        .args(["tool", "pprof"])
        .args(arguments)
        .arg(profile)
        .env("PPROF_TMPDIR", profile.parent().unwrap())
        .output()
        .expect("this test needs `go` on the PATH, for `go tool pprof`");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "go tool pprof {arguments:?}: {errors}");
    String::from_utf8(output.stdout).unwrap()
}

fn sample_batch() -> Batch {
    let jvm = mapping("/usr/lib/jvm/lib/server/libjvm.so", 0x7000_0000);
    let java = mapping("/usr/lib/jvm/bin/java", 0x40_0000);
    let start = located(&java, 0x40_0100, vec![line("main", 0)]);
    let call = located(&jvm, 0x7000_0100, vec![line("JavaCalls::call_helper", 0)]);
    let named = |name: &str, signature: &str, number| Line {
        system_name: format!("{name}{signature}").into(),
        ..line(name, number)
    };
    let order = Arc::new(Frame {
        kind: FrameKind::Java,
        address: Some(Avma(0x7f00_0000)),
        mapping: None,
        lines: vec![
            named("com.acme.Order.price", "()J", 41),
            named("com.acme.Order.total", "(Ljava/util/List;)J", 12),
        ],
    });
    let names = [
        "com.acme.Order.<init>",
        "com.acme.Order$$Lambda/0x00007f1c4c000a00.apply",
        "java.util.HashMap$Node[].clone",
        "std::vector<int, std::allocator<int> >::push_back(int&&)",
        "core::ptr::drop_in_place<alloc::string::String>",
        "_start.cold",
        "Größe.berechnen",
        "[unknown 0x7f1234]",
        "[truncated: stack unreadable]",
    ];
    let others = names.iter().enumerate().map(|(at, name)| {
        // As the symbolizer has it: Go shortens what looks like C++ and has no mangled name beside
        // it.
        let system_name = if name.contains("::") { format!("_Z{at}").into() } else { (*name).into() };
        let lines = vec![Line { system_name, ..line(name, 0) }];
        let frame = Frame { kind: FrameKind::Native, address: None, mapping: None, lines };
        (vec![Arc::new(frame), Arc::clone(&start)], at as u64 + 1)
    });
    let mut samples = vec![(vec![order, call, Arc::clone(&start)], 50)];
    samples.extend(others);
    samples.push((vec![inlined(FrameKind::Kernel, &["copy_from_user", "vfs_read"]), start], 20));
    batch(vec![series(&[("pid", "4711"), ("executable", "/usr/lib/jvm/bin/java")], samples)])
}

fn write(profile: &Profile, folder: &Path) -> std::path::PathBuf {
    let path = folder.join("x.pb.gz");
    std::fs::write(&path, to_bytes(profile).unwrap()).unwrap();
    path
}

/// Function and flat value of each line of `-top`.
fn top(text: &str) -> BTreeMap<String, u64> {
    let table = text.split_once("flat%").expect("-top has a table").1;
    table
        .lines()
        .skip(1)
        .filter_map(|row| {
            let mut columns = row.split_whitespace();
            let flat: u64 = columns.next()?.parse().expect("flat is a count");
            let name = columns.skip(4).collect::<Vec<_>>().join(" ");
            let name = name.trim_end_matches(" (inline)").trim_end_matches(" (partial-inline)").to_owned();
            (flat > 0).then_some((name, flat))
        })
        .collect()
}

fn leaves(batch: &Batch) -> BTreeMap<String, u64> {
    let mut leaves = BTreeMap::new();
    for line in folded_stacks::lines(batch, Annotation::Kernel) {
        let (stack, count) = line.rsplit_once(' ').unwrap();
        let leaf = stack.rsplit(';').next().unwrap().trim_end_matches("_[k]");
        *leaves.entry(leaf.to_owned()).or_default() += count.parse::<u64>().unwrap();
    }
    leaves
}

#[test]
fn its_top_table_has_the_names_and_counts_of_the_folded_stacks() {
    let folder = tempfile::tempdir().unwrap();
    let batch = sample_batch();
    for profile in [for_push(&batch, &batch.series[0]), for_file(&batch)] {
        let path = write(&profile, folder.path());
        let arguments = ["-top", "-sample_index=samples", "-nodecount=1000", "-nodefraction=0"];
        let text = go_tool_pprof(&arguments, &path);
        assert!(text.contains("File: java") && text.contains("Type: samples"), "{text}");
        assert!(text.contains("115 total"), "{text}");
        assert_eq!(top(&text), leaves(&batch), "{text}");
    }
}

#[test]
fn a_file_is_cpu_time_by_default_and_can_be_cut_by_label() {
    let folder = tempfile::tempdir().unwrap();
    let path = write(&for_file(&sample_batch()), folder.path());
    let text = go_tool_pprof(&["-top", "-tagfocus=pid=4711"], &path);
    assert!(text.contains("Type: cpu") && text.contains("of 1.15s total"), "{text}");
    assert!(text.contains("Duration: 10s"), "{text}");
    let none = go_tool_pprof(&["-top", "-tagfocus=pid=4712"], &path);
    assert!(none.contains("Showing nodes accounting for 0"), "{none}");
}

#[test]
fn its_raw_view_shows_mappings_signatures_and_lines() {
    let folder = tempfile::tempdir().unwrap();
    let path = write(&for_file(&sample_batch()), folder.path());
    let raw = go_tool_pprof(&["-raw"], &path);
    for text in [
        "PeriodType: cpu nanoseconds",
        "Period: 10000000",
        "samples/count cpu/nanoseconds",
        "1: 0x400000/0x410000/0x1000 /usr/lib/jvm/bin/java 6a617661 [FN]",
        "com.acme.Order.total Order.java:12",
        "com.acme.Order.total(Ljava/util/List;)J",
    ] {
        assert!(raw.contains(text), "{text:?} in {raw}");
    }
}
