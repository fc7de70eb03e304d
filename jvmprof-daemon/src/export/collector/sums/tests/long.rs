//! Sums of six hours and of a day.

use super::*;
use crate::export::store::{HOUR, SumPeriod};

/// 2024-11-21 13:25:30 UTC and 40 hours: with a whole day, and six hours on both sides.
const HOURS: i64 = 40;
const LATE: UnixNanos = UnixNanos((START + (HOURS + 30) * 3_600) * 1_000_000_000);

/// Profiles of a JVM every ten minutes, and of one that ran for an hour.
fn fill_hours(store: &Store, numbers: &mut Numbers) {
    let of_hour = |pid, hour: i64, numbers: &mut Numbers| -> Vec<_> {
        (0..6).map(|part| profile(pid, START + hour * 3_600 + part * 600, numbers)).collect()
    };
    for hour in 0..HOURS {
        store.append(&of_hour(1, hour, numbers)).unwrap();
    }
    for hour in 12..13 {
        store.append(&of_hour(2, hour, numbers)).unwrap();
    }
}

/// The lengths of the sums of each series in hours, and how many of each there are.
fn by_length(dir: &Path) -> BTreeMap<(String, i64), usize> {
    let mut found = BTreeMap::new();
    for file in sums(dir) {
        let series = file.parent().unwrap().file_name().unwrap().to_string_lossy().into_owned();
        let name = file.file_name().unwrap().to_string_lossy().into_owned();
        let length: i64 = name.split('-').nth(1).unwrap().parse().unwrap();
        *found.entry((series, length / HOUR)).or_default() += 1;
    }
    found
}

/// The same of all series.
fn lengths(dir: &Path) -> BTreeMap<i64, usize> {
    let mut found = BTreeMap::new();
    for ((_, length), count) in by_length(dir) {
        *found.entry(length).or_default() += count;
    }
    found
}

fn assert_same_of_trees(dir: &Path, store: &Arc<Store>) {
    let (_copy, reference) = without_sums(dir);
    let (from, to) = (START - 60, START + HOURS * 3_600);
    let ranges = [(from, to), (from + 7_000, to), (from, to - 3 * 3_600), (from + 15_000, from + 90_000)];
    for (from, to) in ranges {
        for rest in ["", "&group=pid", "&base_from=1732195530000&base_to=1732290000000"] {
            let query = format!("from={from}000&to={to}000{rest}");
            let (with, without) = (answer_of_trees(store, &query), answer(&reference, &query));
            assert_eq!((nodes(&with), table(&with)), (nodes(&without), table(&without)), "{query}");
            for name in ["most_lacking", "period_ns", "unit", "sides", "profiles", "unreadable", "series"] {
                assert_eq!(with.get(name), without.get(name), "{name} of {query}");
            }
            assert_close(&with["activities"], &without["activities"]);
        }
    }
}

#[test]
fn answers_of_long_sums_are_those_of_all_profiles() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let mut numbers = Numbers(23);
    fill_hours(&store, &mut numbers);
    let counts = sum_all(&store, LATE);
    let all = lengths(dir.path());
    assert_eq!(counts.stored, sums(dir.path()).len() as u64);
    assert_eq!((all[&24], all[&6]), (1, 6));
    // What ran for an hour has no sum that says the same once more.
    assert_eq!(by_length(dir.path()).keys().filter(|(_, length)| *length > 1).count(), 2);
    assert_same_of_trees(dir.path(), &store);

    // A late profile ends the sums of its day, six hours and hour, which are made anew.
    store.append(&[profile(1, START + 20 * 3_600 + 77, &mut numbers)]).unwrap();
    let left = lengths(dir.path());
    assert_eq!((left.get(&24), left[&6], left[&1]), (None, 5, all[&1] - 1));
    assert_same_of_trees(dir.path(), &store);
    sum_all(&store, LATE);
    assert_eq!(lengths(dir.path()), all);
    assert_same_of_trees(dir.path(), &store);
}

#[test]
fn a_long_sum_is_read_instead_of_shorter_ones() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    fill_hours(&store, &mut Numbers(29));
    let query = format!("from={START}000&to={}000&match=pid=1", START + HOURS * 3_600);
    let before = answer(&store, &query);
    sum_all(&store, LATE);
    // The store's index doesn't know that the files have gone.
    for folder in fs::read_dir(dir.path().join("series")).unwrap().flatten() {
        for file in fs::read_dir(folder.path()).unwrap().flatten() {
            fs::remove_file(file.path()).unwrap();
        }
    }
    for file in sums(dir.path()) {
        if !["-86400000000000-", "-21600000000000-"].iter().any(|of| file.to_string_lossy().contains(of)) {
            fs::remove_file(file).unwrap();
        }
    }
    let after = answer_of_trees(&store, &query);
    // From 18:00 to 24:00 of the first day, and all of the next one.
    assert_eq!(after["profiles"], 30 * 6);
    assert_eq!(
        after["profiles"].as_u64().unwrap() + after["unreadable"].as_u64().unwrap(),
        before["profiles"]
    );
}

#[test]
fn a_long_sum_without_those_of_hours_is_made_of_profiles() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    fill_hours(&store, &mut Numbers(31));
    let is_long = |period: SumPeriod| period.length == 24 * HOUR;
    let missing = || {
        let missing = store.missing_sums(LATE, usize::MAX, |_, _, _| false);
        missing.into_iter().find(|sum| is_long(sum.period)).unwrap()
    };
    let of_profiles = sum_period(&store, &missing()).unwrap();
    // All shorter ones stand before it.
    let order: Vec<_> = store.missing_sums(LATE, usize::MAX, |_, _, _| false);
    assert!(order.iter().map(|sum| sum.period.length.max(HOUR)).is_sorted());
    for sum in order.iter().filter(|sum| sum.period.length <= HOUR) {
        store.write_sum(sum, &sum_period(&store, sum).unwrap()).unwrap();
    }
    let of_hours = sum_period(&store, &missing()).unwrap();
    let parts = missing().parts;
    let parts: Vec<_> = parts.iter().collect();
    let read = |bytes: &[u8]| {
        let sum = stored_sum::parse(bytes, &parts, SumDetail::Tree(usize::MAX)).unwrap();
        let SumContent::Tree(tree) = sum.content else { panic!("a long sum has stacks") };
        let parts: Vec<_> = sum.parts.iter().map(|part| (part.period, part.activities)).collect();
        (parts, sum.events, tree.is_whole(), tree.most_lacking())
    };
    assert_eq!(read(&of_profiles), read(&of_hours));
    assert!(read(&of_hours).2);
}

#[test]
fn short_times_have_all_stacks_and_long_ones_say_what_a_node_may_lack() {
    const MINUTES: i64 = 660;
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let mut numbers = Numbers(37);
    // With 18:00 to 24:00.
    let profiles: Vec<_> = (0..MINUTES / 2).map(|part| wide(1, START + part * 120, &mut numbers)).collect();
    store.append(&profiles).unwrap();
    sum_all(&store, LATE);
    assert_eq!(lengths(dir.path())[&6], 1);
    let (_copy, reference) = without_sums(dir.path());
    let query = format!("from={}000&to={}000", START - 60, START + MINUTES * 60);
    let all_nodes = ReadLimits { nodes: usize::MAX, ..ReadLimits::default() };
    let exact = answer_within(all_nodes, &reference, &query);
    let within = answer_within(all_nodes, &store, &query);
    assert_eq!((nodes(&within), &within["most_lacking"]), (nodes(&exact), &exact["most_lacking"]));
    let cut = answer_of_trees(&store, &query);
    let most_lacking = cut["most_lacking"].as_u64().unwrap();
    let (of_cut, of_exact) = (totals(&cut), totals(&exact));
    let kept: Vec<_> = of_cut.iter().filter(|(path, _)| !path.contains("[pruned]")).collect();
    assert!(most_lacking > 0 && kept.len() > 2_000);
    for (path, total) in kept {
        let exact = of_exact[path];
        assert!(*total <= exact && exact <= total + most_lacking, "{path}: {total} of {exact}");
    }
    assert_eq!(of_cut.values().max(), of_exact.values().max());
    assert_close(&cut["activities"], &exact["activities"]);
    let rows = |answer: &Value| {
        let mut rows = table(answer);
        // Of nodes that were given up.
        rows.remove("truncated");
        rows
    };
    assert_eq!(rows(&cut), rows(&exact));
}

#[test]
fn many_groups_are_counted_as_if_by_one_thread() {
    const MINUTES: i64 = 70;
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let mut numbers = Numbers(41);
    // More than any number of threads gets whole.
    let pids = 1..=20;
    for minute in 0..MINUTES {
        let of_minute = pids.clone().map(|pid| profile(pid, START + minute * 60, &mut numbers));
        store.append(&of_minute.collect::<Vec<_>>()).unwrap();
    }
    sum_all(&store, LATE);
    let (_copy, reference) = without_sums(dir.path());
    let query = format!("from={}000&to={}000&group=pid", START - 60, START + MINUTES * 60);
    let exact = answer(&reference, &query);
    let of_trees = answer_of_trees(&store, &query);
    assert_eq!((nodes(&of_trees), table(&of_trees)), (nodes(&exact), table(&exact)));
    // What a page has no room for is given up by each thread, and no node lacks anything by it.
    let limits = ReadLimits { nodes: 200, stack_bytes: 0, ..ReadLimits::default() };
    let cut = answer_within(limits, &store, &query);
    assert_eq!(cut["most_lacking"], 0);
    let (of_cut, of_exact) = (totals(&cut), totals(&exact));
    let kept: Vec<_> = of_cut.iter().filter(|(path, _)| !path.contains("[pruned]")).collect();
    assert!(of_cut.len() <= 200 && kept.len() > 100, "{} of {}", kept.len(), of_cut.len());
    assert!(kept.iter().all(|(path, total)| of_exact[*path] == **total));
    assert_eq!(of_cut.values().max(), of_exact.values().max());
    assert_close(&cut["activities"], &exact["activities"]);
}
