//! Flags of Pyroscope as a backend that profiles are pushed to.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use clap::builder::RangedU64ValueParser;

use super::backend_address::BackendAddress;
use crate::app::args::values::{DAY, duration};
use crate::export::delivery::MAX_CONCURRENCY;

/// How to reach Pyroscope.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Pyroscope")]
pub struct PyroscopeArgs {
    /// A Pyroscope to push to: http://host:port, https://host:port, or host:port, which means TLS
    /// (repeatable)
    ///
    /// A stock Pyroscope speaks no TLS: http://host:4040. Of several each gets everything, tenant
    /// and credentials too, but one that is a TOML table: it has those that stand in it alone, {
    /// address = "http://host:4040", tenant = "shop", bearer-token-file = "FILE" } or
    /// basic-auth-file, and may have ca-file, client-cert and client-key of its own.
    #[arg(long, value_name = "ADDRESS")]
    pub pyroscope_address: Vec<BackendAddress>,

    /// The tenant that profiles belong to (X-Scope-OrgID)
    #[arg(long, hide_short_help = true, value_name = "TENANT")]
    pub pyroscope_tenant: Option<String>,

    /// File with USER:PASSWORD; read anew for each request
    #[arg(long, value_name = "FILE", conflicts_with = "pyroscope_bearer_token_file")]
    pub pyroscope_basic_auth_file: Option<PathBuf>,

    /// File with a token for the authorization header; read anew for each request
    #[arg(long, hide_short_help = true, value_name = "FILE")]
    pub pyroscope_bearer_token_file: Option<PathBuf>,

    /// PEM file with the certificate authorities to trust instead of the system's
    #[arg(long, hide_short_help = true, value_name = "FILE")]
    pub pyroscope_ca_file: Option<PathBuf>,

    /// PEM file with this daemon's certificate
    #[arg(long, hide_short_help = true, value_name = "FILE")]
    pub pyroscope_client_cert: Option<PathBuf>,

    /// PEM file with its key
    #[arg(long, hide_short_help = true, value_name = "FILE")]
    pub pyroscope_client_key: Option<PathBuf>,

    /// Profiles that are older are not pushed: the server refuses them (its reject-older-than)
    #[arg(long, hide_short_help = true, default_value = "1h", value_name = "TIME",
          value_parser = duration(Duration::from_secs(1)..=3650 * DAY))]
    pub pyroscope_max_age: Duration,

    /// Requests that may be under way at once: the server may answer each only after half a second
    #[arg(long, hide_short_help = true, default_value_t = 16, value_name = "NUMBER",
          value_parser = RangedU64ValueParser::<usize>::new().range(1..=MAX_CONCURRENCY as u64))]
    pub pyroscope_concurrency: usize,
}
