//! Requests to backends, whatever their protocol: how a backend is reached, a batch as requests,
//! and the outcomes of these.

mod config_error;
pub(in crate::export) mod endpoint;
pub(in crate::export) mod grpc;
pub(in crate::export) mod proxy;
pub(in crate::export) mod push_outcome;
pub(in crate::export) mod push_request;
pub(in crate::export) mod tls_mismatch;

pub use config_error::{BackendConfigError, SettingsFile};
pub use endpoint::{BackendOptions, Token, check_header};
pub use push_outcome::PushOutcome;
pub use push_request::{EncodedBatch, PushRequest, requests};
