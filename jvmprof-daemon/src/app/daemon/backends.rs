//! The backends that the settings name, each with a client of its own.

use std::collections::HashSet;
use std::path::PathBuf;

use crate::app::args::{
    CompressionArg, DaemonArgs, OtlpArgs, OtlpProtocolArg, PyroscopeArgs, RemoteStoreArgs, SampleTimesArg,
};
use crate::app::errors::UsageError;
use crate::export::delivery::Backend;
use crate::export::http_client::{Credentials, HttpConfigError, HttpOptions};
use crate::export::otlp::{OtlpClient, OtlpConfigError, OtlpOptions, OtlpProtocol};
use crate::export::parca::ParcaClient;
use crate::export::push::{BackendConfigError, BackendOptions, SettingsFile, Token};
use crate::export::pyroscope::{PyroscopeClient, PyroscopeOptions};

/// Returns a client for each backend that the settings name. Connects to nobody.
///
/// # Errors
/// Flags that don't go together, or can't work.
pub(super) fn clients(args: &DaemonArgs) -> Result<Vec<Backend>, UsageError> {
    // The name of a backend is a label of metrics.
    let mut names = HashSet::new();
    let mut backends = parca_backends(args, &mut names)?;
    backends.extend(pyroscope_backends(&args.pyroscope, &mut names)?);
    backends.extend(otlp_backends(&args.otlp, &mut names)?);
    Ok(backends)
}

fn parca_backends(args: &DaemonArgs, names: &mut HashSet<String>) -> Result<Vec<Backend>, UsageError> {
    const STORE: &str = "--remote-store-address";
    const COLLECTOR: &str = "--collector-address";
    both_or_none(
        "remote-store",
        &args.remote.remote_store_client_cert,
        &args.remote.remote_store_client_key,
    )?;
    let stores = args.remote.remote_store_address.iter();
    let sample_times = args.delivery.sample_times == SampleTimesArg::RemoteStore;
    let stores = stores
        .map(|address| (STORE, BackendOptions { sample_times, ..parca_options(&args.remote, address) }));
    let collector = args.delivery.collector_address.iter();
    let sample_times = args.delivery.sample_times != SampleTimesArg::Off;
    let collector = collector.map(|address| {
        (COLLECTOR, BackendOptions { insecure: true, sample_times, ..BackendOptions::new(address) })
    });
    let compress = args.delivery.remote_store_compression == CompressionArg::Gzip;
    let mut backends = Vec::new();
    for (flag, options) in stores.chain(collector) {
        let refused = |error| UsageError(format!("{}: {error}", flags_of(&error, flag)));
        let is_new = names.insert(options.backend().map_err(refused)?);
        if !is_new {
            let address = options.address;
            return Err(UsageError(format!("{STORE} or {COLLECTOR}: the backend {address} is named twice")));
        }
        backends.push(ParcaClient::new(BackendOptions { compress, ..options }).map_err(refused)?.into());
    }
    Ok(backends)
}

fn pyroscope_backends(args: &PyroscopeArgs, names: &mut HashSet<String>) -> Result<Vec<Backend>, UsageError> {
    both_or_none("pyroscope", &args.pyroscope_client_cert, &args.pyroscope_client_key)?;
    let credentials = match (&args.pyroscope_basic_auth_file, &args.pyroscope_bearer_token_file) {
        (Some(file), _) => Some(Credentials::Basic(file.clone())),
        (None, Some(file)) => Some(Credentials::Bearer(file.clone())),
        (None, None) => None,
    };
    let refused = |error| UsageError(format!("{}: {error}", http_flags_of(&error, "pyroscope")));
    let mut backends = Vec::new();
    for address in &args.pyroscope_address {
        let http = HttpOptions {
            credentials: credentials.clone(),
            ca_file: args.pyroscope_ca_file.clone(),
            client_identity: args.pyroscope_client_cert.clone().zip(args.pyroscope_client_key.clone()),
            ..HttpOptions::new(address)
        };
        name_once(names, http.backend().map_err(refused)?, "pyroscope", address)?;
        let options = PyroscopeOptions {
            tenant: args.pyroscope_tenant.clone(),
            max_age: args.pyroscope_max_age,
            concurrency: args.pyroscope_concurrency,
            ..PyroscopeOptions::new(http)
        };
        backends.push(PyroscopeClient::new(options).map_err(refused)?.into());
    }
    Ok(backends)
}

fn otlp_backends(args: &OtlpArgs, names: &mut HashSet<String>) -> Result<Vec<Backend>, UsageError> {
    both_or_none("otlp", &args.otlp_client_cert, &args.otlp_client_key)?;
    let refused = |error| {
        let flags = match &error {
            OtlpConfigError::Http(error) => http_flags_of(error, "otlp"),
            OtlpConfigError::Grpc(error) => grpc_flags_of(error),
            OtlpConfigError::BasicByGrpc => "--otlp-bearer-token-file".to_owned(),
        };
        UsageError(format!("{flags}: {error}"))
    };
    let mut backends = Vec::new();
    for address in &args.otlp_address {
        let http = HttpOptions {
            credentials: args.otlp_bearer_token_file.clone().map(Credentials::Bearer),
            ca_file: args.otlp_ca_file.clone(),
            client_identity: args.otlp_client_cert.clone().zip(args.otlp_client_key.clone()),
            ..HttpOptions::new(address)
        };
        let name = http.backend().map_err(|error| refused(error.into()))?;
        name_once(names, name, "otlp", address)?;
        let options = OtlpOptions {
            http,
            protocol: match args.otlp_protocol {
                OtlpProtocolArg::Grpc => OtlpProtocol::Grpc,
                OtlpProtocolArg::Http => OtlpProtocol::Http,
            },
            headers: args.otlp_headers.clone(),
            compress: args.otlp_compression == CompressionArg::Gzip,
        };
        backends.push(OtlpClient::new(options).map_err(refused)?.into());
    }
    Ok(backends)
}

/// Checks that a backend's certificate and key are both there or both aren't. `prefix` of its
/// flags.
fn both_or_none(
    prefix: &str,
    certificate: &Option<PathBuf>,
    key: &Option<PathBuf>,
) -> Result<(), UsageError> {
    if certificate.is_some() == key.is_some() {
        return Ok(());
    }
    Err(UsageError(format!("--{prefix}-client-cert and --{prefix}-client-key need each other")))
}

/// Checks that no backend was named before by the same address.
fn name_once(
    names: &mut HashSet<String>,
    name: String,
    prefix: &str,
    address: &str,
) -> Result<(), UsageError> {
    if names.insert(name) {
        return Ok(());
    }
    Err(UsageError(format!("--{prefix}-address: the backend {address} is named twice")))
}

/// Returns the flags of options that a client of HTTP refuses. `prefix` of the backend's flags.
fn http_flags_of(error: &HttpConfigError, prefix: &str) -> String {
    let flags: &[&str] = match error {
        HttpConfigError::Connection(_) | HttpConfigError::SystemRoots { .. } => &["address"],
        HttpConfigError::Authority { .. } => &["ca-file"],
        HttpConfigError::Tls { .. } => &["ca-file", "client-cert", "client-key"],
        HttpConfigError::Pem { what, .. } => match what {
            SettingsFile::CaCertificates => &["ca-file"],
            SettingsFile::ClientCertificate => &["client-cert"],
            SettingsFile::ClientKey => &["client-key"],
            SettingsFile::BearerToken => &["bearer-token-file"],
        },
        HttpConfigError::Header { what: "tenant", .. } => &["tenant"],
        HttpConfigError::Header { .. } => &["headers"],
        HttpConfigError::Credentials { .. }
        | HttpConfigError::NoPassword { .. }
        | HttpConfigError::CredentialsFile { .. } => match prefix {
            "pyroscope" => &["basic-auth-file", "bearer-token-file"],
            _ => &["bearer-token-file"],
        },
    };
    flags.iter().map(|flag| format!("--{prefix}-{flag}")).collect::<Vec<_>>().join(" or ")
}

/// Returns the flags of options that OTLP's client of gRPC refuses: those of Parca's by its own
/// names.
fn grpc_flags_of(error: &BackendConfigError) -> String {
    let flags = flags_of(error, "--otlp-address").replace("--remote-store-grpc-headers", "--otlp-headers");
    flags.replace("--remote-store-", "--otlp-").replace("--otlp-bearer-token or ", "")
}

/// Returns the flags of options that a client refuses. `address`: the flag of its address.
fn flags_of(error: &BackendConfigError, address: &'static str) -> &'static str {
    match error {
        BackendConfigError::Address { .. } | BackendConfigError::Proxy { .. } => address,
        BackendConfigError::Tls { .. } => {
            "--remote-store-ca-file, --remote-store-client-cert or --remote-store-client-key"
        }
        BackendConfigError::NoCertificate { .. } => "--remote-store-ca-file",
        BackendConfigError::File { what, .. } => match what {
            SettingsFile::CaCertificates => "--remote-store-ca-file",
            SettingsFile::ClientCertificate => "--remote-store-client-cert",
            SettingsFile::ClientKey => "--remote-store-client-key",
            SettingsFile::BearerToken => "--remote-store-bearer-token-file",
        },
        BackendConfigError::HeaderName { .. } | BackendConfigError::HeaderValue { .. } => {
            "--remote-store-grpc-headers"
        }
        BackendConfigError::Token { .. } => "--remote-store-bearer-token or --remote-store-bearer-token-file",
    }
}

pub(super) fn parca_options(args: &RemoteStoreArgs, address: &str) -> BackendOptions {
    let token = match (&args.remote_store_bearer_token, &args.remote_store_bearer_token_file) {
        (Some(token), _) => Some(Token::Literal(token.clone())),
        (None, Some(file)) => Some(Token::File(file.clone())),
        (None, None) => None,
    };
    BackendOptions {
        insecure: args.remote_store_insecure,
        token,
        headers: args.remote_store_grpc_headers.clone(),
        ca_file: args.remote_store_ca_file.clone(),
        client_identity: args.remote_store_client_cert.clone().zip(args.remote_store_client_key.clone()),
        ..BackendOptions::new(address)
    }
}
