//! Logs on standard error: one line a message, as text or JSON, and not too many of the same.

mod escape;
mod rate_limit;

use std::io::IsTerminal;

use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, fmt};

use escape::OneLine;
pub use rate_limit::{LogLimit, Suppressed};

/// How messages are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum LogFormat {
    /// For people
    #[default]
    Text,
    /// One JSON object a line
    Json,
}

/// Logs from now on what passes the filter.
pub fn start(filter: EnvFilter, format: LogFormat, limit: LogLimit) {
    // What a terminal shows in colours only clutters a journal.
    let colours =
        std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|it| it.is_empty());
    let registry = tracing_subscriber::registry().with(filter).with(limit);
    let started = match format {
        LogFormat::Text => {
            let layer = fmt::layer().with_ansi(colours).with_writer(OneLine::on_stderr(colours));
            registry.with(layer).try_init()
        }
        // JSON escapes what isn't printable.
        LogFormat::Json => registry.with(fmt::layer().json().with_writer(std::io::stderr)).try_init(),
    };
    if let Err(error) = started {
        eprintln!("jvmprof: no log: {error}");
    }
}
