//! Flags of the backend that profiles are pushed to.

use std::path::PathBuf;

use clap::Args;

use super::backend_address::BackendAddress;
use crate::export::push::check_header;

/// How to reach the backend. The names are those of parca-agent.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Remote store")]
pub struct RemoteStoreArgs {
    /// The backend: http://host:port, https://host:port, or host:port, which means TLS (repeatable)
    ///
    /// A stock Parca speaks no TLS, and `jvmprof collector` only with --tls-cert: http://host:port.
    /// Of several backends each gets everything, the token and the headers too, but one that is a
    /// TOML table: it has the token that stands in it alone, { address = "http://host:port",
    /// bearer-token-file = "FILE" }, and may have headers, ca-file, client-cert and client-key of
    /// its own.
    #[arg(long, value_name = "ADDRESS")]
    pub remote_store_address: Vec<BackendAddress>,

    /// Plaintext for an address without http:// or https://
    #[arg(long)]
    pub remote_store_insecure: bool,

    /// Token for the authorization header
    #[arg(long, hide_short_help = true, hide_env_values = true, value_name = "TOKEN")]
    pub remote_store_bearer_token: Option<String>,

    /// File with that token; read anew for each request
    #[arg(long, value_name = "FILE", conflicts_with = "remote_store_bearer_token")]
    pub remote_store_bearer_token_file: Option<PathBuf>,

    /// Header for each request, NAME=VALUE (repeatable)
    #[arg(long, hide_short_help = true, hide_env_values = true, value_name = "NAME=VALUE", value_parser = parse_header)]
    pub remote_store_grpc_headers: Vec<(String, String)>,

    /// PEM file with the certificate authorities to trust instead of the system's
    #[arg(long, value_name = "FILE")]
    pub remote_store_ca_file: Option<PathBuf>,

    /// PEM file with this daemon's certificate
    #[arg(long, hide_short_help = true, value_name = "FILE")]
    pub remote_store_client_cert: Option<PathBuf>,

    /// PEM file with its key
    #[arg(long, hide_short_help = true, value_name = "FILE")]
    pub remote_store_client_key: Option<PathBuf>,
}

pub(super) fn parse_header(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("must be NAME=VALUE")?;
    check_header(name, value).map_err(|error| error.to_string())?;
    Ok((name.to_owned(), value.to_owned()))
}
