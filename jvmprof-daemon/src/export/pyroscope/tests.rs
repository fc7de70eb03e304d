//! The client, against servers that are there, aren't, or don't answer.

use std::time::{Duration, SystemTime};

use tokio::io::AsyncReadExt as _;
use tokio::net::TcpListener;
use tonic::Code;

use super::scripted_server::ScriptedPyroscope;
use super::*;
use crate::export::http_client::Credentials;
use crate::profile::model::FrameKind;
use crate::profile::testing::{batch, frame, series};

fn request() -> PushRequest {
    let samples = vec![(vec![frame(FrameKind::Native, "main")], 5)];
    requests(&batch(vec![series(&[("comm", "x")], samples)])).expect("encodable").requests.remove(0)
}

fn client(http: HttpOptions, tenant: Option<&str>) -> PyroscopeClient {
    let tenant = tenant.map(str::to_owned);
    PyroscopeClient::new(PyroscopeOptions { tenant, ..PyroscopeOptions::new(http) }).expect("valid")
}

#[tokio::test]
async fn a_request_has_tenant_and_credentials_as_they_are_now() {
    let file = tempfile::NamedTempFile::new().expect("a file");
    let server = ScriptedPyroscope::default();
    let address = format!("http://{}", server.serve().await);
    std::fs::write(file.path(), "me:first\n").expect("written");
    let with = |credentials| HttpOptions { credentials: Some(credentials), ..HttpOptions::new(&address) };
    let basic = client(with(Credentials::Basic(file.path().to_owned())), Some("shop"));
    assert_eq!(basic.send(&request()).await, PushOutcome::Stored);
    std::fs::write(file.path(), "me:second").expect("written");
    assert_eq!(basic.send(&request()).await, PushOutcome::Stored);
    let bearer = client(with(Credentials::Bearer(file.path().to_owned())), None);
    assert_eq!(bearer.send(&request()).await, PushOutcome::Stored);
    std::fs::remove_file(file.path()).expect("removed");
    let PushOutcome::NotStored { message, .. } = bearer.send(&request()).await else { panic!("no file") };
    assert!(message.contains("reading the credentials"), "{message}");
    let taken = server.taken.lock().expect("no test panicked");
    let header = |at: usize, name: &str| taken[at].0.get(name).map(|value| value.to_str().expect("text"));
    assert_eq!(header(0, "x-scope-orgid"), Some("shop"));
    // printf me:first | base64
    assert_eq!(header(0, "authorization"), Some("Basic bWU6Zmlyc3Q="));
    assert_eq!(header(1, "authorization"), Some("Basic bWU6c2Vjb25k"));
    assert_eq!((header(2, "authorization"), header(2, "x-scope-orgid")), (Some("Bearer me:second"), None));
    let labels = &taken[0].1.series[0].labels;
    let labels: Vec<_> = labels.iter().map(|label| (label.name.as_str(), label.value.as_str())).collect();
    assert_eq!(labels, [("__name__", "process_cpu"), ("service_name", "x"), ("comm", "x")]);
}

#[tokio::test]
async fn what_was_never_sent_is_told_from_what_may_be_stored() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    let http = HttpOptions::new(format!("http://{address}"));
    // Nobody answers.
    let impatient = HttpOptions { request_timeout: Duration::from_secs(1), ..http.clone() };
    let sent = client(impatient, None).send(&request()).await;
    assert!(matches!(sent, PushOutcome::PossiblyLost { code: Code::DeadlineExceeded, .. }), "{sent:?}");
    // The connection breaks behind the request.
    let client = client(http, None);
    let breaking = async {
        // The first connection is the one above.
        for _ in 0..2 {
            let (mut stream, _) = listener.accept().await.expect("a connection");
            let mut buffer = [0; 64];
            let _ = stream.read(&mut buffer).await;
        }
    };
    let (sent, ()) = tokio::join!(async { client.send(&request()).await }, breaking);
    assert!(matches!(sent, PushOutcome::PossiblyLost { .. }), "{sent:?}");
    drop(listener);
    let sent = client.send(&request()).await;
    assert!(matches!(sent, PushOutcome::NotStored { .. }), "{sent:?}");
}

#[tokio::test]
async fn options_that_cannot_work_are_errors_that_name_what_is_wrong() {
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), "nothing").expect("written");
    let path = || Some(file.path().to_owned());
    let plain = || HttpOptions::new("http://host:4040");
    for (http, tenant, expected) in [
        (HttpOptions::new("ftp://host:1"), None, "ftp://host:1"),
        (plain(), Some("a\nb".to_owned()), "tenant"),
        (HttpOptions { credentials: path().map(Credentials::Basic), ..plain() }, None, "user:password"),
        (HttpOptions { ca_file: path(), ..plain() }, None, "CA certificates"),
        (HttpOptions { client_identity: path().zip(path()), ..plain() }, None, "client certificate"),
    ] {
        let error = PyroscopeClient::new(PyroscopeOptions { tenant, ..PyroscopeOptions::new(http) })
            .expect_err(expected)
            .to_string();
        assert!(error.contains(expected), "{error}");
    }
}

#[tokio::test]
async fn a_question_is_answered_by_a_refusal_and_takes_nothing() {
    let server = ScriptedPyroscope::default();
    let client = client(HttpOptions::new(format!("http://{}", server.serve().await)), None);
    let answer = client.probe().await;
    assert!(matches!(answer, PushOutcome::Refused { code: Code::InvalidArgument, .. }), "{answer:?}");
    assert_eq!(server.samples(), 0);
    assert!(request().created < SystemTime::now());
}
