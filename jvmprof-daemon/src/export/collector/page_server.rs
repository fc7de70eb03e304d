//! The collector's page: its files, its headers, and who may ask.
//!
//! Profiles reveal much of a company's code, and a collector without a token
//! ([`super::access_token`]), as on a developer's machine, asks nobody for a password. So a web
//! site that is open in the same browser mustn't read them: no answer allows other origins, and as
//! long as the collector listens on a loopback address it answers only to names that mean this
//! machine, which keeps out a site whose name was pointed at 127.0.0.1 (DNS rebinding). On any
//! other address every name is right, for nobody knows which ones a network has for it; there it
//! needs the token.

use std::hash::{DefaultHasher, Hash, Hasher as _};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use axum::Router;
use axum::extract::{Path, Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, Uri, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use tower_http::compression::CompressionLayer;

use super::json_api::{self, Api};
use super::profile_reader::ReadLimits;
use crate::export::store::Store;
use crate::profile::page_assets::{Asset, D3, STYLE, VIEW_SCRIPTS};

macro_rules! asset {
    ($name:literal) => {
        Asset {
            name: $name,
            text: include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/assets/collector/", $name)),
        }
    };
}

/// Answers while the collector lives, to whoever asks.
pub(super) const HEALTH_PATH: &str = "/healthz";

const PAGE: Asset = asset!("collector.html");

/// Files that only this page has.
const OWN: [Asset; 11] = [
    asset!("requests.js"),
    asset!("controls.js"),
    asset!("labels.js"),
    asset!("timeline.js"),
    asset!("timeline_heat.js"),
    asset!("timeline_lines.js"),
    asset!("seconds.js"),
    asset!("compare_controls.js"),
    asset!("empty_state.js"),
    asset!("collector.js"),
    asset!("icon.svg"),
];

/// Options of serving the page.
#[derive(Clone, Copy, Debug)]
pub struct PageOptions {
    /// The address that the collector listens on, which decides whether names other than this
    /// machine's are answered.
    pub listen: SocketAddr,
    pub limits: ReadLimits,
}

/// The page and its data: everything on the collector's port that isn't gRPC.
pub fn router(store: Arc<Store>, options: PageOptions) -> Router {
    let api = Api::new(store, options.limits);
    let compressed = Router::new()
        .route("/", get(page))
        .route("/assets/{name}", get(asset))
        .route("/api/labels", get(json_api::labels))
        .route("/api/timeline", get(json_api::timeline))
        .route("/api/timeline/threads", get(json_api::thread_timeline))
        .route("/api/pauses", get(json_api::pauses))
        .route("/api/flamegraph", get(json_api::flamegraph))
        .layer(CompressionLayer::new());
    let router = Router::new()
        .route(HEALTH_PATH, get(|| async { "ok\n" }))
        .route("/api/pprof", get(json_api::pprof))
        .merge(compressed)
        .with_state(api);
    protect(router, options.listen)
}

/// Keeps other sites in a browser away from these routes, too. `listen`: see [`PageOptions`].
pub fn protect(router: Router, listen: SocketAddr) -> Router {
    router
        .layer(middleware::map_response(add_security_headers))
        .layer(middleware::from_fn_with_state(listen.ip(), check_host))
}

async fn page(headers: HeaderMap) -> Response {
    file(&PAGE, &headers)
}

async fn asset(Path(name): Path<String>, headers: HeaderMap) -> Response {
    let found = VIEW_SCRIPTS.iter().chain([&STYLE, &D3]).chain(&OWN).find(|asset| asset.name == name);
    match found {
        Some(asset) => file(asset, &headers),
        None => StatusCode::NOT_FOUND.into_response(),
    }
}

/// The file, or that the browser has it already.
fn file(asset: &Asset, headers: &HeaderMap) -> Response {
    let mut hasher = DefaultHasher::new();
    asset.text.hash(&mut hasher);
    // Weak, because the bytes on the wire are compressed or not.
    let tag = format!("W/\"{:016x}\"", hasher.finish());
    let known = headers.get(header::IF_NONE_MATCH).is_some_and(|known| known.as_bytes() == tag.as_bytes());
    let mut response =
        if known { StatusCode::NOT_MODIFIED.into_response() } else { asset.text.into_response() };
    let kind = match asset.name.rsplit('.').next() {
        Some("html") => "text/html; charset=utf-8",
        Some("css") => "text/css; charset=utf-8",
        Some("svg") => "image/svg+xml",
        _ => "text/javascript; charset=utf-8",
    };
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    if let Ok(tag) = HeaderValue::from_str(&tag) {
        headers.insert(header::ETAG, tag);
    }
    response
}

async fn add_security_headers(mut response: Response) -> Response {
    let policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; \
                  connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(policy));
    for (name, value) in [
        ("x-content-type-options", "nosniff"),
        ("referrer-policy", "no-referrer"),
        ("cross-origin-resource-policy", "same-origin"),
        ("cross-origin-opener-policy", "same-origin"),
    ] {
        headers.insert(HeaderName::from_static(name), HeaderValue::from_static(value));
    }
    headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    response
}

async fn check_host(State(listen): State<IpAddr>, request: Request, next: Next) -> Response {
    let host = host(request.uri(), request.headers());
    if listen.is_loopback() && !host.is_some_and(is_rebinding_safe) {
        let text =
            "this collector listens on a loopback address and answers only to localhost and IP addresses\n";
        return (StatusCode::MISDIRECTED_REQUEST, text).into_response();
    }
    next.run(request).await
}

/// The host that the client asked for: the URI's in HTTP/2, a header in HTTP/1.
fn host<'a>(uri: &'a Uri, headers: &'a HeaderMap) -> Option<&'a str> {
    let authority = match uri.authority() {
        Some(authority) => authority.as_str(),
        None => headers.get(header::HOST)?.to_str().ok()?,
    };
    // An IPv6 address has colons of its own, within brackets.
    let port = authority.rfind(':').filter(|at| !authority[*at..].contains(']'));
    Some(&authority[..port.unwrap_or(authority.len())])
}

/// Returns true if DNS rebinding can't point this host elsewhere, as whoever owns a name can.
fn is_rebinding_safe(host: &str) -> bool {
    let address = host.trim_start_matches('[').trim_end_matches(']');
    host.eq_ignore_ascii_case("localhost") || address.parse::<IpAddr>().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host_of(text: &str) -> Option<String> {
        let mut headers = HeaderMap::new();
        headers.insert(header::HOST, HeaderValue::from_str(text).unwrap());
        host(&Uri::from_static("/"), &headers).map(str::to_owned)
    }

    #[test]
    fn a_host_is_told_apart_from_its_port() {
        for (text, expected) in [
            ("localhost:7070", "localhost"),
            ("localhost", "localhost"),
            ("127.0.0.1:7070", "127.0.0.1"),
            ("[::1]:7070", "[::1]"),
            ("[::1]", "[::1]"),
        ] {
            assert_eq!(host_of(text).as_deref(), Some(expected));
            assert!(is_rebinding_safe(expected), "{expected}");
        }
        assert_eq!(host(&Uri::from_static("http://a.example:1/"), &HeaderMap::new()), Some("a.example"));
    }

    #[test]
    fn names_that_others_own_do_not_mean_this_machine() {
        for name in ["evil.example", "localhost.evil.example", "127.0.0.1.evil.example", ""] {
            assert!(!is_rebinding_safe(name), "{name}");
        }
    }

    #[test]
    fn nothing_of_the_page_is_inline_or_from_elsewhere() {
        let inline = [" style=", " onclick=", "<style", "<script>", "http:", "https:"];
        assert!(inline.iter().all(|text| !PAGE.text.contains(text)));
        for asset in &OWN {
            let text = asset.text.replace("http://www.w3.org/2000/svg", "");
            assert!(!text.contains("http:") && !text.contains("https:"), "{}", asset.name);
        }
    }
}
