//! The events that samples are taken of, under their names in the kernel, in the ledger and in the
//! backend.

use jvmprof_common::abi::Event;

#[derive(Debug)]
pub(super) struct SampledEvent {
    /// In the ledger.
    pub(super) name: &'static str,
    /// `None`: the daemon makes them, and counts them itself.
    pub(super) kernel: Option<Event>,
    /// `__name__` of its series in the backend.
    pub(super) series: &'static str,
    /// Its values are estimates: the number of samples stands in a comment of each profile.
    pub(super) is_estimated: bool,
}

pub(super) const EVENTS: [SampledEvent; 6] = [
    SampledEvent { name: "cpu", kernel: Some(Event::Cpu), series: "process_cpu", is_estimated: false },
    SampledEvent {
        name: "allocation",
        kernel: Some(Event::Allocation),
        series: "memory",
        is_estimated: true,
    },
    SampledEvent { name: "off_cpu", kernel: Some(Event::OffCpu), series: "off_cpu", is_estimated: true },
    SampledEvent { name: "lock", kernel: None, series: "mutex", is_estimated: true },
    SampledEvent { name: "pause", kernel: None, series: "jvm_pauses", is_estimated: true },
    SampledEvent { name: "lock_holder", kernel: None, series: "mutex_holders", is_estimated: true },
];
