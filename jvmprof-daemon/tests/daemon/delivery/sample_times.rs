//! The time of each sample, on its way to those who get it.

use std::path::Path;

use jvmprof_daemon::export::store::{Matcher, Store, TimeRange};
use jvmprof_daemon::profile::pprof::decode::{DecodeLimits, decode};
use jvmprof_daemon::profile::pprof::sample_times::keep_within;

use super::{collector, daemon_until, windows};
use crate::support::{Workload, compile, scratch, signal};

/// Works in the first half of each second of the host's clock. Each time that the machine let it
/// work on later than [`LATEST_MS`], it appends a byte to a file.
const HALF: &str = r#"
#include <stdio.h>
#include <time.h>
volatile unsigned long sink;
int main(int argc, char **argv) {
    for (;;) {
        struct timespec now, then;
        clock_gettime(CLOCK_REALTIME, &now);
        struct timespec rest = { 0, 1000000000 - now.tv_nsec };
        if (now.tv_nsec > 500000000) { nanosleep(&rest, 0); continue; }
        for (int i = 0; i < 20000; i++) sink += i * i;
        clock_gettime(CLOCK_REALTIME, &then);
        if (then.tv_sec == now.tv_sec && then.tv_nsec <= 530000000) continue;
        FILE *late = fopen(argv[1], "a");
        fputc('x', late);
        fclose(late);
    }
}
"#;

/// Its last work and its first take a moment.
const LATEST_MS: u32 = 530;

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
    let half = compile(dir.path(), "half", HALF, &["-O1", "-fno-omit-frame-pointer"]);
    let late = dir.path().join("late");
    let _load = Workload::start(&half, &[late.to_str().unwrap()]);
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
    let is_done = |log: &str| windows(log).count() > 2 && samples_of_half(&local).0 > 60;
    let (log, success) = daemon_until(&dir.path().join("spool"), &args, is_done);
    assert!(success, "{log}");
    // The machine let it wait while it worked: one sample each is later than it should be.
    let stopped = std::fs::metadata(&late).map_or(0, |file| file.len()) as usize;
    for collector in [&mut first, &mut second] {
        signal(collector.id(), "TERM");
        assert!(collector.wait().unwrap().success());
    }
    for dir in [&local, &own] {
        let (samples, times) = samples_of_half(dir);
        assert_eq!(times.len() as u64, samples, "each one's is known");
        assert!(samples > 50, "{log}");
        let within = times.iter().filter(|ms| **ms <= LATEST_MS).count();
        let expected = times.len().saturating_sub(stopped);
        let found = format!("{within} of {}, stopped {stopped} times: {times:?}", times.len());
        assert!(within * 10 > expected * 9 && within * 2 > times.len(), "{found}");
    }
    let (samples, times) = samples_of_half(&remote);
    assert!(samples > 50 && times.is_empty(), "{samples} {}", times.len());
}
