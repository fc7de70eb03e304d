//! SIGINT and SIGTERM, which end a run in good order.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// The signals that ask this process to end.
#[derive(Debug)]
pub(super) struct ShutdownSignals {
    interrupt: Signal,
    terminate: Signal,
}

impl ShutdownSignals {
    /// Installs handlers: the default action would lose what was collected.
    ///
    /// # Errors
    /// The handlers can't be installed.
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self { interrupt: signal(SignalKind::interrupt())?, terminate: signal(SignalKind::terminate())? })
    }

    /// Waits for one of them and returns its name.
    pub(super) async fn requested(&mut self) -> &'static str {
        tokio::select! {
            _ = self.interrupt.recv() => "SIGINT",
            _ = self.terminate.recv() => "SIGTERM",
        }
    }
}
