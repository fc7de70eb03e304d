//! Requests that a kubelet makes of a pod's manifest, for its runtime.

use jvmprof_daemon::proto::cri::security_profile::ProfileType;
use jvmprof_daemon::proto::cri::{
    Capability, Int64Value, LinuxContainerConfig, LinuxContainerResources, LinuxContainerSecurityContext,
    NamespaceOption, SecurityProfile,
};
use serde_json::Value;

/// What containerd and the kubelet hide of `/proc` and `/sys`, and make read-only, unless a pod
/// asks for it (Kubernetes `pkg/securitycontext/util.go`).
const MASKED: [&str; 10] = [
    "/proc/asound",
    "/proc/acpi",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/sys/firmware",
];
const READ_ONLY: [&str; 5] = ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"];

/// Resources and security context of a container of this pod.
pub(crate) fn linux(pod: &Value, container: &Value, namespaces: NamespaceOption) -> LinuxContainerConfig {
    let security = &container["securityContext"];
    let id = |key| security_setting(pod, container, key).as_i64().map(|value| Int64Value { value });
    LinuxContainerConfig {
        resources: Some(LinuxContainerResources {
            memory_limit_in_bytes: bytes(&container["resources"]["limits"]["memory"]),
            cpu_shares: shares(&container["resources"]["requests"]["cpu"]),
            ..LinuxContainerResources::default()
        }),
        security_context: Some(LinuxContainerSecurityContext {
            capabilities: Some(Capability {
                add_capabilities: strings(&security["capabilities"]["add"]),
                drop_capabilities: strings(&security["capabilities"]["drop"]),
            }),
            privileged: security["privileged"] == true,
            namespace_options: Some(namespaces),
            run_as_user: Some(id("runAsUser").expect("it is said")),
            run_as_group: Some(id("runAsGroup").expect("it is said")),
            readonly_rootfs: security["readOnlyRootFilesystem"].as_bool().expect("it is said"),
            supplemental_groups: pod["securityContext"]["fsGroup"].as_i64().into_iter().collect(),
            no_new_privs: security["allowPrivilegeEscalation"] == false,
            masked_paths: MASKED.map(str::to_owned).to_vec(),
            readonly_paths: READ_ONLY.map(str::to_owned).to_vec(),
            seccomp: Some(SecurityProfile {
                profile_type: seccomp(security_setting(pod, container, "seccompProfile")).into(),
            }),
        }),
    }
}

/// A setting of a container's security context, else of its pod's.
fn security_setting<'a>(pod: &'a Value, container: &'a Value, key: &str) -> &'a Value {
    match &container["securityContext"][key] {
        Value::Null => &pod["securityContext"][key],
        value => value,
    }
}

fn seccomp(profile: &Value) -> ProfileType {
    assert_eq!(profile["type"], "RuntimeDefault");
    ProfileType::RuntimeDefault
}

pub(crate) fn text(value: &Value) -> String {
    value.as_str().unwrap_or_else(|| panic!("{value} is no text")).to_owned()
}

pub(crate) fn strings(value: &Value) -> Vec<String> {
    value.as_array().into_iter().flatten().map(text).collect()
}

/// As a kubelet does it: 1024 a CPU.
fn shares(value: &Value) -> i64 {
    let number = text(value).strip_suffix('m').and_then(|number| number.parse::<i64>().ok());
    number.unwrap_or_else(|| panic!("{value} isn't in thousandths of a CPU")) * 1024 / 1000
}

fn bytes(value: &Value) -> i64 {
    let text = text(value);
    let (number, shift) = match (text.strip_suffix("Mi"), text.strip_suffix("Gi")) {
        (Some(number), _) => (number, 20),
        (None, Some(number)) => (number, 30),
        (None, None) => panic!("{text} is neither in Mi nor in Gi"),
    };
    number.parse::<i64>().unwrap_or_else(|_| panic!("{text} is no size")) << shift
}
