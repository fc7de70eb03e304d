//! A rate limit of log messages by callsite.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tracing::callsite::Identifier;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;

/// Most messages of one callsite within [`INTERVAL`]. The lines of a window are far fewer.
const MAX_MESSAGES: u32 = 60;
const INTERVAL: Duration = Duration::from_secs(60);

/// A layer that limits the messages per minute of each callsite, so that an event of ten thousand
/// processes doesn't fill a disk. Levels below INFO aren't limited. Clones share their state.
#[derive(Clone, Debug, Default)]
pub struct LogRateLimit {
    state: Arc<Mutex<RateLimitState>>,
}

#[derive(Debug, Default)]
struct RateLimitState {
    /// Counts by callsite, whose number is that of the program's log statements.
    callsites: HashMap<Identifier, CallsiteCount>,
    total: u64,
}

#[derive(Debug)]
struct CallsiteCount {
    /// Module and line.
    name: String,
    since: Instant,
    written: u32,
    suppressed: u64,
}

/// Messages of one callsite that were suppressed since the last report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SuppressedMessages {
    /// Module and line.
    pub callsite: String,
    pub count: u64,
}

impl LogRateLimit {
    /// Returns the number of messages that were suppressed since the start.
    pub fn total(&self) -> u64 {
        self.lock().total
    }

    /// Takes the messages that were suppressed since the last call.
    #[must_use]
    pub fn take(&self) -> Vec<SuppressedMessages> {
        let mut state = self.lock();
        let suppressed = state.callsites.values_mut().filter(|callsite| callsite.suppressed > 0);
        suppressed
            .map(|callsite| SuppressedMessages {
                callsite: callsite.name.clone(),
                count: std::mem::take(&mut callsite.suppressed),
            })
            .collect()
    }

    fn allows(&self, event: &Event<'_>, now: Instant) -> bool {
        let metadata = event.metadata();
        if *metadata.level() > Level::INFO {
            return true;
        }
        let mut state = self.lock();
        let callsite = state.callsites.entry(metadata.callsite()).or_insert_with(|| CallsiteCount {
            name: format!("{}:{}", metadata.target(), metadata.line().unwrap_or(0)),
            since: now,
            written: 0,
            suppressed: 0,
        });
        if now.duration_since(callsite.since) >= INTERVAL {
            callsite.since = now;
            callsite.written = 0;
        }
        if callsite.written < MAX_MESSAGES {
            callsite.written += 1;
            return true;
        }
        callsite.suppressed += 1;
        state.total += 1;
        false
    }

    fn lock(&self) -> MutexGuard<'_, RateLimitState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<S: Subscriber> Layer<S> for LogRateLimit {
    fn event_enabled(&self, event: &Event<'_>, _: Context<'_, S>) -> bool {
        self.allows(event, Instant::now())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use tracing_subscriber::layer::SubscriberExt;

    use super::*;

    /// Counts the messages that pass the limit.
    #[derive(Clone, Default)]
    struct CountingLayer(Arc<AtomicU64>);

    impl<S: Subscriber> Layer<S> for CountingLayer {
        fn on_event(&self, _: &Event<'_>, _: Context<'_, S>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn each_place_may_write_so_much_and_the_rest_is_counted() {
        let (limit, written) = (LogRateLimit::default(), CountingLayer::default());
        let subscriber = tracing_subscriber::registry().with(limit.clone()).with(written.clone());
        tracing::subscriber::with_default(subscriber, || {
            for index in 0..100 {
                tracing::warn!(index, "the same");
            }
            for _ in 0..100 {
                tracing::debug!("asked for");
            }
            tracing::warn!("another callsite");
        });
        assert_eq!(written.0.load(Ordering::Relaxed), 60 + 100 + 1);
        assert_eq!(limit.total(), 40);
        let suppressed = limit.take();
        assert_eq!(suppressed.len(), 1);
        assert_eq!(suppressed[0].count, 40);
        assert!(suppressed[0].callsite.contains("telemetry::log::rate_limit"), "{suppressed:?}");
        assert_eq!(limit.take(), []);
        assert_eq!(limit.total(), 40);
    }
}
