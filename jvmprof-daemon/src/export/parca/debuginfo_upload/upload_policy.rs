//! Decides which files are uploaded, when a failed attempt is repeated, and when a file is offered
//! to the server again.
//!
//! A file is offered in rounds, minutes apart. A round has some attempts, which follow each other
//! with growing delays; which failures another attempt may help against is in `upload_error`.

use std::path::Path;
use std::time::Duration;

use backon::ExponentialBuilder;
use globset::GlobSet;

use super::upload_error::{RetryTime, UploadFailure};

/// Suffix that the kernel appends to the path of a file that was removed or replaced since it was
/// mapped.
const REMOVED: &str = " (deleted)";

/// The next step for a file after a round that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NextStep {
    /// None: the server has refused it for good.
    Refused,
    GiveUp,
    /// After [`UploadOptions::retry_after`].
    OfferAgain,
}

/// Options of uploading: the files that may be uploaded, and limits of the cost.
#[derive(Clone, Debug)]
pub struct UploadOptions {
    /// Files whose path (as their process sees it) matches one of these are never uploaded.
    pub exclude: GlobSet,
    /// Files at a time.
    pub parallel: usize,
    /// Limit of all uploads together.
    pub bytes_per_second: u64,
    /// Largest file that is sent, in bytes. Parca takes 1,000,000,000.
    pub max_bytes: u64,
    /// Files that export symbols and have no others are uploaded too: where all names are left to
    /// the server.
    pub exported_symbols: bool,
    /// Number of times that a step that failed without being refused is tried at most.
    pub attempts: usize,
    /// Before the second one; doubles each time, with jitter.
    pub first_delay: Duration,
    /// Timeout of each step but the upload itself.
    pub request_timeout: Duration,
    /// Timeout of an upload; Parca gives up after 15 minutes.
    pub upload_timeout: Duration,
    /// Time after which a file is offered again that the server didn't want at the time.
    pub retry_after: Duration,
    /// Number of times that it is offered.
    pub rounds: u32,
}

impl UploadOptions {
    /// Returns true if a file is never uploaded. `path`: as the kernel shows it. A file may really
    /// be called ` (deleted)`, too.
    pub(super) fn is_excluded(&self, path: &str) -> bool {
        let before_removal = path.strip_suffix(REMOVED);
        [Some(path), before_removal].into_iter().flatten().any(|path| self.exclude.is_match(Path::new(path)))
    }

    /// Returns the delays between the attempts of one round.
    pub(super) fn backoff(&self) -> ExponentialBuilder {
        ExponentialBuilder::default()
            .with_jitter()
            .with_min_delay(self.first_delay)
            .with_max_delay(self.first_delay.saturating_mul(16))
            .with_max_times(self.attempts.saturating_sub(1))
    }

    /// Returns what follows when all attempts of a round have failed, the last one so. `round`
    /// counts from 1.
    pub(super) fn after_round(&self, round: u32, failure: &UploadFailure) -> NextStep {
        if failure.is_refusal() {
            NextStep::Refused
        } else if failure.next == RetryTime::Never || round >= self.rounds {
            NextStep::GiveUp
        } else {
            NextStep::OfferAgain
        }
    }
}

impl Default for UploadOptions {
    fn default() -> Self {
        Self {
            exclude: GlobSet::empty(),
            parallel: 4,
            bytes_per_second: 16 << 20,
            max_bytes: 1_000_000_000,
            exported_symbols: false,
            attempts: 4,
            first_delay: Duration::from_secs(1),
            request_timeout: Duration::from_secs(30),
            upload_timeout: Duration::from_secs(15 * 60),
            retry_after: Duration::from_secs(5 * 60),
            rounds: 12,
        }
    }
}
