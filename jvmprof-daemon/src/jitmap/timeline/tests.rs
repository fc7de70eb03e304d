//! The timeline against a naive model: a list of all writes an address.

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

const SPACE: u64 = 120;

fn name_at(timeline: &Timeline, address: u64, at_ns: u64) -> Option<String> {
    timeline.lookup(Avma(address), at_ns).map(|found| {
        assert!(found.start.0 <= address && address < found.start.0 + found.size);
        found.name.to_owned()
    })
}

/// What a writer did.
#[derive(Clone, Debug)]
struct Write {
    start: u64,
    size: u32,
    since: Since,
    /// Few different ones, so that the same code comes again. `None`: the code is taken away.
    name: Option<u8>,
}

/// Times mostly ascend.
fn writes(count: usize) -> impl Strategy<Value = Vec<Write>> {
    let one = (0..SPACE, 1..40u32, 0..4_000u64, 0..3_000u64, proptest::option::weighted(0.9, 0..6u8));
    vec(one, 0..count).prop_map(|writes| {
        let mut clock = 1_000_000;
        writes
            .into_iter()
            .map(|(start, size, step, slack, name)| {
                clock += step;
                let since_ns = if step % 7 == 0 { clock - 2_500 } else { clock };
                let slack = if step % 3 == 0 { 0 } else { slack / 1000 * 1000 };
                Write { start, size, since: Since { after_ns: since_ns - slack, since_ns }, name }
            })
            .collect()
    })
}

/// All versions of each address, by time.
#[derive(Debug)]
struct Naive(Vec<Vec<(Since, Option<String>)>>);

impl Naive {
    fn new() -> Self {
        Self(vec![Vec::new(); SPACE as usize + 64])
    }

    fn write(&mut self, write: &Write, name: Option<&str>) {
        for versions in &mut self.0[write.start as usize..][..write.size as usize] {
            let at = versions.partition_point(|(since, _)| since.since_ns <= write.since.since_ns);
            versions.insert(at, (write.since, name.map(str::to_owned)));
        }
    }

    /// Name, and whether it is ambiguous. Names are unique a write, so that a wrong one shows.
    fn lookup(&self, address: u64, at_ns: u64) -> (Option<String>, bool) {
        let versions = &self.0[address as usize];
        let seen = versions.iter().rposition(|(since, _)| since.since_ns <= at_ns);
        let maybe: Vec<usize> = (seen.map_or(0, |seen| seen + 1)..versions.len())
            .filter(|index| versions[*index].0.after_ns < at_ns)
            .collect();
        match (seen, maybe.as_slice()) {
            (Some(seen), maybe) => (versions[seen].1.clone(), !maybe.is_empty()),
            (None, [.., last]) => (versions[*last].1.clone(), maybe.len() > 1),
            (None, []) => (None, false),
        }
    }
}

/// Writes each one under a name of its own, except where the same code is there already.
fn apply(timeline: &mut Timeline, naive: &mut Naive, writes: &[Write], first: usize, limit: usize) -> bool {
    let mut all = true;
    for (index, write) in (first..).zip(writes) {
        match write.name {
            Some(name) => {
                let name = format!("f{name} of {index}");
                let done = timeline.insert(write.start, write.size, &name, write.since, limit);
                all &= done == Inserted::New;
                naive.write(write, Some(&name));
            }
            None => {
                timeline.remove(write.start, write.size, write.since, limit);
                naive.write(write, None);
            }
        }
        if index % 40 == 39 {
            timeline.compact();
        }
    }
    all
}

/// The times at which something may change.
fn times(writes: &[Write]) -> Vec<u64> {
    let edges = writes.iter().flat_map(|write| [write.since.after_ns, write.since.since_ns]);
    edges.flat_map(|edge| [edge - 1, edge, edge + 1]).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    #[test]
    fn an_address_has_the_name_it_had_at_the_time(writes in writes(60)) {
        let (mut timeline, mut naive) = (Timeline::default(), Naive::new());
        prop_assert!(apply(&mut timeline, &mut naive, &writes, 0, usize::MAX));
        for at_ns in times(&writes) {
            for address in 0..SPACE + 64 {
                let (name, is_ambiguous) = naive.lookup(address, at_ns);
                let found = name_at(&timeline, address, at_ns);
                if timeline.history_over_limit() == 0 {
                    prop_assert_eq!(&found, &name, "{} at {}", address, at_ns);
                    if let Some(found) = timeline.lookup(Avma(address), at_ns) {
                        prop_assert_eq!(found.is_ambiguous, is_ambiguous, "{} at {}", address, at_ns);
                    }
                } else {
                    prop_assert!(found.is_none() || found == name, "{address} at {at_ns}: {found:?}, {name:?}");
                }
            }
        }
    }

    #[test]
    fn what_is_forgotten_leaves_no_wrong_name(writes in writes(60), share in 0..100usize) {
        let (mut timeline, mut naive) = (Timeline::default(), Naive::new());
        apply(&mut timeline, &mut naive, &writes, 0, usize::MAX);
        let all = times(&writes);
        let Some(horizon) = all.get(all.len() * share / 100).copied() else { return Ok(()) };
        timeline.expire(horizon);
        for at_ns in all {
            for address in 0..SPACE + 64 {
                let (found, (name, _)) = (name_at(&timeline, address, at_ns), naive.lookup(address, at_ns));
                let is_kept = at_ns > horizon && timeline.history_over_limit() == 0;
                prop_assert!(
                    found == name || (found.is_none() && !is_kept),
                    "{address} at {at_ns}, forgotten before {horizon}: {found:?}, {name:?}"
                );
            }
        }
        let sum: usize = timeline.pieces.values().map(|piece| piece.older.size_bytes()).sum();
        prop_assert_eq!(timeline.older_bytes, sum);
    }

    #[test]
    fn at_the_limit_addresses_lose_their_names_but_never_get_a_wrong_one(
        writes in writes(300),
        limit in 2_000..12_000usize,
    ) {
        let (mut timeline, mut naive) = (Timeline::default(), Naive::new());
        for index in 0..writes.len() {
            apply(&mut timeline, &mut naive, &writes[index..=index], index, limit);
            prop_assert!(timeline.size_bytes() <= limit, "{} of {limit}", timeline.size_bytes());
        }
        let end = u64::MAX;
        for address in 0..SPACE + 64 {
            let (found, (name, _)) = (name_at(&timeline, address, end), naive.lookup(address, end));
            prop_assert!(found.is_none() || found == name, "{address}: {found:?}, {name:?}");
        }
    }
}

#[test]
fn code_that_is_overwritten_for_ever_takes_no_more_memory() {
    let mut timeline = Timeline::default();
    for round in 0..20_000u64 {
        let since = Since::exact(round * 1_000_000);
        let (start, name) = (0x1000 + round % 10 * 64, format!("round {round}"));
        assert_eq!(timeline.insert(start, 64, &name, since, usize::MAX), Inserted::New);
        timeline.expire((round * 1_000_000).saturating_sub(50_000_000));
    }
    assert!(timeline.size_bytes() < 250_000, "{}", timeline.size_bytes());
    assert_eq!(name_at(&timeline, 0x1000 + 9 * 64, u64::MAX).as_deref(), Some("round 19999"));
    assert!(timeline.retired.len() < 100);
}

#[test]
fn a_large_entry_over_many_small_ones_again_and_again_costs_no_more_than_a_few_turns() {
    let mut timeline = Timeline::default();
    for index in 0..10_000u64 {
        timeline.insert(index * 16, 16, &format!("f{index}"), Since::exact(1), usize::MAX);
    }
    for turn in 0..100 {
        timeline.insert(0, 160_000, &format!("all {turn}"), Since::exact(2 + turn), usize::MAX);
    }
    assert_eq!(timeline.len(), 1, "pieces without a difference are one");
}

#[test]
fn what_isnt_in_a_file_that_is_written_anew_is_gone() {
    let mut timeline = Timeline::default();
    let add = |timeline: &mut Timeline, start, name: &str, at_ns| {
        timeline.insert(start, 16, name, Since { after_ns: at_ns - 5_000, since_ns: at_ns }, usize::MAX)
    };
    add(&mut timeline, 0x100, "stays", 10_000);
    add(&mut timeline, 0x200, "goes", 10_000);
    timeline.begin_rewrite();
    assert_eq!(add(&mut timeline, 0x100, "stays", 20_000), Inserted::Known);
    add(&mut timeline, 0x300, "comes", 20_000);
    assert!(timeline.end_rewrite(Since { after_ns: 15_000, since_ns: 20_000 }, usize::MAX));
    let at =
        |address, at_ns| timeline.lookup(Avma(address), at_ns).map(|found| (found.name, found.is_ambiguous));
    assert_eq!(at(0x100, 30_000), Some(("stays", false)));
    assert_eq!((at(0x200, 30_000), at(0x200, 12_000)), (None, Some(("goes", false))));
    assert_eq!(at(0x200, 17_000), Some(("goes", true)));
    assert_eq!((at(0x300, 30_000), at(0x300, 14_000)), (Some(("comes", false)), None));
}
