//! The token that requests must bring: daemons as a bearer token, people as the password that their
//! browser asks for.

use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use subtle::ConstantTimeEq as _;
use tonic::Status;

use super::page_server::HEALTH_PATH;

/// Bytes of a token at least: shorter ones can be tried one by one.
const MIN_BYTES: usize = 16;

/// Bytes of a refused request's body that are read, and how long they are waited for.
const MAX_DISCARDED_BYTES: usize = 64 << 10;
const MAX_DISCARDED_TIME: Duration = Duration::from_secs(1);

/// A token that can't be used.
#[derive(Debug, thiserror::Error)]
pub enum AccessTokenError {
    #[error("reading the token {}: {source}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("the token in {} has {length} characters; it needs {MIN_BYTES} at least", path.display())]
    Short { path: PathBuf, length: usize },
    #[error("the token in {} has characters that a header can't have", path.display())]
    Characters { path: PathBuf },
}

/// The token in a file.
pub struct AccessToken {
    path: PathBuf,
    current: RwLock<String>,
    refused: AtomicU64,
}

impl AccessToken {
    /// Reads the token; white space around it is none of it.
    ///
    /// # Errors
    /// The file can't be read, or what is in it is no token.
    pub fn read(path: &Path) -> Result<Self, AccessTokenError> {
        let current = RwLock::new(read(path)?);
        Ok(Self { path: path.to_owned(), current, refused: AtomicU64::new(0) })
    }

    /// Reads the file again.
    ///
    /// # Errors
    /// As [`AccessToken::read`]; the token from before holds on.
    pub fn reload(&self) -> Result<(), AccessTokenError> {
        let new = read(&self.path)?;
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = new;
        Ok(())
    }

    /// Requests that were refused since this was asked for last.
    pub fn take_refused(&self) -> u64 {
        self.refused.swap(0, Ordering::Relaxed)
    }

    fn admits(&self, method: &Method, headers: &HeaderMap) -> bool {
        let Some(value) = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok()) else {
            return false;
        };
        let Some((scheme, credentials)) = value.split_once(' ') else { return false };
        let credentials = credentials.trim();
        if scheme.eq_ignore_ascii_case("bearer") {
            return self.is(credentials.as_bytes());
        }
        // A browser adds the password to whatever another site's page lets it send, too: such
        // requests may only read, and the other page can't see the answer. Without TLS a browser
        // says only where the page is from.
        let is_read = matches!(*method, Method::GET | Method::HEAD);
        let is_browser = headers.contains_key("sec-fetch-site") || headers.contains_key(header::ORIGIN);
        if !scheme.eq_ignore_ascii_case("basic") || (is_browser && !is_read) {
            return false;
        }
        let Ok(decoded) = BASE64_STANDARD.decode(credentials) else { return false };
        // Any user name will do.
        let password = decoded.iter().position(|byte| *byte == b':').map(|at| &decoded[at + 1..]);
        password.is_some_and(|password| self.is(password))
    }

    /// Compares in a time that depends on nothing but the token's length.
    fn is(&self, presented: &[u8]) -> bool {
        let current = self.current.read().unwrap_or_else(PoisonError::into_inner);
        current.as_bytes().ct_eq(presented).into()
    }
}

impl fmt::Debug for AccessToken {
    /// Tokens don't belong into logs.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AccessToken").field("path", &self.path).finish_non_exhaustive()
    }
}

fn read(path: &Path) -> Result<String, AccessTokenError> {
    let text = fs::read_to_string(path)
        .map_err(|source| AccessTokenError::Read { path: path.to_owned(), source })?;
    let token = text.trim();
    if !token.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(AccessTokenError::Characters { path: path.to_owned() });
    }
    if token.len() < MIN_BYTES {
        return Err(AccessTokenError::Short { path: path.to_owned(), length: token.len() });
    }
    Ok(token.to_owned())
}

/// Lets through who has the token, and whoever asks whether the collector lives.
pub(super) async fn require(State(token): State<Arc<AccessToken>>, request: Request, next: Next) -> Response {
    if request.uri().path() == HEALTH_PATH || token.admits(request.method(), request.headers()) {
        return next.run(request).await;
    }
    token.refused.fetch_add(1, Ordering::Relaxed);
    let kind = request.headers().get(header::CONTENT_TYPE);
    if kind.is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc")) {
        return Status::unauthenticated("the bearer token is missing or wrong").into_http();
    }
    // A client that still sends its body would see a reset stream and not the answer.
    let body = axum::body::to_bytes(request.into_body(), MAX_DISCARDED_BYTES);
    let _ = tokio::time::timeout(MAX_DISCARDED_TIME, body).await;
    let text = "the token is missing or wrong: send it as a bearer token or as the password\n";
    let mut response = (StatusCode::UNAUTHORIZED, text).into_response();
    let challenge = HeaderValue::from_static("Basic realm=\"jvmprof collector\", charset=\"UTF-8\"");
    response.headers_mut().insert(header::WWW_AUTHENTICATE, challenge);
    response
}

#[cfg(test)]
mod tests {
    use axum::Router;
    use axum::body::Body;
    use axum::middleware;
    use axum::routing::post;
    use tokio_stream::StreamExt as _;
    use tower::ServiceExt as _;

    use super::*;

    const TOKEN: &str = "correct-horse-battery";
    const PIECE: &str = "sixteen bytes...";

    fn token(text: &str) -> (tempfile::NamedTempFile, Result<AccessToken, AccessTokenError>) {
        let file = tempfile::NamedTempFile::new().expect("a file");
        fs::write(file.path(), text).expect("written");
        let token = AccessToken::read(file.path());
        (file, token)
    }

    fn admits(
        token: &AccessToken,
        method: &Method,
        value: &str,
        of_browser: Option<(&'static str, &'static str)>,
    ) -> bool {
        let mut headers = HeaderMap::new();
        headers.insert(header::AUTHORIZATION, value.parse().expect("a header"));
        if let Some((name, value)) = of_browser {
            headers.insert(name, HeaderValue::from_static(value));
        }
        token.admits(method, &headers)
    }

    #[test]
    fn the_token_alone_lets_in_by_either_scheme() {
        let (_file, token) = token(&format!("{TOKEN}\n"));
        let token = token.expect("a token");
        let basic = |text: &str| format!("Basic {}", BASE64_STANDARD.encode(text));
        for right in [
            format!("Bearer {TOKEN}"),
            format!("bearer {TOKEN}"),
            basic(&format!("me:{TOKEN}")),
            basic(&format!(":{TOKEN}")),
        ] {
            assert!(admits(&token, &Method::POST, &right, None), "{right}");
        }
        for wrong in [
            "Bearer ",
            "Bearer correct-horse-batter",
            "Bearer correct-horse-batterx",
            "Bearer correct-horse-battery-and-more",
            TOKEN,
            "Digest correct-horse-battery",
            "Basic correct-horse-battery",
            &basic(TOKEN),
            &basic(&format!("{TOKEN}:")),
            &basic("me:correct-horse-batterx"),
        ] {
            assert!(!admits(&token, &Method::GET, wrong, None), "{wrong}");
        }
        assert!(!token.admits(&Method::GET, &HeaderMap::new()));
    }

    #[test]
    fn a_page_of_another_site_can_send_nothing_by_a_browser_that_knows_the_password() {
        let (_file, token) = token(TOKEN);
        let token = token.expect("a token");
        let basic = format!("Basic {}", BASE64_STANDARD.encode(format!("me:{TOKEN}")));
        for (name, value) in [("sec-fetch-site", "cross-site"), ("origin", "http://other.example")] {
            assert!(admits(&token, &Method::GET, &basic, Some((name, value))), "{name}");
            assert!(!admits(&token, &Method::POST, &basic, Some((name, value))), "{name}");
        }
    }

    #[test]
    fn what_is_no_token_is_refused_and_not_shown() {
        for (text, said) in
            [("", "0 characters"), ("hunter2\n", "7 characters"), ("two words, long", "a header")]
        {
            let (_file, token) = token(text);
            let error = token.expect_err(text).to_string();
            assert!(error.contains(said) && !error.contains("hunter2"), "{error}");
        }
        let missing = AccessToken::read(Path::new("/nowhere/token")).expect_err("missing").to_string();
        assert!(missing.starts_with("reading the token /nowhere/token: "), "{missing}");
    }

    #[test]
    fn a_new_token_replaces_the_old_one_and_a_bad_one_does_not() {
        let (file, token) = token(TOKEN);
        let token = token.expect("a token");
        fs::write(file.path(), "short").expect("written");
        token.reload().expect_err("too short");
        assert!(token.is(TOKEN.as_bytes()));
        fs::write(file.path(), "another-token-of-length").expect("written");
        token.reload().expect("a token");
        assert!(token.is(b"another-token-of-length") && !token.is(TOKEN.as_bytes()));
        assert!(!format!("{token:?}").contains("another"));
    }

    #[tokio::test]
    async fn the_body_of_a_refused_request_is_read_before_the_answer_as_far_as_it_is_short() {
        let (_file, token) = token(TOKEN);
        let router = Router::new().route("/push", post(|| async { "taken" }));
        let refusing = middleware::from_fn_with_state(Arc::new(token.expect("a token")), require);
        let router = router.layer(refusing);
        for (pieces, expected) in [(1, 1), (4, 4), (10_000, MAX_DISCARDED_BYTES / PIECE.len() + 1)] {
            let read = Arc::new(AtomicU64::new(0));
            let count = Arc::clone(&read);
            let body = tokio_stream::iter(0..pieces).map(move |_| {
                count.fetch_add(1, Ordering::Relaxed);
                Ok::<_, io::Error>(PIECE)
            });
            let request = Request::post("/push").body(Body::from_stream(body)).expect("a request");
            let response = router.clone().oneshot(request).await.expect("an answer");
            assert_eq!(response.status(), StatusCode::UNAUTHORIZED);
            assert_eq!(read.load(Ordering::Relaxed), expected as u64, "{pieces} pieces");
        }
    }
}
