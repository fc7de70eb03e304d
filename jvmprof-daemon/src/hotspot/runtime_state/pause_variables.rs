//! Variables in which a JVM says why it stops its threads: see [`jvmprof_common::pause`].

use super::perf_counters::CauseCounters;
use crate::hotspot::vmstructs::exported_symbols::Image;
use crate::types::Avma;

/// The places where one JVM says why it stops its threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PauseVariables {
    pub image: Image,
    /// `VMThread::_cur_vm_operation`.
    pub operation: Option<Avma>,
    /// `CollectedHeap::_total_collections`.
    pub collections: Option<Avma>,
    pub causes: Option<CauseCounters>,
}
