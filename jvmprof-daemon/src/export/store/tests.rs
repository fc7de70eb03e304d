//! The store on a real file system: crashes, foreign files, limits.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::*;
use crate::profile::model::FrameKind;
use crate::profile::testing::{batch, frame, labels, series};

fn open(dir: &Path) -> Store {
    Store::open(dir, StoreOptions::default()).unwrap()
}

fn new(names: &[(&str, &str)], start: i64, bytes: usize) -> NewProfile {
    NewProfile {
        labels: with_name(&labels(names), "process_cpu").into(),
        start: UnixNanos(start),
        duration: Duration::from_nanos(10),
        samples: 3,
        pprof: vec![b'x'; bytes].into(),
    }
}

/// Every file below the directory, relative to it.
fn files(dir: &Path) -> Vec<PathBuf> {
    fn walk(dir: &Path, found: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() { walk(&path, found) } else { found.push(path) }
        }
    }
    let mut found = Vec::new();
    walk(dir, &mut found);
    let mut found: Vec<_> = found.iter().map(|path| path.strip_prefix(dir).unwrap().to_owned()).collect();
    found.sort();
    found
}

fn series_dir(dir: &Path) -> PathBuf {
    let mut folders = fs::read_dir(dir.join("series")).unwrap();
    let folder = folders.next().unwrap().unwrap().path();
    assert!(folders.next().is_none(), "one series only");
    folder
}

/// Values that the label has in any series, sorted.
fn label_values(store: &Store, name: &str) -> BTreeSet<String> {
    let series = store.series(TimeRange::ALL, &[]).into_iter();
    series.filter_map(|mut series| series.labels.remove(name)).collect()
}

fn starts(store: &Store) -> Vec<i64> {
    store.profiles(TimeRange::ALL, &[]).iter().map(|profile| profile.start.0).collect()
}

#[test]
fn a_batch_is_found_again_by_time_and_labels_also_after_opening_again() {
    let dir = tempfile::tempdir().unwrap();
    let stack = |count| vec![(vec![frame(FrameKind::Native, "main")], count)];
    let batch = batch(vec![
        series(&[("pid", "1"), ("comm", "java")], stack(3)),
        series(&[("pid", "2"), ("comm", "java")], stack(4)),
        series(&[("pid", "3")], stack(5)),
    ]);
    let store = open(dir.path());
    store.append_batch(&batch).unwrap();
    let written = store.series(TimeRange::ALL, &[]);
    drop(store);

    let store = open(dir.path());
    assert_eq!(label_values(&store, "pid"), ["1", "2", "3"].map(str::to_owned).into());
    assert_eq!(label_values(&store, "__name__"), ["process_cpu"].map(str::to_owned).into());
    let found = store.series(TimeRange::ALL, &[]);
    assert_eq!(format!("{found:?}"), format!("{written:?}"));
    assert_eq!(
        found.iter().map(|series| (series.profiles, series.samples)).collect::<Vec<_>>(),
        [(1, 3), (1, 4), (1, 5)]
    );
    assert_eq!((found[0].last.0 - found[0].first.0), 10_000_000_000);

    let matchers =
        [Matcher::equal("comm", "java"), Matcher { is_negated: true, ..Matcher::equal("pid", "1") }];
    let found = store.series(TimeRange::ALL, &matchers);
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].labels["pid"], "2");
    assert_eq!(
        store.series(TimeRange::ALL, &[Matcher::equal("comm", "")]).len(),
        1,
        "no label is an empty one"
    );

    let start = UnixNanos::from(batch.start);
    let from = |start, end| TimeRange { start: UnixNanos(start), end: UnixNanos(end) };
    assert_eq!(store.profiles(from(start.0, start.0 + 1), &[]).len(), 3);
    assert_eq!(store.profiles(from(start.0 + 1, i64::MAX), &[]).len(), 0);
    assert_eq!(store.profiles(from(0, start.0), &[]).len(), 0);
}

#[test]
fn half_written_files_of_a_crash_are_removed_by_the_next_writer_only() {
    let dir = tempfile::tempdir().unwrap();
    open(dir.path()).append(&[new(&[("pid", "1")], 5, 100)]).unwrap();
    let before = files(dir.path());
    // Crash while a profile was written, ...
    fs::write(series_dir(dir.path()).join("9-10-3-7.pb.gz.tmp"), b"half").unwrap();
    // ... while a new series had only its folder, ...
    fs::create_dir(dir.path().join("series/00000000000000a1")).unwrap();
    // ... while its labels were written, ...
    fs::create_dir(dir.path().join("series/00000000000000a2")).unwrap();
    fs::write(dir.path().join("series/00000000000000a2/labels.json.tmp"), b"{\"__na").unwrap();
    // ... and before its first profile had its name.
    fs::create_dir(dir.path().join("series/00000000000000a3")).unwrap();
    fs::write(dir.path().join("series/00000000000000a3/labels.json"), b"{\"__name__\":\"x\"}").unwrap();
    fs::write(dir.path().join("series/00000000000000a3/9-10-3-8.pb.gz.tmp"), b"half").unwrap();

    let reader = Store::open_for_reading(dir.path()).unwrap();
    assert_eq!(starts(&reader), [5]);
    assert_eq!(reader.counters().leftovers_removed, 0);

    let store = open(dir.path());
    assert_eq!(starts(&store), [5]);
    assert_eq!((store.counters().leftovers_removed, store.counters().skipped), (3, 0));
    assert_eq!(files(dir.path()), before);
    assert_eq!(fs::read_dir(dir.path().join("series")).unwrap().count(), 1);
}

#[test]
fn a_shared_store_counts_what_it_removes_when_it_becomes_the_writer() {
    let dir = tempfile::tempdir().unwrap();
    open(dir.path()).append(&[new(&[("pid", "1")], 5, 100)]).unwrap();
    fs::write(series_dir(dir.path()).join("9-10-3-7.pb.gz.tmp"), b"half").unwrap();
    fs::write(series_dir(dir.path()).join("notes.txt"), b"mine").unwrap();
    let shared = Store::open_shared(dir.path(), StoreOptions::default()).unwrap();
    assert_eq!((shared.counters().leftovers_removed, shared.counters().skipped), (0, 1));
    shared.append(&[new(&[("pid", "1")], 6, 100)]).unwrap();
    let counters = shared.counters();
    assert_eq!((counters.leftovers_removed, counters.skipped), (1, 1), "the stranger counts once");
    assert_eq!((counters.stored_profiles, starts(&shared)), (1, vec![5, 6]));
}

#[test]
fn foreign_files_are_reported_and_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    open(dir.path()).append(&[new(&[("pid", "1")], 5, 100)]).unwrap();
    let folder = series_dir(dir.path());
    fs::write(folder.join("notes.txt"), b"mine").unwrap();
    fs::write(folder.join("999999999999999999999-1-1-1.pb.gz"), b"a start that doesn't fit").unwrap();
    fs::create_dir(folder.join("9-10-3-9.pb.gz")).unwrap();
    fs::create_dir(dir.path().join("series/lost+found")).unwrap();
    fs::write(dir.path().join("series/00000000000000a0"), b"a file").unwrap();
    for (name, json) in [
        ("00000000000000a1", "{\"__name__\": 7}"),
        ("00000000000000a2", "\u{0}\u{1}"),
        ("00000000000000a3", "["),
    ] {
        fs::create_dir(dir.path().join("series").join(name)).unwrap();
        fs::write(dir.path().join("series").join(name).join("labels.json"), json).unwrap();
    }
    fs::create_dir(dir.path().join("series/00000000000000a4")).unwrap();
    fs::write(dir.path().join("series/00000000000000a4/1-2-3-4.pb.gz"), b"whose?").unwrap();

    let before = files(dir.path());
    let store = open(dir.path());
    assert_eq!(starts(&store), [5]);
    assert_eq!(store.counters().skipped, 9);
    assert_eq!(files(dir.path()), before);
    store.append(&[new(&[("pid", "1")], 6, 100)]).unwrap();
    assert_eq!(starts(&store), [5, 6]);
}

#[test]
fn a_profile_copied_to_another_series_takes_nothing_away() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    store.append(&[new(&[("pid", "1")], 5, 100)]).unwrap();
    store.append(&[new(&[("pid", "2")], 6, 100)]).unwrap();
    let profiles = store.profiles(TimeRange::ALL, &[]);
    let original = super::file_names::profile_path(dir.path(), &profiles[0]);
    let other = dir.path().join("series").join(&profiles[1].fingerprint);
    fs::copy(&original, other.join(original.file_name().unwrap())).unwrap();
    drop(store);
    let limit = StoreOptions { limit_bytes: 5 * 4096, ..StoreOptions::default() };
    let store = Store::open(dir.path(), limit).unwrap();
    assert_eq!(starts(&store), [5, 5, 6]);
    store.append(&[new(&[("pid", "2")], 7, 100)]).unwrap();
    assert_eq!(starts(&store).len(), 3);
    assert_eq!(store.used_bytes(), 4096 * (3 + store.series(TimeRange::ALL, &[]).len() as u64));
}

#[test]
fn what_is_foreign_in_a_series_keeps_its_labels() {
    let dir = tempfile::tempdir().unwrap();
    let store =
        Store::open(dir.path(), StoreOptions { limit_bytes: 2 * 4096, ..StoreOptions::default() }).unwrap();
    store.append(&[new(&[("pid", "1")], 5, 100)]).unwrap();
    let folder = series_dir(dir.path());
    fs::write(folder.join("notes.txt"), b"mine").unwrap();
    store.append(&[new(&[("pid", "2")], 6, 100)]).unwrap();
    assert_eq!(starts(&store), [6]);
    assert!(folder.join("labels.json").is_file() && folder.join("notes.txt").is_file());
    drop(store);
    assert_eq!(starts(&open(dir.path())), [6]);
}

#[test]
fn only_one_writes_to_a_directory_and_others_may_read() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let error = Store::open(dir.path(), StoreOptions::default()).unwrap_err();
    assert!(matches!(error, StoreError::Locked { .. }));
    assert!(error.to_string().ends_with("is in use: another process writes to this directory"), "{error}");

    let reader = Store::open_for_reading(dir.path()).unwrap();
    store.append(&[new(&[("pid", "1")], 5, 100)]).unwrap();
    assert_eq!(starts(&reader), [0_i64; 0]);
    reader.refresh().unwrap();
    assert_eq!(starts(&reader), [5]);
    assert_eq!(reader.read(&reader.profiles(TimeRange::ALL, &[])[0]).unwrap(), vec![b'x'; 100]);
    assert!(matches!(reader.append(&[]), Err(StoreError::ReadOnly { .. })));
    drop(store);
    open(dir.path());
}

#[test]
fn a_shared_directory_is_followed_while_another_writes_and_written_when_nobody_does() {
    let dir = tempfile::tempdir().unwrap();
    let shared = Store::open_shared(dir.path(), StoreOptions::default()).unwrap();
    // Whoever shares it keeps no writer away.
    let writer = open(dir.path());
    writer.append(&[new(&[("pid", "1")], 5, 100)]).unwrap();
    let deadline = std::time::Instant::now() + Duration::from_secs(60);
    while starts(&shared) != [5] {
        assert!(std::time::Instant::now() < deadline, "the profile isn't seen");
        std::thread::sleep(Duration::from_millis(50));
    }
    let refused = shared.append(&[new(&[("pid", "2")], 6, 100)]).unwrap_err();
    assert!(matches!(refused, StoreError::WrittenByOther { .. }), "{refused}");
    writer.append(&[new(&[("pid", "1")], 7, 100)]).unwrap();
    drop(writer);

    shared.append(&[new(&[("pid", "2")], 6, 100)]).unwrap();
    assert_eq!(starts(&shared), [5, 6, 7]);
    let second = Store::open(dir.path(), StoreOptions::default()).unwrap_err();
    assert!(matches!(second, StoreError::Locked { .. }));
    drop(shared);
    assert_eq!(starts(&open(dir.path())), [5, 6, 7]);
}

#[test]
fn a_folder_without_profiles_is_told_from_one_that_is_not_there() {
    let dir = tempfile::tempdir().unwrap();
    let error = |path: &Path| Store::open_for_reading(path).unwrap_err().to_string();
    assert!(error(dir.path()).contains("holds no profiles"));
    assert!(error(&dir.path().join("no")).contains("No such file"));
}

#[test]
fn the_oldest_profiles_go_when_the_limit_is_reached_and_their_folders_with_them() {
    let dir = tempfile::tempdir().unwrap();
    // A block for the labels and one for the profile, three times.
    let limit = StoreOptions { limit_bytes: 6 * 4096, ..StoreOptions::default() };
    let store = Store::open(dir.path(), limit.clone()).unwrap();
    for at in [30, 10, 20] {
        store.append(&[new(&[("pid", &at.to_string())], at, 100)]).unwrap();
    }
    assert_eq!(starts(&store), [10, 20, 30]);
    store.append(&[new(&[("pid", "30")], 40, 100)]).unwrap();
    assert_eq!(starts(&store), [20, 30, 40]);
    assert_eq!(label_values(&store, "pid"), ["20", "30"].map(str::to_owned).into());
    assert_eq!(fs::read_dir(dir.path().join("series")).unwrap().count(), 2);
    assert_eq!((store.counters().removed_profiles, store.counters().removed_bytes), (1, 100));
    let used = store.used_bytes();
    drop(store);

    let smaller = StoreOptions { limit_bytes: 3 * 4096, ..StoreOptions::default() };
    let store = Store::open(dir.path(), limit).unwrap();
    assert_eq!(store.used_bytes(), used);
    drop(store);
    let store = Store::open(dir.path(), smaller).unwrap();
    assert_eq!(starts(&store), [30, 40]);
}

#[test]
fn a_profile_larger_than_the_limit_is_refused_instead_of_emptying_the_store() {
    let dir = tempfile::tempdir().unwrap();
    let store =
        Store::open(dir.path(), StoreOptions { limit_bytes: 10_000, ..StoreOptions::default() }).unwrap();
    store.append(&[new(&[("pid", "1")], 5, 100)]).unwrap();
    let error = store.append(&[new(&[("pid", "1")], 6, 20_000)]).unwrap_err();
    assert!(matches!(error, StoreError::TooLarge { bytes: 20_000, limit: 10_000 }));
    assert_eq!(starts(&store), [5]);
}

#[test]
fn a_profile_needs_a_name() {
    let dir = tempfile::tempdir().unwrap();
    let mut profile = new(&[], 5, 100);
    profile.labels = Arc::default();
    assert!(matches!(open(dir.path()).append(&[profile]), Err(StoreError::NoName)));
}

#[test]
fn all_profiles_of_a_request_are_stored_or_none() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    store.append(&[new(&[("pid", "1")], 5, 100)]).unwrap();
    let before = files(dir.path());
    let used = store.used_bytes();
    // The last profile of the request can't get its name: a folder with something in it has it
    // already.
    let blocker = series_dir(dir.path()).join("8-10-3-3.pb.gz");
    fs::create_dir(&blocker).unwrap();
    fs::create_dir(blocker.join("full")).unwrap();
    let request = [new(&[("pid", "2")], 6, 100), new(&[("pid", "1")], 7, 100), new(&[("pid", "1")], 8, 100)];
    let error = store.append(&request).unwrap_err();
    assert!(error.to_string().starts_with("rename to "), "{error}");
    assert_eq!(files(dir.path()), before);
    assert_eq!((starts(&store), store.used_bytes()), (vec![5], used));
    assert_eq!(label_values(&store, "pid"), ["1"].map(str::to_owned).into());
    store.append(&request).unwrap();
    assert_eq!(starts(&store), [5, 6, 7, 8]);
}

#[test]
fn label_sets_with_the_same_fingerprint_stay_apart() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let profile = new(&[("pid", "1")], 5, 100);
    // Another label set sits in the folder that this one would have.
    let taken = dir.path().join("series").join(super::file_names::fingerprint(&profile.labels));
    fs::create_dir(&taken).unwrap();
    fs::write(taken.join("labels.json"), b"{\"__name__\":\"other\"}").unwrap();
    fs::write(taken.join("4-10-3-0.pb.gz"), b"x").unwrap();
    drop(store);
    let store = open(dir.path());
    store.append(&[profile]).unwrap();
    assert_eq!(label_values(&store, "__name__"), ["other", "process_cpu"].map(str::to_owned).into());
    drop(store);
    assert_eq!(open(dir.path()).series(TimeRange::ALL, &[]).len(), 2);
}

#[test]
fn profiles_are_not_for_everyone() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("new/store");
    let store = open(&root);
    store.append(&[new(&[("pid", "1")], 5, 100)]).unwrap();
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o007;
    assert_eq!(mode(&root), 0);
    let profile = super::file_names::profile_path(&root, &store.profiles(TimeRange::ALL, &[])[0]);
    assert_eq!(mode(&profile), 0);
}

#[test]
fn what_the_limit_removed_since_it_was_listed_is_an_error_with_its_path() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    store.append(&[new(&[("pid", "1")], 5, 100)]).unwrap();
    let profile = store.profiles(TimeRange::ALL, &[]).remove(0);
    fs::remove_file(super::file_names::profile_path(dir.path(), &profile)).unwrap();
    let error = store.read(&profile).unwrap_err();
    assert!(error.to_string().contains("5-10-3-0.pb.gz: No such file"), "{error}");
}

#[test]
fn a_request_of_more_series_than_are_synced_together_is_stored_whole() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    for start in 0..2 {
        let request: Vec<_> = (0..100).map(|pid| new(&[("pid", &pid.to_string())], start, 100)).collect();
        store.append(&request).unwrap();
    }
    let used = store.used_bytes();
    drop(store);
    let store = open(dir.path());
    assert_eq!(store.series(TimeRange::ALL, &[]).len(), 100);
    assert_eq!((starts(&store).len(), store.used_bytes()), (200, used));
    assert_eq!(store.counters(), StoreCounters::default());
}

#[test]
fn a_label_set_is_stored_only_if_it_is_read_again() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    // Each byte is six in JSON.
    let others = "__name__process_cpulong".len();
    let largest = "\u{1}".repeat(MAX_LABEL_SET_BYTES - others);
    let larger = format!("{largest}x");
    let error = store.append(&[new(&[("pid", "1")], 4, 100), new(&[("long", &larger)], 5, 100)]).unwrap_err();
    assert!(matches!(error, StoreError::LabelSetTooLarge { bytes: 65_537, limit: 65_536, .. }), "{error}");
    assert_eq!(files(dir.path()), [Path::new("lock")]);
    store.append(&[new(&[("long", &largest)], 5, 100)]).unwrap();
    drop(store);
    let store = open(dir.path());
    assert_eq!((starts(&store), store.counters().skipped), (vec![5], 0));
}

#[test]
fn labels_of_all_series_have_a_limit_and_those_that_are_there_are_taken_on() {
    let dir = tempfile::tempdir().unwrap();
    // Room for two label sets of 23 bytes, and for their blocks with a profile each.
    let options = StoreOptions { limit_bytes: 4 * 4096, max_label_bytes: 50 };
    let store = Store::open(dir.path(), options.clone()).unwrap();
    store.append(&[new(&[("pid", "1")], 5, 100), new(&[("pid", "2")], 6, 100)]).unwrap();
    let before = files(dir.path());
    let request = [new(&[("pid", "2")], 7, 100), new(&[("pid", "3")], 7, 100), new(&[("pid", "3")], 8, 100)];
    let refused: Vec<_> = store.label_refusals(&request).iter().map(|(position, _)| *position).collect();
    assert_eq!(refused, [1, 2]);
    let error = store.append(&request).unwrap_err();
    assert!(matches!(error, StoreError::NoRoomForLabels { bytes: 23, used: 46, limit: 50, .. }), "{error}");
    assert!(error.is_out_of_space());
    assert_eq!(files(dir.path()), before);
    // One that is there has no need of room, and removes the first for its second profile.
    store.append(&request[..1]).unwrap();
    assert_eq!(label_values(&store, "pid"), ["2"].map(str::to_owned).into());
    store.append(&[new(&[("pid", "3")], 8, 100)]).unwrap();
    drop(store);

    let before = files(dir.path());
    let smaller = StoreOptions { max_label_bytes: 30, ..options.clone() };
    let store = Store::open(dir.path(), smaller).unwrap();
    assert_eq!((store.series(TimeRange::ALL, &[]).len(), store.counters().skipped), (1, 1));
    drop(store);
    assert_eq!(files(dir.path()), before);
    let store = Store::open(dir.path(), options).unwrap();
    assert_eq!((store.series(TimeRange::ALL, &[]).len(), store.counters().skipped), (2, 0));
}
