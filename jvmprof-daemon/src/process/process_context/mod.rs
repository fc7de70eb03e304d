//! The context that a process publishes of itself: the attributes of its resource, as its
//! OpenTelemetry SDK or agent has them.
//!
//! A small mapping with a name of its own holds a header that leads to a protobuf message. Layout
//! and protocol: OTEP 4719 (open-telemetry/opentelemetry-specification,
//! oteps/profiles/4719-process-ctx.md). All of it is the process's: what is read is bounded and
//! checked, and used only as a whole.

mod header;
mod payload;
mod reader;
#[cfg(test)]
pub(crate) mod test_writer;
#[cfg(test)]
mod tests;
mod watch;

pub use header::ContextHeader;
pub use payload::decode;
pub(super) use reader::{MAX_CONTEXTS, context_mapping};
pub(super) use watch::ContextWatch;

use super::service_identity::ServiceIdentity;

/// A process's published context.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProcessContext {
    /// Names of the attributes that contexts of threads have, by the index that stands for each;
    /// `None` if its threads publish none.
    pub thread_keys: Option<Box<[Box<str>]>>,
    /// The service, and all attributes of the resource that are kept.
    pub service: ServiceIdentity,
    /// Attributes that are not kept: too many, too long, or no single value.
    pub left_out: u64,
}

/// Error of reading a process's context.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ContextError {
    /// The process has ended, has unmapped the context, or may not be read.
    #[error("reading a process's context: its memory can't be read")]
    Unreadable,
    #[error("reading a process's context: there is no header of version 2")]
    NotContext,
    #[error("reading a process's context: it was being written at each of several attempts")]
    Torn,
    /// Payload's size in bytes.
    #[error("reading a process's context: its size of {0} bytes is 0 or over the limit")]
    Size(u32),
    #[error("reading a process's context: the payload is no message of a context")]
    Malformed,
}

/// Counters of contexts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ContextCounts {
    /// Contexts that were read, again after each change.
    pub read: u64,
    /// Mappings with the context's name that hold none that can be read: a bad header, a payload
    /// that is too large, unreadable or malformed.
    pub refused: u64,
    /// Reads that were given up since the context was being written; each is tried again.
    pub torn: u64,
    /// Attributes of contexts that were read and not kept.
    pub left_out: u64,
}

impl ContextCounts {
    fn count(&mut self, result: Result<&ProcessContext, ContextError>) {
        match result {
            Ok(context) => {
                self.read += 1;
                self.left_out += context.left_out;
            }
            Err(ContextError::Torn) => self.torn += 1,
            Err(_) => self.refused += 1,
        }
    }
}
