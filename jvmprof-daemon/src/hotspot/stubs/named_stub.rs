//! A stub with the name that the JVM gives it.

use std::ops::Range;
use std::sync::Arc;

use crate::types::Avma;

/// A stub's code and its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NamedStub {
    pub(crate) code: Range<Avma>,
    pub(crate) name: Arc<str>,
}
