//! Options of series' labels.

use std::collections::BTreeMap;
use std::sync::Arc;

use clap::ValueEnum;

use super::thread_names::{folded, with_numbers};
use crate::config::relabel::{RelabelAction, RelabelRule, relabel_kept, retain_public};
use crate::profile::aggregate::SeriesLimit;
use crate::profile::model::{LabelSet, label_names};

/// A label that differs between samples of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum ThreadLabel {
    /// The thread's name, digits folded to N
    #[value(name = label_names::THREAD_NAME)]
    ThreadName,
    /// The thread's id
    #[value(name = label_names::THREAD_ID)]
    ThreadId,
    /// The CPU's number
    #[value(name = "cpu")]
    Cpu,
}

impl ThreadLabel {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::ThreadName => label_names::THREAD_NAME,
            Self::ThreadId => label_names::THREAD_ID,
            Self::Cpu => "cpu",
        }
    }
}

/// Options of series' labels.
#[derive(Clone, Debug, Default)]
pub struct LabelOptions {
    /// The `node` label.
    pub node: String,
    /// Labels of all series.
    pub external: BTreeMap<String, String>,
    /// Labels of samples, sorted, each once.
    pub sample_labels: Vec<ThreadLabel>,
    /// Whether names of threads keep their numbers. Else threads that differ by a number have one
    /// name, so that they make one series.
    pub has_numbered_threads: bool,
    /// Attributes of processes' resources that are labels, by their names in OpenTelemetry.
    pub resource_labels: Vec<String>,
    pub rules: Vec<RelabelRule>,
    /// Maximum number of series; `None`: no limit.
    pub max_series: Option<usize>,
}

impl LabelOptions {
    /// Returns options with labels of processes only.
    pub fn plain(node: String) -> Self {
        Self { node, ..Self::default() }
    }

    /// Returns a thread's name as the label has it.
    pub(super) fn thread_name(&self, name: &str) -> String {
        if self.has_numbered_threads { with_numbers(name) } else { folded(name) }
    }

    /// Returns the limit of series, and the series of samples beyond it. Rules have kept its
    /// samples; they change its labels as those of any other.
    pub(in crate::pipeline) fn limit(&self) -> Option<SeriesLimit> {
        let mut rest: LabelSet = self.external.clone();
        for name in ["node", "__meta_node"] {
            rest.insert(name.to_owned(), self.node.clone());
        }
        relabel_kept(&self.rules, &mut rest);
        retain_public(&mut rest);
        rest.insert("overflow".to_owned(), "true".to_owned());
        self.max_series.map(|max| SeriesLimit { max, rest: Arc::new(rest) })
    }

    /// Returns how many rules, from the first on, can't depend on the labels of single samples: if
    /// they drop one, they drop all of a process's samples.
    pub(super) fn process_rules(&self) -> usize {
        let depends = |rule: &RelabelRule| {
            self.sample_labels
                .iter()
                .any(|label| rule.reads(label.name()) || rule.action() == RelabelAction::LabelMap)
        };
        self.rules.iter().position(depends).unwrap_or(self.rules.len())
    }
}

#[cfg(test)]
mod tests {
    use std::str::FromStr;

    use super::*;

    #[test]
    fn rules_that_depend_on_single_samples_drop_no_process() {
        let options = |labels: &[ThreadLabel], rules: &[&str]| LabelOptions {
            sample_labels: labels.to_vec(),
            rules: rules.iter().map(|text| RelabelRule::from_str(text).expect("valid")).collect(),
            ..LabelOptions::plain("host".to_owned())
        };
        let drop = "{ source_labels = ['comm'], regex = 'x', action = 'drop' }";
        let by_thread = "{ source_labels = ['comm', 'thread_name'], regex = 'x;y', action = 'drop' }";
        let equal = "{ source_labels = ['comm'], target_label = 'thread_name', action = 'keepequal' }";
        let map = "{ regex = 'x(.*)', replacement = '$1', action = 'labelmap' }";
        let all = [drop, by_thread, equal, map];
        assert_eq!(options(&[], &all).process_rules(), 4);
        for rule in [by_thread, equal, map] {
            assert_eq!(options(&[ThreadLabel::ThreadName], &[drop, rule, drop]).process_rules(), 1, "{rule}");
        }
        assert_eq!(options(&[ThreadLabel::Cpu], &[drop, by_thread, equal, drop]).process_rules(), 4);
    }

    #[test]
    fn the_series_of_the_rest_has_the_labels_that_all_have() {
        let options = |rules: &[&str]| LabelOptions {
            external: [("cluster".to_owned(), "prod".to_owned())].into(),
            rules: rules.iter().map(|text| RelabelRule::from_str(text).expect("valid")).collect(),
            max_series: Some(7),
            ..LabelOptions::plain("host".to_owned())
        };
        let rest = |rules: &[&str]| -> Vec<String> {
            let limit = options(rules).limit().expect("there is one");
            limit.rest.iter().map(|(name, value)| format!("{name}={value}")).collect()
        };
        assert_eq!(rest(&[]), ["cluster=prod", "node=host", "overflow=true"]);
        let rules = [
            // Its samples have been kept.
            "{ source_labels = ['runtime'], regex = 'jvm', action = 'keep' }",
            "{ source_labels = ['comm'], regex = '', action = 'drop' }",
            "{ source_labels = ['__meta_node'], target_label = 'instance' }",
            "{ source_labels = ['comm'], target_label = 'job' }",
            "{ target_label = 'team', replacement = 'core' }",
            "{ regex = 'node|overflow', action = 'labeldrop' }",
        ];
        assert_eq!(rest(&rules), ["cluster=prod", "instance=host", "overflow=true", "team=core"]);
    }
}
