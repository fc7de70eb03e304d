//! Flags for the labels of containers.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use crate::app::args::values::{DAY, duration};
use crate::process::container::ContainersOptions;

/// How containers get their names.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Names of containers")]
pub struct ContainerArgs {
    /// Socket of the container runtime to ask for pods, CRI or Docker (repeatable) [default: those
    /// that are found at the usual places]
    #[arg(long, hide_short_help = true, value_name = "SOCKET", value_parser = absolute)]
    pub container_runtime: Vec<PathBuf>,

    /// Ask no container runtime: containers are labelled with their id alone
    #[arg(long, hide_short_help = true, conflicts_with = "container_runtime")]
    pub no_container_runtime: bool,

    /// How long samples wait for what a runtime knows of their container
    #[arg(long, hide_short_help = true, default_value = "30s", value_name = "TIME",
          value_parser = duration(Duration::from_secs(1)..=DAY))]
    pub container_wait: Duration,

    /// Label of pods that becomes a label `pod_label_NAME`; a * at its end stands for any rest
    /// (repeatable)
    #[arg(long, hide_short_help = true, value_name = "NAME")]
    pub pod_label: Vec<String>,

    /// Annotation of pods that becomes a label `pod_annotation_NAME`; a * at its end stands for any
    /// rest (repeatable)
    #[arg(long, hide_short_help = true, value_name = "NAME")]
    pub pod_annotation: Vec<String>,
}

fn absolute(text: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(text.strip_prefix("unix://").unwrap_or(text));
    if path.is_absolute() { Ok(path) } else { Err("must be a path that begins with /".to_owned()) }
}

impl ContainerArgs {
    /// Returns what is asked of runtimes; `None`: nothing.
    pub(in crate::app) fn options(&self) -> Option<ContainersOptions> {
        (!self.no_container_runtime).then(|| ContainersOptions {
            sockets: self.container_runtime.clone(),
            pod_labels: self.pod_label.iter().cloned().collect(),
            pod_annotations: self.pod_annotation.iter().cloned().collect(),
            wait: self.container_wait,
            ..ContainersOptions::default()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockets_are_absolute_paths_or_addresses_as_kubernetes_has_them() {
        assert_eq!(absolute("unix:///run/x.sock"), Ok(PathBuf::from("/run/x.sock")));
        assert_eq!(absolute("/run/x.sock"), Ok(PathBuf::from("/run/x.sock")));
        assert!(absolute("run/x.sock").is_err());
    }
}
