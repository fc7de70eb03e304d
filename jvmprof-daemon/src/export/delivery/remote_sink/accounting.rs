//! Accounting of a request's samples in the counts, the spool and the ledger.

use super::Sender;
use crate::event_type::SamplesByEvent;
use crate::export::delivery::bisection::SendReport;
use crate::export::delivery::counts::DeliveryCounts;
use crate::export::spool::RecordInFlight;

/// The origin of a request, by which it is accounted for.
#[derive(Debug)]
pub(super) enum Origin {
    /// Its samples.
    Memory(SamplesByEvent),
    Spool(RecordInFlight),
}

impl Sender {
    pub(super) async fn account(&self, origin: Origin, report: SendReport) {
        match origin {
            Origin::Memory(samples) => self.account_fresh(samples, report).await,
            Origin::Spool(taken) => match &report.to_retry[..] {
                [whole] if whole.samples == taken.samples => {
                    self.sink_queue.record_result(taken, None, |_| {}).await;
                }
                _ => self.account_spooled(taken, report).await,
            },
        }
    }

    async fn account_fresh(&self, samples: SamplesByEvent, report: SendReport) {
        {
            let mut state = self.sink_queue.state();
            let counts = &mut state.counts;
            counts.in_flight -= samples;
            counts.waiting -= samples - report.retry_samples();
            counts.delivered += report.delivered;
            counts.losses.refused += report.refused;
            counts.losses.too_old += report.too_old;
            counts.losses.possibly_lost += report.possibly_lost;
        }
        if !report.to_retry.is_empty() {
            self.sink_queue.requeue(report.to_retry).await;
        }
        self.sink_queue.save_ledger().await;
    }

    async fn account_spooled(&self, taken: RecordInFlight, report: SendReport) {
        let to_retry = report.retry_samples();
        let SendReport { delivered, refused, too_old, possibly_lost, .. } = report;
        let count = move |counts: &mut DeliveryCounts| {
            counts.delivered += delivered;
            counts.delivered_late += delivered;
            counts.losses.refused += refused;
            counts.losses.too_old += too_old;
            counts.losses.possibly_lost += possibly_lost;
            counts.waiting += to_retry;
        };
        self.sink_queue.record_result(taken, Some(delivered.total()), count).await;
        // A part of it, behind the others: the next ones needn't wait for it.
        self.sink_queue.requeue(report.to_retry).await;
    }
}
