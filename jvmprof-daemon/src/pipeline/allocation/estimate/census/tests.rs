use jvmprof_common::allocation::{RandomDistance, size_class};

use super::*;
use crate::hotspot::java_heap::JavaClass;
use crate::pipeline::allocation::xorshift::Random;

fn class(name: &str) -> Arc<JavaClass> {
    Arc::new(JavaClass::named(name))
}

fn objects(class: &Arc<JavaClass>, objects: u64, bytes: u64) -> ObjectCount {
    let size_class = size_class(bytes / objects);
    ObjectCount { class: Arc::clone(class), size_class, objects, bytes }
}

/// Returns the number of the objects of a class that have this size, inside buffers.
fn stratum_of(strata: &mut StratumTable, class: &JavaClass, size: u64) -> u32 {
    let class = Some(Arc::clone(&class.name));
    strata.number(Stratum { class, size_class: size_class(size), placement: Placement::Inside })
}

/// Returns their bytes.
fn bytes_of(sums: &CensusSums, strata: &mut StratumTable, class: &JavaClass, size: u64) -> f64 {
    sums.by_stratum.get(&stratum_of(strata, class, size)).map_or(0.0, |(_, bytes)| *bytes)
}

#[test]
fn buffers_are_chosen_by_what_is_in_them_beside_a_large_first_object() {
    // One buffer in two is an array, and a twentieth small objects beside it.
    const BESIDE: [u64; 2] = [TLAB / 20, TLAB];
    // A census in some forty buffers.
    const INTERVAL: u64 = 40 * (BESIDE[0] + BESIDE[1]) / 2;
    let (small, array) = ([class("P"), class("Q")], class("byte[]"));
    let mut random = Random(0x1234_5678_9abc_def1);
    let mut distance = RandomDistance::draw(INTERVAL, random.number());
    let (mut strata, mut census) = (StratumTable::default(), WindowCensus::default());
    let (mut truth, mut censuses) = ([0; 2], 0_u32);
    for _ in 0..40_000 {
        let mut given_up = 0;
        for _ in 0..5 {
            let kind = (random.number() >> 31) as usize;
            let beside = BESIDE[kind];
            truth[kind] += beside;
            given_up += beside;
            if distance.is_reached(beside, INTERVAL, || random.number()) {
                let mut counts = vec![objects(&small[kind], beside / 32, beside)];
                let first = if kind == 0 {
                    counts.push(objects(&array, 1, TLAB - beside));
                    objects(&array, 1, TLAB - beside)
                } else {
                    objects(&small[kind], 1, 32)
                };
                let large_first = TLAB - beside;
                let tlab =
                    TlabRecord { used: TLAB, large_first, interval: INTERVAL, ..TlabRecord::default() };
                census.add(&tlab, &TlabObjects { counts, first: Some(first) }, &mut strata);
                censuses += 1;
            }
        }
        // Of eight turns, whose period often has a single census.
        census.add_given_up(given_up);
    }
    let sums = census.take();
    assert_eq!(bytes_of(&sums, &mut strata, &array, TLAB - BESIDE[0]), 0.0, "it is counted elsewhere");
    let found = small.each_ref().map(|class| bytes_of(&sums, &mut strata, class, 32));
    let all: u64 = truth.iter().sum();
    assert!((found.iter().sum::<f64>() / all as f64 - 1.0).abs() < 0.01, "{found:?} of {truth:?}");
    let share = truth[0] as f64 / all as f64;
    let deviation = (share * (1.0 - share) / f64::from(censuses)).sqrt();
    let error = found[0] / all as f64 - share;
    assert!(error.abs() < 3.5 * deviation, "{error} of {share}, {censuses} censuses");
}

/// The bytes of a class in a window, true and estimated, and the variance that is stated.
struct Estimated {
    truth: f64,
    estimate: f64,
    variance: Option<f64>,
}

const TLAB: u64 = 512 << 10;
const ARRAY: u64 = TLAB / 2;
/// Sizes of the objects of three classes.
const SIZES: [u64; 3] = [32, 32, ARRAY];

/// A window of a program that allocates small objects of two classes, and in one buffer of 25 an
/// array.
fn simulate(classes: &[Arc<JavaClass>; 3], interval: u64, random: &mut Random) -> [Estimated; 3] {
    let mut distance = RandomDistance::draw(interval, random.number());
    let (mut strata, mut census) = (StratumTable::default(), WindowCensus::default());
    let mut truth = [0; 3];
    for _ in 0..20 {
        for _ in 0..100 {
            let array = if random.number() < u32::MAX / 25 { ARRAY } else { 0 };
            let small = TLAB - array;
            // What is of the first class differs from buffer to buffer.
            let first = ((u64::from(random.number()) * (small / 32)) >> 32) * 32;
            let bytes = [first, small - first, array];
            truth.iter_mut().zip(bytes).for_each(|(sum, bytes)| *sum += bytes);
            if distance.is_reached(TLAB, interval, || random.number()) {
                let present = classes.iter().zip(bytes).zip(SIZES).filter(|((_, bytes), _)| *bytes > 0);
                let counts =
                    present.map(|((class, bytes), size)| objects(class, bytes / size, bytes)).collect();
                let tlab = TlabRecord { used: TLAB, interval, ..TlabRecord::default() };
                census.add(&tlab, &TlabObjects { counts, first: None }, &mut strata);
            }
        }
        census.add_given_up(100 * TLAB);
    }
    let sums = census.take();
    std::array::from_fn(|class| {
        let estimate = bytes_of(&sums, &mut strata, &classes[class], SIZES[class]);
        let stratum = stratum_of(&mut strata, &classes[class], SIZES[class]);
        let variance = sums.errors.variance(strata.class_of(stratum));
        Estimated { truth: truth[class] as f64, estimate, variance }
    })
}

#[test]
fn the_stated_variance_is_that_of_the_estimate() {
    const WINDOWS: u32 = 400;
    let classes = ["First", "Second", "double[]"].map(class);
    let mut random = Random(0x0dd_ba11_5eed_cafe);
    // One buffer of ten is counted, or most of them.
    for interval in [10 * TLAB, TLAB / 2] {
        let mut sums = [(0.0, 0.0, 0.0); 3];
        for _ in 0..WINDOWS {
            for (sums, class) in sums.iter_mut().zip(simulate(&classes, interval, &mut random)) {
                let error = class.estimate - class.truth;
                sums.0 += error / class.truth;
                sums.1 += error * error;
                sums.2 += class.variance.unwrap_or(0.0);
            }
        }
        for (class, (error, squares, variances)) in classes.iter().zip(sums) {
            let ratio = variances / squares;
            assert!((0.8..1.25).contains(&ratio), "{}: {ratio} with {interval}", class.name);
            let mean = error / f64::from(WINDOWS);
            assert!(mean.abs() < 0.03, "{}: {mean} with {interval}", class.name);
        }
    }
}

#[test]
fn where_every_buffer_is_counted_the_error_is_nothing() {
    let classes = ["First", "Second", "double[]"].map(class);
    let mut random = Random(0x1234_5678_9abc_def1);
    for class in simulate(&classes, 1, &mut random) {
        assert!((class.estimate / class.truth - 1.0).abs() < 1e-9);
        let error = class.variance.expect("it is in many censuses").sqrt();
        assert!(error / class.truth < 1e-6, "{error} of {}", class.truth);
    }
}

/// Adds equal censuses.
fn add(census: &mut WindowCensus, censuses: u32, class: &Arc<JavaClass>, strata: &mut StratumTable) {
    for _ in 0..censuses {
        let tlab = TlabRecord { used: 3200, interval: 1 << 20, ..TlabRecord::default() };
        let found = TlabObjects { counts: vec![objects(class, 100, 3200)], first: None };
        census.add(&tlab, &found, strata);
    }
}

#[test]
fn one_census_says_nothing_of_its_error() {
    let mut strata = StratumTable::default();
    let (small, other) = (class("Small"), class("Other"));
    for (censuses, variance) in [(1, None), (2, Some(0.0))] {
        let mut census = WindowCensus::default();
        add(&mut census, censuses, &small, &mut strata);
        census.add_given_up(1 << 20);
        let sums = census.take();
        let found = [&small, &other].map(|class| {
            let stratum = stratum_of(&mut strata, class, 32);
            sums.errors.variance(strata.class_of(stratum))
        });
        assert_eq!(found, [variance, None]);
    }
}

#[test]
fn a_stretch_ends_with_enough_censuses_or_after_some_time() {
    let (small, mut strata) = (class("Small"), StratumTable::default());
    let mut census = WindowCensus::default();
    let mut turn = |census: &mut WindowCensus, censuses: u32| {
        add(census, censuses, &small, &mut strata);
        census.add_given_up(1 << 20);
        census.window.errors.buffers
    };
    assert_eq!([29, 1, 30].map(|censuses| turn(&mut census, censuses)), [0, 30, 60]);
    assert_eq!([1, 0, 0, 0, 0, 0, 0].map(|censuses| turn(&mut census, censuses)), [60; 7]);
    assert_eq!(turn(&mut census, 2), 63, "it is the eighth turn");
    // Eight turns without a census are a part of the next period.
    assert_eq!([0; 9].map(|censuses| turn(&mut census, censuses)), [63; 9]);
    assert_eq!(turn(&mut census, 1), 64);
    turn(&mut census, 5);
    let sums = census.take();
    assert_eq!(sums.errors.buffers, 69, "the window's end ends its stretch");
    let bytes = bytes_of(&sums, &mut strata, &small, 32);
    assert!((bytes / f64::from(22 << 20) - 1.0).abs() < 1e-9, "{bytes}");
}
