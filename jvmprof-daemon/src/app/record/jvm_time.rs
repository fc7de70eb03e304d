//! What a recording says of JVMs: whose threads their CPU time went to.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::pipeline::thread_kind_of;
use crate::profile::model::{Batch, LabelSet};

/// JVMs that are printed, those with the most samples; the rest is in the JSON.
const PRINTED: usize = 8;
/// The key of samples whose threads' kinds aren't known: their stacks aren't whole.
const UNKNOWN: &str = "unknown";

/// The samples of CPU time of one JVM, by the kinds of its threads.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct JvmTime {
    pid: Option<u32>,
    /// Its main class, else its command.
    name: String,
    samples: u64,
    thread_kinds: BTreeMap<String, u64>,
}

impl JvmTime {
    /// Returns the JVMs of a profile of CPU time, the one with the most samples first.
    pub(super) fn of_batch(batch: &Batch) -> Vec<Self> {
        let mut jvms: BTreeMap<(Option<u32>, String), BTreeMap<&str, u64>> = BTreeMap::new();
        for series in &batch.series {
            if series.samples.iter().all(|sample| thread_kind_of(sample).is_none()) {
                continue;
            }
            let pid = series.labels.get("pid").and_then(|pid| pid.parse().ok());
            let kinds = jvms.entry((pid, name(&series.labels))).or_default();
            for sample in &series.samples {
                let kind = thread_kind_of(sample).unwrap_or(UNKNOWN);
                *kinds.entry(kind).or_default() += sample.count;
            }
        }
        let jvm = |((pid, name), kinds): (_, BTreeMap<&str, u64>)| Self {
            pid,
            name,
            samples: kinds.values().sum(),
            thread_kinds: kinds.into_iter().map(|(kind, samples)| (kind.to_owned(), samples)).collect(),
        };
        let mut jvms: Vec<Self> = jvms.into_iter().map(jvm).collect();
        jvms.sort_by_key(|jvm| std::cmp::Reverse(jvm.samples));
        jvms
    }

    /// Prints a line for each of the first JVMs.
    pub(super) fn print(jvms: &[Self]) {
        for jvm in &jvms[..jvms.len().min(PRINTED)] {
            eprintln!("  {}", jvm.line());
        }
    }

    /// `Shop (4711): 81.0 % java, 11.0 % gc, 8.0 % compiler`
    fn line(&self) -> String {
        let mut kinds: Vec<_> = self.thread_kinds.iter().collect();
        kinds.sort_by_key(|(_, samples)| std::cmp::Reverse(**samples));
        let share = |samples: u64| samples as f64 * 100.0 / self.samples.max(1) as f64;
        let shares = kinds.iter().map(|(kind, samples)| format!("{:.1} % {kind}", share(**samples)));
        let pid = self.pid.map_or_else(String::new, |pid| format!(" ({pid})"));
        format!("{}{pid}: {}", self.name, shares.collect::<Vec<_>>().join(", "))
    }
}

fn name(labels: &LabelSet) -> String {
    let value = |name: &str| labels.get(name).filter(|value| !value.is_empty()).cloned();
    value("jvm_main_class").or_else(|| value("comm")).unwrap_or_else(|| "a JVM".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::model::{FrameKind, SampleLabel, SampleLabels, Series};
    use crate::profile::testing::{batch, frame, series};

    fn jvm(labels: &[(&str, &str)], kinds: &[(&str, u64)]) -> Series {
        let stack = |count| (vec![frame(FrameKind::Native, "f")], count);
        let mut series = series(labels, kinds.iter().map(|(_, count)| stack(*count)).collect());
        for (sample, (kind, _)) in series.samples.iter_mut().zip(kinds) {
            if !kind.is_empty() {
                let label = SampleLabel { name: "thread_kind".into(), value: (*kind).into() };
                sample.labels = SampleLabels::new([label]);
            }
        }
        series
    }

    #[test]
    fn a_jvms_time_is_that_of_all_its_series_by_kind() {
        let shop = [("pid", "7"), ("comm", "java"), ("jvm_main_class", "Shop")];
        let batch = batch(vec![
            jvm(&[("pid", "9"), ("comm", "cat")], &[("", 500)]),
            jvm(&[("pid", "8"), ("comm", "java")], &[("java", 3)]),
            jvm(&shop, &[("java", 80), ("gc", 10)]),
            jvm(&[&shop[..], &[("cpu", "1")]].concat(), &[("gc", 5), ("", 5)]),
        ]);
        let jvms = JvmTime::of_batch(&batch);
        let lines: Vec<String> = jvms.iter().map(JvmTime::line).collect();
        assert_eq!(lines, ["Shop (7): 80.0 % java, 15.0 % gc, 5.0 % unknown", "java (8): 100.0 % java"]);
        assert_eq!((jvms[0].samples, jvms[0].thread_kinds["gc"]), (100, 15));
    }
}
