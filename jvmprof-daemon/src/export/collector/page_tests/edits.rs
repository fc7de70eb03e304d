//! Answers from which stacks are left out: they are what the page's own edits would leave of a tree
//! that isn't cut.

use std::collections::BTreeMap;
use std::time::SystemTime;

use super::*;
use crate::profile::testing::{line, located, mapping};

/// Java frames with their lines from the root on, the kind of their thread, and samples.
type StoredStack = (&'static str, &'static [(&'static str, u32)], u64);

const STACKS: [StoredStack; 6] = [
    ("java", &[("acme.Shop.serve", 10), ("acme.Order.total", 57), ("acme.Tax.of", 3)], 9),
    ("java", &[("acme.Shop.serve", 10), ("acme.Order.total", 61)], 7),
    ("virtual", &[("acme.Shop.serve", 12), ("acme.Cart.add", 5), ("acme.Order.total", 57)], 4),
    ("java", &[("acme.Shop.serve", 12), ("acme.Cart.add", 8)], 3),
    ("java", &[("acme.Shop.serve", 12), ("acme.Rare.path", 77), ("acme.Order.total", 58)], 1),
    ("gc", &[("acme.Shop.serve", 9), ("acme.Cart.add", 8)], 5),
];

/// Stores ten seconds of a JVM from so many milliseconds after `START` on, with the times of
/// samples.
fn add_shop(page: &PageClient, later: i64, stacks: &[StoredStack]) {
    let jvm = mapping("jvm", 0x1000);
    let sample = |(at, (kind, methods, count)): (i32, &StoredStack)| {
        let frames = methods.iter().rev().map(|(name, number)| {
            let address = 0x1000 + u64::from(*number);
            located(&jvm, address, vec![line(name, *number)])
        });
        let label = SampleLabel { name: "thread_kind".into(), value: (*kind).into() };
        let times = (0..*count as i32).map(|event| at * 100 + event * 1_000).collect();
        let labels = SampleLabels::new([label]);
        Sample { labels, times, ..Sample::of_events(frames.collect(), *count, count * 10_000_000) }
    };
    let samples = (0..).zip(stacks).map(sample).collect();
    let shop = Series { samples, ..series(&[("comm", "shop"), ("pid", "7")], Vec::new()) };
    let start = Duration::from_millis(u64::try_from(START + later).unwrap());
    let batch = Batch { start: SystemTime::UNIX_EPOCH + start, ..batch(vec![shop]) };
    page.store.append(&NewProfile::of_batch(&batch).unwrap()).unwrap();
}

/// Beside the processes of the store that are no JVMs, two times of one.
fn page(limits: ReadLimits) -> PageClient {
    let page = PageClient::with("127.0.0.1:7070", limits);
    add_shop(&page, 60_000, &STACKS);
    add_shop(&page, 100_000, &STACKS[2..]);
    page
}

/// The first 90 s of the store.
fn request(rest: &str) -> String {
    format!("/api/flamegraph?from={START}&to={}{rest}", START + 90_000)
}

/// Own samples of the base and of the tree, by the path and by what they were taken in.
type Stacks = BTreeMap<(Vec<String>, u64), [u64; 2]>;

/// The activity of samples of processes that are no JVMs.
const OTHER: u64 = 8;

fn numbers(column: &Value) -> Vec<u64> {
    serde_json::from_value(column.clone()).unwrap_or_default()
}

fn name(tree: &Value, function: u64) -> String {
    let name = tree["functions"]["name"][function as usize].as_u64().unwrap();
    tree["strings"][name as usize].as_str().unwrap().to_owned()
}

fn stacks(answer: &Value) -> Stacks {
    let (tree, nodes) = (&answer["tree"], &answer["tree"]["nodes"]);
    let (parents, functions) = (numbers(&nodes["parent"]), numbers(&nodes["function"]));
    let mut paths: Vec<Vec<String>> = vec![Vec::new()];
    for (parent, function) in parents.iter().zip(functions).skip(1) {
        let mut path = paths[*parent as usize].clone();
        path.push(name(tree, function));
        paths.push(path);
    }
    let mut stacks = Stacks::new();
    for (side, [totals, activity]) in [["base", "base_activity"], ["total", "activity"]].iter().enumerate() {
        let mut own = numbers(&nodes[totals]);
        for (node, total) in numbers(&nodes[totals]).into_iter().enumerate().skip(1) {
            own[parents[node] as usize] -= total;
        }
        for (node, own) in own.into_iter().enumerate().filter(|(_, own)| *own > 0) {
            let row = numbers(&nodes[activity][node]);
            let pairs: Vec<(u64, u64)> = match row.as_slice() {
                [] => vec![(OTHER, own)],
                [number] => vec![(*number, own)],
                pairs => pairs.chunks_exact(2).map(|pair| (pair[0], pair[1])).collect(),
            };
            for (number, samples) in pairs {
                stacks.entry((paths[node].clone(), number)).or_default()[side] += samples;
            }
        }
    }
    stacks
}

/// The table's rows: own, attributed and all samples, and those by line.
fn table(answer: &Value) -> BTreeMap<String, [Value; 4]> {
    let (tree, top) = (&answer["tree"], &answer["tree"]["top"]);
    let rows = numbers(&top["function"]).into_iter().enumerate().map(|(row, function)| {
        let columns = ["self", "attributed", "total", "lines"];
        (name(tree, function), columns.map(|column| top[column][row].clone()))
    });
    rows.collect()
}

/// The rule by which the page would leave a stack, by its functions and by what its samples were
/// taken in.
type IsLeft = fn(&[String], u64) -> bool;

fn has(path: &[String], function: &str) -> bool {
    path.iter().any(|name| name == function)
}

fn has_class(path: &[String], class: &str) -> bool {
    path.iter().any(|name| name.starts_with(class))
}

const EDITS: [(&str, IsLeft); 9] = [
    ("edit=only:acme.Rare.path", |path, _| has(path, "acme.Rare.path")),
    ("edit=only:acme.Cart.*&edit=only:acme.Order.total", |path, _| {
        has_class(path, "acme.Cart.") && has(path, "acme.Order.total")
    }),
    ("edit=hide:acme.Order.total", |path, _| !has(path, "acme.Order.total")),
    ("edit=hide:acme.Cart.*&edit=hide:acme.Tax.of", |path, _| {
        !has_class(path, "acme.Cart.") && !has(path, "acme.Tax.of")
    }),
    ("edit=only:acme.Order.total&edit=hide:acme.Cart.add", |path, _| {
        has(path, "acme.Order.total") && !has(path, "acme.Cart.add")
    }),
    ("through=acme.Cart.add", |path, _| has(path, "acme.Cart.add")),
    // The low four bits of a number are those of the activity.
    ("edit=activity:gc&edit=activity:other", |_, number| [1, OTHER].contains(&(number & 15))),
    ("edit=thread:gc&edit=thread:virtual&edit=thread:unknown", |_, number| {
        number & 15 != OTHER && [0, 2, 3].contains(&(number >> 4))
    }),
    (
        "edit=activity:application&edit=thread:java&edit=hide:acme.Rare.*&through=acme.Order.total",
        |path, number| number == 1 << 4 && !has_class(path, "acme.Rare.") && has(path, "acme.Order.total"),
    ),
];

/// Checks each of the edits beside other parameters; `whole` is how many stacks are there without.
async fn assert_edits_are_those_of_the_uncut_tree(page: &PageClient, rest: &str, whole: usize) {
    let uncut = stacks(&page.json(&request(rest)).await);
    assert_eq!(uncut.len(), whole, "{rest}: {uncut:?}");
    for (edit, is_left) in EDITS {
        let edited = page.json(&request(&format!("{rest}&{edit}"))).await;
        let left = uncut.iter().filter(|((path, number), _)| is_left(path, *number));
        let left: Stacks = left.map(|(stack, samples)| (stack.clone(), *samples)).collect();
        assert!(left.len() < uncut.len(), "{edit} leaves all");
        assert_eq!(stacks(&edited), left, "{rest}&{edit}");
        let sum: u64 = left.values().map(|[_, samples]| samples).sum();
        assert_eq!(edited["tree"]["total"], sum, "{rest}&{edit}");
        assert_eq!(edited.get("times"), None, "those of all say when samples were taken");
    }
}

#[tokio::test]
async fn an_edited_answer_is_the_uncut_tree_edited() {
    let page = page(ReadLimits::default());
    // The JVM's six and those of two other processes.
    assert_edits_are_those_of_the_uncut_tree(&page, "", 8).await;
    assert_edits_are_those_of_the_uncut_tree(&page, "&group=comm", 8).await;
    assert_edits_are_those_of_the_uncut_tree(&page, "&group=thread_kind&match=comm=shop", 6).await;
}

#[tokio::test]
async fn a_comparison_is_edited_on_both_sides() {
    let page = page(ReadLimits::default());
    let base = format!("&base_from={}&base_to={}", START + 95_000, START + 120_000);
    assert_edits_are_those_of_the_uncut_tree(&page, &base, 8).await;
    let hidden = page.json(&request(&format!("{base}&edit=only:acme.Rare.path"))).await;
    assert_eq!((&hidden["tree"]["base"], &hidden["tree"]["total"]), (&json!(1), &json!(1)));
}

#[tokio::test]
async fn what_is_below_a_node_and_a_part_of_the_time_are_edited() {
    let page = page(ReadLimits::default());
    let group = PathHash::ROOT.child(PathHash::of_function(NodeKind::Label, "shop", "", ""));
    let serve = PathHash::of_function(NodeKind::Java, "acme.Shop.serve", "Order.java", "jvm");
    let under = format!("&group=comm&under={}&under_group=shop", group.child(serve));
    assert_edits_are_those_of_the_uncut_tree(&page, &under, 6).await;
    // Of the seven seconds from the second event of each stack on.
    let part = "&times=1&part=61000-68000";
    assert_edits_are_those_of_the_uncut_tree(&page, part, 5).await;
    assert_edits_are_those_of_the_uncut_tree(&page, &format!("{part}{under}"), 5).await;
}

#[tokio::test]
async fn what_a_cut_tree_has_no_room_for_is_edited_and_has_its_lines() {
    let (uncut, cut) = (page(ReadLimits::default()), page(ReadLimits { nodes: 4, ..ReadLimits::default() }));
    let whole = cut.json(&request("")).await;
    assert!(whole["tree"]["pruned"]["samples"].as_u64().unwrap() > 10);
    let is_drawn =
        |answer: &Value, function: &str| stacks(answer).keys().any(|(path, _)| has(path, function));
    assert!(!is_drawn(&whole, "acme.Rare.path"));
    for (edit, _) in EDITS {
        let request = request(&format!("&{edit}"));
        let (uncut, cut) = (uncut.json(&request).await, cut.json(&request).await);
        assert_eq!(cut["tree"]["total"], uncut["tree"]["total"], "{edit}");
        assert_eq!(table(&cut), table(&uncut), "{edit}");
    }
    let rare = cut.json(&request("&edit=only:acme.Rare.path")).await;
    assert!(is_drawn(&rare, "acme.Rare.path"));
    // A line, its own, attributed and all samples.
    let order = [json!(1), json!(1), json!(1), json!([58, 1, 1, 1])];
    assert_eq!(table(&rare)["acme.Order.total"], order);
    let without = cut.json(&request("&edit=hide:acme.Rare.path")).await;
    let lines = json!([61, 7, 7, 7, 57, 4, 4, 13]);
    assert_eq!(table(&without)["acme.Order.total"], [json!(11), json!(11), json!(20), lines]);
}

#[tokio::test]
async fn a_function_is_found_by_the_name_that_the_page_shows() {
    let page = PageClient::new();
    let hidden = "acme.Or\u{202e}der.total";
    let hides = series(&[("comm", "shop"), ("pid", "7")], vec![(vec![frame(FrameKind::Native, hidden)], 3)]);
    add_profile(&page, hides);
    // As a page's address has `acme.Or\u202eder.total`.
    let only = page.json(&request("&edit=only:acme.Or%5Cu202eder.total")).await;
    assert_eq!(only["tree"]["total"], 3);
    // A group is one for callers and callees alone.
    let group = "&group=comm&match=comm!=shop";
    let [through, only] = ["through=java", "edit=only:java"].map(|of| request(&format!("{group}&{of}")));
    assert_eq!(page.json(&through).await["tree"]["total"], 8);
    assert_eq!(page.json(&only).await["tree"]["total"], 0);
}

#[tokio::test]
async fn an_answer_of_a_part_of_jvms_time_says_what_all_of_it_went_to() {
    let page = page(ReadLimits::default());
    let base = format!("&base_from={}&base_to={}", START + 95_000, START + 120_000);
    let hide = "&edit=hide:acme.Order.total";
    let mut sums: BTreeMap<u64, [u64; 2]> = BTreeMap::new();
    for ((_, number), samples) in stacks(&page.json(&request(&format!("{base}{hide}"))).await) {
        let sum = sums.entry(number).or_default();
        // Of the tree first.
        *sum = [sum[0] + samples[1], sum[1] + samples[0]];
    }
    assert_eq!(sums.len(), 3, "other processes, Java threads, GC: {sums:?}");
    for edit in ["&edit=activity:gc", "&edit=thread:java", "&edit=activity:vm&edit=thread:gc"] {
        let edited = page.json(&request(&format!("{base}{hide}{edit}"))).await;
        let unfiltered: Vec<(u64, [u64; 2])> =
            serde_json::from_value(edited["tree"]["unfiltered"].clone()).unwrap();
        assert_eq!(unfiltered.into_iter().collect::<BTreeMap<_, _>>(), sums, "{edit}");
    }
    assert_eq!(page.json(&request(hide)).await["tree"].get("unfiltered"), None);
    // Of what isn't CPU time it isn't known, so that nothing is left out.
    let of_wall = page.json(&request("&type=process_cpu:wall&edit=activity:gc")).await;
    assert_eq!(of_wall["tree"]["total"], 39);
}

#[tokio::test]
async fn wrong_edits_are_refused_and_what_others_cost_is_bounded() {
    let page = PageClient::new();
    let (long, many) = (format!("through={}", "x".repeat(5_000)), "edit=hide:a&".repeat(33));
    for (wrong, reason) in [
        ("edit=merge:main", "edit=\"merge:main\" isn't only:NAME, hide:NAME, activity:NAME or thread:NAME"),
        ("edit=thread:main", "names no kind of threads; there are unknown, java,"),
        ("through=", "parameter through is empty"),
        (long.as_str(), "parameter through: a name has 5000 bytes, more than 4096"),
        (many.as_str(), "more than 32 parameters edit and through"),
    ] {
        let (status, error) = page.error(&request(&format!("&{wrong}"))).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{error}");
        assert!(error.contains(reason), "{error}");
    }
    let few = ReadLimits { profiles: 2, ..ReadLimits::default() };
    let quick = ReadLimits { time: Duration::ZERO, ..ReadLimits::default() };
    for edit in ["edit=only:leaf", "edit=hide:leaf", "through=leaf", "edit=activity:gc", "edit=thread:gc"] {
        let edit = request(&format!("&{edit}"));
        let (status, error) = PageClient::with("127.0.0.1:1", few).error(&edit).await;
        assert_eq!(status, StatusCode::PAYLOAD_TOO_LARGE, "{error}");
        let (status, _) = PageClient::with("127.0.0.1:1", quick).error(&edit).await;
        assert_eq!(status, StatusCode::GATEWAY_TIMEOUT);
    }
}
