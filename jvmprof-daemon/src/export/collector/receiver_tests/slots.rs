//! Answers to requests that find no slot or take too long, by the client of each protocol.

use super::*;
use crate::export::parca::{ParcaClient, ParcaOptions};

async fn serve_routes(router: Router) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(serve(listener, router, std::future::pending()));
    address
}

/// What our clients make of a collector's answers to a push by Parca's protocol, OTLP by gRPC and
/// by HTTP, and Pyroscope's.
async fn outcomes(address: SocketAddr) -> [PushOutcome; 4] {
    let batch = batch_of(EventType::Cpu);
    let parca = ParcaClient::new(ParcaOptions::new(format!("http://{address}"))).unwrap();
    let parca = parca.send(&parca.requests(&batch).unwrap()[0]).await;
    let request = otlp::requests(&batch).unwrap().remove(0);
    let grpc = otlp_client(address, OtlpProtocol::Grpc).send(&request).await;
    let http = otlp_client(address, OtlpProtocol::Http).send(&request).await;
    let options = PyroscopeOptions {
        max_age: Duration::from_secs(1 << 40),
        ..PyroscopeOptions::new(HttpOptions::new(format!("http://{address}")))
    };
    let request = pyroscope::requests(&batch).unwrap().requests.remove(0);
    [parca, grpc, http, PyroscopeClient::new(options).unwrap().send(&request).await]
}

#[tokio::test]
async fn what_finds_no_slot_is_sent_again_whatever_its_protocol() {
    let dir = tempfile::tempdir().unwrap();
    let store = Arc::new(Store::open(dir.path(), StoreOptions::default()).unwrap());
    let collector = Arc::new(CollectorService::new(store));
    let free = Arc::new(Semaphore::new(0));
    let slots = Slots { free: Arc::clone(&free), wait: Duration::from_millis(20), ..Slots::default() };
    let address = serve_routes(routes_within(Arc::clone(&collector), slots)).await;
    let expected = ["ResourceExhausted: ", "Unavailable: ", "HTTP 503 ", "HTTP 503 "];
    for (outcome, begin) in outcomes(address).await.into_iter().zip(expected) {
        let PushOutcome::NotStored { message, .. } = outcome else { panic!("{begin}: {outcome:?}") };
        assert!(message.starts_with(begin), "{message}");
        assert!(message.ends_with("too many requests are being received"), "{message}");
    }
    free.add_permits(1);
    assert_eq!(outcomes(address).await, [const { PushOutcome::Stored }; 4]);
    assert_eq!(collector.counters().stored_requests, 4);
}

#[tokio::test]
async fn what_takes_too_long_is_possibly_lost_whatever_its_protocol() {
    let slots = Slots { time: Duration::from_millis(20), ..Slots::default() };
    let stuck = Router::new().fallback(std::future::pending::<()>);
    let limited = stuck.layer(middleware::from_fn_with_state(slots, limit_requests));
    for outcome in outcomes(serve_routes(limited).await).await {
        let PushOutcome::PossiblyLost { code, message, .. } = outcome else { panic!("{outcome:?}") };
        assert_eq!(code, Code::DeadlineExceeded, "{message}");
        assert!(message.ends_with("a request may take 0 s"), "{message}");
    }
}

#[test]
fn who_waits_for_a_slot_is_answered_before_our_daemons_give_up() {
    let parca = ParcaOptions::new("a:1").request_timeout;
    let http = HttpOptions::new("a:1").request_timeout;
    assert!(SLOT_TIME * 2 < parca.min(http));
}
