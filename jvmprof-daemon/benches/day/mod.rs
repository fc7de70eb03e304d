//! A day of 50 JVMs in a store, for the benches of the collector's answers and of its page.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use jvmprof_daemon::export::collector::sums::sum_all;
use jvmprof_daemon::export::store::{Matcher, Store, StoreOptions, TimeRange};
use jvmprof_daemon::profile::model::{Batch, Series};

use crate::data::{Numbers, Shape, pauses, window};
use crate::server::push;

pub(crate) const JVMS: usize = 50;

/// The end of the day, 2024-11-21 13:37 UTC: like most times that a page asks for, it lies within
/// an hour and within five minutes.
const END: Duration = Duration::from_secs(1_732_196_220);
pub(crate) const DAY: Duration = Duration::from_hours(24);
/// What is younger than this has no sum in a collector that runs.
const GRACE: Duration = Duration::from_mins(2);

/// Samples that each JVM has in a minute.
const SAMPLES_A_MINUTE: u64 = 160;

/// The time at which the day ends.
pub(crate) fn end() -> SystemTime {
    SystemTime::UNIX_EPOCH + END
}

/// The options of the command line behind `day`.
pub(crate) struct DayOptions {
    /// What a profile covers.
    window: Duration,
    /// Whether each window of each JVM has a profile of pauses, too.
    has_pauses: bool,
    /// Where the day stays for the next time.
    folder: Option<PathBuf>,
}

impl DayOptions {
    /// Reads `day [--window=10s] [--pauses] [FOLDER]`; `None` without the word.
    pub(crate) fn of_process() -> Option<Self> {
        let mut arguments = std::env::args().skip_while(|argument| argument != "day");
        arguments.next()?;
        let mut options = Self { window: Duration::from_mins(1), has_pauses: false, folder: None };
        for argument in arguments {
            if let Some(window) = argument.strip_prefix("--window=") {
                options.window = humantime::parse_duration(window).expect("a time such as 10s");
            } else if argument == "--pauses" {
                options.has_pauses = true;
            } else if !argument.starts_with('-') {
                options.folder = Some(PathBuf::from(argument));
            }
        }
        Some(options)
    }
}

/// The day, with the sums that a collector would have made of it.
pub(crate) struct StoredDay {
    pub(crate) store: Arc<Store>,
    pub(crate) windows: usize,
    /// Bytes of its profiles on disk, without the sums.
    pub(crate) profile_bytes: u64,
    /// Sums that weren't there before, and the time that they took.
    pub(crate) new_sums: u64,
    pub(crate) summing: Duration,
    _folder: tempfile::TempDir,
}

impl StoredDay {
    /// Makes the day, or opens it where it was made before.
    pub(crate) fn open(options: &DayOptions) -> Self {
        let temporary = tempfile::tempdir().unwrap();
        let path = options.folder.clone().unwrap_or_else(|| temporary.path().to_owned());
        let limits = StoreOptions { limit_bytes: 64 << 30, ..StoreOptions::default() };
        let store = Arc::new(Store::open(&path, limits).unwrap());
        let windows = (DAY.as_secs() / options.window.as_secs()) as u32;
        if store.used_bytes() == 0 {
            fill(&store, windows, options);
        }
        let all: &[Matcher] = &[];
        let profiles = store.profiles(TimeRange::ALL, all);
        let expected = windows as usize * JVMS * if options.has_pauses { 2 } else { 1 };
        assert_eq!(profiles.len(), expected, "{} has another day: name another folder", path.display());
        let in_blocks = |bytes: u64| bytes.div_ceil(4096) * 4096;
        let begin = Instant::now();
        let new_sums = sum_all(&store, (end() - GRACE).into()).stored;
        Self {
            store,
            windows: windows as usize,
            profile_bytes: profiles.iter().map(|profile| in_blocks(profile.bytes)).sum(),
            new_sums,
            summing: begin.elapsed(),
            _folder: temporary,
        }
    }
}

/// Fills a store with windows back from the end of the day. It is the same day in every run.
fn fill(store: &Store, windows: u32, options: &DayOptions) {
    let mut numbers = Numbers::new(7);
    let samples = (SAMPLES_A_MINUTE * options.window.as_secs() / 60).max(1) as usize;
    for index in 0..windows {
        let start = end() - options.window * (index + 1);
        push(store, &many_jvms(start, options.window, samples, &mut numbers));
        if options.has_pauses {
            let stop =
                (1_000, 1, 20 + u64::from(index % 7), "G1CollectForAllocation", Some("G1 Evacuation Pause"));
            let mut batch = pauses(start, options.window, &[stop]);
            batch.series = (0..JVMS).map(|jvm| of_jvm(batch.series[0].clone(), jvm)).collect();
            push(store, &batch);
        }
    }
}

/// A window in which every JVM is a series of its own, with so many samples.
pub(crate) fn many_jvms(
    start: SystemTime,
    duration: Duration,
    samples: usize,
    numbers: &mut Numbers,
) -> Batch {
    let mut batch = window(start, duration, samples, Shape::Program, numbers);
    batch.series.truncate(1);
    for jvm in 1..JVMS {
        let next = window(start, duration, samples, Shape::Program, numbers).series.swap_remove(0);
        batch.series.push(of_jvm(next, jvm));
    }
    batch
}

/// The same of another JVM. The first one keeps its labels.
fn of_jvm(mut series: Series, jvm: usize) -> Series {
    if jvm > 0 {
        series.labels.insert("pid".to_owned(), (5_000 + jvm).to_string());
        series.labels.insert("jvm_main_class".to_owned(), format!("com.acme.service{jvm}.Main"));
    }
    series
}
