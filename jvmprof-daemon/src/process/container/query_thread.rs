//! The thread that queries the runtimes.

use std::collections::HashMap;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use tokio::sync::mpsc::Receiver;

use super::metadata_cache::{ContainerId, MetadataCache, RuntimeAvailability};
use super::runtime_client::{RuntimeClient, sockets};
use super::{ContainerMetadata, ContainersOptions};
use crate::own_process::thread_priority;

/// First and longest interval of repeating a query for a container that no runtime has.
const FIRST_RETRY: Duration = Duration::from_millis(100);
const LONGEST_RETRY: Duration = Duration::from_secs(60);
/// Interval of searching for new sockets, while there are queries.
const DISCOVERY_INTERVAL: Duration = Duration::from_secs(10);

/// Starts the thread. It ends when the sender of the queue is dropped.
pub(super) fn spawn(
    options: ContainersOptions,
    cache: Arc<MetadataCache>,
    queue: Receiver<ContainerId>,
) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let worker = QueryWorker {
        options,
        cache,
        runtimes: Vec::new(),
        discovered: None,
        due: HashMap::new(),
        unresponsive: None,
    };
    thread::Builder::new().name("containers".to_owned()).spawn(move || {
        thread_priority::lower_priority();
        runtime.block_on(worker.run(queue));
    })?;
    Ok(())
}

struct QueryWorker {
    options: ContainersOptions,
    cache: Arc<MetadataCache>,
    runtimes: Vec<RuntimeClient>,
    /// Time of the last search for sockets.
    discovered: Option<Instant>,
    /// Containers that aren't found yet: time of the next query, and the interval after it.
    due: HashMap<Arc<str>, (Instant, Duration)>,
    /// Time since when no runtime answers.
    unresponsive: Option<Instant>,
}

impl QueryWorker {
    async fn run(mut self, mut queue: Receiver<ContainerId>) {
        loop {
            let next = self.due.values().map(|(at, _)| *at).min();
            let requested = tokio::select! {
                requested = queue.recv() => match requested {
                    Some(id) => Some(id),
                    None => return,
                },
                () = until(next) => None,
            };
            if let Some(id) = requested {
                self.due.insert(id, (Instant::now(), FIRST_RETRY));
            }
            self.discover();
            self.query_due().await;
        }
    }

    /// Searches for sockets: a runtime may be installed later, and may move.
    fn discover(&mut self) {
        let now = Instant::now();
        if self.discovered.is_some_and(|at| now.duration_since(at) < DISCOVERY_INTERVAL) {
            return;
        }
        self.discovered = Some(now);
        let sockets = sockets(&self.options.sockets);
        self.runtimes.retain(|runtime| sockets.contains(&runtime.socket));
        for socket in sockets {
            if !self.runtimes.iter().any(|runtime| runtime.socket == socket) {
                self.add(&socket);
            }
        }
        if self.runtimes.is_empty() {
            self.unresponsive = None;
            self.cache.set_availability(RuntimeAvailability::NoSocket);
        } else if self.unresponsive.is_none() {
            self.cache.set_availability(RuntimeAvailability::Available);
        }
    }

    fn add(&mut self, socket: &Path) {
        match RuntimeClient::new(socket) {
            Ok(runtime) => {
                tracing::info!(socket = %socket.display(), "containers are asked for here");
                self.runtimes.push(runtime);
            }
            Err(error) => {
                tracing::warn!(socket = %socket.display(), %error, "no address for a container runtime");
            }
        }
    }

    async fn query_due(&mut self) {
        let now = Instant::now();
        let due: Vec<_> =
            self.due.iter().filter(|(_, (at, _))| *at <= now).map(|(id, _)| Arc::clone(id)).collect();
        for id in due {
            if !self.cache.is_pending(&id) {
                self.due.remove(&id);
                continue;
            }
            match self.query(&id).await {
                Some(metadata) => {
                    self.due.remove(&id);
                    self.cache.insert(&id, metadata);
                }
                None => self.reschedule(&id),
            }
        }
    }

    fn reschedule(&mut self, id: &Arc<str>) {
        let now = Instant::now();
        // All runtimes may be paused after failures: nothing can be found before one is queried
        // again.
        let pauses = self.runtimes.iter().map(|runtime| runtime.not_before.unwrap_or(now));
        let earliest = pauses.min().unwrap_or(now + DISCOVERY_INTERVAL);
        if let Some((at, pause)) = self.due.get_mut(id) {
            *at = earliest.max(now + *pause);
            *pause = (*pause * 2).min(LONGEST_RETRY);
        }
    }

    /// Queries one runtime after the other, except those that are paused after a failure.
    async fn query(&mut self, id: &str) -> Option<ContainerMetadata> {
        let mut answered = false;
        let mut found = None;
        for runtime in &mut self.runtimes {
            if runtime.not_before.is_some_and(|at| Instant::now() < at) {
                continue;
            }
            self.cache.count(|counts| counts.queries += 1);
            match runtime.query(id, &self.options).await {
                Ok(answer) => {
                    answered = true;
                    found = answer;
                }
                Err(error) => {
                    self.cache.count(|counts| counts.failed += 1);
                    tracing::warn!(%error, "a container's pod isn't known yet");
                }
            }
            if found.is_some() {
                break;
            }
        }
        if answered {
            self.unresponsive = None;
            self.cache.set_availability(RuntimeAvailability::Available);
            if found.is_none() {
                self.cache.count(|counts| counts.not_found += 1);
            }
        } else if !self.runtimes.is_empty() {
            let since = *self.unresponsive.get_or_insert_with(Instant::now);
            self.cache.set_availability(RuntimeAvailability::Unresponsive(since));
        }
        found
    }
}

async fn until(time: Option<Instant>) {
    match time {
        Some(time) => tokio::time::sleep_until(time.into()).await,
        None => std::future::pending().await,
    }
}
