//! Options of delivery.

use std::path::PathBuf;
use std::time::Duration;

/// The most requests that a sink may have under way: the ledger has room for so many.
pub const MAX_CONCURRENCY: usize = 32;

/// Options of a remote sink.
#[derive(Clone, Debug)]
pub struct DeliveryOptions {
    /// Send again what the server may have stored already: nothing is lost, some may count twice.
    /// Else it is counted as possibly lost.
    pub send_again: bool,
    /// After the first failure nothing is sent for about this long; doubles with each further one.
    pub first_delay: Duration,
    pub max_delay: Duration,
    /// Requests in memory that wait for the sender, in bytes; the oldest go to the spool, or are
    /// lost if there is none.
    pub max_waiting_bytes: usize,
    pub spool: Option<SpoolPlan>,
}

/// The spool of a sink: its folder and limits.
#[derive(Clone, Debug)]
pub struct SpoolPlan {
    /// The folder of this sink alone.
    pub dir: PathBuf,
    pub max_bytes: u64,
    pub max_age: Duration,
    /// Rate at which spooled requests are sent beside fresh ones.
    pub bytes_per_second: u64,
}

impl Default for DeliveryOptions {
    fn default() -> Self {
        Self {
            send_again: false,
            first_delay: Duration::from_millis(500),
            max_delay: Duration::from_secs(30),
            max_waiting_bytes: 32 << 20,
            spool: None,
        }
    }
}
