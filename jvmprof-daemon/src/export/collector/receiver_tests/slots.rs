//! Answers to requests that find no slot or take too long, by the client of each protocol.

use super::*;

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
    let parca = BackendOptions::new("a:1").request_timeout;
    let http = HttpOptions::new("a:1").request_timeout;
    assert!(SLOT_TIME * 2 < parca.min(http));
}
