//! Holding back messages of which many have just been written.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tracing::callsite::Identifier;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;

/// Messages of one place in the code that are written within [`STRETCH`]. A window's own lines are
/// far fewer.
const MAX_ALIKE: u32 = 60;
const STRETCH: Duration = Duration::from_secs(60);

/// A layer that lets through at most so many messages a minute of each place in the code, so that
/// what happens to ten thousand processes doesn't fill a disk. Levels below INFO are asked for, and
/// not limited. Cheap to clone; all clones are the same.
#[derive(Clone, Debug, Default)]
pub struct LogLimit {
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    /// As many as there are places in the code.
    places: HashMap<Identifier, Place>,
    total: u64,
}

#[derive(Debug)]
struct Place {
    /// Where: module and line.
    name: String,
    since: Instant,
    written: u32,
    suppressed: u64,
}

/// Messages of one place that were not written since this was asked last.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Suppressed {
    /// Module and line.
    pub place: String,
    pub count: u64,
}

impl LogLimit {
    /// How many messages were held back since the start.
    pub fn total(&self) -> u64 {
        self.lock().total
    }

    /// What was held back since this was asked last.
    #[must_use]
    pub fn take(&self) -> Vec<Suppressed> {
        let mut state = self.lock();
        let held_back = state.places.values_mut().filter(|place| place.suppressed > 0);
        held_back
            .map(|place| Suppressed {
                place: place.name.clone(),
                count: std::mem::take(&mut place.suppressed),
            })
            .collect()
    }

    fn allows(&self, event: &Event<'_>, now: Instant) -> bool {
        let metadata = event.metadata();
        if *metadata.level() > Level::INFO {
            return true;
        }
        let mut state = self.lock();
        let place = state.places.entry(metadata.callsite()).or_insert_with(|| Place {
            name: format!("{}:{}", metadata.target(), metadata.line().unwrap_or(0)),
            since: now,
            written: 0,
            suppressed: 0,
        });
        if now.duration_since(place.since) >= STRETCH {
            place.since = now;
            place.written = 0;
        }
        if place.written < MAX_ALIKE {
            place.written += 1;
            return true;
        }
        place.suppressed += 1;
        state.total += 1;
        false
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<S: Subscriber> Layer<S> for LogLimit {
    fn event_enabled(&self, event: &Event<'_>, _: Context<'_, S>) -> bool {
        self.allows(event, Instant::now())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use tracing_subscriber::layer::SubscriberExt;

    use super::*;

    /// Counts what arrives behind the limit.
    #[derive(Clone, Default)]
    struct Written(Arc<AtomicU64>);

    impl<S: Subscriber> Layer<S> for Written {
        fn on_event(&self, _: &Event<'_>, _: Context<'_, S>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn each_place_may_write_so_much_and_the_rest_is_counted() {
        let (limit, written) = (LogLimit::default(), Written::default());
        let subscriber = tracing_subscriber::registry().with(limit.clone()).with(written.clone());
        tracing::subscriber::with_default(subscriber, || {
            for index in 0..100 {
                tracing::warn!(index, "the same");
            }
            for _ in 0..100 {
                tracing::debug!("asked for");
            }
            tracing::warn!("another place");
        });
        assert_eq!(written.0.load(Ordering::Relaxed), 60 + 100 + 1);
        assert_eq!(limit.total(), 40);
        let suppressed = limit.take();
        assert_eq!(suppressed.len(), 1);
        assert_eq!(suppressed[0].count, 40);
        assert!(suppressed[0].place.contains("telemetry::log::rate_limit"), "{suppressed:?}");
        assert_eq!(limit.take(), []);
        assert_eq!(limit.total(), 40);
    }
}
