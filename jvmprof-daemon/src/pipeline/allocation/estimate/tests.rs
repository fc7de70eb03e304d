use jvmprof_common::allocation::TlabRecord;

use super::*;
use crate::hotspot::java_heap::{JavaClass, ObjectCount, TlabObjects};

fn key() -> ProcessKey {
    ProcessKey::numbered(1)
}

/// A program that allocates two classes in buffers, by two paths each.
struct Simulation {
    random: u64,
    strata: StratumTable,
    census: WindowCensus,
    /// Sums of the weights by class and path.
    weights: HashMap<(usize, usize), Vec<SampleWeight>>,
    truth: [[(u64, u64); 2]; 2],
    total: u64,
}

const NAMES: [&str; 2] = ["Small", "Large"];
const SIZES: [u64; 2] = [24, 2064];
const TLAB: u64 = 64 << 10;

impl Simulation {
    fn random(&mut self) -> f64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Fills a buffer until an object doesn't fit, and returns that one's class and path.
    fn fill(
        &mut self,
        classes: &[Arc<JavaClass>; 2],
        first: (usize, usize),
        shares: [f64; 2],
    ) -> (usize, usize) {
        let (mut used, mut counts) = (SIZES[first.0], [(0, 0); 2]);
        counts[first.0] = (1, SIZES[first.0]);
        let next = loop {
            let class = usize::from(self.random() < shares[0]);
            let path = usize::from(self.random() < shares[1]);
            let (objects, bytes) = &mut self.truth[class][path];
            (*objects, *bytes) = (*objects + 1, *bytes + SIZES[class]);
            if used + SIZES[class] > TLAB {
                break (class, path);
            }
            used += SIZES[class];
            counts[class].0 += 1;
            counts[class].1 += SIZES[class];
        };
        self.total += used;
        let interval = 8 * TLAB;
        if self.random() < probability(used, interval) {
            let found: Vec<ObjectCount> = (0..2)
                .map(|class| ObjectCount {
                    class: Arc::clone(&classes[class]),
                    size_class: size_class(SIZES[class]),
                    objects: counts[class].0,
                    bytes: counts[class].1,
                })
                .collect();
            let tlab = TlabRecord { used, interval, ..TlabRecord::default() };
            let found = TlabObjects { counts: found, first: None };
            self.census.add_unscreened(&tlab, &found, &mut self.strata);
        }
        let interval = 4 * TLAB;
        if self.random() < probability(used, interval) {
            let record = AllocationRecord {
                object_bytes: SIZES[next.0],
                tlab_bytes: TLAB,
                weighed_bytes: used,
                drawn_bytes: used,
                interval,
                ..AllocationRecord::default()
            };
            let name: Arc<str> = NAMES[next.0].into();
            let (weight, None) = self.strata.weigh(key(), Some(&name), &record) else { panic!() };
            self.weights.entry(next).or_default().push(weight);
        }
        next
    }
}

#[test]
fn sums_by_class_and_path_are_those_of_the_program() {
    let mut simulation = Simulation {
        random: 0x1234_5678_9abc_def1,
        strata: StratumTable::default(),
        census: WindowCensus::default(),
        weights: HashMap::new(),
        truth: [[(0, 0); 2]; 2],
        total: 0,
    };
    let classes = NAMES.map(|name| Arc::new(JavaClass::named(name)));
    let mut next = (0, 0);
    // Two phases, of which the second allocates more large objects.
    for (turns, shares) in [(6_000, [0.02, 0.25]), (3_000, [0.2, 0.25])] {
        for _ in 0..turns / 100 {
            let before = simulation.total;
            for _ in 0..100 {
                next = simulation.fill(&classes, next, shares);
            }
            simulation.census.add_given_up(simulation.total - before);
        }
    }
    let totals = WindowTotals { inside: simulation.total, ..WindowTotals::default() };
    let census = simulation.census.take();
    let estimated = simulation.strata.estimate(key(), &totals, census);
    assert!(estimated.without_stack.is_empty());
    let mut sum = 0;
    for class in 0..2 {
        let mut of_class = 0;
        for path in 0..2 {
            let (mut objects, mut bytes) = (0, 0);
            for weight in &simulation.weights[&(class, path)] {
                let (more_objects, more_bytes) = simulation.strata.share(key(), *weight);
                objects += more_objects;
                bytes += more_bytes;
            }
            let (true_objects, true_bytes) = simulation.truth[class][path];
            let error = bytes as f64 / true_bytes as f64 - 1.0;
            assert!(error.abs() < 0.12, "{class} {path}: {bytes} bytes of {true_bytes}");
            let error = objects as f64 / true_objects as f64 - 1.0;
            assert!(error.abs() < 0.12, "{class} {path}: {objects} objects of {true_objects}");
            of_class += bytes;
        }
        let truth: u64 = simulation.truth[class].iter().map(|(_, bytes)| bytes).sum();
        assert!((of_class as f64 / truth as f64 - 1.0).abs() < 0.02, "{class}: {of_class} of {truth}");
        sum += of_class;
    }
    assert!(sum.abs_diff(simulation.total) <= 2, "{sum} of {}", simulation.total);
}

#[test]
fn a_class_without_events_keeps_what_its_census_says() {
    let mut strata = StratumTable::default();
    let mut census = WindowCensus::default();
    let count =
        ObjectCount { class: Arc::new(JavaClass::named("Rare")), size_class: 5, objects: 10, bytes: 240 };
    census.add_unscreened(
        &TlabRecord { used: 240, interval: 1, ..TlabRecord::default() },
        &TlabObjects { counts: vec![count], first: None },
        &mut strata,
    );
    census.add_given_up(240);
    let totals = WindowTotals { inside: 2400, ..WindowTotals::default() };
    let estimated = strata.estimate(key(), &totals, census.take());
    let [(name, weight)] = &estimated.without_stack[..] else { panic!("{estimated:?}") };
    assert_eq!((&**name, strata.share(key(), *weight)), ("Rare", (100, 2400)));
}

#[test]
fn a_small_chance_is_not_rounded_up() {
    // A small object outside buffers, and the greatest distance.
    let (bytes, interval) = (16, 1 << 40);
    let chance = probability(bytes, interval);
    assert!((chance * interval as f64 / bytes as f64 - 1.0).abs() < 1e-9, "{chance}");
    let mut strata = StratumTable::default();
    let record = AllocationRecord {
        object_bytes: bytes,
        weighed_bytes: bytes,
        interval,
        ..AllocationRecord::default()
    };
    let (weight, _) = strata.weigh(key(), Some(&"Small".into()), &record);
    let value = weight.value;
    assert!(value.abs_diff(interval) <= 16, "{value}: the bytes that one such object stands for");
    assert!(probability(0, interval) > 0.0);
}

#[test]
fn bytes_without_a_census_are_those_of_cut_buffers_or_all() {
    let mut strata = StratumTable::default();
    let totals = WindowTotals { inside: 4800, outside: 100, cut: 240, ..WindowTotals::default() };
    let without = strata.estimate(key(), &totals, CensusSums::default());
    assert_eq!(without.bytes_without_census, 4800);
    let mut census = WindowCensus::default();
    let count =
        ObjectCount { class: Arc::new(JavaClass::named("Small")), size_class: 5, objects: 10, bytes: 240 };
    let tlab = TlabRecord { used: 240, interval: 1, ..TlabRecord::default() };
    census.add_unscreened(&tlab, &TlabObjects { counts: vec![count], first: None }, &mut strata);
    census.add_given_up(4800);
    assert_eq!(strata.estimate(key(), &totals, census.take()).bytes_without_census, 240);
}

/// A record of an event that was kept because all are; drawn from so many bytes.
fn kept(object_bytes: u64, drawn_bytes: u64) -> AllocationRecord {
    let weighed_bytes = drawn_bytes.max(1);
    AllocationRecord {
        object_bytes,
        weighed_bytes,
        drawn_bytes,
        tlab_bytes: 1,
        ..AllocationRecord::default()
    }
}

#[test]
fn threads_with_small_buffers_have_no_more_weight_than_their_bytes() {
    let mut strata = StratumTable::default();
    let name: Arc<str> = "Small".into();
    let mut weigh = |weighed| strata.weigh(key(), Some(&name), &kept(24, weighed)).0;
    // As many bytes in sixteen buffers as in one.
    let small = [(); 16].map(|()| weigh(65_536));
    let large = weigh(1 << 20);
    let totals = WindowTotals { inside: 2400, ..WindowTotals::default() };
    strata.estimate(key(), &totals, CensusSums::default());
    let of_small: u64 = small.iter().map(|weight| strata.share(key(), *weight).1).sum();
    assert_eq!((of_small, strata.share(key(), large)), (1200, (50, 1200)));
}

#[test]
fn large_objects_are_counted_among_the_first_of_buffers_and_among_the_others() {
    let mut strata = StratumTable::default();
    let name: Arc<str> = "byte[]".into();
    let mut census = WindowCensus::default();
    let class = Arc::new(JavaClass::named("byte[]"));
    let count = ObjectCount { class, size_class: size_class(20_016), objects: 3, bytes: 3 * 20_016 };
    let tlab = TlabRecord { used: 3 * 20_016, interval: 1, ..TlabRecord::default() };
    census.add_unscreened(&tlab, &TlabObjects { counts: vec![count], first: None }, &mut strata);
    census.add_given_up(3 * 20_016);
    // One path's buffer is thrice the other's: it has three of four objects within buffers, and
    // each has one of the two that are the first.
    let mut weigh = |weighed| strata.weigh(key(), Some(&name), &kept(20_016, weighed));
    let paths = [weigh(2 << 20), weigh(6 << 20)];
    let of = CountedKey { size_class: size_class(20_016) as u16, is_first: 1, ..CountedKey::default() };
    strata.add_counted(key(), Some(&name), &of, 8, 8 * 20_016);
    let totals = WindowTotals { inside: 24 * 20_016, ..WindowTotals::default() };
    strata.estimate(key(), &totals, census.take());
    let objects = paths.map(|(as_itself, as_first)| {
        let of_first = strata.share(key(), as_first.expect("a large object")).0;
        (strata.share(key(), as_itself).0, of_first)
    });
    assert_eq!(objects, [(4, 4), (12, 4)]);
}

/// Adds what is known of a loop whose buffers have 40 KB of small objects each, and begin with an
/// array of 60 KB, at which the buffer before ended: 1,000 buffers, of which one's event was kept.
fn add_large_firsts(strata: &mut StratumTable) -> EventWeights {
    let name: Arc<str> = "byte[]".into();
    let of = CountedKey { size_class: size_class(60_000) as u16, is_first: 1, ..CountedKey::default() };
    strata.add_counted(key(), Some(&name), &of, 1000, 60_000_000);
    strata.weigh(key(), Some(&name), &kept(60_000, 100_000_000))
}

#[test]
fn large_objects_that_are_only_the_first_of_buffers_are_not_estimated_again() {
    let mut strata = StratumTable::default();
    let (as_itself, as_first) = add_large_firsts(&mut strata);
    let mut census = WindowCensus::default();
    let class = Arc::new(JavaClass::named("Small"));
    let count = ObjectCount { class, size_class: size_class(24), objects: 1000, bytes: 24_000 };
    let tlab = TlabRecord { used: 24_000, interval: 1, ..TlabRecord::default() };
    census.add_unscreened(&tlab, &TlabObjects { counts: vec![count], first: None }, &mut strata);
    census.add_given_up(24_000);
    let totals = WindowTotals { inside: 100_000_000, ..WindowTotals::default() };
    strata.estimate(key(), &totals, census.take());
    assert_eq!(strata.share(key(), as_first.expect("a large object")), (1000, 60_000_000));
    assert_eq!(strata.share(key(), as_itself), (0, 1));
}

#[test]
fn without_a_census_draws_stand_for_what_is_not_counted() {
    let mut strata = StratumTable::default();
    let (as_itself, as_first) = add_large_firsts(&mut strata);
    let totals = WindowTotals { inside: 100_000_000, ..WindowTotals::default() };
    strata.estimate(key(), &totals, CensusSums::default());
    assert_eq!(strata.share(key(), as_first.expect("a large object")).1, 60_000_000);
    assert_eq!(strata.share(key(), as_itself).1, 40_000_000);
}

#[test]
fn an_object_that_is_no_draw_stands_for_itself() {
    let mut strata = StratumTable::default();
    let name: Arc<str> = "Small".into();
    let mut weigh = |drawn| strata.weigh(key(), Some(&name), &kept(24, drawn)).0;
    let (drawn, first) = (weigh(2_400), weigh(0));
    let totals = WindowTotals { inside: 101 * 24, ..WindowTotals::default() };
    strata.estimate(key(), &totals, CensusSums::default());
    assert_eq!([drawn, first].map(|weight| strata.share(key(), weight)), [(100, 2_400), (1, 24)]);
    let (alone, None) = strata.weigh(key(), Some(&name), &kept(LARGE_OBJECT, 0)) else { panic!() };
    assert_eq!(strata.strata[alone.stratum as usize].placement, Placement::LargeFirst);
}

#[test]
fn objects_outside_are_those_that_were_counted() {
    let mut strata = StratumTable::default();
    let name: Arc<str> = "byte[]".into();
    let record = AllocationRecord {
        object_bytes: 65_552,
        weighed_bytes: 65_552,
        interval: 524_288,
        ..AllocationRecord::default()
    };
    let weights = [(); 3].map(|()| strata.weigh(key(), Some(&name), &record).0);
    let of = CountedKey { size_class: 17, ..CountedKey::default() };
    strata.add_counted(key(), Some(&name), &of, 25, 25 * 65_552);
    let totals = WindowTotals { outside: 25 * 65_552, ..WindowTotals::default() };
    strata.estimate(key(), &totals, CensusSums::default());
    let shares = weights.map(|weight| strata.share(key(), weight));
    assert_eq!(shares.iter().map(|(objects, _)| objects).sum::<u64>(), 25);
    assert_eq!(shares.iter().map(|(_, bytes)| bytes).sum::<u64>(), 25 * 65_552);
}

#[test]
fn large_objects_inside_buffers_have_the_paths_of_those_that_did_not_fit() {
    const BYTES: u64 = 1 << 20;
    let class = Arc::new(JavaClass::named("double[]"));
    let record = |object_bytes| AllocationRecord {
        object_bytes,
        weighed_bytes: object_bytes,
        interval: 1,
        ..AllocationRecord::default()
    };
    // (bytes of the objects inside, those with events outside) and what has no path of its own.
    for (inside, outside, pathless) in [(BYTES, BYTES, false), (BYTES, 4 * BYTES, true), (24, 24, true)] {
        let mut strata = StratumTable::default();
        let weights = [(); 4].map(|()| strata.weigh(key(), Some(&class.name), &record(outside)).0);
        let of = CountedKey { size_class: size_class(outside) as u16, ..CountedKey::default() };
        strata.add_counted(key(), Some(&class.name), &of, 4, 4 * outside);
        let mut census = WindowCensus::default();
        let counts = vec![ObjectCount {
            class: Arc::clone(&class),
            size_class: size_class(inside),
            objects: 8,
            bytes: 8 * inside,
        }];
        let tlab = TlabRecord { used: 8 * inside, interval: 1, ..TlabRecord::default() };
        census.add_unscreened(&tlab, &TlabObjects { counts, first: None }, &mut strata);
        census.add_given_up(8 * inside);
        let totals = WindowTotals { inside: 8 * inside, outside: 4 * outside, ..WindowTotals::default() };
        let estimated = strata.estimate(key(), &totals, census.take());
        assert_eq!(!estimated.without_stack.is_empty(), pathless, "{inside} of {outside}");
        let mut given: Vec<_> = weights.iter().map(|weight| strata.share(key(), *weight)).collect();
        given.extend(estimated.without_stack.iter().map(|(_, weight)| strata.share(key(), *weight)));
        let sum = |sum: (u64, u64), of: &(u64, u64)| (sum.0 + of.0, sum.1 + of.1);
        assert_eq!(given.iter().fold((0, 0), sum), (12, 8 * inside + 4 * outside), "no byte is lost");
        let of_event = if pathless { (1, outside) } else { (3, 2 * inside + outside) };
        assert_eq!(given[0], of_event);
    }
}

#[test]
fn an_event_whose_bytes_are_in_another_windows_total_is_not_nothing() {
    let mut strata = StratumTable::default();
    let record = AllocationRecord {
        object_bytes: 24,
        weighed_bytes: 65_536,
        interval: 524_288,
        ..AllocationRecord::default()
    };
    let (weight, _) = strata.weigh(key(), Some(&"Small".into()), &record);
    strata.estimate(key(), &WindowTotals::default(), CensusSums::default());
    assert_eq!(strata.share(key(), weight), (0, 1), "a profile of zeros is kept by no backend");
}

/// Estimates classes of which one is in censuses, one is outside buffers, and one has an event
/// alone.
fn errors_of_three(inside: u64) -> HashMap<Arc<str>, ClassError> {
    let [small, other] = ["Small", "Other"].map(|name| Arc::new(JavaClass::named(name)));
    let (mut strata, mut census) = (StratumTable::default(), WindowCensus::default());
    for of_small in [100, 200] {
        let counts = [(&small, of_small), (&other, 300 - of_small)].map(|(class, objects)| ObjectCount {
            class: Arc::clone(class),
            size_class: size_class(24),
            objects,
            bytes: 24 * objects,
        });
        let tlab = TlabRecord { used: 7200, interval: 1 << 20, ..TlabRecord::default() };
        census.add_unscreened(&tlab, &TlabObjects { counts: counts.into(), first: None }, &mut strata);
    }
    census.add_given_up(1 << 20);
    let of = CountedKey { size_class: 17, ..CountedKey::default() };
    strata.add_counted(key(), Some(&"byte[]".into()), &of, 25, 25 * 65_552);
    strata.weigh(key(), Some(&"Small".into()), &kept(24, 1_000_000));
    strata.weigh(key(), Some(&"Rare".into()), &kept(24, 1000));
    let totals = WindowTotals { inside, outside: 25 * 65_552, ..WindowTotals::default() };
    strata.estimate(key(), &totals, census.take()).errors.into_iter().collect()
}

#[test]
fn a_class_is_as_well_known_as_what_its_bytes_are_from() {
    let errors = errors_of_three(1 << 20);
    let [small, outside, rare] = ["Small", "byte[]", "Rare"].map(|name| errors[name]);
    let variance = small.variance.expect("it is in two censuses");
    // One buffer has a third, the other two: half a million bytes, give or take a third of them.
    let percent = small.percent(1 << 19).expect("it is known");
    assert!((percent - 100.0 / 3.0).abs() < 1.0, "{percent}");
    let exact = ClassError { counted_bytes: 25.0 * 65_552.0, variance: Some(0.0) };
    assert_eq!((small.counted_bytes, outside), (0.0, exact));
    assert_eq!(rare.variance, None, "it is in no census");
    let twice = errors_of_three(2 << 20)["Small"].variance.expect("the same");
    assert!((twice / variance - 4.0).abs() < 1e-9, "{twice}, {variance}");
}

/// A window of 400 buffers, of which censuses see one in nine and events one in five; in one of 47
/// there is a rare object. Returns how many times its bytes a rare class has.
fn simulate_rare(random: &mut impl FnMut() -> f64, classes: &[Arc<JavaClass>; 2]) -> f64 {
    const RARE: f64 = 1.0 / 47.0;
    let (mut strata, mut census) = (StratumTable::default(), WindowCensus::default());
    let objects = |class: usize, bytes: u64| ObjectCount {
        class: Arc::clone(&classes[class]),
        size_class: size_class(SIZES[class]),
        objects: bytes / SIZES[class],
        bytes,
    };
    for _ in 0..400 {
        let rare = if random() < RARE { SIZES[1] } else { 0 };
        if random() < probability(TLAB, 8 * TLAB) {
            let mut counts = vec![objects(0, TLAB - rare)];
            counts.extend((rare != 0).then(|| objects(1, rare)));
            let tlab = TlabRecord { used: TLAB, interval: 8 * TLAB, ..TlabRecord::default() };
            census.add_unscreened(&tlab, &TlabObjects { counts, first: None }, &mut strata);
        }
        // The object at which it ended is a draw from its bytes.
        let ends = usize::from(random() < RARE * SIZES[1] as f64 / TLAB as f64);
        if random() < probability(TLAB, 4 * TLAB) {
            let record = AllocationRecord {
                object_bytes: SIZES[ends],
                tlab_bytes: TLAB,
                weighed_bytes: TLAB,
                drawn_bytes: TLAB,
                interval: 4 * TLAB,
                ..AllocationRecord::default()
            };
            strata.weigh(key(), Some(&classes[ends].name), &record);
        }
    }
    census.add_given_up(400 * TLAB);
    let totals = WindowTotals { inside: 400 * TLAB, ..WindowTotals::default() };
    strata.estimate(key(), &totals, census.take());
    bytes_of(&mut strata, &classes[1].name, SIZES[1]) / (400.0 * RARE * SIZES[1] as f64)
}

fn bytes_of(strata: &mut StratumTable, class: &Arc<str>, size: u64) -> f64 {
    let class = Some(Arc::clone(class));
    let number = strata.number(Stratum { class, size_class: size_class(size), placement: Placement::Inside });
    strata.sums.get(&(key(), number)).map_or(0.0, |sums| sums.bytes)
}

#[test]
fn a_class_of_which_censuses_see_one_object_or_none_has_its_bytes_in_the_mean() {
    const WINDOWS: u32 = 3000;
    let classes = NAMES.map(|name| Arc::new(JavaClass::named(name)));
    let mut state = 0x0dd_ba11_5eed_cafe_u64;
    let mut random = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 11) as f64 / (1_u64 << 53) as f64
    };
    let times: Vec<f64> = (0..WINDOWS).map(|_| simulate_rare(&mut random, &classes)).collect();
    let mean = times.iter().sum::<f64>() / f64::from(WINDOWS);
    let squares = times.iter().map(|times| (times - mean) * (times - mean)).sum::<f64>();
    let error = (squares / f64::from(WINDOWS) / f64::from(WINDOWS)).sqrt();
    // With its events where no census has seen it, it had 1.37 times its bytes.
    assert!((mean - 1.0).abs() < 3.5 * error && error < 0.03, "{mean}, standard error {error}");
    let unseen = times.iter().filter(|times| **times == 0.0).count();
    assert!(unseen > 900, "in {unseen} of {WINDOWS} windows no census has it");
}

#[test]
fn a_class_that_censuses_cannot_see_counts_by_its_events() {
    let class = Arc::new(JavaClass::named("Small"));
    let (unseen, other): (Arc<str>, Arc<str>) = ("Unseen".into(), "Small".into());
    // Of 100 events, with which each has some thousand objects in the bytes that are read, or few.
    for (events, read, expected) in [(20, 480_000, 0.2), (7, 480_000, 0.0), (20, 240, 0.0)] {
        let (mut strata, mut census) = (StratumTable::default(), WindowCensus::default());
        let count = ObjectCount { class: Arc::clone(&class), size_class: 5, objects: read / 24, bytes: read };
        let tlab = TlabRecord { used: read, interval: 1 << 20, ..TlabRecord::default() };
        census.add_unscreened(&tlab, &TlabObjects { counts: vec![count], first: None }, &mut strata);
        census.add_given_up(100 << 20);
        for event in 0..100 {
            let class = if event < events { &unseen } else { &other };
            strata.weigh(key(), Some(class), &kept(24, 1 << 20));
        }
        let totals = WindowTotals { inside: 100 << 20, ..WindowTotals::default() };
        strata.estimate(key(), &totals, census.take());
        // The censuses have all bytes for what they see, and share them with it.
        let share = bytes_of(&mut strata, &unseen, 24) / f64::from(100 << 20);
        assert!((share - expected / (1.0 + expected)).abs() < 1e-6, "{events}, {read}: {share}");
    }
}
