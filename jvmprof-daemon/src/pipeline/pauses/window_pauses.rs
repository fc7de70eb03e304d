//! The pauses of one JVM in the open window, as samples of its profile.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};
use std::time::SystemTime;

use super::pausing_jvm::{Pause, UNKNOWN};
use crate::clock::monotonic_ns;
use crate::event_type::PAUSE_BEGIN;
use crate::pipeline::jvm_totals::PauseTotals;
use crate::profile::aggregate::{NamedStack, SampleWeight};
use crate::profile::model::{SampleLabel, SampleLabels};
use crate::profile::pprof::jvm_pauses::{PauseTime, frames};

/// Pauses of a JVM that a window keeps one by one: the longest. The others are summed by what they
/// were for.
const MAX_APART: usize = 200;
/// Pauses that wait for the window's end, at most, so that the longest are looked for seldom.
const MAX_WAITING: usize = 2 * MAX_APART;

static BEGIN: LazyLock<Arc<str>> = LazyLock::new(|| PAUSE_BEGIN.name.into());

/// The operation that a JVM stopped for, and the cause of a collection.
type PauseReason = (Arc<str>, Option<Arc<str>>);

#[derive(Debug, Default)]
pub(super) struct WindowPauses {
    apart: Vec<Pause>,
    others: BTreeMap<PauseReason, PauseTotals>,
}

impl WindowPauses {
    /// Adds a pause; to the sums at once, if there is no room.
    pub(super) fn add(&mut self, pause: Pause, has_capacity: bool) {
        if !has_capacity {
            self.others.entry(reason(&pause)).or_default().add((&pause).into());
            return;
        }
        self.apart.push(pause);
        if self.apart.len() >= MAX_WAITING {
            self.sum_shorter();
        }
    }

    /// Returns how many are kept one by one.
    pub(super) const fn apart(&self) -> usize {
        self.apart.len()
    }

    /// Adds the shorter ones to the sums.
    fn sum_shorter(&mut self) {
        if self.apart.len() <= MAX_APART {
            return;
        }
        let length = |pause: &Pause| Reverse(pause.to_safepoint_ns() + pause.stopped_ns());
        self.apart.select_nth_unstable_by_key(MAX_APART, length);
        for pause in self.apart.drain(MAX_APART..) {
            self.others.entry(reason(&pause)).or_default().add((&pause).into());
        }
    }

    /// Takes all pauses for the window's profile: hands their stacks to `add`, and returns how many
    /// they are.
    pub(super) fn take(&mut self, clock: &UnixClock, mut add: impl FnMut(NamedStack, SampleWeight)) -> u64 {
        self.sum_shorter();
        let mut pauses = 0;
        let mut take = |reason: &PauseReason, labels: &SampleLabels, totals: PauseTotals| {
            let (operation, cause) = reason;
            let mut add_time = |time, pauses, nanoseconds| {
                let frames = frames(operation, cause.as_ref(), time);
                let stack = NamedStack { frames, labels: labels.clone(), pending: false };
                add(stack, SampleWeight { stratum: 0, events: pauses, count: pauses, value: nanoseconds });
            };
            add_time(PauseTime::Stopped, totals.pauses, totals.stopped_ns);
            if totals.to_safepoint_ns > 0 {
                add_time(PauseTime::ToSafepoint, 0, totals.to_safepoint_ns);
            }
            pauses += totals.pauses;
        };
        for pause in self.apart.drain(..) {
            let value = clock.since_epoch_ns(pause.began_ns).to_string().into();
            let label = SampleLabel { name: Arc::clone(&BEGIN), value };
            take(&reason(&pause), &SampleLabels::new([label]), (&pause).into());
        }
        for (reason, totals) in std::mem::take(&mut self.others) {
            take(&reason, &SampleLabels::default(), totals);
        }
        pauses
    }
}

fn reason(pause: &Pause) -> PauseReason {
    (pause.operation.clone().unwrap_or_else(|| UNKNOWN.into()), pause.cause.clone())
}

/// The time of day by `CLOCK_MONOTONIC`, as the clocks are set now.
#[derive(Clone, Copy, Debug)]
pub(super) struct UnixClock {
    /// Nanoseconds since 1970 when `CLOCK_MONOTONIC` was 0.
    zero_ns: i128,
}

impl UnixClock {
    pub(super) fn now() -> Self {
        let monotonic = monotonic_ns();
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let now = i128::try_from(now.as_nanos()).unwrap_or_default();
        Self { zero_ns: now - i128::from(monotonic) }
    }

    fn since_epoch_ns(self, time_ns: u64) -> i128 {
        self.zero_ns + i128::from(time_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pause(began_ns: u64, stopped_ns: u64, cause: Option<&str>) -> Pause {
        let reached_ns = began_ns + 1;
        Pause {
            began_ns,
            reached_ns,
            ended_ns: reached_ns + stopped_ns,
            is_over: true,
            operation: Some("G1CollectForAllocation".into()),
            cause: cause.map(Into::into),
        }
    }

    /// A sample: names from the leaf on, the begin, count and value.
    type TakenSample = (String, Option<String>, u64, u64);

    /// Returns what a window's profile has.
    fn taken(pauses: &mut WindowPauses) -> (u64, Vec<TakenSample>) {
        let mut samples = Vec::new();
        let clock = UnixClock { zero_ns: 1_000_000 };
        let count = pauses.take(&clock, |stack, weight| {
            let names: Vec<_> = stack.frames.iter().map(|frame| frame.lines[0].name.to_string()).collect();
            let begin = stack.labels.iter().next().map(|label| label.value.to_string());
            assert_eq!(weight.events, weight.count);
            samples.push((names.join(" < "), begin, weight.count, weight.value));
        });
        (count, samples)
    }

    #[test]
    fn a_pause_has_a_sample_of_each_of_its_times_and_counts_once() {
        let mut pauses = WindowPauses::default();
        pauses.add(pause(7, 20, Some("System.gc()")), true);
        let begin = Some("1000007".to_owned());
        let stack = |leaf: &str| format!("{leaf} < System.gc() < G1CollectForAllocation");
        let expected =
            vec![(stack("[stopped]"), begin.clone(), 1, 20), (stack("[time to safepoint]"), begin, 0, 1)];
        assert_eq!(taken(&mut pauses), (1, expected));
        assert_eq!(taken(&mut pauses), (0, vec![]), "the next window has its own");
    }

    #[test]
    fn without_room_a_pause_is_summed() {
        let mut pauses = WindowPauses::default();
        pauses.add(pause(7, 20, None), false);
        assert_eq!(pauses.apart(), 0);
        let (count, samples) = taken(&mut pauses);
        assert_eq!((count, &samples[0].1, samples[0].3), (1, &None, 20));
    }

    #[test]
    fn of_many_pauses_the_longest_are_apart_and_the_others_summed_by_what_they_were_for() {
        let mut pauses = WindowPauses::default();
        for length in 1..=1_000 {
            pauses.add(pause(length, length, (length % 2 == 0).then_some("System.gc()")), true);
        }
        let (count, samples) = taken(&mut pauses);
        assert_eq!(count, 1_000);
        let of = |is_apart: bool| samples.iter().filter(move |(_, begin, ..)| begin.is_some() == is_apart);
        let stopped = |is_apart| -> Vec<(u64, u64)> {
            let stopped = of(is_apart).filter(|(names, ..)| names.starts_with("[stopped]"));
            stopped.map(|(_, _, count, value)| (*count, *value)).collect()
        };
        let apart = stopped(true);
        assert_eq!((apart.len(), apart.iter().map(|(_, value)| *value).min()), (MAX_APART, Some(801)));
        assert_eq!(stopped(false), [(400, (1..800).step_by(2).sum()), (400, (2..=800).step_by(2).sum())]);
        let sum: u64 = samples.iter().map(|(_, _, _, value)| value).sum();
        assert_eq!(sum, 1_000 + (1..=1_000).sum::<u64>(), "nothing is missing");
    }
}
