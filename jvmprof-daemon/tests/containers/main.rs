//! Pods of a real containerd, profiled: whose samples they are said to be; and what is deployed, in
//! its containers. Needs root, containerd, runc, Docker and helm.
#![allow(clippy::expect_used, clippy::unwrap_used, reason = "a test may panic")]

mod collector;
mod daemonset;
mod docker;
mod image;
mod install_md;
mod kubelet;
mod node;
mod polls;
mod requests;
#[path = "../support/mod.rs"]
mod support;

use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::path::Path;
use std::process::Child;

use jvmprof_daemon::export::store::{Matcher, ProfileRef, Store, TimeRange, UnixNanos};
use jvmprof_daemon::profile::model::LabelSet;
use jvmprof_daemon::proto::cri::{ContainerConfig, NamespaceMode};
use node::{Cgroups, Node, Pod, import_images, node_namespaces};
use polls::Polls;
use support::{go_pprof_top, http_get, jvmprof, scratch, series, signal};

const UID: &str = "8f1d2c3b-4a59-4687-9756-0123456789ab";

fn java() -> ContainerConfig {
    let command = ["/jre/bin/java", "-XX:+UseSerialGC", "-Xmx64m", "-cp", "/app", "Load", "0"];
    ContainerConfig { command: command.map(str::to_owned).to_vec(), ..ContainerConfig::default() }
}

/// A daemon that pushes into a folder every other second.
struct Daemon {
    child: Child,
    dir: std::path::PathBuf,
}

impl Daemon {
    fn start(dir: &Path, socket: &Path, args: &[&str]) -> Self {
        let child = jvmprof()
            .args(["daemon", "--push-interval", "2s", "--node", "node-7", "--pod-label", "app"])
            .args(["--pod-annotation", "acme.example/*", "--local-store-directory"])
            .arg(dir.join("store"))
            .arg("--container-runtime")
            .arg(socket)
            .arg("--http-address")
            .arg(format!("unix:{}", dir.join("http").display()))
            .args(args)
            .env("NO_COLOR", "1")
            .stderr(fs::File::create(dir.join("log")).unwrap())
            .spawn()
            .unwrap();
        Self { child, dir: dir.to_owned() }
    }

    fn profiles(&mut self) -> Vec<Seen> {
        assert!(self.child.try_wait().unwrap().is_none(), "{}", self.log());
        // It may not have been made yet.
        Store::open_for_reading(&self.dir.join("store")).map(|store| seen(&store)).unwrap_or_default()
    }

    fn until_stacks_are_held(&mut self) {
        // There is no page before the first window is open.
        let held =
            |(status, page): (u16, String)| status == 200 && series(&page)["jvmprof_stacks_held"] > 0.0;
        let polls = Polls::start();
        while !http_get(&self.dir.join("http"), "/metrics").is_some_and(held) {
            assert!(self.child.try_wait().unwrap().is_none(), "{}", self.log());
            polls.wait(|| self.log());
        }
    }

    fn until_sampled(&mut self, pids: &BTreeSet<String>) {
        let polls = Polls::start();
        loop {
            let sampled = samples(of_pids(&self.profiles(), pids));
            if sampled >= ENOUGH {
                return;
            }
            polls.wait(|| format!("{sampled} samples: {}", self.log()));
        }
    }

    fn log(&self) -> String {
        fs::read_to_string(self.dir.join("log")).unwrap_or_default()
    }

    fn end(mut self) -> Vec<Seen> {
        signal(self.child.id(), "TERM");
        assert!(self.child.wait().unwrap().success(), "{}", self.log());
        seen(&Store::open_for_reading(&self.dir.join("store")).unwrap())
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

const EVER: TimeRange = TimeRange { start: UnixNanos(0), end: UnixNanos(i64::MAX) };

/// A profile in the folder.
struct Seen {
    labels: LabelSet,
    start: UnixNanos,
    samples: u64,
}

fn seen(store: &Store) -> Vec<Seen> {
    let series: HashMap<_, _> = store
        .series(EVER, &[])
        .into_iter()
        .map(|series| (series.fingerprint.clone(), series.labels))
        .collect();
    let seen = |profile: ProfileRef| {
        let labels = series.get(&profile.fingerprint)?.clone();
        Some(Seen { labels, start: profile.start, samples: profile.samples })
    };
    store.profiles(EVER, &[]).into_iter().filter_map(seen).collect()
}

/// The pids of a container, as its cgroup has them.
fn pids_of(container: &str) -> BTreeSet<String> {
    let all =
        fs::read_dir("/proc").unwrap().filter_map(|entry| entry.unwrap().file_name().into_string().ok());
    let is_inside = |pid: &String| {
        fs::read_to_string(format!("/proc/{pid}/cgroup")).is_ok_and(|it| it.contains(container))
    };
    all.filter(|name| name.parse::<u32>().is_ok()).filter(is_inside).collect()
}

/// Samples that a JVM must have had before its labels are looked at.
const ENOUGH: u64 = 100;

fn samples<'a>(profiles: impl IntoIterator<Item = &'a Seen>) -> u64 {
    profiles.into_iter().map(|profile| profile.samples).sum()
}

fn of_pids<'a>(profiles: &'a [Seen], pids: &BTreeSet<String>) -> Vec<&'a Seen> {
    profiles
        .iter()
        .filter(|profile| profile.labels.get("pid").is_some_and(|pid| pids.contains(pid)))
        .collect()
}

fn check(labels: &LabelSet, container: &str) {
    for (name, value) in [
        ("namespace", "shop"),
        ("pod", "cart-0"),
        ("container", "app"),
        ("container_id", container),
        ("node", "node-7"),
        ("runtime", "jvm"),
        ("pod_label_app", "cart"),
        ("pod_annotation_acme_example_team", "checkout"),
    ] {
        assert_eq!(labels.get(name).map(String::as_str), Some(value), "{name} of {labels:?}");
    }
    assert!(!labels.contains_key("pod_label_tier"), "it isn't on the list: {labels:?}");
}

fn cart(node: &mut Node) -> Pod {
    node.pod("shop", "cart-0", UID, node_namespaces(NamespaceMode::Pod))
}

fn pods_are_named(cgroups: Cgroups) {
    let dir = scratch();
    let mut node = Node::start(dir.path(), cgroups);
    import_images(&node, dir.path());
    let mut daemon = Daemon::start(dir.path(), &node.socket(), &[]);
    let pod = cart(&mut node);
    let container = node.container(&pod, "app", "localhost/jvm:1", java());
    let pids = pids_of(&container);
    assert!(!pids.is_empty(), "nothing runs: {}", node.output(&pod, "app"));
    let cgroup = fs::read_to_string(format!("/proc/{}/cgroup", pids.first().unwrap())).unwrap();
    let is_unified = |line: &&str| line.starts_with("0::") && line.contains(&container);
    match cgroups {
        Cgroups::Unified => assert!(cgroup.lines().any(|line| is_unified(&line)), "{cgroup}"),
        Cgroups::Hosts => eprintln!("{cgroup}"),
    }
    daemon.until_sampled(&pids);
    let profiles = daemon.end();
    // The first moments, when it isn't a JVM yet, have no less of a pod.
    for profile in of_pids(&profiles, &pids) {
        assert_eq!(profile.labels.get("pod").map(String::as_str), Some("cart-0"), "{:?}", profile.labels);
    }
    let jvm = |profile: &&Seen| profile.labels.get("runtime").is_some_and(|it| it == "jvm");
    let jvms: Vec<_> = of_pids(&profiles, &pids).into_iter().filter(jvm).collect();
    assert!(samples(jvms.iter().copied()) > 0);
    for profile in jvms {
        check(&profile.labels, &container);
    }
}

#[test]
fn pods_are_named_in_the_hosts_cgroups() {
    pods_are_named(Cgroups::Hosts);
}

#[test]
fn pods_are_named_in_version_2_cgroups() {
    pods_are_named(Cgroups::Unified);
}

#[test]
fn samples_wait_for_a_runtime_that_answers_late() {
    let dir = scratch();
    let mut node = Node::start(dir.path(), Cgroups::Hosts);
    import_images(&node, dir.path());
    let pod = cart(&mut node);
    let container = node.container(&pod, "app", "localhost/jvm:1", java());
    let pids = pids_of(&container);
    node.freeze(true);
    let mut daemon = Daemon::start(dir.path(), &node.socket(), &["--container-wait", "10m"]);
    // A JVM's first samples may be late for their windows, when it's being read on a busy machine.
    daemon.until_stacks_are_held();
    // Other processes' samples don't wait: when they have come three times, three windows have
    // passed.
    let before: BTreeSet<_> = daemon.profiles().iter().map(|profile| profile.start.0).collect();
    let mut windows = BTreeSet::new();
    let polls = Polls::start();
    while windows.len() < 3 {
        let started = daemon.profiles().into_iter().map(|profile| profile.start.0);
        windows.extend(started.filter(|start| !before.contains(start)));
        polls.wait(|| format!("{windows:?}: {}", daemon.log()));
    }
    assert_eq!(samples(of_pids(&daemon.profiles(), &pids)), 0, "they went out without their pod");
    node.freeze(false);
    daemon.until_sampled(&pids);
    let log = daemon.log();
    let profiles = daemon.end();
    for profile in of_pids(&profiles, &pids) {
        check(&profile.labels, &container);
    }
    let early: BTreeSet<_> = of_pids(&profiles, &pids).iter().map(|profile| profile.start.0).collect();
    assert!(
        early.intersection(&windows).count() >= 2,
        "samples keep their window's time: {early:?} {windows:?}\n{log}"
    );
}

#[test]
fn samples_do_not_wait_longer_than_told() {
    let dir = scratch();
    let mut node = Node::start(dir.path(), Cgroups::Hosts);
    import_images(&node, dir.path());
    let pod = cart(&mut node);
    let container = node.container(&pod, "app", "localhost/jvm:1", java());
    let pids = pids_of(&container);
    node.freeze(true);
    let mut daemon = Daemon::start(dir.path(), &node.socket(), &["--container-wait", "1s"]);
    daemon.until_sampled(&pids);
    node.freeze(false);
    let log = daemon.log();
    let profiles = daemon.end();
    let labels = &of_pids(&profiles, &pids)[0].labels;
    assert_eq!(labels.get("container_id"), Some(&container));
    assert!(!labels.contains_key("pod"), "{labels:?}");
    assert!(log.contains("without_container_metadata"), "{log}");
}

/// The manifest's container, with its capabilities, mounts and seccomp profile, sees a JVM of
/// another pod.
#[test]
fn the_daemon_set_profiles_other_pods() {
    let dir = scratch();
    let mut node = Node::start(dir.path(), Cgroups::Hosts);
    import_images(&node, dir.path());
    node.import(&daemonset::image());
    let pod = cart(&mut node);
    let container = node.container(&pod, "app", "localhost/jvm:1", java());
    let pids = pids_of(&container);

    let state = dir.path().join("state");
    fs::create_dir_all(&state).unwrap();
    let runtime = node.socket().parent().unwrap().to_owned();
    let moved = vec![("/run/containerd".to_owned(), runtime), ("/var/lib/jvmprof".to_owned(), state.clone())];
    // No backend: profiles go where what waits for one would.
    let settings = "push-interval = \"2s\"\npod-label = [\"app\"]\npod-annotation = [\"acme.example/*\"]\n";
    let manifest = daemonset::Manifest::read(dir.path(), moved);
    let host = node_namespaces(NamespaceMode::Node);
    let own = node.pod("jvmprof", "jvmprof-x", "11111111-2222-3333-4444-555555555555", host);
    node.container(&own, "jvmprof", "localhost/jvmprof:1", manifest.container("node-7", settings));

    let profiles = || Store::open_for_reading(&state).map(|store| seen(&store)).unwrap_or_default();
    let is_jvm = |profile: &&Seen| profile.labels.get("runtime").is_some_and(|it| it == "jvm");
    let polls = Polls::start();
    loop {
        let profiles = profiles();
        let jvm: Vec<_> = of_pids(&profiles, &pids).into_iter().filter(is_jvm).collect();
        if samples(jvm.iter().copied()) >= ENOUGH {
            jvm.iter().for_each(|profile| check(&profile.labels, &container));
            break;
        }
        let log = node.output(&own, "jvmprof");
        assert!(!pids_of(&own.config.metadata.as_ref().unwrap().uid).is_empty(), "{log}");
        polls.wait(|| log);
    }
    let store = Store::open_for_reading(&state).unwrap();
    let matcher = [Matcher::equal("container_id", &*container)];
    let profile = store.profiles(EVER, &matcher).into_iter().max_by_key(|profile| profile.samples).unwrap();
    let file = dir.path().join("profile.pb.gz");
    fs::write(&file, store.read(&profile).unwrap()).unwrap();
    let top = go_pprof_top(&file);
    assert!(top.keys().any(|name| name.contains("Load.")), "{top:?}\n{}", node.output(&own, "jvmprof"));
    let pid = pids_of(&own.config.metadata.as_ref().unwrap().uid).into_iter().find(|pid| {
        fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|comm| comm.trim() == "jvmprof")
    });
    let status = fs::read_to_string(format!("/proc/{}/status", pid.unwrap())).unwrap();
    // DAC_READ_SEARCH, SYS_PTRACE, PERFMON, BPF, CHECKPOINT_RESTORE; a filter of system calls;
    // nothing to gain by exec.
    for line in ["CapEff:\t000001c000080004", "CapBnd:\t000001c000080004", "Seccomp:\t2", "NoNewPrivs:\t1"] {
        assert!(status.contains(line), "{line}: {status}");
    }
    let log = node.output(&own, "jvmprof");
    for word in ["denied", "not permitted", "CAP_", "kptr_restrict"] {
        assert!(!log.contains(word), "{word}: {log}");
    }
}

#[test]
fn containers_of_docker_have_their_names() {
    let dir = scratch();
    let docker = docker::Docker::start(dir.path());
    let container = docker.busy("hopper", "app=cart");
    let pids = pids_of(&container);
    let mut daemon = Daemon::start(dir.path(), &docker.socket(), &[]);
    daemon.until_sampled(&pids);
    for profile in of_pids(&daemon.end(), &pids) {
        let label = |name: &str| profile.labels.get(name).map(String::as_str);
        assert_eq!(label("container_id"), Some(&*container), "{:?}", profile.labels);
        assert_eq!((label("container"), label("pod")), (Some("hopper"), None), "{:?}", profile.labels);
        assert_eq!(label("pod_label_app"), Some("cart"), "{:?}", profile.labels);
    }
}
