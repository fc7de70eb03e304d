//! The time of each sample, on its way to those who get it.

use std::path::Path;
use std::time::Duration;

use jvmprof_daemon::export::store::{Matcher, Store, TimeRange};
use jvmprof_daemon::profile::pprof::decode::{DecodeLimits, decode};
use jvmprof_daemon::profile::pprof::sample_times::keep_within;

use super::{collector, daemon_until};
use crate::support::{Workload, compile, scratch, signal};

/// Works in the first half of each second of the host's clock.
const HALF: &str = r"
#include <time.h>
volatile unsigned long sink;
int main(void) {
    for (;;) {
        struct timespec now;
        clock_gettime(CLOCK_REALTIME, &now);
        struct timespec rest = { 0, 1000000000 - now.tv_nsec };
        if (now.tv_nsec > 500000000) nanosleep(&rest, 0);
        else for (int i = 0; i < 20000; i++) sink += i * i;
    }
}
";

const SECOND: i64 = 1_000_000_000;

/// The samples of that program in a store, and the times of those that have one, in milliseconds of
/// their second. None before the store is there.
fn samples_of_half(dir: &Path) -> (u64, Vec<u32>) {
    let (mut samples, mut times) = (0, Vec::new());
    let Ok(store) = Store::open_for_reading(dir) else { return (samples, times) };
    for reference in store.profiles(TimeRange::ALL, &[Matcher::equal("comm", "half")]) {
        samples += reference.samples;
        let mut profile = decode(&store.read(&reference).unwrap(), DecodeLimits::default()).unwrap();
        let start = (profile.time_nanos / SECOND - 10) * SECOND;
        let of_profile = keep_within(&mut profile, &(start..i64::MAX), false).unwrap();
        let stacks = (0..profile.sample.len()).flat_map(|stack| of_profile.of(stack));
        times.extend(stacks.map(|ms| ms % 1_000));
    }
    (samples, times)
}

#[test]
fn times_of_samples_are_those_of_the_hosts_clock_and_go_where_they_should() {
    let dir = scratch();
    let _load = Workload::start(&compile(dir.path(), "half", HALF, &["-O1", "-fno-omit-frame-pointer"]), &[]);
    let [local, own, remote] = ["local", "own", "remote"].map(|name| dir.path().join(name));
    let ((mut first, own_address), (mut second, remote_address)) = (collector(&own), collector(&remote));
    let args = [
        "--sample-times",
        "collector",
        "--local-store",
        "--local-store-directory",
        local.to_str().unwrap(),
        "--collector-address",
        &own_address,
        "--remote-store-address",
        &remote_address,
    ];
    // A busy machine takes its time.
    let is_done = |since, _: &str| since > Duration::from_secs(4) && samples_of_half(&local).0 > 60;
    let (log, success) = daemon_until(&dir.path().join("spool"), &args, is_done);
    assert!(success, "{log}");
    for collector in [&mut first, &mut second] {
        signal(collector.id(), "TERM");
        assert!(collector.wait().unwrap().success());
    }
    for dir in [&local, &own] {
        let (samples, times) = samples_of_half(dir);
        assert_eq!(times.len() as u64, samples, "each one's is known");
        assert!(samples > 50, "{log}");
        // A busy machine lets it wait, and its last work and its first take a moment.
        let within = times.iter().filter(|ms| **ms <= 530).count();
        assert!(within * 10 > times.len() * 9, "{within} of {}: {times:?}", times.len());
    }
    let (samples, times) = samples_of_half(&remote);
    assert!(samples > 50 && times.is_empty(), "{samples} {}", times.len());
}
