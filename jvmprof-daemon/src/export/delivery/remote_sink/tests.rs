//! A task that breaks down while it sends, and a server that isn't there when the sender begins.

use tonic::Code;

use super::*;
use crate::export::delivery::tests::{batch_of, client, options};
use crate::export::delivery::{DeliveryOptions, SampleTotals};
use crate::export::parca::scripted_server::{ScriptedAnswer, ScriptedServer, serve};

/// A sender of one batch with 6 samples, to a server that never answers.
async fn sender(options: DeliveryOptions) -> Sender {
    sender_to(ScriptedAnswer::Hang, options).await
}

/// A sender of one batch with 6 samples, to a server with this answer.
async fn sender_to(answer: ScriptedAnswer, options: DeliveryOptions) -> Sender {
    let scripted = ScriptedServer::new(&vec![answer; 9]);
    let backend = Backend::from(client(serve(&scripted).await));
    let queue = SinkQueue::open("parca".to_owned(), options, SampleTotals::default());
    let queue = Arc::new(queue.expect("the spool opens"));
    let batch = batch_of(3);
    {
        let mut state = queue.state();
        state.counts.handed_over += batch.samples_by_event();
        state.counts.waiting += batch.samples_by_event();
    }
    queue.enqueue(backend.encode(&batch).expect("encodable").requests).await;
    Sender::new(queue, backend)
}

/// Ends the task of the request that is under way, as a panic in it would.
async fn break_down(sender: &mut Sender) {
    assert!(!sender.server.has_capacity(), "{:?}", sender.server);
    sender.under_way.abort_all();
    let ended = sender.under_way.join_next_with_id().await.expect("a task");
    assert!(ended.is_err());
    sender.conclude(ended).await;
    assert!(sender.attempts.is_empty() && sender.server.has_capacity(), "{:?}", sender.server);
    let counts = sender.sink_queue.state().counts;
    assert_eq!(counts.unaccounted(), 0);
    let counts = counts.of_all_events();
    let open = (counts.in_flight, counts.waiting, counts.spooled);
    assert_eq!((open, counts.losses.possibly_lost), ((0, 0, 0), 6), "{counts:?}");
}

#[tokio::test]
async fn a_fresh_request_whose_task_breaks_down_leaves_its_slot_and_is_counted() {
    let mut sender = sender(options(None)).await;
    let SenderAction::Send(request) = sender.next_action() else { panic!("nothing is to be sent") };
    sender.begin_fresh(request).await;
    break_down(&mut sender).await;
}

#[tokio::test]
async fn a_record_of_the_spool_whose_task_breaks_down_is_not_in_transit_for_ever() {
    let dir = tempfile::tempdir().expect("a folder");
    let mut sender = sender(options(Some(dir.path()))).await;
    sender.sink_queue.spool_outbox().await;
    sender.begin_spooled(false).await;
    break_down(&mut sender).await;
    let entry = crate::export::delivery::read_ledger(dir.path()).expect("readable").expect("an entry");
    assert_eq!(entry.in_transit, []);
}

#[tokio::test]
async fn what_came_in_before_the_first_probe_failed_goes_to_the_spool() {
    let dir = tempfile::tempdir().expect("a folder");
    let answer = ScriptedAnswer::Answer(Code::Unauthenticated, "who are you?");
    let Sender { sink_queue, backend, .. } = sender_to(answer, options(Some(dir.path()))).await;
    sink_queue.spool_outbox().await;
    let batch = batch_of(3);
    sink_queue.state().counts.handed_over += batch.samples_by_event();
    sink_queue.state().counts.waiting += batch.samples_by_event();
    sink_queue.enqueue(backend.encode(&batch).expect("encodable").requests).await;
    let mut sender = Sender::new(sink_queue, backend);
    assert!(matches!(sender.next_action(), SenderAction::Probe));
    sender.probe().await;
    let counts = sender.sink_queue.state().counts.of_all_events();
    assert_eq!((counts.waiting, counts.spooled, counts.requests), (0, 12, 0), "{counts:?}");
}
