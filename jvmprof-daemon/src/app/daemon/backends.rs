//! The backends that the settings name, each with a client of its own.

use std::collections::HashSet;
use std::path::PathBuf;

use crate::app::args::{
    BackendAddress, BackendCredentials, CompressionArg, DaemonArgs, OtlpArgs, OtlpProtocolArg, PyroscopeArgs,
    RemoteStoreArgs, SampleTimesArg,
};
use crate::app::errors::UsageError;
use crate::export::delivery::Backend;
use crate::export::http_client::{Credentials, HttpConfigError, HttpOptions};
use crate::export::otlp::{OtlpClient, OtlpConfigError, OtlpOptions, OtlpProtocol};
use crate::export::parca::ParcaClient;
use crate::export::push::{BackendConfigError, BackendOptions, SettingsFile, Token};
use crate::export::pyroscope::{PyroscopeClient, PyroscopeOptions, TENANT_HEADER};

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
    let sample_times = args.delivery.sample_times == SampleTimesArg::RemoteStore;
    let mut all = Vec::new();
    for address in &args.remote.remote_store_address {
        let own = address.own.as_ref();
        if own.is_some_and(|own| own.tenant.is_some() || own.basic_auth_file.is_some()) {
            let text = "an address may have a bearer-token-file and headers of its own, no tenant and no \
                        basic-auth-file";
            return Err(UsageError(format!("{STORE}: {text}")));
        }
        let options = BackendOptions { sample_times, ..parca_options(&args.remote, address) };
        all.push((STORE, Some(address), options));
    }
    let sample_times = args.delivery.sample_times != SampleTimesArg::Off;
    all.extend(args.delivery.collector_address.iter().map(|address| {
        let options = BackendOptions { insecure: true, sample_times, ..BackendOptions::new(address) };
        (COLLECTOR, None, options)
    }));
    let compress = args.delivery.remote_store_compression == CompressionArg::Gzip;
    let mut backends = Vec::new();
    for (flag, address, options) in all {
        let refused = |error| {
            let flags = flags_of(&error, flag).to_owned();
            UsageError(format!("{}: {error}", flags_of_own(address, "remote-store", flags)))
        };
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
    let mut backends = Vec::new();
    for address in &args.pyroscope_address {
        let refused = |error| {
            let flags = http_flags_of(&error, "pyroscope");
            UsageError(format!("{}: {error}", flags_of_own(Some(address), "pyroscope", flags)))
        };
        if address.own.as_ref().is_some_and(|own| !own.headers.is_empty()) {
            return Err(UsageError(
                "--pyroscope-address: an address has no headers, but a tenant".to_owned(),
            ));
        }
        let options = pyroscope_options(args, address);
        name_once(names, options.http.backend().map_err(refused)?, "pyroscope", &address.address)?;
        backends.push(PyroscopeClient::new(options).map_err(refused)?.into());
    }
    Ok(backends)
}

fn pyroscope_options(args: &PyroscopeArgs, address: &BackendAddress) -> PyroscopeOptions {
    let shared = || BackendCredentials {
        headers: Vec::new(),
        tenant: args.pyroscope_tenant.clone(),
        bearer_token_file: args.pyroscope_bearer_token_file.clone(),
        basic_auth_file: args.pyroscope_basic_auth_file.clone(),
    };
    let credentials = address.own.clone().unwrap_or_else(shared);
    let http = HttpOptions {
        credentials: http_credentials(&credentials),
        ca_file: address.ca_file.clone().or_else(|| args.pyroscope_ca_file.clone()),
        client_identity: address
            .client_identity
            .clone()
            .or_else(|| args.pyroscope_client_cert.clone().zip(args.pyroscope_client_key.clone())),
        ..HttpOptions::new(&address.address)
    };
    PyroscopeOptions {
        tenant: credentials.tenant,
        max_age: args.pyroscope_max_age,
        concurrency: args.pyroscope_concurrency,
        ..PyroscopeOptions::new(http)
    }
}

fn otlp_backends(args: &OtlpArgs, names: &mut HashSet<String>) -> Result<Vec<Backend>, UsageError> {
    both_or_none("otlp", &args.otlp_client_cert, &args.otlp_client_key)?;
    let mut backends = Vec::new();
    for address in &args.otlp_address {
        let refused = |error| {
            let flags = match &error {
                OtlpConfigError::Http(error) => http_flags_of(error, "otlp"),
                OtlpConfigError::Grpc(error) => grpc_flags_of(error),
                OtlpConfigError::BasicByGrpc => "--otlp-bearer-token-file".to_owned(),
            };
            UsageError(format!("{}: {error}", flags_of_own(Some(address), "otlp", flags)))
        };
        let options = otlp_options(args, address);
        let name = options.http.backend().map_err(|error| refused(error.into()))?;
        name_once(names, name, "otlp", &address.address)?;
        backends.push(OtlpClient::new(options).map_err(refused)?.into());
    }
    Ok(backends)
}

fn otlp_options(args: &OtlpArgs, address: &BackendAddress) -> OtlpOptions {
    let (credentials, headers) = match &address.own {
        Some(own) => {
            let tenant = own.tenant.iter().map(|tenant| (TENANT_HEADER.to_owned(), tenant.clone()));
            (http_credentials(own), tenant.chain(own.headers.iter().cloned()).collect())
        }
        None => (args.otlp_bearer_token_file.clone().map(Credentials::Bearer), args.otlp_headers.clone()),
    };
    let http = HttpOptions {
        credentials,
        ca_file: address.ca_file.clone().or_else(|| args.otlp_ca_file.clone()),
        client_identity: address
            .client_identity
            .clone()
            .or_else(|| args.otlp_client_cert.clone().zip(args.otlp_client_key.clone())),
        ..HttpOptions::new(&address.address)
    };
    OtlpOptions {
        http,
        protocol: match args.otlp_protocol {
            OtlpProtocolArg::Grpc => OtlpProtocol::Grpc,
            OtlpProtocolArg::Http => OtlpProtocol::Http,
        },
        headers,
        compress: args.otlp_compression == CompressionArg::Gzip,
    }
}

fn http_credentials(credentials: &BackendCredentials) -> Option<Credentials> {
    let basic = credentials.basic_auth_file.clone().map(Credentials::Basic);
    basic.or_else(|| credentials.bearer_token_file.clone().map(Credentials::Bearer))
}

/// Returns the flags of options that are refused: that of the address where these are its own.
/// `prefix` of its flags.
fn flags_of_own(address: Option<&BackendAddress>, prefix: &str, flags: String) -> String {
    const CREDENTIALS: &[&str] = &["-bearer-token", "-basic-auth-file", "-tenant", "-headers"];
    let Some(address) = address else { return flags };
    let own: [(bool, &[&str]); 3] = [
        (address.own.is_some(), CREDENTIALS),
        (address.ca_file.is_some(), &["-ca-file"]),
        (address.client_identity.is_some(), &["-client-cert", "-client-key"]),
    ];
    let mut names = own.iter().filter(|(is_own, _)| *is_own).flat_map(|(_, names)| names.iter());
    if names.any(|name| flags.contains(name)) {
        return format!("--{prefix}-address");
    }
    flags
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

pub(super) fn parca_options(args: &RemoteStoreArgs, address: &BackendAddress) -> BackendOptions {
    let shared = || match (&args.remote_store_bearer_token, &args.remote_store_bearer_token_file) {
        (Some(token), _) => Some(Token::Literal(token.clone())),
        (None, Some(file)) => Some(Token::File(file.clone())),
        (None, None) => None,
    };
    let (token, headers) = match &address.own {
        Some(own) => (own.bearer_token_file.clone().map(Token::File), own.headers.clone()),
        None => (shared(), args.remote_store_grpc_headers.clone()),
    };
    BackendOptions {
        insecure: args.remote_store_insecure,
        token,
        headers,
        ca_file: address.ca_file.clone().or_else(|| args.remote_store_ca_file.clone()),
        client_identity: address
            .client_identity
            .clone()
            .or_else(|| args.remote_store_client_cert.clone().zip(args.remote_store_client_key.clone())),
        ..BackendOptions::new(&address.address)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::ffi::OsString;

    use super::*;
    use crate::app::args::Command;
    use crate::app::settings::Invocation;

    fn daemon(arguments: &[&str]) -> Box<DaemonArgs> {
        let line = ["jvmprof", "daemon"].iter().chain(arguments).map(OsString::from);
        let invocation = Invocation::load(&line.collect::<Vec<_>>(), &BTreeMap::new());
        match invocation.expect("it is valid").cli.command {
            Command::Daemon(args) => args,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn an_address_with_credentials_of_its_own_gets_no_others() {
        let args = daemon(&[
            "--remote-store-bearer-token=secret",
            "--remote-store-grpc-headers=x-team=shop",
            "--remote-store-address=http://all:7070",
            "--remote-store-address={ address = 'http://own:7070', bearer-token-file = '/own' }",
            "--remote-store-address={ address = 'http://none:7070' }",
            "--pyroscope-tenant=shop",
            "--pyroscope-basic-auth-file=/all",
            "--pyroscope-address=http://all:4040",
            "--pyroscope-address={ address = 'http://own:4040', tenant = 'cart', bearer-token-file = '/own' }",
            "--pyroscope-address={ address = 'http://none:4040' }",
            "--otlp-headers=x-team=shop",
            "--otlp-bearer-token-file=/all",
            "--otlp-address=http://all:4317",
            "--otlp-address={ address = 'http://own:4317', tenant = 'cart', basic-auth-file = '/own' }",
            "--otlp-address={ address = 'http://none:4317' }",
        ]);
        let team = || vec![("x-team".to_owned(), "shop".to_owned())];
        let addresses = &args.remote.remote_store_address;
        let [all, own, none] = [0, 1, 2].map(|at| parca_options(&args.remote, &addresses[at]));
        assert_eq!(
            [&all, &own, &none].map(|of| of.address.as_str()),
            ["http://all:7070", "http://own:7070", "http://none:7070"]
        );
        assert!(matches!(&all.token, Some(Token::Literal(token)) if token == "secret"), "{all:?}");
        assert!(matches!(&own.token, Some(Token::File(path)) if path.as_os_str() == "/own"), "{own:?}");
        assert!(none.token.is_none(), "{none:?}");
        assert_eq!([all.headers, own.headers, none.headers], [team(), Vec::new(), Vec::new()]);

        let file = |credentials: &Option<Credentials>| match credentials {
            None => "none".to_owned(),
            Some(Credentials::Basic(path)) => format!("basic {}", path.display()),
            Some(Credentials::Bearer(path)) => format!("bearer {}", path.display()),
        };
        let addresses = &args.pyroscope.pyroscope_address;
        let of_pyroscope = [0, 1, 2].map(|at| {
            let options = pyroscope_options(&args.pyroscope, &addresses[at]);
            (options.tenant.unwrap_or_default(), file(&options.http.credentials))
        });
        let expected = [("shop", "basic /all"), ("cart", "bearer /own"), ("", "none")];
        assert_eq!(of_pyroscope, expected.map(|(tenant, file)| (tenant.to_owned(), file.to_owned())));

        let addresses = &args.otlp.otlp_address;
        let of_otlp = [0, 1, 2].map(|at| {
            let options = otlp_options(&args.otlp, &addresses[at]);
            (options.headers, file(&options.http.credentials))
        });
        let tenant = vec![("x-scope-orgid".to_owned(), "cart".to_owned())];
        let expected = [(team(), "bearer /all"), (tenant, "basic /own"), (Vec::new(), "none")];
        assert_eq!(of_otlp, expected.map(|(headers, file)| (headers, file.to_owned())));
    }

    #[test]
    fn an_address_may_have_headers_and_certificates_of_its_own() {
        let args = daemon(&[
            "--remote-store-ca-file=/ca",
            "--remote-store-grpc-headers=x-team=shop",
            "--remote-store-address=https://all:7070",
            "--remote-store-address={ address = 'https://own:7070', ca-file = '/own', headers = { a = '1' } }",
            "--pyroscope-client-cert=/cert",
            "--pyroscope-client-key=/key",
            "--pyroscope-address={ address = 'https://all:4040', tenant = 'shop' }",
            "--pyroscope-address={ address = 'https://own:4040', client-cert = '/c', client-key = '/k' }",
            "--otlp-ca-file=/ca",
            "--otlp-address=https://all:4317",
            "--otlp-address={ address = 'https://o:1', ca-file = '/own', tenant = 't', headers = { a = '1' } }",
        ]);
        let path = |path: &Option<PathBuf>| path.clone().unwrap_or_default().display().to_string();
        let header = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let addresses = &args.remote.remote_store_address;
        let [all, own] = [0, 1].map(|at| parca_options(&args.remote, &addresses[at]));
        assert_eq!([path(&all.ca_file), path(&own.ca_file)], ["/ca", "/own"]);
        assert_eq!([all.headers, own.headers], [vec![header("x-team", "shop")], vec![header("a", "1")]]);

        let addresses = &args.pyroscope.pyroscope_address;
        let identities =
            [0, 1].map(|at| pyroscope_options(&args.pyroscope, &addresses[at]).http.client_identity);
        let identity = |certificate: &str, key: &str| Some((PathBuf::from(certificate), PathBuf::from(key)));
        assert_eq!(identities, [identity("/cert", "/key"), identity("/c", "/k")]);

        let addresses = &args.otlp.otlp_address;
        let [all, own] = [0, 1].map(|at| otlp_options(&args.otlp, &addresses[at]));
        assert_eq!([path(&all.http.ca_file), path(&own.http.ca_file)], ["/ca", "/own"]);
        assert!(all.headers.is_empty());
        assert_eq!(own.headers, [header("x-scope-orgid", "t"), header("a", "1")]);
    }

    #[tokio::test]
    async fn credentials_of_one_address_that_cannot_work_are_refused_by_its_flag() {
        for (argument, expected) in [
            (
                "--pyroscope-address={ address = 'http://a:1', bearer-token-file = '/nope' }",
                "--pyroscope-address: reading",
            ),
            (
                "--pyroscope-address={ address = 'http://a:1', tenant = \"a\\nb\" }",
                "--pyroscope-address: the tenant",
            ),
            (
                "--otlp-address={ address = 'http://a:1', bearer-token-file = '/nope' }",
                "--otlp-address: reading",
            ),
            ("--otlp-address={ address = 'http://a:1', basic-auth-file = '/nope' }", "--otlp-address: basic"),
            (
                "--remote-store-address={ address = 'http://a:1', bearer-token-file = '/nope' }",
                "--remote-store-address: reading",
            ),
            (
                "--remote-store-address={ address = 'http://a:1', tenant = 'x' }",
                "no tenant and no basic-auth-file",
            ),
            (
                "--remote-store-address={ address = 'https://a:1', ca-file = '/nope' }",
                "--remote-store-address: reading",
            ),
            (
                "--otlp-address={ address = 'https://a:1', client-cert = '/nope', client-key = '/nope' }",
                "--otlp-address: reading",
            ),
            (
                "--pyroscope-address={ address = 'https://a:1', ca-file = '/nope' }",
                "--pyroscope-address: reading",
            ),
            ("--pyroscope-address={ address = 'http://a:1', headers = { a = '1' } }", "has no headers"),
        ] {
            let error = clients(&daemon(&[argument])).expect_err(argument).to_string();
            assert!(error.contains(expected), "{argument}: {error}");
        }
    }
}
