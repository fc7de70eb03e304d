//! The cost that the files of one process may have, and whom they are believed of. Asked with times
//! of its own, so that seconds take none; counted in bytes that are read.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use jvmprof_daemon::clock::monotonic_ns;
use jvmprof_daemon::jit::perf_map::process_perf_map::{PerfMapWriter, ProcessPerfMap};
use jvmprof_daemon::memory_budget::MemoryBudget;
use jvmprof_daemon::types::Avma;
use tempfile::TempDir;

const SECOND: u64 = 1_000_000_000;

fn root() -> (TempDir, PathBuf) {
    let root = tempfile::tempdir().expect("a root");
    fs::create_dir(root.path().join("tmp")).expect("a folder");
    let path = root.path().join("tmp/perf-1.map");
    (root, path)
}

/// The map of a process that was started at this time.
fn map_of(root: &Path, started: Option<SystemTime>) -> ProcessPerfMap {
    let candidate_paths = vec![(root.to_owned(), "/tmp/perf-1.map".into())];
    let since_epoch = started.map(|at| at.duration_since(UNIX_EPOCH).expect("after 1970").as_nanos());
    let started_ns = since_epoch.map(|ns| i128::try_from(ns).expect("not that far"));
    let uid = nix::unistd::geteuid().as_raw();
    ProcessPerfMap::new(PerfMapWriter { candidate_paths, uid, started_ns }, MemoryBudget::new(64 << 20))
}

/// A GiB without a line, which takes no space.
fn write_large(path: &Path, round: u64) {
    let mut file = fs::File::create(path).expect("a map");
    writeln!(file, "1000 10 round{round}").expect("written");
    file.set_len((1 << 30) - round).expect("a sparse file");
}

#[test]
fn a_large_map_that_is_written_anew_all_the_time_is_read_at_a_bounded_rate_whoever_asks() {
    let (root, path) = root();
    let mut map = map_of(root.path(), None);
    let start = monotonic_ns();
    for turn in 0..8_000 {
        if turn % 1_000 == 0 {
            write_large(&path, turn);
        }
        let now = start + turn * SECOND / 1_000;
        // As the watcher when a folder changes, as the naming of frames, and at a window's end.
        map.invalidate_path();
        map.read_new(now);
        map.read_new(now);
        if turn % 1_000 == 999 {
            map.read_before_naming(now);
        }
    }
    let read = map.map().counters().bytes_read;
    // 8 s of a fifth of a CPU, what may be spent at once, and what may be owed, at 12 ns a byte.
    assert!(read > 1 << 20 && read < (8 * SECOND / 5 + SECOND) / 12 + (2 << 20), "{} MiB", read >> 20);
    assert!(map.read_until_ns() <= start, "nothing of it is believed to be all");
}

#[test]
fn a_map_of_any_length_is_read_to_its_end_when_a_person_asks() {
    let (root, path) = root();
    let lines: String =
        (0..400_000).map(|index| format!("{:x} 10 f{index}\n", 0x1000 + index * 16)).collect();
    fs::write(&path, lines).expect("written");
    let mut map = map_of(root.path(), None);
    map.read_new(monotonic_ns());
    assert!(map.has_more());
    map.read_all(monotonic_ns());
    assert_eq!((map.has_more(), map.map().counters().entries), (false, 400_000));
}

#[test]
fn what_an_earlier_process_may_have_left_in_the_file_is_ambiguous_and_what_comes_is_not() {
    let (root, path) = root();
    fs::write(&path, "1000 10 left\n").expect("written");
    std::thread::sleep(Duration::from_millis(120));
    let started = SystemTime::now();
    // File times lag by up to a tick.
    std::thread::sleep(Duration::from_millis(20));
    let append = |line: &str| {
        let mut file = OpenOptions::new().append(true).open(&path).expect("a map");
        file.write_all(line.as_bytes()).expect("written");
    };
    append("2000 10 own\n");
    let mut map = map_of(root.path(), Some(started));
    map.read_new(monotonic_ns());
    append("3000 10 later\n");
    append("2000 10 own\n");
    map.read_new(monotonic_ns());
    let at =
        |address| map.map().lookup(Avma(address), u64::MAX).map(|found| (found.name, found.is_ambiguous));
    assert_eq!((at(0x1000), at(0x2000)), (Some(("left", true)), Some(("own", false))));
    assert_eq!(at(0x3000), Some(("later", false)));

    // A file that came with its process has no such past.
    fs::remove_file(&path).expect("removed");
    fs::write(&path, "1000 10 fresh\n").expect("written");
    let mut map = map_of(root.path(), Some(started));
    map.read_new(monotonic_ns());
    let found = map.map().lookup(Avma(0x1000), u64::MAX).expect("its line");
    assert_eq!((found.name, found.is_ambiguous), ("fresh", false));
}
