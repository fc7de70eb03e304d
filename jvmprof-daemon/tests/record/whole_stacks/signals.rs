//! Samples taken while the kernel replaces a thread's registers by those of a signal's handler.

use std::fs;
use std::time::Instant;

use super::build;
use crate::support::processes::LONGEST_WAIT;
use crate::support::{Workload, record_json, scratch};

#[test]
fn no_stack_has_a_frame_of_registers_that_a_signal_is_about_to_replace() {
    let directory = scratch();
    let program = build(directory.path(), "gcc", &["-O1", "-fno-omit-frame-pointer"], "signals.c");
    let load = Workload::start(&program, &[]);
    let folded = directory.path().join("signals.folded");
    let to = folded.to_str().expect("a path in UTF-8");
    let pid = load.pid().to_string();
    let (began, mut samples, mut stacks) = (Instant::now(), 0, String::new());
    // As many as on a machine that has nothing else to do, where that is possible.
    while samples < 30_000 && began.elapsed() < LONGEST_WAIT {
        let summary = record_json(&["-p", &pid, "-F", "4999", "-d", "4s", "-o", to]);
        samples += summary["samples"].as_u64().expect("a number");
        stacks += &fs::read_to_string(&folded).expect("it was written");
    }
    assert!(samples > 5_000, "{samples}");
    for line in stacks.lines() {
        let (stack, _) = line.rsplit_once(' ').expect("a stack and its samples");
        let mut frames = stack.split(';');
        // Either the whole stack, or nothing of the program.
        let is_right = match frames.next() {
            Some("_start") => frames.any(|frame| frame == "main"),
            Some("[truncated: signal being delivered]") => frames.all(|frame| frame.ends_with("_[k]")),
            _ => false,
        };
        assert!(is_right, "{stack}");
    }
}
