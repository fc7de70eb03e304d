//! A program that generates function A and function B in turn at one address: no sample of A may be
//! called B.

use crate::recording::{Seen, program, record};
use crate::support::scratch;

fn alternate(mode: &str, a: &str, b: &str, turns: &str) -> Seen {
    let directory = scratch();
    let program = program(directory.path()).display().to_string();
    record(mode, &[&program, mode, a, b, turns])
}

/// Three quarters of the time are A's.
fn assert_shares(seen: &Seen) {
    let (a, b) = (seen.count("run_a", ";jit_a"), seen.count("run_b", ";jit_b"));
    let share = a as f64 / (a + b) as f64;
    assert!((share - 0.75).abs() < 0.03, "{a} of A, {b} of B");
}

#[test]
fn a_jitdump_names_every_sample_by_what_was_there() {
    let seen = alternate("jitdump", "30", "10", "75");
    let (right, wrong, unknown) = seen.judged();
    assert!(right > 1000, "{:?}", seen.stacks);
    assert_eq!((wrong, unknown, seen.loss("ambiguous_jit_frames")), (0, 0, 0));
    assert_shares(&seen);
}

/// The code keeps no frame pointer, and A's frames have another size than B's.
#[test]
fn code_without_frame_pointers_is_unwound_by_what_its_jitdump_tells_of_it() {
    // What is told late is told all at once: no more of it than is remembered of one address, nor
    // more samples than may wait for it.
    for (mode, a, b, turns) in [("unwound", "30", "10", "75"), ("late", "180", "60", "4")] {
        let seen = alternate(mode, a, b, turns);
        let (right, wrong, unknown) = seen.judged();
        let is_whole = |stack: &str| {
            [";main;run_a;run;jit_a", ";main;run_b;run;jit_b"].iter().any(|chain| stack.contains(chain))
        };
        let cut: Vec<_> =
            seen.stacks.iter().filter(|(stack, _)| stack.contains("jit_") && !is_whole(stack)).collect();
        assert!(right > 300, "{:?}", seen.stacks);
        assert!(cut.is_empty(), "{mode}: {cut:?}");
        assert_eq!((wrong, unknown), (0, 0), "{mode}");
        assert_eq!((seen.loss("ambiguous_jit_frames"), seen.loss("ambiguous_jit_stacks")), (0, 0), "{mode}");
        assert_eq!(seen.loss("unusable_jit_unwinding"), 0, "{mode}");
        assert_shares(&seen);
    }
}

#[test]
fn stacks_that_end_in_code_without_frame_pointers_arent_taken_for_whole() {
    let seen = alternate("bare", "30", "10", "10");
    let generated = seen.stacks.iter().filter(|(stack, _)| stack.contains("jit_"));
    let (whole, cut): (Vec<_>, Vec<_>) = generated.partition(|(stack, _)| !stack.starts_with("[truncated: "));
    let count = |stacks: &[&(String, u64)]| stacks.iter().map(|(_, count)| count).sum::<u64>();
    assert!(count(&cut) > 100, "{:?}", seen.stacks);
    // In its first instruction code is still its caller's.
    assert!(count(&whole) * 50 < count(&cut), "{whole:?}");
}

#[test]
fn a_perf_map_names_every_sample_by_what_was_there_but_for_those_it_counts() {
    let seen = alternate("perfmap", "300", "100", "8");
    let (right, wrong, unknown) = seen.judged();
    let ambiguous = seen.loss("ambiguous_jit_frames");
    assert!(right > 1000, "{:?}", seen.stacks);
    assert_eq!(unknown, 0);
    assert!(wrong <= ambiguous, "{wrong} wrong, {ambiguous} ambiguous");
    assert!(ambiguous * 10 < right, "{ambiguous} ambiguous");
    assert_shares(&seen);
}

#[test]
fn without_a_map_and_with_a_useless_one_nothing_is_named() {
    for (mode, reason) in
        [("silent", None), ("tsc", Some("CPU timestamps")), ("alien", Some("other process"))]
    {
        // On busy CPUs the program must still run when its jitdump is opened.
        let seen = alternate(mode, "30", "10", "50");
        let (right, wrong, unknown) = seen.judged();
        assert_eq!((right, wrong), (0, 0), "{mode}");
        assert!(unknown > 100, "{:?}", seen.stacks);
        assert!(seen.loss("unknown_jit_frames") >= unknown);
        if let Some(reason) = reason {
            assert_eq!(seen.loss(&format!("unusable_jitdumps: {reason}")), 1, "{}", seen.summary);
        }
    }
}
