//! The thread that sums periods that have ended, on a fifth of a CPU. A period whose profiles
//! change meanwhile is summed again; one without an exact sum not before another profile comes.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, Thread};
use std::time::{Duration, Instant, SystemTime};

use super::stored_sum;
use super::sum_of_period::{PeriodSumError, sum_period};
use crate::export::store::{MissingSum, Store, SumPeriod, SumWrite, UnixNanos};

/// A period is summed this long after its end: until then most of what belongs to it has come.
const GRACE: Duration = Duration::from_mins(2);
/// The time between two searches for what is to be summed.
const INTERVAL: Duration = Duration::from_secs(30);
/// Periods that are listed at once.
const LISTED: usize = 256;
/// The thread rests so many times as long as it worked: a fifth of a CPU.
const REST: u32 = 4;
/// Periods without an exact sum that are remembered; beyond, they are tried again.
const MAX_REFUSED: usize = 100_000;

/// Periods of series that have no exact sum, with their newest profile: a later one makes them
/// worth another try.
type InexactPeriods = HashSet<(String, SumPeriod, u64)>;

/// The result of making one sum.
enum SumOutcome {
    Stored,
    /// Its profiles have changed meanwhile.
    Outdated,
    /// These profiles have none.
    Refused,
    /// Reading or writing failed, which may pass.
    Failed,
}

/// Counts of sums that were to be made since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SumCounts {
    pub stored: u64,
    /// Their profiles changed meanwhile: they are tried again.
    pub outdated: u64,
    /// Their profiles have no exact sum, or one that isn't worth its place: answers read them one
    /// by one.
    pub refused: u64,
    /// Profiles couldn't be read or the sum not be written: it is tried again.
    pub failed: u64,
}

impl SumCounts {
    fn count(&mut self, outcome: &SumOutcome) {
        *match outcome {
            SumOutcome::Stored => &mut self.stored,
            SumOutcome::Outdated => &mut self.outdated,
            SumOutcome::Refused => &mut self.refused,
            SumOutcome::Failed => &mut self.failed,
        } += 1;
    }
}

/// Sums finished periods of a store, until it is dropped.
#[derive(Debug)]
pub struct BackgroundSums {
    is_stopped: Arc<AtomicBool>,
    counts: Arc<Mutex<SumCounts>>,
    thread: Thread,
}

impl BackgroundSums {
    /// Starts the thread.
    ///
    /// # Errors
    /// The system has no thread for it.
    pub fn start(store: Arc<Store>) -> std::io::Result<Self> {
        let mut search = SumSearch { rest: REST, ..SumSearch::new(store) };
        let (is_stopped, counts) = (Arc::clone(&search.is_stopped), Arc::clone(&search.counts));
        let work = move || {
            while !search.is_stopped.load(Ordering::Relaxed) {
                let until = SystemTime::now() - GRACE;
                search.sum_finished(until.into());
                thread::park_timeout(INTERVAL);
            }
        };
        let thread = thread::Builder::new().name("sums".to_owned()).spawn(work)?.thread().clone();
        Ok(Self { is_stopped, counts, thread })
    }

    /// Returns the counts since the start.
    pub fn counts(&self) -> SumCounts {
        *self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for BackgroundSums {
    fn drop(&mut self) {
        self.is_stopped.store(true, Ordering::Relaxed);
        self.thread.unpark();
    }
}

/// Sums all periods that ended before `until`, without rest; returns what became of them.
pub fn sum_all(store: &Arc<Store>, until: UnixNanos) -> SumCounts {
    let mut search = SumSearch::new(Arc::clone(store));
    search.sum_finished(until);
    *search.counts.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The search for periods that are to be summed.
#[derive(Debug)]
struct SumSearch {
    store: Arc<Store>,
    refused: InexactPeriods,
    counts: Arc<Mutex<SumCounts>>,
    is_stopped: Arc<AtomicBool>,
    /// It rests so many times as long as it worked.
    rest: u32,
}

impl SumSearch {
    /// Makes a search without rest.
    fn new(store: Arc<Store>) -> Self {
        let (counts, is_stopped) = (Arc::default(), Arc::default());
        Self { store, refused: InexactPeriods::new(), counts, is_stopped, rest: 0 }
    }

    fn sum_finished(&mut self, until: UnixNanos) {
        loop {
            let mut began = Instant::now();
            let is_refused = |fingerprint: &str, period: SumPeriod, newest: u64| {
                self.refused.contains(&(fingerprint.to_owned(), period, newest))
            };
            let missing = self.store.missing_sums(until, LISTED, is_refused);
            let mut is_outdated = false;
            for sum in &missing {
                if self.is_stopped.load(Ordering::Relaxed) {
                    return;
                }
                let outcome = sum_one(&self.store, sum);
                self.counts.lock().unwrap_or_else(PoisonError::into_inner).count(&outcome);
                match outcome {
                    SumOutcome::Stored => {}
                    SumOutcome::Outdated => is_outdated = true,
                    SumOutcome::Refused => {
                        if self.refused.len() >= MAX_REFUSED {
                            // The next search begins with the newest: this one would never end.
                            self.refused.clear();
                            return;
                        }
                        let newest = sum.newest().unwrap_or(0);
                        let fingerprint = sum.parts.first().map(|part| part.fingerprint.clone());
                        self.refused.insert((fingerprint.unwrap_or_default(), sum.period, newest));
                    }
                    SumOutcome::Failed => return,
                }
                thread::park_timeout(began.elapsed() * self.rest);
                began = Instant::now();
            }
            if missing.is_empty() || is_outdated {
                return;
            }
        }
    }
}

fn sum_one(store: &Store, sum: &MissingSum) -> SumOutcome {
    let series = sum.parts.first().map_or("", |part| &part.fingerprint);
    let written = match sum_period(store, sum) {
        Ok(bytes) => match store.write_sum(sum, &bytes) {
            Ok(SumWrite::TooLarge) => store.write_sum(sum, stored_sum::without_stacks(&bytes)),
            written => written,
        },
        Err(PeriodSumError::Unread(error)) => Err(error),
        Err(error) => {
            tracing::debug!(series, %error, "a period has no sum");
            return SumOutcome::Refused;
        }
    };
    match written {
        Ok(SumWrite::Stored) => SumOutcome::Stored,
        Ok(SumWrite::Outdated) => SumOutcome::Outdated,
        Ok(SumWrite::TooLarge) => SumOutcome::Refused,
        Err(error) => {
            tracing::warn!(series, %error, "a sum can't be made now");
            SumOutcome::Failed
        }
    }
}
