use jvmprof_common::allocation::{RandomDistance, size_class};

use super::*;
use crate::hotspot::java_heap::JavaClass;

/// A generator of uniformly distributed numbers (xorshift64*).
struct Random(u64);

impl Random {
    fn number(&mut self) -> u32 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32) as u32
    }
}

fn class(name: &str) -> Arc<JavaClass> {
    Arc::new(JavaClass::named(name))
}

fn objects(class: &Arc<JavaClass>, objects: u64, bytes: u64) -> ObjectCount {
    let size_class = size_class(bytes / objects);
    ObjectCount { class: Arc::clone(class), size_class, objects, bytes }
}

/// Returns the bytes of a class, of objects of this size inside buffers.
fn bytes_of(sums: &CensusSums, strata: &mut StratumTable, class: &JavaClass, size: u64) -> f64 {
    let class = Some(Arc::clone(&class.name));
    let stratum = Stratum { class, size_class: size_class(size), placement: Placement::Inside };
    sums.by_stratum.get(&strata.number(stratum)).map_or(0.0, |(_, bytes)| *bytes)
}

#[test]
fn buffers_are_chosen_by_what_they_hold_beside_a_large_first_object() {
    const TLAB: u64 = 512 << 10;
    // One buffer in two is an array, and a twentieth small objects beside it.
    const BESIDE: [u64; 2] = [TLAB / 20, TLAB];
    // A census in some forty buffers.
    const INTERVAL: u64 = 40 * (BESIDE[0] + BESIDE[1]) / 2;
    let (small, array) = ([class("P"), class("Q")], class("byte[]"));
    let mut random = Random(0x1234_5678_9abc_def1);
    let mut distance = RandomDistance::draw(INTERVAL, random.number());
    let (mut strata, mut census) = (StratumTable::default(), WindowCensus::default());
    let (mut truth, mut censuses) = ([0; 2], 0_u32);
    for _ in 0..5000 {
        let mut given_up = 0;
        for _ in 0..40 {
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
        // A single census has all bytes of its stretch.
        census.end_stretch(given_up);
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
