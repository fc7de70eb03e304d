//! Logs on standard error: one line per message, as text or JSON, with a rate limit.

mod escape;
mod rate_limit;

use std::io::IsTerminal;

use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, fmt};

use crate::own_process::stderr_line;
use escape::EscapedStderr;
pub use rate_limit::{LogRateLimit, SuppressedMessages};

/// Format of messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum LogFormat {
    /// For people
    #[default]
    Text,
    /// One JSON object a line
    Json,
}

/// Starts logging messages that pass the filter.
pub fn start(filter: EnvFilter, format: LogFormat, limit: LogRateLimit) {
    // Colour sequences would only clutter a journal.
    let colours =
        std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|it| it.is_empty());
    let registry = tracing_subscriber::registry().with(filter).with(limit);
    let started = match format {
        LogFormat::Text => {
            let layer = fmt::layer().with_ansi(colours).with_writer(EscapedStderr::on_stderr(colours));
            registry.with(layer).try_init()
        }
        // JSON escapes what isn't printable.
        LogFormat::Json => registry.with(fmt::layer().json().with_writer(std::io::stderr)).try_init(),
    };
    if let Err(error) = started {
        stderr_line!("jvmprof: no log: {error}");
    }
}
