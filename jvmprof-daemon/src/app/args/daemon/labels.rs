//! Flags for the labels of series.

use clap::Args;

use crate::app::args::values::attribute_name;
use crate::config::relabel::{RelabelRule, is_label_name};
use crate::pipeline::labels::{LabelOptions, ThreadLabel};

/// How series are labelled.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Labels")]
pub struct LabelArgs {
    /// The `node` label [default: the host's name]
    #[arg(long, value_name = "NAME")]
    pub node: Option<String>,

    /// Label of all series (repeatable)
    #[arg(long, value_name = "NAME=VALUE", value_parser = parse_label)]
    pub external_labels: Vec<(String, String)>,

    /// Labels that distinguish samples of one process; each makes series of its own (repeatable)
    #[arg(long, value_name = "LABEL")]
    pub sample_labels: Vec<ThreadLabel>,

    /// Attribute of a process's OpenTelemetry resource that is a label of its series: k8s.pod.name
    /// is k8s_pod_name, where there is no such label yet (repeatable)
    #[arg(long, hide_short_help = true, value_name = "ATTRIBUTE", value_parser = attribute_name)]
    pub resource_labels: Vec<String>,

    /// Rule as in Prometheus's relabel_configs, a TOML table; applied in their order to labels and
    /// __meta_ labels (repeatable): { source_labels = ["__meta_systemd_unit"], regex =
    /// "(.+)\\.service", target_label = "job" }
    #[arg(long, value_name = "RULE")]
    pub relabel_configs: Vec<RelabelRule>,

    /// Series of a window, at most; the samples of further ones go into one series labelled
    /// overflow="true"
    #[arg(long, hide_short_help = true, default_value_t = 4096, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub max_series: u32,
}

impl LabelArgs {
    /// Returns the pipeline's options, for a host of this name.
    pub(in crate::app) fn options(&self, node: String) -> LabelOptions {
        let mut sample_labels = self.sample_labels.clone();
        sample_labels.sort_unstable();
        sample_labels.dedup();
        LabelOptions {
            external: self.external_labels.iter().cloned().collect(),
            sample_labels,
            resource_labels: self.resource_labels.clone(),
            rules: self.relabel_configs.clone(),
            max_series: usize::try_from(self.max_series).ok(),
            ..LabelOptions::plain(node)
        }
    }
}

fn parse_label(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("must be NAME=VALUE")?;
    if !is_label_name(name) {
        return Err(format!("{name:?} is no label name: letters, digits and _ without a digit in front"));
    }
    Ok((name.to_owned(), value.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn external_labels_have_valid_names() {
        assert_eq!(parse_label("cluster=a=b"), Ok(("cluster".to_owned(), "a=b".to_owned())));
        for text in ["cluster", "1a=b", "a-b=c", "=x"] {
            assert!(parse_label(text).is_err(), "{text}");
        }
    }

    #[test]
    fn attributes_of_a_resource_have_names_that_labels_can_be_made_of() {
        for text in ["k8s.pod.name", "app.kubernetes.io/name", "team", "_dd.trace.operation"] {
            assert_eq!(attribute_name(text).as_deref(), Ok(text));
        }
        for text in ["", "1a", "_", "_1", "__meta_x", "a b", "é", &"a".repeat(129)] {
            assert!(attribute_name(text).is_err(), "{text}");
        }
    }
}
