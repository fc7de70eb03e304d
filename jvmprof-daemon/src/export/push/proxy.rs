//! The proxy that the environment names: `HTTPS_PROXY`, `HTTP_PROXY`, `ALL_PROXY`, `NO_PROXY`, in
//! capitals or not.
//!
//! gRPC is HTTP/2 from end to end, so that any proxy is passed through a tunnel (CONNECT), with TLS
//! inside of it.

use std::fmt;

use hyper::Uri;
use hyper::header::HeaderValue;
use hyper_util::client::legacy::connect::proxy::Tunnel;
use hyper_util::client::proxy::matcher::Matcher;
use url::Url;

use super::config_error::BackendConfigError;

/// A proxy to tunnel through.
#[derive(Clone, Debug)]
pub(in crate::export) struct Proxy {
    uri: Uri,
    auth: Option<HeaderValue>,
}

/// The proxy for this address, if it needs one.
pub(in crate::export) fn for_url(url: &Url) -> Result<Option<Proxy>, BackendConfigError> {
    select_proxy(&Matcher::from_env(), url)
}

fn select_proxy(matcher: &Matcher, url: &Url) -> Result<Option<Proxy>, BackendConfigError> {
    let Ok(destination) = url.as_str().parse::<Uri>() else { return Ok(None) };
    let Some(intercept) = matcher.intercept(&destination) else { return Ok(None) };
    let (uri, auth) = (intercept.uri().clone(), intercept.basic_auth().cloned());
    match uri.scheme_str() {
        None | Some("http") => Ok(Some(Proxy { uri, auth })),
        Some(scheme) => {
            Err(BackendConfigError::Proxy { address: url.to_string(), scheme: scheme.to_owned() })
        }
    }
}

impl Proxy {
    pub(in crate::export) fn tunnel<C>(self, connector: C) -> Tunnel<C> {
        let tunnel = Tunnel::new(self.uri, connector);
        match self.auth {
            Some(auth) => tunnel.with_auth(auth),
            None => tunnel,
        }
    }
}

impl fmt::Display for Proxy {
    /// Writes the proxy's address without user and password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.uri.host().unwrap_or_default())?;
        self.uri.port_u16().map_or(Ok(()), |port| write!(f, ":{port}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn proxy(url: &str) -> Result<Option<String>, String> {
        let matcher = Matcher::builder()
            .https("http://user:secret@proxy.example:3128")
            .http("http://plain.example:8080")
            .no("localhost,127.0.0.1,.internal,10.0.0.0/8,::1")
            .build();
        let url = Url::parse(url).expect("a URL");
        select_proxy(&matcher, &url)
            .map(|proxy| proxy.map(|proxy| proxy.to_string()))
            .map_err(|error| error.to_string())
    }

    #[test]
    fn the_scheme_chooses_the_proxy_and_no_proxy_lists_exceptions() {
        for (url, expected) in [
            ("https://parca.example:443/", Some("proxy.example:3128")),
            ("http://parca.example:7070/", Some("plain.example:8080")),
            ("https://localhost:7070/", None),
            ("http://127.0.0.1:7070/", None),
            ("http://[::1]:7070/", None),
            ("https://parca.internal:7070/", None),
            ("https://10.1.2.3:7070/", None),
        ] {
            assert_eq!(proxy(url), Ok(expected.map(str::to_owned)), "{url}");
        }
    }

    #[test]
    fn a_proxy_that_is_no_http_proxy_is_an_error() {
        let matcher = Matcher::builder().all("socks5://127.0.0.1:1080").build();
        let url = Url::parse("https://parca.example:443/").expect("a URL");
        let error = select_proxy(&matcher, &url).expect_err("not supported").to_string();
        assert!(error.contains("socks5") && error.contains("parca.example"), "{error}");
    }
}
