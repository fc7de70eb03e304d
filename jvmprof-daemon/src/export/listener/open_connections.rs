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
    has_requested: bool,
    /// Requests whose answers are being made.
    in_flight: usize,
    /// The time when the connection was made, or of the last answer.
    idle_since: Instant,
}

impl Activity {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self(Mutex::new(ActivityState {
            has_requested: false,
            in_flight: 0,
            idle_since: Instant::now(),
        })))
    }

    fn lock(&self) -> MutexGuard<'_, ActivityState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Resolves if there was no request within this time, whatever bytes have come.
    pub(super) async fn header_timeout(&self, time: Duration) {
        tokio::time::sleep(time).await;
        if self.lock().has_requested {
            std::future::pending::<()>().await;
        }
    }
}

/// Notes down a request. Its headers are complete when this is called.
pub(super) async fn track_request(
    State(activity): State<Arc<Activity>>,
    request: Request,
    next: Next,
) -> Response {
    let _request = InFlightRequest::begin(&activity);
    next.run(request).await
}

/// A client that goes away ends its request as well.
struct InFlightRequest<'a>(&'a Activity);

impl<'a> InFlightRequest<'a> {
    fn begin(activity: &'a Activity) -> Self {
        let mut state = activity.lock();
        (state.has_requested, state.in_flight) = (true, state.in_flight + 1);
        drop(state);
        Self(activity)
    }
}

impl Drop for InFlightRequest<'_> {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.in_flight -= 1;
        state.idle_since = Instant::now();
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

    /// Closes the one that has been idle for the longest time. False if all of them wait for
    /// answers.
    pub(super) fn close_longest_idle(&mut self) -> bool {
        let idle = self.0.iter().enumerate().filter_map(|(at, (activity, _))| {
            let state = activity.lock();
            (state.in_flight == 0).then_some((state.idle_since, at))
        });
        let Some((_, at)) = idle.min() else { return false };
        self.0.swap_remove(at).1.abort();
        true
    }
}
