//! Answers with sums beside those without.

mod long;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;

use super::stored_sum::{self, StoredSumError, SumContent, SumDetail};
use super::sum_of_period::sum_period;
use super::{BackgroundSums, SumCounts, sum_all};
use crate::export::collector::ReadLimits;
use crate::export::collector::profile_reader::ProfileReader;
use crate::export::collector::selection::Query;
use crate::export::store::{NewProfile, Store, StoreOptions, UnixNanos, with_name};
use crate::profile::model::{Batch, FrameKind, SampleLabel, SampleLabels};
use crate::profile::pprof;
use crate::profile::testing::{batch, frame, line, located, mapping, series};

/// Begins within an hour, and within five minutes.
const START: i64 = 1_732_195_530;
const MINUTES: i64 = 200;

struct Numbers(u64);

impl Numbers {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }
}

/// A profile with stacks with and without names, lines and kinds of threads.
fn profile(pid: u64, second: i64, numbers: &mut Numbers) -> NewProfile {
    let library = mapping("/usr/lib/libfoo.so", 0x7000_0000 + 0x1000 * numbers.below(3));
    let stacks = (0..1 + numbers.below(6)).map(|_| {
        let method = format!("com.acme.Order{}.total", numbers.below(5));
        let lines = vec![line(&method, 10 + numbers.below(3) as u32)];
        let mut frames = vec![located(&library, library.start.0 + numbers.below(0x1000), lines)];
        if numbers.below(3) == 0 {
            frames.insert(0, located(&library, library.start.0 + numbers.below(0x1000), Vec::new()));
        }
        frames.push(frame(FrameKind::Native, "start_thread"));
        (frames, 1 + numbers.below(9))
    });
    let mut of_pid = series(&[("pid", &pid.to_string()), ("runtime", "jvm")], stacks.collect());
    for sample in &mut of_pid.samples {
        let kind = ["java", "gc", "jit"][numbers.below(3) as usize];
        sample.labels =
            SampleLabels::new(vec![SampleLabel { name: "thread_kind".into(), value: kind.into() }]);
    }
    let mut batch = batch(vec![of_pid]);
    batch.duration = Duration::from_secs(60);
    new_profile(&batch, second)
}

fn new_profile(batch: &Batch, second: i64) -> NewProfile {
    let profile = pprof::for_push(batch, &batch.series[0]);
    NewProfile {
        labels: with_name(&batch.series[0].labels, "process_cpu").into(),
        start: UnixNanos(second * 1_000_000_000),
        duration: batch.duration,
        samples: pprof::total(&profile),
        pprof: pprof::to_bytes(&profile).unwrap().into(),
    }
}

/// A profile of stacks that hardly ever repeat: more nodes than a sum's tree has.
fn wide(pid: u64, second: i64, numbers: &mut Numbers) -> NewProfile {
    let mut stacks = Vec::new();
    for _ in 0..60 {
        let mut frames: Vec<_> = (0..3 + numbers.below(5))
            .map(|_| frame(FrameKind::Java, &format!("acme.A.f{}", numbers.below(7).min(numbers.below(7)))))
            .collect();
        frames.push(frame(FrameKind::Native, "start_thread"));
        stacks.push((frames, 1 + numbers.below(4)));
    }
    let mut batch = batch(vec![series(&[("pid", &pid.to_string()), ("runtime", "jvm")], stacks)]);
    batch.duration = Duration::from_secs(60);
    new_profile(&batch, second)
}

fn open(dir: &Path) -> Arc<Store> {
    Arc::new(Store::open(dir, StoreOptions::default()).unwrap())
}

fn fill(store: &Store, numbers: &mut Numbers) {
    for minute in 0..MINUTES {
        let second = START + minute * 60;
        store.append(&[1, 2].map(|pid| profile(pid, second, numbers))).unwrap();
    }
}

/// A store with the same profiles and no sums.
fn without_sums(dir: &Path) -> (tempfile::TempDir, Arc<Store>) {
    let copy = tempfile::tempdir().unwrap();
    for folder in fs::read_dir(dir.join("series")).unwrap().flatten() {
        let to = copy.path().join("series").join(folder.file_name());
        fs::create_dir_all(&to).unwrap();
        for file in fs::read_dir(folder.path()).unwrap().flatten() {
            fs::hard_link(file.path(), to.join(file.file_name())).unwrap();
        }
    }
    let store = Arc::new(Store::open_for_reading(copy.path()).unwrap());
    (copy, store)
}

fn answer(store: &Arc<Store>, query: &str) -> Value {
    answer_within(ReadLimits::default(), store, query)
}

/// Answers a query for which the trees of sums alone are counted.
fn answer_of_trees(store: &Arc<Store>, query: &str) -> Value {
    answer_within(ReadLimits { stack_bytes: 0, ..ReadLimits::default() }, store, query)
}

fn answer_within(limits: ReadLimits, store: &Arc<Store>, query: &str) -> Value {
    let reader = ProfileReader { store: Arc::clone(store), limits, is_cancelled: Arc::default() };
    let answer = reader.flame_graph(&Query::parse(query).unwrap()).unwrap();
    serde_json::to_value(answer).unwrap()
}

/// The nodes by their paths: strings and functions are numbered by who came first.
fn nodes(answer: &Value) -> BTreeMap<String, String> {
    let tree = &answer["tree"];
    let at = |column: &Value, row: usize| column[row].as_u64().unwrap() as usize;
    let (functions, nodes) = (&tree["functions"], &tree["nodes"]);
    let mut paths: Vec<String> = Vec::new();
    let mut rows = BTreeMap::new();
    for row in 0..nodes["total"].as_array().unwrap().len() {
        let function = at(&nodes["function"], row);
        let text = |column: &str| tree["strings"][at(&functions[column], function)].as_str().unwrap();
        let own =
            format!("{}|{}|{}|{}", functions["kind"][function], text("name"), text("file"), text("module"));
        let path = if row == 0 { own } else { format!("{};{own}", paths[at(&nodes["parent"], row)]) };
        let column = |name: &str| nodes.get(name).map(|column| column[row].to_string());
        let mut pairs: Vec<_> =
            nodes["lines"][row].as_array().unwrap().chunks(2).map(|it| format!("{it:?}")).collect();
        pairs.sort();
        let counts = ["total", "base", "how", "activity", "base_activity"].map(column);
        assert!(rows.insert(path.clone(), format!("{counts:?} {pairs:?}")).is_none());
        paths.push(path);
    }
    rows
}

/// The table's rows by function, with how it ran, and what is known of stacks that aren't whole.
fn table(answer: &Value) -> BTreeMap<String, String> {
    let (tree, top) = (&answer["tree"], &answer["tree"]["top"]);
    let mut rows = BTreeMap::new();
    for (row, function) in top["function"].as_array().unwrap().iter().enumerate() {
        let function = function.as_u64().unwrap() as usize;
        let text = |column: &str| {
            tree["strings"][tree["functions"][column][function].as_u64().unwrap() as usize].to_string()
        };
        let mut how: Vec<_> =
            top["how"][row].as_array().unwrap().chunks(2).map(|it| format!("{it:?}")).collect();
        how.sort();
        let counts = ["self", "attributed", "total"].map(|column| top[column][row].to_string());
        let key = ["name", "file", "module"].map(text).join("|");
        assert!(rows.insert(key, format!("{counts:?} {how:?}")).is_none());
    }
    rows.insert("seen".to_owned(), top["seen"].to_string());
    rows.insert("truncated".to_owned(), format!("{} {}", tree["truncated"], tree["pruned"]));
    rows
}

/// Sums of numbers with a fraction depend on their order in the last digits.
fn assert_close(one: &Value, other: &Value) {
    let rows = |value: &Value| -> Vec<f64> {
        let rows = value["samples"].as_array().unwrap().iter();
        rows.flat_map(|row| row.as_array().unwrap()).map(|it| it.as_f64().unwrap()).collect()
    };
    let (one, other) = (rows(one), rows(other));
    assert_eq!(one.len(), other.len());
    assert!(one.iter().sum::<f64>() > 0.0);
    assert!(one.iter().zip(&other).all(|(a, b)| (a - b).abs() < 1e-6));
}

fn assert_same(dir: &Path, store: &Arc<Store>, numbers: &mut Numbers, ranges: usize) {
    let (_copy, reference) = without_sums(dir);
    let seconds = (MINUTES * 60) as u64;
    let mut queries = vec![format!("from={}000&to={}000&group=pid", START - 60, START + MINUTES * 60 + 60)];
    for _ in 0..ranges {
        let from = START + numbers.below(seconds / 2) as i64;
        let to = from + 1_200 + numbers.below(seconds) as i64;
        let base = format!("&base_from={}000&base_to={to}000", START - 5);
        let rest = ["", "&match=pid=1", "&group=pid", base.as_str()][numbers.below(4) as usize];
        queries.push(format!("from={from}000&to={to}000{rest}"));
    }
    for query in queries {
        let (with, without) = (answer(store, &query), answer(&reference, &query));
        assert!(with["tree"]["total"].as_u64().unwrap() > 0);
        assert_eq!(nodes(&with), nodes(&without), "{query}");
        assert_eq!(table(&with), table(&without), "{query}");
        // These trees have all nodes.
        let of_trees = answer_of_trees(store, &query);
        assert_eq!((nodes(&of_trees), table(&of_trees)), (nodes(&without), table(&without)), "{query}");
        for name in ["most_lacking", "period_ns", "unit", "sides", "profiles", "unreadable", "series"] {
            assert_eq!(with.get(name), without.get(name), "{name} of {query}");
        }
        assert_close(&with["activities"], &without["activities"]);
    }
}

fn sums(dir: &Path) -> Vec<std::path::PathBuf> {
    let folders = fs::read_dir(dir.join("sums")).into_iter().flatten().flatten();
    let mut found: Vec<_> = folders
        .flat_map(|folder| fs::read_dir(folder.path()).unwrap().flatten())
        .map(|file| file.path())
        .collect();
    found.sort();
    found
}

const END: UnixNanos = UnixNanos((START + (MINUTES + 90) * 60) * 1_000_000_000);

#[test]
fn answers_with_sums_are_those_of_all_profiles() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let mut numbers = Numbers(7);
    fill(&store, &mut numbers);
    let plain = store.used_bytes();
    // Whole hours and five minutes of two series.
    let counts = sum_all(&store, END);
    let made = sums(dir.path()).len();
    assert_eq!(counts, SumCounts { stored: made as u64, ..SumCounts::default() });
    assert!(made > 2 * 39, "{made}");
    assert!(store.used_bytes() > plain);
    assert_same(dir.path(), &store, &mut numbers, 12);

    // Late ones, of which one begins when another did, end the sums of their periods.
    for minute in [70, 71, 130] {
        store.append(&[profile(1, START + minute * 60, &mut numbers)]).unwrap();
    }
    assert!(sums(dir.path()).len() < made);
    assert_same(dir.path(), &store, &mut numbers, 4);
    sum_all(&store, END);
    assert_eq!(sums(dir.path()).len(), made);
    assert_same(dir.path(), &store, &mut numbers, 4);

    // The next writer finds them, and not those of which a profile has gone meanwhile.
    let used = store.used_bytes();
    drop(store);
    let store = open(dir.path());
    assert_eq!((store.used_bytes(), sum_all(&store, END).stored), (used, 0));
    drop(store);
    let series = fs::read_dir(dir.path().join("series")).unwrap().flatten().next().unwrap().path();
    let middle = format!("{}000000000-", START + 100 * 60);
    let gone = fs::read_dir(series)
        .unwrap()
        .flatten()
        .find(|file| file.file_name().to_string_lossy().starts_with(&middle));
    fs::remove_file(gone.unwrap().path()).unwrap();
    let store = open(dir.path());
    assert_eq!(sums(dir.path()).len(), made - 2);
    assert_same(dir.path(), &store, &mut numbers, 4);
}

#[test]
fn an_answer_of_cut_trees_has_all_samples_and_says_what_a_node_may_lack() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let mut numbers = Numbers(17);
    for minute in 0..MINUTES {
        store.append(&[1, 2].map(|pid| wide(pid, START + minute * 60, &mut numbers))).unwrap();
    }
    sum_all(&store, END);
    let (_copy, reference) = without_sums(dir.path());
    for group in ["", "&group=pid"] {
        let query = format!("from={}000&to={}000{group}", START - 60, START + MINUTES * 60 + 60);
        let all_nodes = ReadLimits { nodes: usize::MAX, ..ReadLimits::default() };
        let (cut, exact) = (answer_of_trees(&store, &query), answer_within(all_nodes, &reference, &query));
        let rows = |answer: &Value| {
            let mut rows = table(answer);
            // Of nodes that were given up.
            rows.remove("truncated");
            rows
        };
        assert_eq!(rows(&cut), rows(&exact));
        let most_lacking = cut["most_lacking"].as_u64().unwrap();
        assert!(most_lacking > 0 && exact["most_lacking"] == 0);
        let (of_cut, of_exact) = (totals(&cut), totals(&exact));
        let mut lacking = 0;
        for (path, total) in &of_cut {
            if !path.contains("[pruned]") {
                let exact = of_exact[path];
                assert!(*total <= exact && exact <= total + most_lacking, "{path}: {total} of {exact}");
                lacking += exact - total;
            }
        }
        assert!(lacking > 0 && of_cut.len() > 2_000);
        // What nodes lack is in `[pruned]`: no sample is missing.
        let root = |totals: &BTreeMap<String, u64>| *totals.values().max().unwrap();
        assert_eq!(root(&of_cut), root(&of_exact));
        assert_close(&cut["activities"], &exact["activities"]);
    }
}

#[test]
fn a_sum_without_room_for_its_stacks_has_its_tree() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let mut numbers = Numbers(19);
    for minute in 0..20 {
        store.append(&[wide(1, START + minute * 60, &mut numbers)]).unwrap();
    }
    let missing = store.missing_sums(END, 1, |_, _, _| false).remove(0);
    let whole = sum_period(&store, &missing).unwrap();
    let parts: Vec<_> = missing.parts.iter().collect();
    let content = |bytes: &[u8], detail| stored_sum::parse(bytes, &parts, detail).map(|sum| sum.content);
    assert!(matches!(content(&whole, SumDetail::All), Ok(SumContent::Stacks(_))));
    let tree_alone = stored_sum::without_stacks(&whole);
    assert!(tree_alone.len() < whole.len() / 2);
    for bytes in [&whole, tree_alone] {
        assert!(matches!(content(bytes, SumDetail::Tree(usize::MAX)), Ok(SumContent::Tree(_))));
    }
    assert!(matches!(content(tree_alone, SumDetail::All), Err(StoredSumError::NoStacks)));
    // The stacks of the others aren't even read where the tree is enough.
    let mut unread = whole.as_slice();
    assert!(stored_sum::parse(&mut unread, &parts, SumDetail::Tree(usize::MAX)).is_ok());
    assert_eq!(unread.len(), whole.len() - tree_alone.len());
}

/// The samples of nodes by their paths.
fn totals(answer: &Value) -> BTreeMap<String, u64> {
    let (tree, nodes) = (&answer["tree"], &answer["tree"]["nodes"]);
    let mut paths: Vec<String> = Vec::new();
    for node in 0..nodes["parent"].as_array().unwrap().len() {
        let at = |column: &Value, row: usize| column[row].as_u64().unwrap() as usize;
        let name = at(&tree["functions"]["name"], at(&nodes["function"], node));
        let above = paths.get(at(&nodes["parent"], node)).cloned().unwrap_or_default();
        paths.push(format!("{above};{}", tree["strings"][name]));
    }
    let totals = nodes["total"].as_array().unwrap().iter().map(|total| total.as_u64().unwrap());
    paths.into_iter().zip(totals).collect()
}

#[test]
fn a_sum_is_read_instead_of_its_profiles() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    fill(&store, &mut Numbers(13));
    let query = format!("from={}000&to={}000", START, START + MINUTES * 60);
    let before = answer(&store, &query);
    sum_all(&store, END);
    // The store's index doesn't know that the files have gone.
    for folder in fs::read_dir(dir.path().join("series")).unwrap().flatten() {
        for file in fs::read_dir(folder.path()).unwrap().flatten() {
            fs::remove_file(file.path()).unwrap();
        }
    }
    let after = answer(&store, &query);
    let unreadable = after["unreadable"].as_u64().unwrap();
    // Those before the first whole period and behind the last one.
    assert!((1..=20).contains(&unreadable), "{unreadable}");
    assert_eq!(after["profiles"].as_u64().unwrap() + unreadable, before["profiles"].as_u64().unwrap());
}

#[test]
fn edited_answers_are_those_of_all_profiles() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    fill(&store, &mut Numbers(17));
    let (_copy, reference) = without_sums(dir.path());
    sum_all(&store, END);
    assert!(!sums(dir.path()).is_empty());
    let range = format!("from={}000&to={}000", START, START + MINUTES * 60);
    let all = answer(&store, &range)["tree"]["total"].as_u64();
    let of_method = ["edit=only:", "edit=hide:", "through="].map(|of| format!("{of}com.acme.Order1.total"));
    for edit in of_method.iter().map(String::as_str).chain(["edit=activity:gc", "edit=thread:java"]) {
        let query = format!("{range}&{edit}");
        let (with, without) = (answer(&store, &query), answer(&reference, &query));
        let total = with["tree"]["total"].as_u64();
        assert!(total > Some(0) && total < all, "{edit}: {total:?} of {all:?}");
        assert_eq!((nodes(&with), table(&with)), (nodes(&without), table(&without)), "{edit}");
    }
}

#[test]
fn a_sum_of_the_right_name_that_is_broken_is_not_believed() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let mut numbers = Numbers(9);
    fill(&store, &mut numbers);
    sum_all(&store, END);
    let files = sums(dir.path());
    // Each has the contents of another.
    let contents: Vec<_> = files.iter().map(|file| fs::read(file).unwrap()).collect();
    for (file, bytes) in files.iter().zip(contents.iter().cycle().skip(1)) {
        fs::write(file, bytes).unwrap();
    }
    let hour = files.iter().find(|file| file.to_string_lossy().contains("-3600000000000-")).unwrap();
    fs::write(hour, b"none").unwrap();
    assert_same(dir.path(), &store, &mut numbers, 4);
    // The one that can't be read is made again; those of other profiles may be of an index that is
    // about to change.
    assert!(!hour.exists());
    assert_eq!(sum_all(&store, END).stored, 1);
    assert_eq!(sums(dir.path()).len(), files.len());
    assert_same(dir.path(), &store, &mut numbers, 2);
}

#[test]
fn sums_that_can_not_be_made_are_counted_by_whether_that_may_pass() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let mut numbers = Numbers(3);
    // Whole five minutes of two series, of which one can't be decoded.
    for minute in 0..20 {
        let [mut broken, whole] = [1, 2].map(|pid| profile(pid, START + minute * 60, &mut numbers));
        broken.pprof = b"no pprof at all, of some length".as_slice().into();
        store.append(&[broken, whole]).unwrap();
    }
    let counts = sum_all(&store, END);
    assert_eq!((counts.stored, counts.failed, counts.outdated), (counts.refused, 0, 0), "{counts:?}");
    assert!(counts.refused >= 3, "{counts:?}");

    // A file is gone of five minutes that are the newest, and so the first to be summed.
    let late: Vec<_> = (30..35).map(|minute| profile(3, START + minute * 60, &mut numbers)).collect();
    store.append(&late).unwrap();
    let gone = format!("{}000000000-", START + 32 * 60);
    for folder in fs::read_dir(dir.path().join("series")).unwrap().flatten() {
        let files = fs::read_dir(folder.path()).unwrap().flatten();
        let gone = files.filter(|file| file.file_name().to_string_lossy().starts_with(&gone));
        gone.for_each(|file| fs::remove_file(file.path()).unwrap());
    }
    assert_eq!(sum_all(&store, END), SumCounts { failed: 1, ..SumCounts::default() });
}

#[test]
fn a_collectors_thread_counts_what_it_does() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    fill(&store, &mut Numbers(5));
    let background = BackgroundSums::start(Arc::clone(&store)).unwrap();
    while background.counts().stored == 0 {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(background.counts().refused, 0);
}

#[test]
fn sums_count_for_the_limit_and_leave_with_their_profiles() {
    let dir = tempfile::tempdir().unwrap();
    let limit_bytes = 250 * 4096;
    let store =
        Arc::new(Store::open(dir.path(), StoreOptions { limit_bytes, ..StoreOptions::default() }).unwrap());
    let mut numbers = Numbers(11);
    for minute in 0..MINUTES {
        store.append(&[1, 2].map(|pid| profile(pid, START + minute * 60, &mut numbers))).unwrap();
        if minute % 20 == 0 {
            sum_all(&store, UnixNanos((START + minute * 60) * 1_000_000_000));
        }
        assert!(store.used_bytes() <= limit_bytes);
    }
    assert!(sums(dir.path()).len() > 10);
    assert_same(dir.path(), &store, &mut numbers, 6);
    let used = store.used_bytes();
    drop(store);
    assert_eq!(
        Store::open(dir.path(), StoreOptions { limit_bytes, ..StoreOptions::default() })
            .unwrap()
            .used_bytes(),
        used
    );
}
