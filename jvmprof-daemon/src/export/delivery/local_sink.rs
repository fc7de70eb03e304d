//! The local store: on this disk already, so there is nothing to spool.

use std::sync::Arc;

use tokio::sync::mpsc;

use super::sink_queue::SinkQueue;
use crate::export::store::{NewProfile, Store};
use crate::profile::model::Batch;

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
            Ok(()) => state.counts.delivered += samples,
            Err(error) => {
                state.counts.losses.store_failed += samples;
                drop(state);
                let (event, samples) = (event.as_str(), samples.get(event));
                tracing::error!(event, samples, error = format!("{error:#}"), "profiles can't be stored");
            }
        }
    }
}

fn write(store: &Store, batch: &Batch) -> anyhow::Result<()> {
    Ok(store.append(&NewProfile::of_batch(batch)?)?)
}
