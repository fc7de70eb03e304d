//! Makes the sums of periods that have ended, in the background.

pub(super) mod stored_sum;
#[cfg(test)]
mod tests;

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use crate::export::store::{Matcher, MissingSum, ProfileRef, Store, SumPeriod, TimeRange, UnixNanos};

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

/// A period of a series, and its newest profile: another one makes it worth another try.
type Refused = (String, SumPeriod, Option<u64>);

/// Sums finished periods of a store, until it is dropped.
#[derive(Debug)]
pub struct BackgroundSums {
    is_stopped: Arc<AtomicBool>,
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
            let mut refused = HashSet::new();
            while !stopped.load(Ordering::Relaxed) {
                let until = SystemTime::now() - GRACE;
                sum_finished(&store, until.into(), &mut refused, &stopped, REST);
                thread::park_timeout(INTERVAL);
            }
        };
        thread::Builder::new().name("sums".to_owned()).spawn(work)?;
        Ok(Self { is_stopped })
    }
}

impl Drop for BackgroundSums {
    fn drop(&mut self) {
        self.is_stopped.store(true, Ordering::Relaxed);
    }
}

/// Sums all periods that ended before `until`, without rest; returns how many sums were stored.
pub fn sum_all(store: &Store, until: UnixNanos) -> usize {
    sum_finished(store, until, &mut HashSet::new(), &AtomicBool::new(false), 0)
}

fn sum_finished(
    store: &Store,
    until: UnixNanos,
    refused: &mut HashSet<Refused>,
    is_stopped: &AtomicBool,
    rest: u32,
) -> usize {
    let mut stored = 0;
    loop {
        let missing = store.missing_sums(until, LISTED + refused.len());
        let mut is_done = true;
        for sum in missing {
            let Some(first) = sum.parts.first() else { continue };
            let newest = sum.parts.iter().map(ProfileRef::number).max();
            let key = (first.fingerprint.clone(), sum.period, newest);
            if is_stopped.load(Ordering::Relaxed) || refused.contains(&key) {
                continue;
            }
            is_done = false;
            let began = Instant::now();
            if sum_one(store, &sum) {
                stored += 1;
            } else if refused.len() < MAX_REFUSED {
                refused.insert(key);
            } else {
                refused.clear();
                return stored;
            }
            thread::sleep(began.elapsed() * rest);
        }
        if is_done {
            return stored;
        }
    }
}

fn sum_one(store: &Store, sum: &MissingSum) -> bool {
    let Some(first) = sum.parts.first() else { return false };
    let one = TimeRange { start: first.start, end: first.start.plus(Duration::from_nanos(1)) };
    let series = store.series(one, &[] as &[Matcher]);
    let Some(series) = series.into_iter().find(|series| series.fingerprint == first.fingerprint) else {
        return false;
    };
    let bytes = match stored_sum::encode(store, sum, &series.labels) {
        Ok(bytes) => bytes,
        Err(error) => {
            tracing::debug!(series = first.fingerprint, %error, "a period has no sum");
            return false;
        }
    };
    store.write_sum(sum, &bytes).unwrap_or_else(|error| {
        tracing::warn!(series = first.fingerprint, %error, "a sum can't be stored");
        false
    })
}
