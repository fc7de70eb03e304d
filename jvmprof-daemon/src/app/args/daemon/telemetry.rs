//! Flags for the daemon's own metrics and health.

use clap::Args;

use crate::telemetry::http_server::HttpAddress;

/// Flags for metrics and health.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Metrics and health")]
pub struct TelemetryArgs {
    /// Where to serve /metrics, /healthz and /readyz: 127.0.0.1:7071, say, or
    /// unix:/run/jvmprof/http.sock; nothing listens without it. Nobody is asked for a password
    #[arg(long, value_name = "ADDRESS")]
    pub http_address: Option<HttpAddress>,
}
