//! Any bytes as a profile that somebody has pushed: it is bounded, its tree holds together, and the
//! sum of it with itself has the same graph as both.
#![no_main]

use jvmprof_daemon::profile::call_tree::{PprofSeries, TreeBuilder};
use jvmprof_daemon::profile::pprof::decode::{DecodeLimits, decode};
use jvmprof_daemon::profile::pprof::merge::{MAX_BYTES, Merger};
use jvmprof_daemon::profile::pprof::stack_sum::StackSum;
use jvmprof_daemon::profile::pprof::{sampled_events, total};
use libfuzzer_sys::fuzz_target;

const LIMITS: DecodeLimits = DecodeLimits { max_bytes: 1 << 20, max_entries: 50_000 };
const MAX_NODES: usize = 1000;

fuzz_target!(|data: &[u8]| {
    let Ok(profile) = decode(data, LIMITS) else { return };
    let _ = (total(&profile), sampled_events(&profile, "samples"));
    let series = PprofSeries::default();
    let mut both = TreeBuilder::default();
    if both.add_pprof(&profile, &series).is_err() {
        return;
    }
    both.add_pprof(&profile, &series).expect("it was right the first time");
    let mut sum = StackSum::of_series(false);
    if (0..2).all(|_| sum.add(&profile).is_ok()) {
        let mut summed = TreeBuilder::default();
        summed.add_pprof(&sum.finish(), &series).expect("a sum is a profile");
        assert_eq!(summed.finish(MAX_NODES).totals(), both.finish(MAX_NODES).totals());
    }
    let mut merged = Merger::new(MAX_BYTES);
    if (0..2).all(|_| merged.add(&profile).is_ok()) {
        let merged = merged.finish();
        TreeBuilder::default().add_pprof(&merged, &series).expect("what is merged is a profile");
    }
});
