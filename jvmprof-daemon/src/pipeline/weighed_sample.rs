//! Samples by what they stand for: the stage between a sample's name and its window.

use std::iter;

use smallvec::{SmallVec, smallvec};

use super::jvm_followers::JvmFollowers;
use super::labels::LabelKey;
use super::off_cpu::{OffCpuProfiler, WeighedStack, WeighedWait};
use crate::process::ProcessKey;
use crate::profile::aggregate::{Aggregator, LabelDecision, NamedStack, SampleWeight};
use crate::sampler::{SampledEvent, StackSample};

/// A sample of an event with its weight.
pub(super) struct WeighedSample {
    /// Its own stack, and a second one where a part of it counts for something else: the first
    /// object of a buffer, or the time in which a thread could run and didn't.
    stacks: SmallVec<[WeighedStack; 2]>,
    /// What its profiles are told apart by beside the event.
    pub(super) period: u64,
    /// The stack of the thread that had the monitor which this one waited for, if it is known: a
    /// sample of [`EventType::LockHolder`](crate::event_type::EventType::LockHolder).
    pub(super) holder: Option<WeighedStack>,
}

impl WeighedSample {
    /// Weighs a sample by the profiler of its event; `None` if that is off. `period_ns`: of CPU
    /// time.
    pub(super) fn of(
        sample: &StackSample,
        key: ProcessKey,
        stack: NamedStack,
        period_ns: u64,
        (followers, off_cpu): (&mut JvmFollowers, Option<&mut OffCpuProfiler>),
    ) -> Option<Self> {
        Some(match &sample.event {
            SampledEvent::Cpu => {
                let stacks = smallvec![(stack, SampleWeight::from(period_ns))];
                Self { stacks, period: period_ns, holder: None }
            }
            SampledEvent::Allocation(record) => {
                let allocation = followers.allocation.as_mut()?;
                let (own, as_first) = allocation.weigh(key, record, stack);
                let stacks = iter::once(own).chain(as_first).collect();
                Self { stacks, period: allocation.options().interval, holder: None }
            }
            SampledEvent::OffCpu(record) => {
                let (off_cpu, header) = (off_cpu?, &sample.header);
                let WeighedWait { own, runnable, holder } =
                    off_cpu.weigh(key, header.tid, record, header.time_ns, stack);
                let stacks = iter::once(own).chain(runnable).collect();
                Self { stacks, period: off_cpu.options().interval, holder }
            }
        })
    }

    pub(super) fn own_stack(&mut self) -> Option<&mut NamedStack> {
        self.stacks().next()
    }

    pub(super) fn stacks(&mut self) -> impl Iterator<Item = &mut NamedStack> {
        self.stacks.iter_mut().map(|(stack, _)| stack)
    }

    /// Counts it in a window; returns false if its labels drop it.
    pub(super) fn aggregate(
        &mut self,
        window: &mut Aggregator<LabelKey>,
        labels: &LabelDecision,
        label_key: LabelKey,
    ) -> bool {
        self.stacks.drain(..).all(|stack| aggregate(window, labels, label_key, stack))
    }
}

/// Counts a stack in a window; returns false if its labels drop it.
pub(super) fn aggregate(
    window: &mut Aggregator<LabelKey>,
    labels: &LabelDecision,
    label_key: LabelKey,
    (stack, weight): WeighedStack,
) -> bool {
    match labels {
        LabelDecision::Dropped => return false,
        LabelDecision::Awaited => window.add_unlabelled(label_key, stack, weight),
        LabelDecision::Labels(labels) => window.add(labels, label_key, stack, weight),
    }
    true
}
