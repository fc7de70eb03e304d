//! Any bytes as a stored sum, and as the tree and the stacks of one whose header is good: an answer
//! can count what was read, and write it as a sum again.
#![no_main]

mod pieces;

use jvmprof_daemon::export::collector::sums::stored_sum::{SumContent, SumDetail, parse, without_stacks};
use jvmprof_daemon::export::store::{SUM_MAKER, digest_of};
use jvmprof_daemon::profile::call_tree::{PprofSeries, TreeBuilder, TreeCounts};
use jvmprof_daemon::profile::gzip;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    check(data);
    let mut stacks = data;
    let tree = pieces::piece(&mut stacks);
    let first = behind_length(&header(), tree);
    let first = gzip::compress(&first).expect("in memory");
    let stacks = if stacks.is_empty() { Vec::new() } else { gzip::compress(stacks).expect("in memory") };
    check(&behind_length(&first, &stacks));
});

/// The header of a sum of no profiles, as protobuf: who made it, the digest, one event.
fn header() -> Vec<u8> {
    let maker = SUM_MAKER.as_bytes();
    let maker = [&[0x0a, maker.len() as u8], maker].concat();
    let digest = [&[0x11], &digest_of(&[]).to_le_bytes()[..]].concat();
    [maker, digest, vec![0x18, 1]].concat()
}

fn behind_length(first: &[u8], second: &[u8]) -> Vec<u8> {
    [&(first.len() as u32).to_le_bytes(), first, second].concat()
}

fn check(bytes: &[u8]) {
    assert!(bytes.starts_with(without_stacks(bytes)));
    for detail in [SumDetail::Tree(50), SumDetail::Tree(usize::MAX), SumDetail::All] {
        let Ok(sum) = parse(bytes, &[], detail) else { continue };
        let mut builder = TreeBuilder::default();
        match sum.content {
            SumContent::Tree(counts) => {
                assert!(detail != SumDetail::All || counts.is_whole());
                // Of several sums of one series.
                builder.add_counts((*counts).clone(), None);
                builder.add_counts(*counts, Some("a group"));
            }
            SumContent::Stacks(profile) => {
                let series = PprofSeries { sample_type: Some("samples"), ..PprofSeries::default() };
                if builder.add_pprof(&profile, &series).is_err() {
                    continue;
                }
            }
        }
        let counts = builder.into_counts(500);
        TreeCounts::from_bytes(&counts.to_bytes(), usize::MAX).expect("a tree that was written can be read");
    }
}
