use jvmprof_common::allocation::{RandomDistance, size_class};

use super::*;
use crate::hotspot::java_heap::JavaClass;
use crate::pipeline::allocation::second_phase::SecondPhase;
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
                census.add_unscreened(&tlab, &TlabObjects { counts, first: Some(first) }, &mut strata);
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

/// Sums over windows: of relative errors, of squared errors, and of the variances that are stated.
#[derive(Clone, Copy, Default)]
struct ErrorSums {
    windows: f64,
    relative: f64,
    relative_squared: f64,
    squared: f64,
    stated: f64,
}

impl ErrorSums {
    fn add(&mut self, class: &Estimated) {
        let error = class.estimate - class.truth;
        self.windows += 1.0;
        self.relative += error / class.truth;
        self.relative_squared += (error / class.truth).powi(2);
        self.squared += error * error;
        self.stated += class.variance.unwrap_or(0.0);
    }

    /// Returns the mean error in its own standard errors.
    fn bias(&self) -> f64 {
        self.relative / self.relative_squared.sqrt()
    }
}

const TLAB: u64 = 512 << 10;

/// Returns the objects of three classes that have so many bytes in a buffer: of the last one it is
/// an array.
fn found(classes: &[Arc<JavaClass>; 3], bytes: [u64; 3]) -> TlabObjects {
    let numbers = [bytes[0] / 32, bytes[1] / 32, 1];
    let present = classes.iter().zip(numbers).zip(bytes).filter(|(_, bytes)| *bytes > 0);
    let counts = present.map(|((class, number), bytes)| objects(class, number, bytes)).collect();
    TlabObjects { counts, first: None }
}

/// Returns what the censuses of a window say of these classes.
fn estimated(
    classes: &[Arc<JavaClass>; 3],
    truth: [u64; 3],
    sums: &CensusSums,
    strata: &StratumTable,
) -> [Estimated; 3] {
    std::array::from_fn(|index| {
        let class = Some(Arc::clone(&classes[index].name));
        let of_class = sums.by_stratum.iter().filter(|(stratum, _)| {
            let stratum: &Stratum = &strata.strata[**stratum as usize];
            stratum.class == class
        });
        let estimate = of_class.map(|(_, (_, bytes))| *bytes).sum();
        let number = strata.class_numbers.get(&class);
        let variance = number.and_then(|number| sums.errors.variance(*number));
        Estimated { truth: truth[index] as f64, estimate, variance }
    })
}

/// A window of a program that allocates small objects of two classes, and in one buffer of 25 an
/// array.
fn simulate(classes: &[Arc<JavaClass>; 3], interval: u64, random: &mut Random) -> [Estimated; 3] {
    let mut distance = RandomDistance::draw(interval, random.number());
    let (mut strata, mut census) = (StratumTable::default(), WindowCensus::default());
    let mut truth = [0; 3];
    for _ in 0..20 {
        for _ in 0..100 {
            let array = if random.number() < u32::MAX / 25 { TLAB / 2 } else { 0 };
            let small = TLAB - array;
            // What is of the first class differs from buffer to buffer.
            let first = part(small, random);
            let bytes = [first, small - first, array];
            truth.iter_mut().zip(bytes).for_each(|(sum, bytes)| *sum += bytes);
            if distance.is_reached(TLAB, interval, || random.number()) {
                let tlab = TlabRecord { used: TLAB, interval, ..TlabRecord::default() };
                census.add_unscreened(&tlab, &found(classes, bytes), &mut strata);
            }
        }
        census.add_given_up(100 * TLAB);
    }
    estimated(classes, truth, &census.take(), &strata)
}

/// Returns a random number of objects' bytes, up to so many.
fn part(of: u64, random: &mut Random) -> u64 {
    ((u64::from(random.number()) * (of / 32)) >> 32) * 32
}

#[test]
fn the_stated_variance_is_that_of_the_estimate() {
    const WINDOWS: u32 = 400;
    let classes = ["First", "Second", "double[]"].map(class);
    let mut random = Random(0x0dd_ba11_5eed_cafe);
    // One buffer of ten is counted, or most of them.
    for interval in [10 * TLAB, TLAB / 2] {
        let mut sums = [ErrorSums::default(); 3];
        for _ in 0..WINDOWS {
            let found = simulate(&classes, interval, &mut random);
            sums.iter_mut().zip(&found).for_each(|(sums, class)| sums.add(class));
        }
        for (class, sums) in classes.iter().zip(sums) {
            let ratio = sums.stated / sums.squared;
            assert!((0.8..1.25).contains(&ratio), "{}: {ratio} with {interval}", class.name);
            let mean = sums.relative / sums.windows;
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

#[test]
fn where_the_bytes_of_some_buffers_come_later_the_error_is_not_below_nothing() {
    let ([small, large], mut strata) = (["Small", "Large"].map(class), StratumTable::default());
    let mut census = WindowCensus::default();
    let tlab = TlabRecord { used: 3200, interval: 1, ..TlabRecord::default() };
    for (group, class) in [(BufferGroup::SmallObjects, &small), (BufferGroup::LargeObject, &large)] {
        for _ in 0..2 {
            let found = TlabObjects { counts: vec![objects(class, 100, 3200)], first: None };
            census.add_chosen(&tlab, group);
            census.add(&tlab, (group, 1.0), &found, &mut strata);
        }
    }
    // Each buffer is counted, and those of three are among the bytes of all by now.
    census.add_given_up(3 * 3200);
    let sums = census.take();
    for class in [&small, &large] {
        let stratum = stratum_of(&mut strata, class, 32);
        assert_eq!(sums.errors.variance(strata.class_of(stratum)), Some(0.0), "{}", class.name);
    }
}

const LARGE_TLAB: u64 = 3 << 20;

/// A window of a program with large buffers, as with Parallel: in one of 23 is an array that takes
/// an eighth of it to seven eighths. Of the rest 40 to 60 % are of the first class. `buffers` are
/// given up in each turn, and chosen with the mean distance `interval`. Returns the microseconds
/// that screening and censuses take, too.
fn simulate_large(
    classes: &[Arc<JavaClass>; 3],
    [buffers, interval]: [u64; 2],
    second_phase: &mut Option<SecondPhase>,
    random: &mut Random,
) -> ([Estimated; 3], f64) {
    let first_phase = probability(LARGE_TLAB, interval);
    let tlab = TlabRecord { used: LARGE_TLAB, interval, ..TlabRecord::default() };
    let mut distance = RandomDistance::draw(interval, random.number());
    let (mut strata, mut census) = (StratumTable::default(), WindowCensus::default());
    let (mut truth, mut micros) = ([0; 3], 0.0);
    for _ in 0..20 {
        for _ in 0..buffers {
            let has_array = random.number().is_multiple_of(23);
            let array = if has_array { LARGE_TLAB / 8 + part(LARGE_TLAB / 4 * 3, random) } else { 0 };
            let small = LARGE_TLAB - array;
            let first = small / 80 * 32 + part(small / 5, random);
            let bytes = [first, small - first, array];
            truth.iter_mut().zip(bytes).for_each(|(sum, bytes)| *sum += bytes);
            if !distance.is_reached(LARGE_TLAB, interval, || random.number()) {
                continue;
            }
            let (group, second) = match second_phase {
                None => (BufferGroup::Unscreened, 1.0),
                Some(second_phase) => {
                    micros += 35.0;
                    let group = if has_array { BufferGroup::LargeObject } else { BufferGroup::SmallObjects };
                    (group, second_phase.probability(group, first_phase, census.has_census(group)))
                }
            };
            census.add_chosen(&tlab, group);
            if f64::from(random.number()) / 4_294_967_296.0 < second {
                micros += 100.0 + 900.0 * small as f64 / LARGE_TLAB as f64;
                census.add(&tlab, (group, second), &found(classes, bytes), &mut strata);
            }
        }
        census.add_given_up(buffers * LARGE_TLAB);
    }
    (estimated(classes, truth, &census.take(), &strata), micros)
}

#[test]
fn in_the_same_time_two_phases_know_large_objects_with_an_eighth_of_the_variance() {
    const WINDOWS: u32 = 300;
    let classes = ["First", "Second", "double[]"].map(class);
    let mut random = Random(0x1234_5678_9abc_def1);
    // With a second phase more buffers are chosen.
    let phases = [(None, LARGE_TLAB * 39), (Some(SecondPhase::default()), LARGE_TLAB / 2 * 9)];
    let [(one, one_micros), (two, two_micros)] = phases.map(|(mut second, interval)| {
        let (mut sums, mut micros) = ([ErrorSums::default(); 3], 0.0);
        for _ in 0..WINDOWS {
            let (found, took) = simulate_large(&classes, [200, interval], &mut second, &mut random);
            sums.iter_mut().zip(&found).for_each(|(sums, class)| sums.add(class));
            micros += took;
        }
        (sums, micros)
    });
    assert!(two_micros < one_micros, "{two_micros}, {one_micros}");
    for ((class, one), two) in classes.iter().zip(one).zip(two) {
        let biases = [one, two].map(|sums| sums.bias());
        assert!(biases.iter().all(|bias| bias.abs() < 3.0), "{}: {biases:?}", class.name);
        let ratio = two.stated / two.squared;
        assert!((0.8..1.25).contains(&ratio), "{}: {ratio}", class.name);
        // Small objects are in fewer censuses, and are known about as well.
        let (ratio, most) = (two.squared / one.squared, if &*class.name == "double[]" { 0.125 } else { 1.4 });
        assert!(ratio < most, "{}: {ratio}", class.name);
    }
}

/// As of one JVM among many, which share the time for censuses: ten buffers in a window.
#[test]
fn a_program_of_which_few_buffers_are_chosen_has_no_more_of_its_large_objects_than_it_allocates() {
    const WINDOWS: u32 = 3000;
    let classes = ["First", "Second", "double[]"].map(class);
    let (mut random, mut second_phase) = (Random(0x0dd_ba11_5eed_cafe), Some(SecondPhase::default()));
    let (mut truth, mut estimate) = (0.0, 0.0);
    for _ in 0..WINDOWS {
        let (found, _) = simulate_large(&classes, [5, 10 * LARGE_TLAB], &mut second_phase, &mut random);
        let of_all = |bytes: fn(&Estimated) -> f64| found.iter().map(bytes).sum::<f64>();
        let (allocated, counted) = (of_all(|class| class.truth), of_all(|class| class.estimate));
        // The strata are scaled to all that was allocated; without a census events are all that
        // there is.
        if counted > 0.0 {
            truth += found[2].truth;
            estimate += found[2].estimate * allocated / counted;
        }
    }
    let ratio = estimate / truth;
    assert!((0.85..1.15).contains(&ratio), "{ratio}");
}

#[test]
fn a_period_goes_on_until_each_group_has_a_census() {
    let ([small, large], mut strata) = (["Small", "Large"].map(class), StratumTable::default());
    let mut census = WindowCensus::default();
    let tlab = TlabRecord { used: 3200, interval: 1, ..TlabRecord::default() };
    let count = |class: &Arc<JavaClass>| TlabObjects { counts: vec![objects(class, 100, 3200)], first: None };
    let bytes = |sums: &CensusSums, strata: &mut StratumTable| {
        [&small, &large].map(|class| bytes_of(sums, strata, class, 32).round())
    };
    // Four buffers are chosen; the one with a large object is counted.
    let choose = |census: &mut WindowCensus, strata: &mut StratumTable| {
        (0..3).for_each(|_| census.add_chosen(&tlab, BufferGroup::SmallObjects));
        census.add_chosen(&tlab, BufferGroup::LargeObject);
        census.add(&tlab, (BufferGroup::LargeObject, 1.0), &count(&large), strata);
        (0..8).for_each(|_| census.add_given_up(1600));
    };
    choose(&mut census, &mut strata);
    assert_eq!(census.window.errors.buffers(), 0, "after eight turns");
    census.add(&tlab, (BufferGroup::SmallObjects, 1.0 / 3.0), &count(&small), &mut strata);
    census.add_given_up(0);
    assert_eq!(census.window.errors.buffers(), 2);
    choose(&mut census, &mut strata);
    let sums = census.take();
    assert_eq!(bytes(&sums, &mut strata), [9600.0, 3200.0], "what is left has the classes of the rest");
    choose(&mut census, &mut strata);
    assert_eq!(bytes(&census.take(), &mut strata), [0.0, 12_800.0], "nothing else is known");
}

#[test]
fn what_censuses_have_read_is_that_of_the_group_that_they_count_least() {
    let (small, mut strata) = (class("Small"), StratumTable::default());
    let mut census = WindowCensus::default();
    let tlab = TlabRecord { used: 3200, interval: 1, ..TlabRecord::default() };
    let found = TlabObjects { counts: vec![objects(&small, 100, 3200)], first: None };
    for (group, chosen) in [(BufferGroup::SmallObjects, 9_u32), (BufferGroup::LargeObject, 1)] {
        (0..chosen).for_each(|_| census.add_chosen(&tlab, group));
        census.add(&tlab, (group, 1.0 / f64::from(chosen)), &found, &mut strata);
    }
    census.add_given_up(32_000);
    let read = census.take().errors.read();
    assert!((read - 32_000.0 / 9.0).abs() < 1e-6, "{read}");
}

/// Adds equal censuses.
fn add(census: &mut WindowCensus, censuses: u32, class: &Arc<JavaClass>, strata: &mut StratumTable) {
    for _ in 0..censuses {
        let tlab = TlabRecord { used: 3200, interval: 1 << 20, ..TlabRecord::default() };
        let found = TlabObjects { counts: vec![objects(class, 100, 3200)], first: None };
        census.add_unscreened(&tlab, &found, strata);
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
        census.window.errors.buffers()
    };
    assert_eq!([29, 1, 30].map(|censuses| turn(&mut census, censuses)), [0, 30, 60]);
    assert_eq!([1, 0, 0, 0, 0, 0, 0].map(|censuses| turn(&mut census, censuses)), [60; 7]);
    assert_eq!(turn(&mut census, 2), 63, "it is the eighth turn");
    // Eight turns without a census are a part of the next period.
    assert_eq!([0; 9].map(|censuses| turn(&mut census, censuses)), [63; 9]);
    assert_eq!(turn(&mut census, 1), 64);
    turn(&mut census, 5);
    let sums = census.take();
    assert_eq!(sums.errors.buffers(), 69, "the window's end ends its stretch");
    let bytes = bytes_of(&sums, &mut strata, &small, 32);
    assert!((bytes / f64::from(22 << 20) - 1.0).abs() < 1e-9, "{bytes}");
}
