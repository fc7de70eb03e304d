//! Where the daemon's batches go.

use std::fmt;
use std::ops::AddAssign;
use std::sync::Arc;

use super::parca::ParcaClient;
use super::store::{NewProfile, Store};
use crate::profile::model::Batch;

/// A place that takes batches.
#[derive(Debug)]
pub enum Sink {
    /// Parca, or a backend that speaks as it does.
    Parca(ParcaClient),
    /// A folder of pprof files.
    Store(Arc<Store>),
}

/// What became of samples.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Delivered {
    pub samples: u64,
    /// Refused, or nobody was there to take them.
    pub lost_samples: u64,
    /// Sent, and nobody knows whether they were stored.
    pub possibly_lost_samples: u64,
}

impl AddAssign for Delivered {
    fn add_assign(&mut self, other: Self) {
        self.samples += other.samples;
        self.lost_samples += other.lost_samples;
        self.possibly_lost_samples += other.possibly_lost_samples;
    }
}

impl Sink {
    /// Hands a batch over. Whatever goes wrong is logged, and counted in the answer.
    pub async fn deliver(&self, batch: Arc<Batch>) -> Delivered {
        if batch.series.is_empty() {
            return Delivered::default();
        }
        match self {
            Self::Parca(client) => {
                let totals = client.push(batch).await.totals();
                Delivered {
                    samples: totals.stored_samples,
                    lost_samples: totals.refused_samples + totals.unreachable_samples,
                    possibly_lost_samples: totals.possibly_lost_samples,
                }
            }
            Self::Store(store) => {
                let (samples, store) = (batch.samples(), Arc::clone(store));
                let written = tokio::task::spawn_blocking(move || append(&store, &batch)).await;
                match written.unwrap_or_else(|error| Err(anyhow::Error::new(error))) {
                    Ok(()) => Delivered { samples, ..Delivered::default() },
                    Err(error) => {
                        tracing::error!(samples, error = format!("{error:#}"), "profiles can't be stored");
                        Delivered { lost_samples: samples, ..Delivered::default() }
                    }
                }
            }
        }
    }
}

fn append(store: &Store, batch: &Batch) -> anyhow::Result<()> {
    let profiles: Vec<NewProfile> =
        batch.series.iter().map(|series| NewProfile::of_series(batch, series)).collect::<Result<_, _>>()?;
    Ok(store.append(&profiles)?)
}

impl fmt::Display for Sink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Parca(client) => write!(f, "{}", client.address()),
            Self::Store(store) => write!(f, "{}", store.dir().display()),
        }
    }
}
