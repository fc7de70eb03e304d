//! Cost of a large perf map: `cargo bench --bench jit`.
//!
//! A map of 1,000,000 entries is read, asked as one of 10,000 is, and then grows by 10,000 lines a
//! second, read on by the thread that does so in the daemon. Not a divan benchmark: what counts is
//! memory, and CPU time over seconds.
#![allow(clippy::expect_used, reason = "a benchmark ends by its first surprise")]

use std::fs::File;
use std::hint::black_box;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use jvmprof_daemon::clock::monotonic_ns;
use jvmprof_daemon::jit::perf_map::inotify_thread::PerfMapWatcher;
use jvmprof_daemon::jit::perf_map::process_perf_map::{PerfMapWriter, ProcessPerfMap};
use jvmprof_daemon::memory_budget::MemoryBudget;
use jvmprof_daemon::types::Avma;
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;

const ENTRIES: u64 = 1_000_000;
const FEW_ENTRIES: u64 = 10_000;
const LOOKUPS: u64 = 1_000_000;
const LINES_A_SECOND: u64 = 10_000;
const SECONDS: u64 = 10;

fn line(index: u64) -> String {
    // Every tenth line replaces code that was there before.
    let place = if index % 10 == 9 { index / 2 } else { index };
    let address = 0x7f00_0000_0000 + place * 192;
    format!(
        "{address:x} 90 JS:*handle{index} /srv/app/src/module{}.js:{}:10\n",
        index % 300,
        index % 2000 + 1
    )
}

fn cpu(who: UsageWho) -> Duration {
    let usage = getrusage(who).expect("getrusage");
    let micros = usage.user_time().num_microseconds() + usage.system_time().num_microseconds();
    Duration::from_micros(u64::try_from(micros).unwrap_or(0))
}

/// A map of so many entries, which isn't read yet, its writer, and its bytes.
fn map_of(directory: &Path, entries: u64) -> (Arc<Mutex<ProcessPerfMap>>, BufWriter<File>, u64) {
    let mut writer = BufWriter::new(File::create(directory.join("perf-1.map")).expect("the map"));
    let mut written = 0;
    for index in 0..entries {
        let line = line(index);
        written += line.len() as u64;
        writer.write_all(line.as_bytes()).expect("written");
    }
    writer.flush().expect("written");
    let candidate_paths = vec![(directory.to_owned(), "/perf-1.map".into())];
    let uid = nix::unistd::geteuid().as_raw();
    let map = ProcessPerfMap::new(
        PerfMapWriter { candidate_paths, uid, started_ns: None },
        MemoryBudget::new(256 << 20),
    );
    (Arc::new(Mutex::new(map)), writer, written)
}

fn ask(map: &Mutex<ProcessPerfMap>, entries: u64) {
    let begin = Instant::now();
    let (mut found, now) = (0, monotonic_ns());
    let shared = map.lock().expect("a lock");
    for index in 0..LOOKUPS {
        let address = 0x7f00_0000_0000 + (index * 7_919 % entries) * 192 + 7;
        found += u64::from(black_box(shared.map().lookup(Avma(address), now)).is_some());
    }
    println!(
        "{LOOKUPS} lookups among {entries} entries: {:?} each, {found} found",
        begin.elapsed() / LOOKUPS as u32
    );
}

fn main() {
    let few = tempfile::tempdir().expect("a folder");
    let (map, ..) = map_of(few.path(), FEW_ENTRIES);
    map.lock().expect("a lock").read_all(monotonic_ns());
    ask(&map, FEW_ENTRIES);

    let directory = tempfile::tempdir().expect("a folder");
    let (map, mut writer, written) = map_of(directory.path(), ENTRIES);
    let begin = (Instant::now(), cpu(UsageWho::RUSAGE_SELF));
    map.lock().expect("a lock").read_all(monotonic_ns());
    let read = cpu(UsageWho::RUSAGE_SELF) - begin.1;
    let size = || map.lock().expect("a lock").map().size_bytes();
    let counters = map.lock().expect("a lock").map().counters();
    println!(
        "{} entries, {} MB: read in {:?} of CPU, {} MB of memory, {counters:?}",
        counters.entries,
        written >> 20,
        read,
        size() >> 20
    );

    ask(&map, ENTRIES);
    let watcher = PerfMapWatcher::default();
    watcher.watch(&map).expect("a thread");
    std::thread::sleep(Duration::from_millis(200));
    let (before, thread) = (cpu(UsageWho::RUSAGE_SELF), cpu(UsageWho::RUSAGE_THREAD));
    let begin = Instant::now();
    let file = writer.get_mut();
    let mut grown = 0;
    for index in ENTRIES..ENTRIES + LINES_A_SECOND * SECONDS {
        let line = line(index);
        grown += line.len() as u64;
        file.write_all(line.as_bytes()).expect("written");
        let due =
            Duration::from_secs(1) * u32::try_from(index - ENTRIES).unwrap_or(0) / LINES_A_SECOND as u32;
        if let Some(early) = due.checked_sub(begin.elapsed()) {
            std::thread::sleep(early);
        }
    }
    std::thread::sleep(Duration::from_millis(100));
    let own = cpu(UsageWho::RUSAGE_THREAD) - thread;
    let reader = (cpu(UsageWho::RUSAGE_SELF) - before).saturating_sub(own);
    let after = map.lock().expect("a lock").map().counters();
    println!(
        "{} lines in {SECONDS} s: {:.2} % of a CPU, {} bytes read of {grown} written, {} MB of memory, {} lines refused",
        after.entries - counters.entries,
        reader.as_secs_f64() * 100.0 / SECONDS as f64,
        after.bytes_read - counters.bytes_read,
        size() >> 20,
        after.over_limit
    );
}
