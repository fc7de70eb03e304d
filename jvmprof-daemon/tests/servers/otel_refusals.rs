//! A real OpenTelemetry collector that lets nobody in without its token, or whose queue is full:
//! nothing is lost, and all is delivered once it takes profiles again.

use std::fs;
use std::time::{Duration, Instant};

use jvmprof_daemon::event_type::{EventType, SamplesByEvent};
use jvmprof_daemon::export::delivery::Delivery;
use jvmprof_daemon::export::http_client::{Credentials, HttpOptions};
use jvmprof_daemon::export::otlp::OtlpProtocol;
use jvmprof_daemon::export::push::PushOutcome;

use crate::delivered::{batch, check_account, is_empty, options, until};
use crate::otel_collector::{PROTOCOLS, TOKEN, WITH_TOKEN, client, lines_file, start, start_with, written};
use crate::server::{PATIENCE, free_address};
use crate::support::scratch;

#[tokio::test(flavor = "multi_thread")]
async fn what_a_real_collector_refuses_for_a_wrong_token_is_delivered_with_the_right_one() {
    for protocol in PROTOCOLS {
        let (dir, spool, address) = (scratch(), scratch(), free_address());
        let collector = start(dir.path(), protocol, &address, &[WITH_TOKEN]);
        let token = dir.path().join("token");
        fs::write(&token, "expired").unwrap();
        let with_token = HttpOptions {
            credentials: Some(Credentials::Bearer(token.clone())),
            ..HttpOptions::new(format!("http://{address}"))
        };
        let without = HttpOptions { credentials: None, ..with_token.clone() };
        let said = if protocol == OtlpProtocol::Grpc { "Unauthenticated" } else { "401" };
        for http in [&with_token, &without] {
            let outcome = client(http.clone(), protocol).probe().await;
            let PushOutcome::NotStored { message, .. } = &outcome else { panic!("{said}: {outcome:?}") };
            assert!(message.contains(said), "{said}: {message}");
        }
        let mut delivery = Delivery::default();
        delivery.add_remote(client(with_token, protocol), options(spool.path())).unwrap();
        for event in EventType::ALL {
            delivery.enqueue(batch(event, 1));
        }
        until(&delivery, |counts| counts.waiting.is_none()).await;
        let counts = delivery.counts()[0].1;
        let sums = (counts.spooled, counts.losses.total());
        assert_eq!(sums, (counts.handed_over, SamplesByEvent::NONE), "{protocol:?}: {counts:?}");

        fs::write(&token, TOKEN).unwrap();
        until(&delivery, is_empty).await;
        let counts = delivery.finish(Duration::from_secs(10)).await[0].1;
        assert_eq!(counts.delivered, counts.handed_over, "{protocol:?}: {counts:?}");
        drop(collector);
        let written = written(dir.path());
        check_account(spool.path(), |event| written.get(event));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_real_collectors_full_queue_has_no_room_for_is_delivered_later() {
    for protocol in PROTOCOLS {
        let (dir, spool, address) = (scratch(), scratch(), free_address());
        let stop = lines_file(dir.path()).with_extension("stop");
        fs::write(&stop, "").unwrap();
        let _collector = start_with(dir.path(), protocol, &address, &[], ", queue_size: 1");
        let mut delivery = Delivery::default();
        let client = client(HttpOptions::new(format!("http://{address}")), protocol);
        delivery.add_remote(client, options(spool.path())).unwrap();
        for round in 0..2 {
            for event in EventType::ALL {
                delivery.enqueue(batch(event, round));
            }
        }
        // One that is being written and one in the queue have been answered.
        until(&delivery, |counts| !counts.spooled.is_none() && counts.waiting.is_none()).await;
        fs::remove_file(&stop).unwrap();
        until(&delivery, is_empty).await;
        let counts = delivery.finish(Duration::from_secs(10)).await[0].1;
        let sums = (counts.delivered, counts.losses.total());
        assert_eq!(sums, (counts.handed_over, SamplesByEvent::NONE), "{protocol:?}: {counts:?}");
        // What is answered is written a little later.
        let started = Instant::now();
        while written(dir.path()) != counts.delivered && started.elapsed() < PATIENCE {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let written = written(dir.path());
        check_account(spool.path(), |event| written.get(event));
    }
}
