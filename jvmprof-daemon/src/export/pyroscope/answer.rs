//! The outcome of a request by an answer of HTTP: Pyroscope's own (Connect's errors, JSON)
//! or a proxy's. `docs/delivery.md` has it as a table.

use hyper::StatusCode;
use serde::Deserialize;
use tonic::{Code, Status};

use crate::export::connect_code::code_of;
use crate::export::http_client::HttpAnswer;
use crate::export::push::PushOutcome;

/// An error of the Connect protocol.
#[derive(Debug, Deserialize)]
struct ConnectFailure {
    code: String,
    #[serde(default)]
    message: String,
}

/// Returns the outcome that an answer means.
pub(super) fn of_http(answer: &HttpAnswer) -> PushOutcome {
    let HttpAnswer { status, body, is_whole, retry_after } = answer;
    if *status == StatusCode::SERVICE_UNAVAILABLE && !is_whole {
        // Pyroscope's own may have stored it, a proxy's hasn't: the body would say whose it is.
        let message = format!("HTTP {status} without its whole body");
        return PushOutcome::possibly_lost(Code::Unavailable, message).with_retry_after(*retry_after);
    }
    outcome(*status, body).with_retry_after(*retry_after)
}

fn outcome(status: StatusCode, body: &[u8]) -> PushOutcome {
    if status.is_success() {
        return PushOutcome::Stored;
    }
    let failure = serde_json::from_slice::<ConnectFailure>(body).ok();
    let own = failure.and_then(|failure| Some((code_of(&failure.code)?, failure.message)));
    match own {
        // The codes are those of gRPC, and mean the same.
        Some((code, message)) => PushOutcome::of_answer(&Status::new(code, message)),
        // Somebody who isn't Pyroscope, or a part of it that comes before the service.
        None => match PushOutcome::of_http_status(status, &String::from_utf8_lossy(body)) {
            PushOutcome::PossiblyLost { message, .. } if status.as_u16() == 499 => {
                PushOutcome::possibly_lost(Code::Cancelled, message)
            }
            outcome => outcome,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_503_is_a_proxys_only_if_its_body_says_so() {
        let answer = |body: &'static str, is_whole| HttpAnswer {
            status: StatusCode::SERVICE_UNAVAILABLE,
            body: body.into(),
            is_whole,
            retry_after: None,
        };
        assert!(matches!(of_http(&answer("no backend", true)), PushOutcome::NotStored { .. }));
        assert!(matches!(of_http(&answer("", false)), PushOutcome::PossiblyLost { .. }));
        let own = of_http(&answer("{\"code\":\"unavailable\"}", true));
        assert!(matches!(own, PushOutcome::PossiblyLost { .. }), "{own:?}");
    }
}
