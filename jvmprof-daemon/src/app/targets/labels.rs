//! What is known of a process, as labels: those of its series, and the `__meta_` ones that only rules see.

use std::path::Path;

use crate::process::{Process, runtime};
use crate::profile::model::LabelSet;
use crate::symbolize::JvmFacts;

/// Characters of a label's value: command lines and paths are anyone's to choose.
const MAX_VALUE: usize = 1024;

/// The labels of a process's series. `jvm`: what is known of it if it is a JVM that can be read; one that can't yet is
/// known by the file it maps.
pub fn labels_of(process: &Process, jvm: Option<&JvmFacts>, node: &str) -> LabelSet {
    let mut labels = own_labels(process, jvm);
    put(&mut labels, "node", node);
    labels
}

/// The same without `node`.
pub(super) fn own_labels(process: &Process, jvm: Option<&JvmFacts>) -> LabelSet {
    let mut labels = LabelSet::new();
    put(&mut labels, "pid", &process.pid.to_string());
    put(&mut labels, "comm", &process.comm);
    put(&mut labels, "runtime", if jvm.is_some() { "jvm" } else { runtime::runtime(process) });
    if let Some(executable) = process.executable() {
        put(&mut labels, "executable", &executable.to_string_lossy());
    }
    if let Some(JvmFacts { version, main_class }) = jvm {
        put(&mut labels, "jvm_version", version);
        put(&mut labels, "jvm_main_class", main_class.as_deref().unwrap_or_default());
    }
    if let Some(cgroup) = process.cgroup() {
        put(&mut labels, "systemd_unit", cgroup.unit.as_deref().unwrap_or_default());
        if let Some(container) = &cgroup.container {
            put(&mut labels, "container_id", &container.id);
        }
    }
    labels
}

/// Adds what rules may also choose by.
pub(super) fn add_meta(labels: &mut LabelSet, process: &Process, jvm: Option<&JvmFacts>) {
    let mut meta = |name: &str, value: &str| put(labels, &format!("__meta_{name}"), value);
    meta("process_pid", &process.pid.to_string());
    meta("process_inner_pid", &process.inner_pid().to_string());
    meta("process_comm", &process.comm);
    meta("process_runtime", if jvm.is_some() { "jvm" } else { runtime::runtime(process) });
    if let Some(executable) = process.executable() {
        let name = Path::new(&executable).file_name().unwrap_or_default();
        meta("process_executable", &executable.to_string_lossy());
        meta("process_executable_name", &name.to_string_lossy());
    }
    if let Some(build_id) = process.main_mapping().and_then(|mapping| mapping.build_id) {
        meta("process_executable_build_id", &build_id.to_string());
    }
    if let Some(facts) = process.facts() {
        meta("process_ppid", &facts.parent.to_string());
        meta("process_cmdline", &facts.cmdline);
        meta("process_uid", &facts.uid.to_string());
        meta("process_gid", &facts.gid.to_string());
    }
    if let Some(JvmFacts { version, main_class }) = jvm {
        meta("jvm_version", version);
        meta("jvm_main_class", main_class.as_deref().unwrap_or_default());
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

/// A label with a value; one without is none.
pub(super) fn put(labels: &mut LabelSet, name: &str, value: &str) {
    if value.is_empty() {
        return;
    }
    let value = value.chars().take(MAX_VALUE).map(|it| if it.is_control() { ' ' } else { it }).collect();
    labels.insert(name.to_owned(), value);
}
