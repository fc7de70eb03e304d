//! The local store: on this disk already, so there is nothing to spool.

use std::sync::Arc;

use tokio::sync::mpsc;

use super::sink_queue::SinkQueue;
use crate::event_type::SamplesByEvent;
use crate::export::store::{NewProfile, Store};
use crate::profile::model::{Batch, Series};

/// Stores batches, one after the other, until no more come.
pub(super) async fn append(
    sink_queue: Arc<SinkQueue>,
    store: Arc<Store>,
    mut batches: mpsc::Receiver<Arc<Batch>>,
) {
    while let Some(batch) = batches.recv().await {
        let (event, samples) = (batch.event, batch.samples_by_event());
        let store = Arc::clone(&store);
        let written = tokio::task::spawn_blocking(move || write(&store, &batch)).await;
        let written = written.unwrap_or_else(|error| Err(anyhow::Error::new(error)));
        let mut state = sink_queue.state();
        state.counts.waiting -= samples;
        match written {
            Ok(refused) => {
                state.counts.delivered += samples - refused;
                state.counts.losses.store_failed += refused;
            }
            Err(error) => {
                state.counts.losses.store_failed += samples;
                drop(state);
                let (event, samples) = (event.as_str(), samples.get(event));
                tracing::error!(event, samples, error = format!("{error:#}"), "profiles can't be stored");
            }
        }
    }
}

/// Stores a batch, but for series whose labels are too many: those of one process cost no other its
/// samples. Returns the samples of these.
fn write(store: &Store, batch: &Batch) -> anyhow::Result<SamplesByEvent> {
    let mut profiles = NewProfile::of_batch(batch)?;
    let refusals = store.label_refusals(&profiles);
    let mut refused = 0;
    // From the end, so that positions stay what they are. A profile is of the series at its place.
    for (position, _) in refusals.iter().rev() {
        refused += batch.series.get(*position).map_or(0, Series::events);
        profiles.remove(*position);
    }
    if let Some((_, first)) = refusals.first() {
        let (event, series) = (batch.event.as_str(), refusals.len());
        tracing::error!(event, series, samples = refused, %first, "series can't be stored");
    }
    store.append(&profiles)?;
    Ok(SamplesByEvent::of(batch.event, refused))
}
