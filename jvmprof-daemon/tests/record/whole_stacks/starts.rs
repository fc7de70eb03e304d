//! A program's first moments, before its rows are known: the daemon walks what was copied with the
//! samples.

use std::fs;

use super::{TURN, build_go};
use crate::support::{record_json, scratch};

/// What a Go program does when a goroutine's stack grows: on the system stack, of whose frames none
/// leads to the goroutine.
const GROWS: &str = "runtime.newstack";

/// Where it has left its goroutine, which waits for its turn.
const LEAVES: [&str; 2] = ["runtime.goschedImpl", "runtime.preemptPark"];

#[test]
fn gos_first_moments_are_whole_and_below_the_system_stack_the_goroutine_goes_on() {
    let directory = scratch();
    let program = build_go(directory.path(), &["build"]).display().to_string();
    let _turn = TURN.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let (mut samples, mut cut, mut growing, mut wrong, mut starts) = (0, 0, 0, Vec::new(), 0);
    // A busy machine gives it less of each second.
    while starts < 4 || growing <= 10 && starts < 20 {
        starts += 1;
        let folded = directory.path().join("x.folded").display().to_string();
        let summary = record_json(&["-F", "999", "-d", "1s", "-o", &folded, "--", &program]);
        let number = |key: &str| summary[key].as_u64().expect("a number");
        samples += number("samples");
        cut += number("samples") - number("complete");
        for line in fs::read_to_string(&folded).expect("the recording was written").lines() {
            let (stack, count) = line.rsplit_once(' ').expect("a count behind the stack");
            let frames: Vec<&str> = stack.split(';').collect();
            if frames.contains(&GROWS) {
                growing += count.parse::<u64>().expect("a count");
            }
            if !stack.starts_with("[truncated") && !is_possible(&frames) {
                wrong.push(line.to_owned());
            }
        }
    }
    println!("{cut} of {samples} are cut, {growing} while a stack grows, in {starts} starts");
    assert!(growing > 10, "no stacks grow here: {growing} of {samples}");
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert!(cut <= 3 + samples / 1000, "{cut} of {samples} are cut");
}

/// Whether a whole stack, root first, can be one of the program `load.go`.
fn is_possible(frames: &[&str]) -> bool {
    let may_call = |caller: &str, name: &str| match name {
        "main.deep" => caller == name || caller.starts_with("main.work.func"),
        // What unwinds a panic calls deferred functions, which are others.
        "main.grow" | "main.recovers" => caller == name || caller == "main.work",
        "runtime.newstack" => caller == "runtime.morestack.abi0",
        _ => true,
    };
    let begins = frames.first().is_some_and(|root| *root == "runtime.morestack.abi0");
    frames.windows(2).all(|edge| may_call(edge[0], edge[1]))
        && frames.first().is_some_and(|root| may_call("", root))
        && (!begins || LEAVES.iter().any(|name| frames.contains(name)))
}
