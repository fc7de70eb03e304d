//! Flags of receivers of OpenTelemetry that profiles are pushed to.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::backend_address::BackendAddress;
use super::delivery::CompressionArg;
use super::remote_store::parse_header;

/// How requests of OTLP are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum OtlpProtocolArg {
    /// gRPC, usually port 4317
    Grpc,
    /// Protobuf by HTTP, usually port 4318
    Http,
}

/// How to reach a receiver of OTLP.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "OpenTelemetry")]
pub struct OtlpArgs {
    /// A receiver of OTLP profiles to push to: http://host:port, https://host:port, or host:port,
    /// which means TLS (repeatable)
    ///
    /// A stock OpenTelemetry collector speaks no TLS: http://host:4317. It needs the feature gate
    /// `service.profilesSupport`. Of several each gets everything, token and headers too, but one
    /// that is a TOML table: it has what stands in it alone, { address = "http://host:4317",
    /// bearer-token-file = "FILE" }, tenant (X-Scope-OrgID), basic-auth-file or headers, and may
    /// have ca-file, client-cert and client-key of its own.
    #[arg(long, value_name = "ADDRESS")]
    pub otlp_address: Vec<BackendAddress>,

    /// Protocol of these receivers
    #[arg(long, value_enum, default_value_t = OtlpProtocolArg::Grpc, value_name = "PROTOCOL")]
    pub otlp_protocol: OtlpProtocolArg,

    /// Header for each request, NAME=VALUE (repeatable)
    #[arg(long, hide_short_help = true, hide_env_values = true, value_name = "NAME=VALUE", value_parser = parse_header)]
    pub otlp_headers: Vec<(String, String)>,

    /// File with a token for the authorization header; read anew for each request
    #[arg(long, hide_short_help = true, value_name = "FILE")]
    pub otlp_bearer_token_file: Option<PathBuf>,

    /// PEM file with the certificate authorities to trust instead of the system's
    #[arg(long, hide_short_help = true, value_name = "FILE")]
    pub otlp_ca_file: Option<PathBuf>,

    /// PEM file with this daemon's certificate
    #[arg(long, hide_short_help = true, value_name = "FILE")]
    pub otlp_client_cert: Option<PathBuf>,

    /// PEM file with its key
    #[arg(long, hide_short_help = true, value_name = "FILE")]
    pub otlp_client_key: Option<PathBuf>,

    /// Compression of requests
    #[arg(long, hide_short_help = true, value_enum, hide_possible_values = true, default_value_t = CompressionArg::Gzip, value_name = "HOW")]
    pub otlp_compression: CompressionArg,
}
