//! Rust as cargo builds it for release: generic code of the standard library, panics that are
//! caught, threads, deep recursion.
use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::hint::black_box;

#[derive(Clone, Debug)]
enum Tree {
    Leaf(u64),
    Node(Box<Tree>, Box<Tree>),
}

fn grow(depth: u32, seed: u64) -> Tree {
    match depth {
        0 => Tree::Leaf(seed),
        _ => Tree::Node(Box::new(grow(depth - 1, seed * 3)), Box::new(grow(depth - 1, seed * 5))),
    }
}

fn sum(tree: &Tree) -> u64 {
    match tree {
        Tree::Leaf(value) => *value,
        Tree::Node(left, right) => sum(left).wrapping_add(sum(right)),
    }
}

#[inline(never)]
fn panics(depth: u32, text: &str) -> usize {
    let kept = text.to_owned();
    if depth == 0 {
        std::panic::resume_unwind(Box::new(kept));
    }
    panics(depth - 1, text) + kept.len()
}

fn work(seed: u64) {
    for round in seed.. {
        black_box(sum(&grow(8, round % 1000)));
        let mut words: Vec<String> = (0..300u64).map(|i| format!("{:x}", i.wrapping_mul(round) % 7919)).collect();
        words.sort_by(|a, b| a.chars().rev().cmp(b.chars().rev()));
        let mut counts: HashMap<&str, usize> = HashMap::new();
        words.iter().for_each(|word| *counts.entry(word).or_default() += 1);
        let ordered: BTreeMap<_, _> = counts.into_iter().collect();
        let mut text = String::new();
        let _ = write!(text, "{ordered:?}");
        black_box(&text);
        if round % 8 == 0 {
            let caught = std::panic::catch_unwind(|| panics(15, "unwound"));
            black_box(caught.is_err());
        }
    }
}

fn main() {
    std::thread::spawn(|| work(1));
    println!("ready");
    work(2);
}
