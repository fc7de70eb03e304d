//! Any bytes as what container runtimes answer, and as a process's control groups: values are
//! bounded and not empty, and labels are those that are allowed.
#![no_main]

use std::collections::BTreeMap;

use jvmprof_daemon::process::cgroup::Cgroup;
use jvmprof_daemon::process::container::cri_client;
use jvmprof_daemon::process::container::docker_client;
use jvmprof_daemon::process::container::{ContainerMetadata, ContainersOptions, MAX_VALUE_BYTES};
use jvmprof_daemon::proto::cri::{ListContainersResponse, ListPodSandboxResponse};
use libfuzzer_sys::fuzz_target;
use prost::Message as _;

fuzz_target!(|data: &[u8]| {
    let names = || ["app", "team*"].map(str::to_owned).into();
    let options =
        ContainersOptions { pod_labels: names(), pod_annotations: names(), ..ContainersOptions::default() };
    if let Ok(metadata) = docker_client::parse_answer(data, &options) {
        check(&metadata);
    }
    let containers = ListContainersResponse::decode(data).map(|it| it.containers).unwrap_or_default();
    let pods = ListPodSandboxResponse::decode(data).map(|it| it.items).unwrap_or_default();
    // The same bytes can be both messages.
    check(&cri_client::metadata(containers.first().cloned(), pods.first().cloned(), &options));
    check(&cri_client::metadata(containers.into_iter().next(), None, &options));

    let text = String::from_utf8_lossy(data);
    let cgroup = Cgroup::parse(&text);
    assert!(cgroup.path.is_empty() || text.contains(&cgroup.path));
    for name in [&cgroup.unit, &cgroup.user_unit, &cgroup.slice].into_iter().flatten() {
        assert!(!name.contains('/') && cgroup.path.contains(name.as_str()));
    }
    if let Some(container) = &cgroup.container {
        let is_lxc = container.runtime == Some("lxc");
        assert!(is_lxc || container.id.len() == 64 && container.id.bytes().all(|it| it.is_ascii_hexdigit()));
        assert!(cgroup.path.contains(&container.id) && cgroup.unit.is_none());
    }
});

fn check(metadata: &ContainerMetadata) {
    let ContainerMetadata { namespace, pod, pod_uid, container, image, pod_labels, pod_annotations } =
        metadata;
    let is_value = |text: &String| (1..=MAX_VALUE_BYTES).contains(&text.len());
    assert!([namespace, pod, pod_uid, container, image].into_iter().flatten().all(is_value));
    let is_allowed =
        |(name, value): (&String, &String)| (name == "app" || name.starts_with("team")) && is_value(value);
    let all = |labels: &BTreeMap<String, String>| labels.iter().all(is_allowed);
    assert!(all(pod_labels) && all(pod_annotations));
}
