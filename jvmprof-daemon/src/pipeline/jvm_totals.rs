//! Totals of each JVM's time since it was first sampled, for metrics.

use std::collections::{BTreeMap, HashSet};

use super::off_cpu::{is_idle, wait_of};
use crate::event_type::EventType;
use crate::profile::jvm_activity::{JVM_LABEL, thread_kind_of};
use crate::profile::model::{Batch, LabelSet, label_names};

/// JVMs with totals of their own, at most: the metrics of a host stay few.
const MAX_JVMS: usize = 200;
/// The name of the totals of further ones.
const OTHERS: &str = "[other]";
/// The kind of threads whose stacks aren't whole.
const UNKNOWN: &str = "unknown";

/// A JVM as its series name it: see [`jvm_name`].
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct JvmName {
    /// Its process id; empty where rules have removed the label.
    pub pid: String,
    pub name: String,
}

/// The name of the series of one JVM, as far as that is known.
#[derive(Clone, Debug, Default)]
pub(super) struct SeriesName {
    name: Option<JvmName>,
    /// True if that is its main class.
    has_class: bool,
}

impl SeriesName {
    /// Notes the labels of a series.
    pub(super) fn update(&mut self, labels: &LabelSet) {
        if self.has_class {
            return;
        }
        let has_class = labels.get(label_names::MAIN_CLASS).is_some_and(|class| !class.is_empty());
        // Its main class isn't known at once.
        if self.name.is_none() || has_class {
            self.name = Some(jvm_name(labels));
            self.has_class = has_class;
        }
    }

    pub(super) const fn get(&self) -> Option<&JvmName> {
        self.name.as_ref()
    }
}

/// The time of one JVM, in ns.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JvmTotals {
    /// CPU time by the kind of thread.
    pub cpu: BTreeMap<String, u64>,
    /// Time of threads that waited, and weren't idle, by cause.
    pub waits: BTreeMap<String, u64>,
    /// Times in which all threads were stopped, if they are followed or the JVM says it.
    pub pauses: Option<PauseTotals>,
}

/// Sums of pauses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PauseTotals {
    pub pauses: u64,
    /// Time from the begin of stopping threads until all had stopped, ns.
    pub to_safepoint_ns: u64,
    /// Time from then until they went on, ns.
    pub stopped_ns: u64,
}

impl PauseTotals {
    pub const fn add(&mut self, other: Self) {
        self.pauses += other.pauses;
        self.to_safepoint_ns += other.to_safepoint_ns;
        self.stopped_ns += other.stopped_ns;
    }

    /// Returns what has been added since `before`.
    pub(super) const fn since(self, before: Self) -> Self {
        Self {
            pauses: self.pauses.saturating_sub(before.pauses),
            to_safepoint_ns: self.to_safepoint_ns.saturating_sub(before.to_safepoint_ns),
            stopped_ns: self.stopped_ns.saturating_sub(before.stopped_ns),
        }
    }
}

/// The totals of all JVMs that run.
#[derive(Clone, Debug, Default)]
pub(super) struct AllJvmTotals {
    of_jvms: BTreeMap<JvmName, JvmTotals>,
}

impl AllJvmTotals {
    pub(super) const fn get(&self) -> &BTreeMap<JvmName, JvmTotals> {
        &self.of_jvms
    }

    /// Adds a window's profile.
    pub(super) fn add(&mut self, batch: &Batch) {
        for series in &batch.series {
            let has_kinds = series.samples.iter().any(|sample| thread_kind_of(sample).is_some());
            let is_time = matches!(batch.event, EventType::Cpu | EventType::OffCpu);
            if !(has_kinds || series.labels.contains_key(JVM_LABEL)) || !is_time {
                continue;
            }
            let totals = self.totals(jvm_name(&series.labels));
            for sample in &series.samples {
                let (of, key) = match batch.event {
                    EventType::OffCpu if is_idle(sample) => continue,
                    EventType::OffCpu => (&mut totals.waits, wait_of(sample)),
                    _ => (&mut totals.cpu, thread_kind_of(sample)),
                };
                let sum = of.entry(key.unwrap_or(UNKNOWN).to_owned()).or_default();
                *sum = sum.saturating_add(sample.value);
            }
        }
    }

    /// Adds pauses of a JVM.
    pub(super) fn add_pauses(&mut self, jvm: JvmName, pauses: PauseTotals) {
        self.totals(jvm).pauses.get_or_insert_default().add(pauses);
    }

    fn totals(&mut self, jvm: JvmName) -> &mut JvmTotals {
        // Its main class isn't known at once, and a program may be replaced by another one.
        let is_it = |known: &JvmName| !jvm.pid.is_empty() && known.pid == jvm.pid && known.name != jvm.name;
        if let Some(before) = self.of_jvms.keys().find(|known| is_it(known)).cloned() {
            let totals = self.of_jvms.remove(&before).unwrap_or_default();
            self.of_jvms.insert(jvm.clone(), totals);
        }
        let is_one_more = self.of_jvms.len() >= MAX_JVMS && !self.of_jvms.contains_key(&jvm);
        let others = || JvmName { pid: String::new(), name: OTHERS.to_owned() };
        self.of_jvms.entry(if is_one_more { others() } else { jvm }).or_default()
    }

    /// Removes JVMs that have ended.
    pub(super) fn retain(&mut self, running: &HashSet<u32>) {
        let runs = |jvm: &JvmName| jvm.pid.parse().map_or(true, |pid| running.contains(&pid));
        self.of_jvms.retain(|jvm, _| runs(jvm));
    }
}

/// Returns the name of a JVM by the labels of a series of its: its main class, else its command.
pub fn jvm_name(labels: &LabelSet) -> JvmName {
    let value = |name: &str| labels.get(name).filter(|value| !value.is_empty()).cloned();
    JvmName {
        pid: value("pid").unwrap_or_default(),
        name: value(label_names::MAIN_CLASS).or_else(|| value("comm")).unwrap_or_else(|| "a JVM".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::model::{FrameKind, SampleLabel, SampleLabels};
    use crate::profile::testing::{batch, frame, series};

    fn of_jvm(pid: &str, event: EventType, samples: &[(&[(&str, &str)], u64)]) -> Batch {
        let stacks = samples.iter().map(|(_, value)| (vec![frame(FrameKind::Java, "f")], *value));
        let mut series = series(&[("pid", pid), ("jvm_main_class", "Shop")], stacks.collect());
        for (sample, (labels, value)) in series.samples.iter_mut().zip(samples) {
            let label =
                |(name, value): &(&str, &str)| SampleLabel { name: (*name).into(), value: (*value).into() };
            sample.labels = SampleLabels::new(labels.iter().map(label).collect::<Vec<_>>());
            sample.value = *value;
        }
        Batch { event, ..batch(vec![series]) }
    }

    #[test]
    fn the_time_of_a_jvm_is_summed_by_kind_and_by_cause_until_it_ends() {
        let mut all = AllJvmTotals::default();
        for _ in 0..2 {
            all.add(&of_jvm("7", EventType::Cpu, &[(&[("thread_kind", "gc")], 3), (&[], 1)]));
        }
        let waits: [(&[(&str, &str)], u64); 2] = [
            (&[("thread_kind", "java"), ("wait", "monitor")], 5),
            (&[("thread_kind", "java"), ("wait", "park"), ("idle", "true")], 100),
        ];
        all.add(&of_jvm("7", EventType::OffCpu, &waits));
        all.add(&of_jvm("8", EventType::Cpu, &[(&[], 9)]));
        let sums = |pairs: &[(&str, u64)]| pairs.iter().map(|(key, ns)| ((*key).to_owned(), *ns)).collect();
        let name = JvmName { pid: "7".to_owned(), name: "Shop".to_owned() };
        let totals = JvmTotals {
            cpu: sums(&[("gc", 6), ("unknown", 2)]),
            waits: sums(&[("monitor", 5)]),
            pauses: None,
        };
        assert_eq!(all.get(), &BTreeMap::from([(name, totals)]), "what has no kind is no JVM");
        let mut renamed = of_jvm("7", EventType::Cpu, &[(&[("thread_kind", "gc")], 1)]);
        renamed.series[0].labels.insert("jvm_main_class".to_owned(), "Other".to_owned());
        all.add(&renamed);
        let names: Vec<_> = all.get().iter().map(|(jvm, totals)| (&*jvm.name, totals.cpu["gc"])).collect();
        assert_eq!(names, [("Other", 7)]);
        all.retain(&HashSet::from([8]));
        assert!(all.get().is_empty());
    }

    #[test]
    fn jvms_beyond_the_limit_share_their_totals() {
        let mut all = AllJvmTotals::default();
        for pid in 0..300 {
            all.add(&of_jvm(&pid.to_string(), EventType::Cpu, &[(&[("thread_kind", "java")], 1)]));
        }
        assert_eq!(all.get().len(), MAX_JVMS + 1);
        let others = JvmName { pid: String::new(), name: OTHERS.to_owned() };
        assert_eq!(all.get()[&others].cpu["java"], 100);
    }
}
