//! The HTTP client for debug files: blocking, for threads of their own.

use std::sync::Arc;
use std::time::Duration;

use ureq::Agent;
use ureq::tls::{RootCerts, TlsConfig};

/// An agent that trusts the certificate authorities that the system trusts. `whole`: how long a
/// request may take, from looking up the name to the last byte; `stall`: how long it may wait for
/// the next one.
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
