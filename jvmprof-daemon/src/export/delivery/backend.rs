//! The backends that profiles are pushed to, each by its own protocol.
//!
//! All take [`PushRequest`]s, one form for memory and spool, and answer with a [`PushOutcome`].

use std::io;
use std::time::Duration;

use super::options::MAX_CONCURRENCY;
use crate::export::otlp::{self, OtlpClient};
use crate::export::parca::ParcaClient;
use crate::export::push::{EncodedBatch, PushOutcome, PushRequest};
use crate::export::pyroscope::{self, PyroscopeClient};
use crate::profile::model::Batch;

/// A client of a backend. Cheap to clone.
#[derive(Clone, Debug)]
pub enum Backend {
    /// Parca, or one that speaks as it does.
    Parca(ParcaClient),
    Pyroscope(PyroscopeClient),
    /// A receiver of OTLP.
    Otlp(OtlpClient),
}

impl From<ParcaClient> for Backend {
    fn from(client: ParcaClient) -> Self {
        Self::Parca(client)
    }
}

impl From<PyroscopeClient> for Backend {
    fn from(client: PyroscopeClient) -> Self {
        Self::Pyroscope(client)
    }
}

impl From<OtlpClient> for Backend {
    fn from(client: OtlpClient) -> Self {
        Self::Otlp(client)
    }
}

impl Backend {
    /// Returns the address as the settings have it.
    pub fn address(&self) -> &str {
        match self {
            Self::Parca(client) => client.address(),
            Self::Pyroscope(client) => client.address(),
            Self::Otlp(client) => client.address(),
        }
    }

    /// Returns the age from which on the backend takes no profile; `None` if it takes any.
    pub(super) fn max_age(&self) -> Option<Duration> {
        match self {
            Self::Parca(_) | Self::Otlp(_) => None,
            Self::Pyroscope(client) => Some(client.max_age()),
        }
    }

    /// Returns how many requests may be under way at once.
    pub(super) fn max_concurrency(&self) -> usize {
        match self {
            // They get all series of a window at once.
            Self::Parca(_) | Self::Otlp(_) => 1,
            Self::Pyroscope(client) => client.concurrency().clamp(1, MAX_CONCURRENCY),
        }
    }

    /// Takes out of a request the series that aren't to be sent together with the others, so that
    /// the answer says what became of them, and returns them as requests.
    pub(super) fn take_others(&self, request: &mut PushRequest) -> Vec<PushRequest> {
        match self {
            // Parca looks at all series before it stores one. Pyroscope's requests are made with
            // one.
            Self::Parca(_) | Self::Pyroscope(_) => Vec::new(),
            Self::Otlp(client) => client.take_others(request),
        }
    }

    /// Encodes a batch as requests within the backend's limits.
    pub(super) fn encode(&self, batch: &Batch) -> io::Result<EncodedBatch> {
        match self {
            Self::Parca(client) => client.requests(batch).map(Into::into),
            Self::Pyroscope(_) => pyroscope::requests(batch),
            Self::Otlp(_) => otlp::requests(batch).map(Into::into),
        }
    }

    /// Sends one request, once.
    pub(super) async fn send(&self, request: &PushRequest) -> PushOutcome {
        match self {
            Self::Parca(client) => client.send(request).await,
            Self::Pyroscope(client) => client.send(request).await,
            Self::Otlp(client) => client.send(request).await,
        }
    }

    /// Sends a request with nothing in it.
    pub(super) async fn probe(&self) -> PushOutcome {
        match self {
            Self::Parca(client) => client.probe().await,
            Self::Pyroscope(client) => client.probe().await,
            Self::Otlp(client) => client.probe().await,
        }
    }
}
