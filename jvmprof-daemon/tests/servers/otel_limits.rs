//! A real OpenTelemetry collector with small limits: what is too large is divided, and what is too
//! large alone is refused by itself.

use std::time::Duration;

use jvmprof_daemon::event_type::EventType;
use jvmprof_daemon::export::delivery::Delivery;
use jvmprof_daemon::export::http_client::HttpOptions;
use jvmprof_daemon::export::otlp::OtlpProtocol;

use crate::delivered::{batch_of, options, sample, series, until};
use crate::otel_collector::{PROTOCOLS, client, start, written};
use crate::server::free_address;
use crate::support::scratch;

#[tokio::test(flavor = "multi_thread")]
async fn a_request_beyond_a_real_collectors_limit_arrives_in_parts() {
    const EVENT: EventType = EventType::Cpu;
    // The first four are one request, beyond the limit of a MiB; the last one is alone.
    let names = ["a", "b", "c", "d", "e"].map(|letter| letter.repeat(400_000));
    let [a, b, c, d, e] = &names;
    let large = e.repeat(4);
    let all = || {
        let all = vec![
            series(&[("comm", "a")], vec![sample(a, 1, 1)]),
            series(&[("comm", "b")], vec![sample(b, 2, 2)]),
            series(&[("comm", "c")], vec![sample(c, 3, 3)]),
            series(&[("comm", "d")], vec![sample(d, 4, 4)]),
            series(&[("comm", "e")], vec![sample(&large, 50, 50)]),
        ];
        batch_of(EVENT, all)
    };
    for protocol in PROTOCOLS {
        let limit = match protocol {
            OtlpProtocol::Grpc => "max_recv_msg_size_mib: 1",
            OtlpProtocol::Http => "max_request_body_size: 1048576",
        };
        let (dir, spool, address) = (scratch(), scratch(), free_address());
        let collector = start(dir.path(), protocol, &address, &[limit]);
        let mut delivery = Delivery::default();
        let client = client(HttpOptions::new(format!("http://{address}")), protocol);
        delivery.add_remote(client, options(spool.path())).unwrap();
        delivery.enqueue(all());
        until(&delivery, |counts| counts.waiting.is_none()).await;
        let counts = delivery.finish(Duration::from_secs(10)).await[0].1;
        drop(collector);
        let of_cpu = counts.of_event(EVENT);
        let sums = (of_cpu.delivered, of_cpu.losses.refused, of_cpu.losses.total());
        assert_eq!(sums, (10, 50, 50), "{protocol:?}: {counts:?}");
        assert!(counts.divided_requests > 0, "{protocol:?}: {counts:?}");
        assert_eq!(written(dir.path()).get(EVENT), 10, "{protocol:?}: {counts:?}");
    }
}
