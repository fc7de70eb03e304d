//! Comparison of the timeline with a naive model: a list of all writes an address.

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

const SPACE: u64 = 120;

fn name_at(timeline: &CodeTimeline, address: u64, at_ns: u64) -> Option<String> {
    timeline.lookup(Avma(address), at_ns).map(|found| {
        assert!(found.start.0 <= address && address < found.start.0 + found.size);
        found.name.to_owned()
    })
}

fn between(after_ns: u64, since_ns: u64) -> CreationTime {
    CreationTime { after_ns, since_ns, is_doubtful: false }
}

/// One operation of a writer.
#[derive(Clone, Debug)]
struct CodeWrite {
    start: u64,
    size: u32,
    since: CreationTime,
    /// One of few names, so that the same code comes again. `None`: the code is removed.
    name: Option<u8>,
}

/// Generates writes whose times mostly ascend.
fn writes(count: usize) -> impl Strategy<Value = Vec<CodeWrite>> {
    let one = (0..SPACE, 1..40u32, 0..4_000u64, 0..3_000u64, proptest::option::weighted(0.9, 0..6u8));
    vec(one, 0..count).prop_map(|writes| {
        let mut clock = 1_000_000;
        writes
            .into_iter()
            .map(|(start, size, step, slack, name)| {
                clock += step;
                let since_ns = if step % 7 == 0 { clock - 2_500 } else { clock };
                let slack = if step % 3 == 0 { 0 } else { slack / 1000 * 1000 };
                CodeWrite { start, size, since: between(since_ns - slack, since_ns), name }
            })
            .collect()
    })
}

/// The code at an address: a name, and which code under that name.
#[derive(Clone, Debug, PartialEq, Eq)]
struct WrittenCode {
    name: String,
    start: u64,
    /// Index of the write it came with.
    index: usize,
}

/// All versions of each address, by time.
#[derive(Debug)]
struct NaiveTimeline(Vec<Vec<(CreationTime, Option<WrittenCode>)>>);

impl NaiveTimeline {
    fn new() -> Self {
        Self(vec![Vec::new(); SPACE as usize + 64])
    }

    fn write(&mut self, start: u64, size: u32, since: CreationTime, code: Option<&WrittenCode>) {
        for versions in &mut self.0[start as usize..][..size as usize] {
            let at = versions.partition_point(|(earlier, _)| earlier.since_ns <= since.since_ns);
            versions.insert(at, (since, code.cloned()));
        }
    }

    fn moved(&mut self, from: u64, to: u64, size: u32, since: CreationTime, index: usize) -> bool {
        let live = |address: u64| {
            let versions = &self.0[address as usize];
            let seen = versions.iter().rfind(|(earlier, _)| earlier.since_ns <= since.since_ns)?;
            seen.1.clone().filter(|code| code.start == from)
        };
        let first = live(from);
        let is_one = first.is_some() && (from..from + u64::from(size)).all(|address| live(address) == first);
        self.write(from, size, since, None);
        let code = first.filter(|_| is_one).map(|code| WrittenCode { start: to, index, ..code });
        self.write(to, size, since, code.as_ref());
        is_one
    }

    /// Returns the name, and whether it is ambiguous. Names are unique a write, so that a wrong one
    /// shows.
    fn lookup(&self, address: u64, at_ns: u64) -> (Option<String>, bool) {
        let versions = &self.0[address as usize];
        let name = |index: usize| versions[index].1.as_ref().map(|code| code.name.clone());
        let seen = versions.iter().rposition(|(since, _)| since.since_ns <= at_ns);
        let maybe: Vec<usize> = (seen.map_or(0, |seen| seen + 1)..versions.len())
            .filter(|index| versions[*index].0.after_ns < at_ns)
            .collect();
        match (seen, maybe.as_slice()) {
            (Some(seen), maybe) => (name(seen), !maybe.is_empty()),
            (None, [.., last]) => (name(*last), maybe.len() > 1),
            (None, []) => (None, false),
        }
    }
}

/// Applies each write under a name of its own, except where the same code is there already.
fn apply(
    timeline: &mut CodeTimeline,
    naive: &mut NaiveTimeline,
    writes: &[CodeWrite],
    first: usize,
    limit: usize,
) -> bool {
    let mut all = true;
    for (index, write) in (first..).zip(writes) {
        match write.name {
            Some(name) => {
                let name = format!("f{name} of {index}");
                let done = timeline.insert(Avma(write.start), write.size, &name, write.since, limit);
                all &= done == InsertOutcome::New;
                let code = WrittenCode { name, start: write.start, index };
                naive.write(write.start, write.size, write.since, Some(&code));
            }
            None => {
                timeline.remove(Avma(write.start), write.size, write.since, limit);
                naive.write(write.start, write.size, write.since, None);
            }
        }
        if index % 40 == 39 {
            timeline.compact();
        }
    }
    all
}

/// Returns the times at which something may change.
fn times(writes: &[CodeWrite]) -> Vec<u64> {
    let edges = writes.iter().flat_map(|write| [write.since.after_ns, write.since.since_ns]);
    edges.flat_map(|edge| [edge - 1, edge, edge + 1]).collect()
}

/// A step of a writer that records times.
#[derive(Clone, Debug)]
enum TimelineStep {
    Load { start: u64, size: u32, name: u8 },
    Move { from: u64, to: u64, size: u32 },
}

/// Generates steps with few places, sizes and names, so that the same comes again and that what is
/// moved is often there. Some come late.
fn steps(count: usize) -> impl Strategy<Value = Vec<(u64, TimelineStep)>> {
    let (place, size) = (|| (0..12u64).prop_map(|place| place * 10), || prop_oneof![Just(10u32), Just(20)]);
    let odd = || (0..SPACE, 1..40u32);
    let spot = move || prop_oneof![4 => (place(), size()), 1 => odd()];
    let load = (spot(), 0..3u8).prop_map(|((start, size), name)| TimelineStep::Load { start, size, name });
    let moved = (spot(), place()).prop_map(|((from, size), to)| TimelineStep::Move { from, to, size });
    let step = (0..4_000u64, prop_oneof![2 => load, 1 => moved]);
    vec(step, 0..count).prop_map(|steps| {
        let mut clock = 1_000_000;
        steps
            .into_iter()
            .map(|(pause, step)| {
                clock += pause;
                (if pause % 5 == 0 { clock - 6_000 } else { clock }, step)
            })
            .collect()
    })
}

fn agree(timeline: &CodeTimeline, naive: &NaiveTimeline, times: &[u64]) -> Result<(), TestCaseError> {
    for at_ns in times.iter().flat_map(|at| [at - 1, *at, at + 1]) {
        for address in 0..SPACE + 64 {
            let (name, is_ambiguous) = naive.lookup(address, at_ns);
            prop_assert_eq!(name_at(timeline, address, at_ns), name, "{} at {}", address, at_ns);
            if let Some(found) = timeline.lookup(Avma(address), at_ns) {
                prop_assert_eq!(found.is_ambiguous, is_ambiguous, "{} at {}", address, at_ns);
            }
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    #[test]
    fn an_address_has_the_name_it_had_at_the_time(writes in writes(60)) {
        let (mut timeline, mut naive) = (CodeTimeline::default(), NaiveTimeline::new());
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
    fn code_that_moves_and_comes_again_has_its_name_at_each_time_however_late_it_is_recorded(steps in steps(40)) {
        let (mut timeline, mut naive) = (CodeTimeline::default(), NaiveTimeline::new());
        for (index, (time_ns, step)) in steps.iter().enumerate() {
            let since = CreationTime::exact(*time_ns);
            match *step {
                TimelineStep::Load { start, size, name } => {
                    let name = format!("f{name}");
                    timeline.insert(Avma(start), size, &name, since, usize::MAX);
                    naive.write(start, size, since, Some(&WrittenCode { name, start, index }));
                }
                TimelineStep::Move { from, to, size } => {
                    let moved = timeline.move_code(Avma(from), Avma(to), size, since, usize::MAX);
                    let is_known = naive.moved(from, to, size, since, index);
                    prop_assume!(timeline.history_over_limit() == 0);
                    prop_assert_eq!(moved.is_some(), is_known);
                }
            }
        }
        prop_assume!(timeline.history_over_limit() == 0);
        agree(&timeline, &naive, &steps.iter().map(|(time_ns, _)| *time_ns).collect::<Vec<_>>())?;
    }

    #[test]
    fn the_same_line_again_is_no_other_code(steps in steps(60), slack in 0..5u64) {
        let (mut timeline, mut naive, mut clock) = (CodeTimeline::default(), NaiveTimeline::new(), 1_000_000);
        let mut times = Vec::new();
        for (index, (_, step)) in steps.iter().enumerate() {
            let TimelineStep::Load { start, size, name } = *step else { continue };
            clock += 7_000;
            let (name, since) = (format!("f{name}"), between(clock - slack * 1000 - 1000, clock));
            times.extend([since.after_ns, since.since_ns]);
            let code = WrittenCode { name: name.clone(), start, index };
            let is_name = |address: u64| naive.lookup(address, u64::MAX).0.as_ref() == Some(&name);
            if timeline.insert(Avma(start), size, &name, since, usize::MAX) == InsertOutcome::New {
                naive.write(start, size, since, Some(&code));
            } else {
                prop_assert!((start..start + u64::from(size)).all(is_name));
            }
        }
        prop_assume!(timeline.history_over_limit() == 0);
        agree(&timeline, &naive, &times)?;
    }

    #[test]
    fn what_is_evicted_leaves_no_wrong_name(writes in writes(60), share in 0..100usize) {
        let (mut timeline, mut naive) = (CodeTimeline::default(), NaiveTimeline::new());
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
        let sum: usize = timeline.pieces.values().map(|piece| piece.superseded.size_bytes()).sum();
        prop_assert_eq!(timeline.superseded_bytes, sum);
    }

    #[test]
    fn at_the_limit_addresses_lose_their_names_but_never_get_a_wrong_one(
        writes in writes(300),
        limit in 2_000..12_000usize,
    ) {
        let (mut timeline, mut naive) = (CodeTimeline::default(), NaiveTimeline::new());
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
    let mut timeline = CodeTimeline::default();
    for round in 0..20_000u64 {
        let since = CreationTime::exact(round * 1_000_000);
        let (start, name) = (0x1000 + round % 10 * 64, format!("round {round}"));
        assert_eq!(timeline.insert(Avma(start), 64, &name, since, usize::MAX), InsertOutcome::New);
        timeline.expire((round * 1_000_000).saturating_sub(50_000_000));
    }
    assert!(timeline.size_bytes() < 250_000, "{}", timeline.size_bytes());
    assert_eq!(name_at(&timeline, 0x1000 + 9 * 64, u64::MAX).as_deref(), Some("round 19999"));
    assert!(timeline.superseded.len() < 100);
}

#[test]
fn a_large_entry_over_many_small_ones_again_and_again_costs_no_more_than_a_few_turns() {
    let mut timeline = CodeTimeline::default();
    for index in 0..10_000u64 {
        timeline.insert(Avma(index * 16), 16, &format!("f{index}"), CreationTime::exact(1), usize::MAX);
    }
    for turn in 0..100 {
        timeline.insert(Avma(0), 160_000, &format!("all {turn}"), CreationTime::exact(2 + turn), usize::MAX);
    }
    assert_eq!(timeline.len(), 1, "pieces without a difference are one");
}

#[test]
fn what_isnt_in_a_file_that_is_written_anew_is_gone() {
    let mut timeline = CodeTimeline::default();
    let add = |timeline: &mut CodeTimeline, start, name: &str, at_ns| {
        timeline.insert(Avma(start), 16, name, between(at_ns - 5_000, at_ns), usize::MAX)
    };
    add(&mut timeline, 0x100, "stays", 10_000);
    add(&mut timeline, 0x200, "goes", 10_000);
    timeline.begin_rewrite();
    assert_eq!(add(&mut timeline, 0x100, "stays", 20_000), InsertOutcome::Unchanged);
    add(&mut timeline, 0x300, "comes", 20_000);
    assert!(timeline.end_rewrite(between(15_000, 20_000), usize::MAX));
    let at =
        |address, at_ns| timeline.lookup(Avma(address), at_ns).map(|found| (found.name, found.is_ambiguous));
    assert_eq!(at(0x100, 30_000), Some(("stays", false)));
    assert_eq!((at(0x200, 30_000), at(0x200, 12_000)), (None, Some(("goes", false))));
    assert_eq!(at(0x200, 17_000), Some(("goes", true)));
    assert_eq!((at(0x300, 30_000), at(0x300, 14_000)), (Some(("comes", false)), None));
}

#[test]
fn late_code_does_not_outlive_the_code_that_came_again_after_it() {
    let mut timeline = CodeTimeline::default();
    for (at_ns, name) in [(10, "a"), (20, "a"), (15, "b")] {
        timeline.insert(Avma(0x100), 16, name, CreationTime::exact(at_ns), usize::MAX);
    }
    let names = [10, 14, 15, 19, 20, 99].map(|at_ns| name_at(&timeline, 0x100, at_ns).unwrap_or_default());
    assert_eq!(names, ["a", "a", "b", "b", "a", "a"]);
}

#[test]
fn code_of_which_only_a_part_moves_has_neither_name_nor_lines_there() {
    let mut timeline = CodeTimeline::default();
    timeline.insert(Avma(0x100), 64, "whole", CreationTime::exact(10), usize::MAX);
    timeline.insert(Avma(0x900), 64, "old", CreationTime::exact(10), usize::MAX);
    timeline.set_lines(Avma(0x900), CodeLines { rows: vec![(0, 7, 0)], files: vec!["a".into()] }, usize::MAX);
    assert_eq!(timeline.move_code(Avma(0x110), Avma(0x900), 16, CreationTime::exact(20), usize::MAX), None);
    let at = |address| name_at(&timeline, address, 30);
    assert_eq!(
        (at(0x10f), at(0x110), at(0x90f), at(0x910)),
        (Some("whole".into()), None, None, Some("old".into()))
    );
    // What was there before it is still known.
    assert_eq!(name_at(&timeline, 0x900, 15).as_deref(), Some("old"));
}

#[test]
fn what_another_process_may_have_written_is_ambiguous_until_it_is_written_again() {
    let mut timeline = CodeTimeline::default();
    let doubtful = CreationTime { is_doubtful: true, ..between(0, 10_000) };
    timeline.insert(Avma(0x100), 16, "f", doubtful, usize::MAX);
    let at =
        |timeline: &CodeTimeline, at_ns| timeline.lookup(Avma(0x100), at_ns).map(|found| found.is_ambiguous);
    assert_eq!(at(&timeline, 15_000), Some(true));
    assert_eq!(
        timeline.insert(Avma(0x100), 16, "f", between(18_000, 20_000), usize::MAX),
        InsertOutcome::New
    );
    assert_eq!((at(&timeline, 15_000), at(&timeline, 25_000)), (Some(true), Some(false)));
    assert_eq!(
        timeline.insert(
            Avma(0x100),
            16,
            "f",
            CreationTime { is_doubtful: true, ..between(29_000, 30_000) },
            usize::MAX
        ),
        InsertOutcome::Unchanged
    );
}
