//! The connections that are open, and which of them matters least when there is one too many.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::Response;
use tokio::task::AbortHandle;
use tokio::time::Instant;

/// The activity of one connection.
#[derive(Debug)]
pub(super) struct Activity(Mutex<ActivityState>);

#[derive(Debug)]
struct ActivityState {
    has_asked: bool,
    /// Requests whose answers are being made.
    under_way: usize,
    /// The time when the connection was made, or of the last answer.
    quiet_since: Instant,
}

impl Activity {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self(Mutex::new(ActivityState {
            has_asked: false,
            under_way: 0,
            quiet_since: Instant::now(),
        })))
    }

    fn seen(&self) -> MutexGuard<'_, ActivityState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Resolves if there was no request within this time, whatever bytes have come.
    pub(super) async fn overdue(&self, time: Duration) {
        tokio::time::sleep(time).await;
        if self.seen().has_asked {
            std::future::pending::<()>().await;
        }
    }
}

/// Notes down a request. Its headers are complete when this is called.
pub(super) async fn note(State(activity): State<Arc<Activity>>, request: Request, next: Next) -> Response {
    let _under_way = UnderWay::begin(&activity);
    next.run(request).await
}

/// A client that goes away ends its request as well.
struct UnderWay<'a>(&'a Activity);

impl<'a> UnderWay<'a> {
    fn begin(activity: &'a Activity) -> Self {
        let mut seen = activity.seen();
        (seen.has_asked, seen.under_way) = (true, seen.under_way + 1);
        drop(seen);
        Self(activity)
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        let mut seen = self.0.seen();
        seen.under_way -= 1;
        seen.quiet_since = Instant::now();
    }
}

/// The connections of a listener.
#[derive(Debug, Default)]
pub(super) struct OpenConnections(Vec<(Arc<Activity>, AbortHandle)>);

impl OpenConnections {
    pub(super) fn add(&mut self, activity: Arc<Activity>, task: AbortHandle) {
        self.0.push((activity, task));
    }

    /// Returns the number of open connections.
    pub(super) fn count(&mut self) -> usize {
        self.0.retain(|(_, task)| !task.is_finished());
        self.0.len()
    }

    /// Closes the one that has been quiet for the longest time. False if all of them wait for
    /// answers.
    pub(super) fn close_quietest(&mut self) -> bool {
        let quiet = self.0.iter().enumerate().filter_map(|(at, (activity, _))| {
            let seen = activity.seen();
            (seen.under_way == 0).then_some((seen.quiet_since, at))
        });
        let Some((_, at)) = quiet.min() else { return false };
        self.0.swap_remove(at).1.abort();
        true
    }
}
