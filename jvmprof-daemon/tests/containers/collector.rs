//! The collector of its chart: the container that helm's manifest asks for.

use std::collections::BTreeSet;
use std::fs::{self, File, Permissions};
use std::net::TcpListener;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use jvmprof_daemon::export::store::Store;
use jvmprof_daemon::proto::cri::{ContainerConfig, Mount, NamespaceMode};
use serde_json::Value;

use crate::daemonset::{self, deploy};
use crate::docker::BUSY;
use crate::image::{self, run};
use crate::kubelet::{self, strings, text};
use crate::node::{Cgroups, Node, node_namespaces};
use crate::polls::Polls;
use crate::requests::curl;
use crate::support::keys::Keys;
use crate::support::{KilledChild, Workload, compile, jvmprof, scratch, signal};
use crate::{pids_of, samples, seen};

pub(crate) const TOKEN: &str = "correct-horse-battery";

/// The user and the group that the chart names.
const NOBODY: u32 = 65532;

/// The StatefulSet of the chart, with Secrets of these names: `tls`, `token`.
struct Manifest {
    pod: Value,
    container: Value,
    /// The volumes that the chart claims, by name.
    claims: Vec<String>,
    /// The mode of all Secrets' files.
    mode: u32,
    /// Where volumes are.
    dir: PathBuf,
}

impl Manifest {
    fn render(dir: &Path) -> Self {
        let helm = std::env::var("JVMPROF_TEST_HELM")
            .expect("JVMPROF_TEST_HELM names helm: run `cargo xtask test`, which builds it");
        let mut command = Command::new(helm);
        command.args(["template", "jvmprof-collector"]).arg(deploy().join("helm/jvmprof-collector"));
        command.args(["--kube-version", "1.34.0", "--show-only", "templates/statefulset.yaml"]);
        let rendered = run(command.args(["--set", "token.secretName=token,tls.secretName=tls"]));
        let manifest: Value = serde_saphyr::from_str(&rendered).expect("it is YAML");
        let spec = &manifest["spec"];
        let pod = spec["template"]["spec"].clone();
        assert_eq!(pod["containers"].as_array().map(Vec::len), Some(1));
        let claims = spec["volumeClaimTemplates"].as_array().expect("a list").iter();
        let claims = claims.map(|claim| text(&claim["metadata"]["name"])).collect();
        // Of YAML 1.1, as Kubernetes reads it: octal.
        let modes = rendered.lines().filter_map(|line| line.trim().strip_prefix("defaultMode: 0"));
        let modes: BTreeSet<&str> = modes.collect();
        assert_eq!(modes.len(), 1, "{modes:?}");
        let mode = modes.first().and_then(|mode| u32::from_str_radix(mode, 8).ok()).expect("a mode");
        Self { container: pod["containers"][0].clone(), pod, claims, mode, dir: dir.join("volumes") }
    }

    /// As a kubelet asks a runtime for it, but for the port.
    fn container(&self, port: u16, keys: &Keys) -> ContainerConfig {
        let mut args = strings(&self.container["args"]);
        let listen = args.iter_mut().find(|arg| **arg == "--listen=0.0.0.0:7070");
        *listen.expect("it listens") = format!("--listen=0.0.0.0:{port}");
        ContainerConfig {
            args,
            mounts: self.mounts(keys),
            linux: Some(kubelet::linux(&self.pod, &self.container, node_namespaces(NamespaceMode::Pod))),
            ..ContainerConfig::default()
        }
    }

    /// What kubelets ask for, of the container's one port, by TLS.
    fn probed_path(&self) -> String {
        let port = &self.container["ports"][0];
        assert_eq!(port["containerPort"], 7070);
        let [liveness, readiness] =
            ["livenessProbe", "readinessProbe"].map(|name| &self.container[name]["httpGet"]);
        assert_eq!(liveness, readiness);
        assert_eq!((&liveness["scheme"], &liveness["port"]), (&Value::from("HTTPS"), &port["name"]));
        text(&liveness["path"])
    }

    fn mounts(&self, keys: &Keys) -> Vec<Mount> {
        let mounts = self.container["volumeMounts"].as_array().expect("a list").iter();
        let mount = |mount: &Value| Mount {
            container_path: text(&mount["mountPath"]),
            host_path: self.volume(&text(&mount["name"]), keys).display().to_string(),
            readonly: mount["readOnly"] == true,
        };
        mounts.map(mount).collect()
    }

    fn volume(&self, name: &str, keys: &Keys) -> PathBuf {
        if self.claims.iter().any(|claim| claim == name) {
            return self.claimed_volume(name);
        }
        let volumes = self.pod["volumes"].as_array().expect("a list");
        let volume = volumes.iter().find(|volume| volume["name"] == name).expect("each mount has its volume");
        let read = |file: &str| fs::read(keys.path(file)).expect("it was written");
        match volume["secret"]["secretName"].as_str() {
            Some("tls") => {
                self.secret(name, &[("tls.crt", read("server.pem")), ("tls.key", read("server.key"))])
            }
            Some("token") => self.secret(name, &[("token", TOKEN.into())]),
            _ => panic!("{volume} is nothing that the test has"),
        }
    }

    /// A fresh volume: root's, and the pod's group may write.
    fn claimed_volume(&self, name: &str) -> PathBuf {
        let folder = self.dir.join(name);
        fs::create_dir_all(&folder).expect("the folder is writable");
        self.set_group_and_mode(&folder, 0o2775);
        folder
    }

    /// A Secret's files, behind the links by which kubelets exchange all of them at once.
    fn secret(&self, name: &str, files: &[(&str, Vec<u8>)]) -> PathBuf {
        let volume = self.dir.join(name);
        let data = volume.join("..2026_11_29");
        fs::create_dir_all(&data).expect("the folder is writable");
        for (key, bytes) in files {
            fs::write(data.join(key), bytes).expect("the folder is writable");
            self.set_group_and_mode(&data.join(key), self.mode);
            symlink(Path::new("..data").join(key), volume.join(key)).expect("the folder is writable");
        }
        symlink("..2026_11_29", volume.join("..data")).expect("the folder is writable");
        for folder in [data, volume.clone()] {
            self.set_group_and_mode(&folder, 0o2755);
        }
        volume
    }

    fn set_group_and_mode(&self, path: &Path, mode: u32) {
        let group = self.pod["securityContext"]["fsGroup"].as_u64().and_then(|id| u32::try_from(id).ok());
        chown(path, Some(0), Some(group.expect("volumes have a group"))).expect("it is ours");
        fs::set_permissions(path, Permissions::from_mode(mode)).expect("it is ours");
    }
}

/// Runs a daemon that pushes until its log is as wanted, or something else.
fn push_until(dir: &Path, args: &[&str], is_done: impl Fn(&str) -> bool) {
    fs::create_dir_all(dir).unwrap();
    let log = dir.join("log");
    let daemon = jvmprof()
        .args(["daemon", "--push-interval", "2s", "--no-container-runtime", "--spool-directory"])
        .arg(dir.join("spool"))
        .args(args)
        .env("NO_COLOR", "1")
        .stderr(File::create(&log).unwrap())
        .spawn();
    let mut daemon = KilledChild(daemon.unwrap());
    let text = || fs::read_to_string(&log).unwrap_or_default();
    let polls = Polls::start();
    while !is_done(&text()) {
        assert!(daemon.0.try_wait().unwrap().is_none(), "{}", text());
        polls.wait(text);
    }
    signal(daemon.0.id(), "TERM");
    assert!(daemon.0.wait().unwrap().success(), "{}", text());
}

fn free_port() -> u16 {
    TcpListener::bind("0.0.0.0:0").unwrap().local_addr().unwrap().port()
}

/// The process of this name in a pod.
fn pid_of(pod: &str, name: &str) -> Option<u32> {
    let is_named =
        |pid: &String| fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|comm| comm.trim() == name);
    pids_of(pod).into_iter().find(is_named)?.parse().ok()
}

/// Not root, on a root that is read-only, with a Secret's files that are its group's to read.
#[test]
fn the_collector_of_the_chart_takes_pushes_over_tls_with_the_token_alone() {
    let dir = scratch();
    let keys = Keys::make();
    let _load = Workload::start(&compile(dir.path(), "busy", BUSY, &["-O1"]), &[]);
    let mut node = Node::start(dir.path(), Cgroups::Hosts);
    node.import(&image::pause(dir.path()));
    node.import(&daemonset::image());
    let (manifest, port) = (Manifest::render(dir.path()), free_port());
    let uid = "22222222-3333-4444-5555-666666666666";
    let own = node.pod("jvmprof", "jvmprof-collector-0", uid, node_namespaces(NamespaceMode::Pod));
    let id = node.container(&own, "collector", "localhost/jvmprof:1", manifest.container(port, &keys));
    let log = || node.output(&own, "collector");

    let (address, ca) = (format!("https://localhost:{port}"), keys.path("ca.pem"));
    let health = format!("{address}{}", manifest.probed_path());
    // A kubelet doesn't look at the certificate.
    let polls = Polls::start();
    while curl(None, &["--insecure", &health]) != ("200".to_owned(), "ok\n".to_owned()) {
        assert!(node.is_running(&id), "{}", log());
        polls.wait(log);
    }
    assert_eq!(curl(None, &["--cacert", &ca, &address]).0, "401");
    let bearer = format!("Authorization: Bearer {TOKEN}");
    assert_eq!(curl(None, &["--cacert", &ca, "-H", &bearer, &address]).0, "200");

    let store = dir.path().join("volumes/profiles/collector");
    let stored = || Store::open_for_reading(&store).map_or(0, |store| samples(&seen(&store)));
    let to = ["--remote-store-address", &address, "--remote-store-ca-file", &ca];
    push_until(&dir.path().join("without"), &to, |log| log.contains("bearer token is missing or wrong"));
    assert_eq!(stored(), 0, "{}", log());
    let token = dir.path().join("token");
    fs::write(&token, TOKEN).unwrap();
    let token = token.display().to_string();
    let with_token = [&to[..], &["--remote-store-bearer-token-file", &token]].concat();
    push_until(&dir.path().join("with"), &with_token, |_| stored() > 0);

    let owner = fs::metadata(&store).unwrap();
    assert_eq!((owner.uid(), owner.gid()), (NOBODY, NOBODY), "{}", log());
    let pid = pid_of(uid, "jvmprof").unwrap_or_else(|| panic!("it has ended: {}", log()));
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let ids = [NOBODY.to_string().as_str(); 4].join("\t");
    for line in [
        &*format!("Uid:\t{ids}\n"),
        &*format!("Gid:\t{ids}\n"),
        "CapEff:\t0000000000000000\n",
        "CapBnd:\t0000000000000000\n",
        "NoNewPrivs:\t1\n",
        "Seccomp:\t2\n",
    ] {
        assert!(status.contains(line), "{line}: {status}");
    }
    let mounts = fs::read_to_string(format!("/proc/{pid}/mounts")).unwrap();
    let is_read_only = |line: &str| {
        let fields: Vec<&str> = line.split(' ').collect();
        fields[1] == "/" && fields[3].split(',').any(|option| option == "ro")
    };
    assert!(mounts.lines().any(is_read_only), "{mounts}");
    for word in ["denied", "not permitted", "Read-only"] {
        assert!(!log().contains(word), "{word}: {}", log());
    }
}
