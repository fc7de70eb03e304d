//! Daemons that are killed while a record of the spool is being sent.

use super::*;

/// Opens the sink of a daemon whose spool may still be in use for a moment by one that was killed.
pub(super) async fn open(client: &ParcaClient, options: &DeliveryOptions) -> Delivery {
    let started = Instant::now();
    loop {
        let mut delivery = Delivery::default();
        match delivery.add_remote(client.clone(), options.clone()) {
            Ok(()) => return delivery,
            Err(error) => assert!(started.elapsed() < PATIENCE, "{error}"),
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// What a kill does: nothing runs any more.
pub(super) fn kill(delivery: Delivery) {
    delivery.sinks.iter().flat_map(|sink| &sink.tasks).for_each(JoinHandle::abort);
    drop(delivery);
}

/// Waits until the ledger says that so much was taken.
pub(super) async fn until_noted(dir: &Path, taken: SamplesByEvent) {
    let started = Instant::now();
    loop {
        let entry = read_ledger(dir).expect("readable").expect("an entry");
        if entry.taken == taken {
            return;
        }
        assert!(started.elapsed() < PATIENCE, "{taken:?} were taken: {entry:?}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

#[tokio::test]
async fn what_a_killed_daemon_was_sending_is_lost_or_twice_and_counted() {
    for send_again in [false, true] {
        let dir = tempfile::tempdir().expect("a folder");
        // It goes to the spool, an empty request is answered, and the record isn't.
        let scripted = ScriptedServer::new(&[
            ScriptedAnswer::Answer(Code::Unavailable, "no healthy upstream"),
            ScriptedAnswer::Take,
            ScriptedAnswer::Hang,
        ]);
        let options = DeliveryOptions { send_again, ..options(Some(dir.path())) };
        let client = client(serve(&scripted).await);
        let delivery = to(&client, &options);
        delivery.enqueue(batch_of(3));
        let counts = until(&delivery, |_| scripted.requests() == 3).await;
        assert_eq!((counts.spooled, counts.possibly_twice), (6, 0));
        kill(delivery);

        let delivery = open(&client, &options).await;
        let expected = if send_again { (6, 6, 6, 0) } else { (0, 0, 0, 6) };
        let counts = until(&delivery, |counts| counts.spooled == 0).await;
        let of_run = (counts.found, counts.delivered_late, counts.possibly_twice);
        assert_eq!(of_run, (expected.0, expected.1, expected.2), "{counts:?}");
        end(delivery).await;
        // The next one finds nothing, and the sums of all stay as they are.
        let delivery = open(&client, &options).await;
        assert_eq!(delivery.counts()[0].1.possibly_twice, SamplesByEvent::NONE);
        end(delivery).await;
        let total = noted(dir.path());
        let of_all =
            (total.delivered, total.delivered_late, total.possibly_twice, total.losses.possibly_lost);
        assert_eq!((of_all, total.handed_over), (expected, 6), "{total:?}");
    }
}
