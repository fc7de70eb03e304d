//! Exporting: the way of a [`Batch`](crate::profile::model::Batch) from the daemon to where
//! profiles are looked at.
//!
//! [`delivery`] hands each batch to every sink, and counts what becomes of each sample. A remote
//! sink encodes it into requests ([`push`]) and pushes them with [`parca`], [`pyroscope`] or
//! [`otlp`]; what the backend can't take now waits in a [`spool`] on disk. The local sink writes to
//! a [`store`]. [`collector`] is the other end: it receives requests as Parca does, keeps them in a
//! store and shows them on a page. It and the daemon's telemetry listen through [`listener`].

pub mod collector;
mod connect_code;
pub mod delivery;
mod directory_lock;
pub mod http_client;
pub mod listener;
pub mod otlp;
pub mod parca;
pub mod push;
pub mod pyroscope;
mod retry_after;
mod split_to_limits;
pub mod spool;
pub mod store;
