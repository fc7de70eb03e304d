//! The thread that asks the runtimes.

use std::collections::HashMap;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use tokio::sync::mpsc::Receiver;

use super::metadata_cache::{Runtimes, Shared, Wanted};
use super::runtime_client::{Runtime, sockets};
use super::{ContainerMetadata, ContainersOptions};
use crate::own_process::thread_priority;

/// When a container that no runtime knew is asked for again: first, and at most.
const FIRST_RETRY: Duration = Duration::from_millis(100);
const LONGEST_RETRY: Duration = Duration::from_secs(60);
/// How often is looked for new sockets, while there is something to ask.
const LOOK_INTERVAL: Duration = Duration::from_secs(10);

/// Starts it. It ends when nobody can ask any more.
pub(super) fn spawn(
    options: ContainersOptions,
    shared: Arc<Shared>,
    wanted: Receiver<Wanted>,
) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let worker =
        Worker { options, shared, runtimes: Vec::new(), looked: None, due: HashMap::new(), silent: None };
    thread::Builder::new().name("containers".to_owned()).spawn(move || {
        thread_priority::lower_priority();
        runtime.block_on(worker.run(wanted));
    })?;
    Ok(())
}

struct Worker {
    options: ContainersOptions,
    shared: Arc<Shared>,
    runtimes: Vec<Runtime>,
    /// When sockets were looked for.
    looked: Option<Instant>,
    /// Containers that aren't known yet: when to ask, and how long to leave it afterwards.
    due: HashMap<Arc<str>, (Instant, Duration)>,
    /// Since when no runtime answers.
    silent: Option<Instant>,
}

impl Worker {
    async fn run(mut self, mut wanted: Receiver<Wanted>) {
        loop {
            let next = self.due.values().map(|(at, _)| *at).min();
            let asked_for = tokio::select! {
                asked_for = wanted.recv() => match asked_for {
                    Some(id) => Some(id),
                    None => return,
                },
                () = until(next) => None,
            };
            if let Some(id) = asked_for {
                self.due.insert(id, (Instant::now(), FIRST_RETRY));
            }
            self.look();
            self.ask_due().await;
        }
    }

    /// Looks for sockets: a runtime may be installed later, and may move.
    fn look(&mut self) {
        let now = Instant::now();
        if self.looked.is_some_and(|at| now.duration_since(at) < LOOK_INTERVAL) {
            return;
        }
        self.looked = Some(now);
        let sockets = sockets(&self.options.sockets);
        self.runtimes.retain(|runtime| sockets.contains(&runtime.socket));
        for socket in sockets {
            if !self.runtimes.iter().any(|runtime| runtime.socket == socket) {
                self.add(&socket);
            }
        }
        if self.runtimes.is_empty() {
            self.silent = None;
            self.shared.set_runtimes(Runtimes::None);
        } else if self.silent.is_none() {
            self.shared.set_runtimes(Runtimes::Some);
        }
    }

    fn add(&mut self, socket: &Path) {
        match Runtime::new(socket) {
            Ok(runtime) => {
                tracing::info!(socket = %socket.display(), "containers are asked for here");
                self.runtimes.push(runtime);
            }
            Err(error) => {
                tracing::warn!(socket = %socket.display(), %error, "no address for a container runtime");
            }
        }
    }

    async fn ask_due(&mut self) {
        let now = Instant::now();
        let due: Vec<_> =
            self.due.iter().filter(|(_, (at, _))| *at <= now).map(|(id, _)| Arc::clone(id)).collect();
        for id in due {
            if !self.shared.is_wanted(&id) {
                self.due.remove(&id);
                continue;
            }
            match self.ask(&id).await {
                Some(metadata) => {
                    self.due.remove(&id);
                    self.shared.learned(&id, metadata);
                }
                None => self.ask_later(&id),
            }
        }
    }

    fn ask_later(&mut self, id: &Arc<str>) {
        let now = Instant::now();
        // Without anyone to ask there is nothing to be had before someone may be asked again.
        let pauses = self.runtimes.iter().map(|runtime| runtime.not_before.unwrap_or(now));
        let earliest = pauses.min().unwrap_or(now + LOOK_INTERVAL);
        if let Some((at, pause)) = self.due.get_mut(id) {
            *at = earliest.max(now + *pause);
            *pause = (*pause * 2).min(LONGEST_RETRY);
        }
    }

    /// Asks one runtime after the other; those that failed a moment ago are left alone.
    async fn ask(&mut self, id: &str) -> Option<ContainerMetadata> {
        let mut answered = false;
        let mut found = None;
        for runtime in &mut self.runtimes {
            if runtime.not_before.is_some_and(|at| Instant::now() < at) {
                continue;
            }
            self.shared.count(|counts| counts.asked += 1);
            match runtime.ask(id, &self.options).await {
                Ok(answer) => {
                    answered = true;
                    found = answer;
                }
                Err(error) => {
                    self.shared.count(|counts| counts.failed += 1);
                    tracing::warn!(%error, "a container's pod isn't known yet");
                }
            }
            if found.is_some() {
                break;
            }
        }
        if answered {
            self.silent = None;
            self.shared.set_runtimes(Runtimes::Some);
            if found.is_none() {
                self.shared.count(|counts| counts.not_found += 1);
            }
        } else if !self.runtimes.is_empty() {
            let since = *self.silent.get_or_insert_with(Instant::now);
            self.shared.set_runtimes(Runtimes::Silent(since));
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
