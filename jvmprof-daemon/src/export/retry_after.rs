//! The time after which a server wants to be asked again, as HTTP says it.

use std::time::{Duration, SystemTime};

use hyper::header::{HeaderMap, RETRY_AFTER};

/// Returns the time of `retry-after`: seconds, or a date (RFC 9110, 10.2.3) by our own clock.
pub(super) fn of_headers(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    let of_date = || httpdate::parse_http_date(text).ok()?.duration_since(SystemTime::now()).ok();
    text.parse().map(Duration::from_secs).ok().or_else(of_date)
}
