//! The HTTP client for debug files: blocking, for threads of their own.

use std::sync::Arc;
use std::time::Duration;

use ureq::Agent;
use ureq::tls::{RootCerts, TlsConfig};

/// Returns an agent that trusts the system's certificate authorities. `whole` limits a request,
/// from name resolution to the last byte; `stall` limits the wait for the next one.
pub(crate) fn agent(whole: Duration, stall: Duration) -> Agent {
    let tls = TlsConfig::builder()
        .root_certs(RootCerts::PlatformVerifier)
        .unversioned_rustls_crypto_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .build();
    Agent::config_builder()
        .tls_config(tls)
        .user_agent(concat!("jvmprof/", env!("CARGO_PKG_VERSION")))
        .timeout_connect(Some(Duration::from_secs(10)))
        .timeout_recv_response(Some(Duration::from_secs(60)))
        .timeout_per_read(Some(stall))
        .timeout_global(Some(whole))
        .max_redirects(5)
        .build()
        .new_agent()
}
