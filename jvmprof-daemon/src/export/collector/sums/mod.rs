//! Makes the sums of periods that have ended, in the background.

pub(super) mod stored_sum;
#[cfg(test)]
mod tests;

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, Thread};
use std::time::{Duration, Instant, SystemTime};

use self::stored_sum::StoredSumError;
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
type Refused = HashSet<(String, SumPeriod, u64)>;

/// What became of one sum.
enum Outcome {
    Stored,
    /// Its profiles have changed meanwhile.
    Outdated,
    /// These profiles have none.
    Refused,
    /// Reading or writing failed, which may pass.
    Failed,
}

/// Sums finished periods of a store, until it is dropped.
#[derive(Debug)]
pub struct BackgroundSums {
    is_stopped: Arc<AtomicBool>,
    thread: Thread,
}

impl BackgroundSums {
    /// Starts the thread.
    ///
    /// # Errors
    /// The system has no thread for it.
    pub fn start(store: Arc<Store>) -> std::io::Result<Self> {
        let is_stopped = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&is_stopped);
        let work = move || {
            let mut refused = Refused::new();
            while !stopped.load(Ordering::Relaxed) {
                let until = SystemTime::now() - GRACE;
                sum_finished(&store, until.into(), &mut refused, &stopped, REST);
                thread::park_timeout(INTERVAL);
            }
        };
        let thread = thread::Builder::new().name("sums".to_owned()).spawn(work)?.thread().clone();
        Ok(Self { is_stopped, thread })
    }
}

impl Drop for BackgroundSums {
    fn drop(&mut self) {
        self.is_stopped.store(true, Ordering::Relaxed);
        self.thread.unpark();
    }
}

/// Sums all periods that ended before `until`, without rest; returns how many sums were stored.
pub fn sum_all(store: &Store, until: UnixNanos) -> usize {
    sum_finished(store, until, &mut Refused::new(), &AtomicBool::new(false), 0)
}

fn sum_finished(
    store: &Store,
    until: UnixNanos,
    refused: &mut Refused,
    is_stopped: &AtomicBool,
    rest: u32,
) -> usize {
    let mut stored = 0;
    loop {
        let mut began = Instant::now();
        let is_refused = |fingerprint: &str, period: SumPeriod, newest: u64| {
            refused.contains(&(fingerprint.to_owned(), period, newest))
        };
        let missing = store.missing_sums(until, LISTED, is_refused);
        let mut is_outdated = false;
        for sum in &missing {
            if is_stopped.load(Ordering::Relaxed) {
                return stored;
            }
            match sum_one(store, sum) {
                Outcome::Stored => stored += 1,
                Outcome::Outdated => is_outdated = true,
                Outcome::Refused => {
                    if refused.len() >= MAX_REFUSED {
                        // The next search begins with the newest: this one would never end.
                        refused.clear();
                        return stored;
                    }
                    let newest = sum.newest().unwrap_or(0);
                    let fingerprint = sum.parts.first().map(|part| part.fingerprint.clone());
                    refused.insert((fingerprint.unwrap_or_default(), sum.period, newest));
                }
                Outcome::Failed => return stored,
            }
            thread::park_timeout(began.elapsed() * rest);
            began = Instant::now();
        }
        if missing.is_empty() || is_outdated {
            return stored;
        }
    }
}

fn sum_one(store: &Store, sum: &MissingSum) -> Outcome {
    let series = sum.parts.first().map_or("", |part| &part.fingerprint);
    let written = match stored_sum::encode(store, sum) {
        Ok(bytes) => store.write_sum(sum, &bytes),
        Err(StoredSumError::Unread(error)) => Err(error),
        Err(error) => {
            tracing::debug!(series, %error, "a period has no sum");
            return Outcome::Refused;
        }
    };
    match written {
        Ok(SumWrite::Stored) => Outcome::Stored,
        Ok(SumWrite::Outdated) => Outcome::Outdated,
        Ok(SumWrite::TooLarge) => Outcome::Refused,
        Err(error) => {
            tracing::warn!(series, %error, "a sum can't be made now");
            Outcome::Failed
        }
    }
}
