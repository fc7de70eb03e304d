//! Labels of a process: those of its series, and the `__meta_` ones that only rules see.

use std::path::Path;

use crate::process::service_identity::ServiceIdentity;
use crate::process::{Process, language_runtime};
use crate::profile::model::{LabelSet, label_names};
use crate::symbolize::JvmLabels;

/// Maximum number of characters of a label's value: anyone may choose command lines and paths.
/// Readers of values accept more than these, so that values are cut here, and counted.
const MAX_VALUE: usize = 1024;

/// A label set under construction.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::pipeline) struct Labels {
    pub(in crate::pipeline) set: LabelSet,
    /// Values that were too long.
    pub(super) cut: u64,
}

impl Labels {
    /// Adds a label; an empty value removes it.
    pub(in crate::pipeline) fn put(&mut self, name: &str, value: &str) {
        if value.is_empty() {
            return;
        }
        let mut chars = value.chars().map(|it| if it.is_control() { ' ' } else { it });
        let value = chars.by_ref().take(MAX_VALUE).collect();
        self.cut += u64::from(chars.next().is_some());
        self.set.insert(name.to_owned(), value);
    }
}

/// Returns the labels of a process's series. `jvm` has those of a readable JVM; a JVM that isn't
/// readable yet is recognized by the file it maps.
pub fn labels_of(process: &Process, jvm: Option<&JvmLabels>, node: &str) -> LabelSet {
    let mut labels = own_labels(process, jvm);
    labels.put("node", node);
    labels.set
}

/// Returns the labels without `node`.
pub(super) fn own_labels(process: &Process, jvm: Option<&JvmLabels>) -> Labels {
    let mut labels = Labels::default();
    labels.put("pid", &process.pid.to_string());
    labels.put("comm", &process.comm);
    labels.put("runtime", runtime(process, jvm));
    if let Some(executable) = process.executable() {
        labels.put("executable", &executable.to_string_lossy());
    }
    if let Some(JvmLabels { version, main_class }) = jvm {
        labels.put("jvm_version", version);
        labels.put(label_names::MAIN_CLASS, main_class.as_deref().unwrap_or_default());
    }
    let service = service(process, jvm);
    labels.put("service_name", service.name.as_deref().unwrap_or_default());
    labels.put("service_namespace", service.namespace.as_deref().unwrap_or_default());
    labels.put("deployment_environment", service.environment.as_deref().unwrap_or_default());
    if let Some(cgroup) = process.cgroup() {
        labels.put("systemd_unit", cgroup.unit.as_deref().unwrap_or_default());
        if let Some(container) = &cgroup.container {
            labels.put("container_id", &container.id);
        }
    }
    labels
}

fn runtime(process: &Process, jvm: Option<&JvmLabels>) -> &'static str {
    if jvm.is_some() { "jvm" } else { language_runtime::language_runtime(process) }
}

/// Returns the service that a process says it is: in its context, else in its environment, else in
/// the arguments of a JVM.
pub(super) fn service(process: &Process, jvm: Option<&JvmLabels>) -> ServiceIdentity {
    let is_jvm = runtime(process, jvm) == "jvm";
    let started = process.info().map(|info| info.service.identity(is_jvm)).unwrap_or_default();
    match process.context() {
        Some(context) => context.service.clone().or(&started),
        None => started,
    }
}

/// Adds labels that only rules see.
pub(super) fn add_meta(labels: &mut Labels, process: &Process, jvm: Option<&JvmLabels>) {
    let mut meta = |name: &str, value: &str| labels.put(&format!("__meta_{name}"), value);
    meta("process_pid", &process.pid.to_string());
    meta("process_inner_pid", &process.inner_pid().to_string());
    meta("process_comm", &process.comm);
    meta("process_runtime", runtime(process, jvm));
    let service = service(process, jvm);
    meta("otel_service_name", service.name.as_deref().unwrap_or_default());
    meta("otel_service_namespace", service.namespace.as_deref().unwrap_or_default());
    meta("otel_deployment_environment", service.environment.as_deref().unwrap_or_default());
    for (name, value) in service.attributes.iter() {
        meta(&format!("otel_resource_{}", label_name(name)), value);
    }
    if let Some(executable) = process.executable() {
        let name = Path::new(&executable).file_name().unwrap_or_default();
        meta("process_executable", &executable.to_string_lossy());
        meta("process_executable_name", &name.to_string_lossy());
    }
    if let Some(build_id) = process.main_mapping().and_then(|mapping| mapping.build_id) {
        meta("process_executable_build_id", &build_id.to_string());
    }
    if let Some(facts) = process.info() {
        meta("process_ppid", &facts.parent.to_string());
        meta("process_cmdline", &facts.cmdline);
        meta("process_uid", &facts.uid.to_string());
        meta("process_gid", &facts.gid.to_string());
    }
    if let Some(JvmLabels { version, main_class }) = jvm {
        meta("jvm_version", version);
        meta(label_names::MAIN_CLASS, main_class.as_deref().unwrap_or_default());
    }
    let Some(cgroup) = process.cgroup() else { return };
    meta("cgroup_path", &cgroup.path);
    // As parca-agent calls it.
    meta("process_cgroup", &cgroup.path);
    meta("systemd_unit", cgroup.unit.as_deref().unwrap_or_default());
    meta("systemd_user_unit", cgroup.user_unit.as_deref().unwrap_or_default());
    meta("systemd_slice", cgroup.slice.as_deref().unwrap_or_default());
    if let Some(container) = &cgroup.container {
        meta("container_id", &container.id);
        meta("container_runtime", container.runtime.unwrap_or_default());
    }
    if let Some(pod) = &cgroup.pod {
        meta("kubernetes_pod_uid", &pod.uid);
        meta("kubernetes_pod_qos", pod.qos);
    }
}

/// Converts a name as Prometheus does: characters that a label's name may not have become
/// underscores.
pub fn label_name(name: &str) -> String {
    name.chars().map(|it| if it.is_ascii_alphanumeric() { it } else { '_' }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_cut_at_characters_and_counted() {
        let mut labels = Labels::default();
        labels.put("whole", &"é".repeat(MAX_VALUE));
        assert_eq!((labels.set["whole"].chars().count(), labels.cut), (MAX_VALUE, 0));
        labels.put("cut", &"é".repeat(MAX_VALUE + 1));
        assert_eq!((labels.set["cut"].chars().count(), labels.cut), (MAX_VALUE, 1));
        labels.put("none", "");
        assert!(!labels.set.contains_key("none"));
    }

    #[test]
    fn readers_of_a_value_accept_more_than_its_limit() {
        // Else it would be cut where nobody counts.
        let longest = (MAX_VALUE + 1) * char::MAX.len_utf8();
        assert!(crate::process::container::MAX_VALUE_BYTES >= longest);
        assert!(crate::process::procfs::MAX_CMDLINE_BYTES >= longest);
        assert!(crate::process::resource_attributes::MAX_VALUE_BYTES >= longest);
    }
}
