//! The commands that docs/install.md has for Docker, run as they stand there by a real one.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use jvmprof_daemon::export::store::Store;

use crate::collector::TOKEN;
use crate::daemonset;
use crate::docker::Docker;
use crate::polls::Polls;
use crate::requests::curl;
use crate::support::keys::Keys;
use crate::support::scratch;
use crate::{ENOUGH, of_pids, pids_of, samples, seen};

/// Words of the document's `docker run`, without these two and `--detach`.
fn commands() -> Vec<Vec<String>> {
    let document = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/install.md");
    let text = fs::read_to_string(document).expect("it is committed").replace("\\\n", " ");
    // No word has blanks inside.
    let words = |command: &str| -> Vec<String> {
        let words = command.split_whitespace().filter(|word| *word != "--detach");
        words.map(|word| word.replace('"', "")).collect()
    };
    text.lines().filter_map(|line| line.strip_prefix("docker run ")).map(words).collect()
}

/// Replaces words, each of which has to be there.
fn replace(words: &mut [String], replaced: &[(&str, String)]) {
    for (word, other) in replaced {
        let at = words.iter().position(|it| it == word);
        let at = at.unwrap_or_else(|| panic!("{word} isn't in {words:?}"));
        words[at].clone_from(other);
    }
}

/// Waits until the collector in a container answers; gives its first process.
fn wait_until_healthy(docker: &Docker, container: &str, url: &str, args: &[&str]) -> u32 {
    let health = format!("{url}/healthz");
    let polls = Polls::start();
    loop {
        let pid = docker.pid(container).unwrap_or_else(|| panic!("{}", docker.logs(container)));
        if curl(Some(pid), &[args, &[health.as_str()]].concat()).0 == "200" {
            return pid;
        }
        polls.wait(|| docker.logs(container));
    }
}

fn status(pid: u32) -> String {
    fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs")
}

/// Sees the processes of another container, and shows them on its page while it runs.
fn the_daemon_and_its_page(docker: &Docker, dir: &Path, mut daemon: Vec<String>, mut page: Vec<String>) {
    let state = dir.join("state");
    let volume = ("/var/lib/jvmprof:/var/lib/jvmprof", format!("{}:/var/lib/jvmprof", state.display()));
    let socket = format!("{}:/run/docker.sock:ro", docker.socket().display());
    let node = ("JVMPROF_NODE=$(hostname)", "JVMPROF_NODE=node-7".to_owned());
    replace(&mut daemon, &[volume.clone(), ("/run/docker.sock:/run/docker.sock:ro", socket), node]);
    // Without a backend profiles stay in the folder, as the document says.
    let backend = daemon.iter().position(|word| word == "--remote-store-address").expect("a backend");
    daemon.drain(backend..backend + 2);
    daemon.extend(["--push-interval", "2s"].map(str::to_owned));

    let pids = pids_of(&docker.busy("hopper", "app=cart"));
    let container = docker.run_detached(&daemon);
    let polls = Polls::start();
    let profiles = loop {
        let profiles = Store::open_for_reading(&state).map(|store| seen(&store)).unwrap_or_default();
        if samples(of_pids(&profiles, &pids)) >= ENOUGH {
            break profiles;
        }
        assert!(docker.pid(&container).is_some(), "{}", docker.logs(&container));
        polls.wait(|| docker.logs(&container));
    };
    for profile in of_pids(&profiles, &pids) {
        let label = |name: &str| profile.labels.get(name).map(String::as_str);
        assert_eq!((label("container"), label("node")), (Some("hopper"), Some("node-7")));
    }
    let log = docker.logs(&container);
    let status = status(docker.pid(&container).unwrap_or_else(|| panic!("it has ended: {log}")));
    // All five, or SYS_ADMIN in place of three of them.
    let capabilities = ["000001c000080004", "0000000000280004"];
    let has = |set: &str| capabilities.iter().any(|it| status.contains(&format!("{set}:\t{it}\n")));
    assert!(has("CapEff") && has("CapBnd"), "{status}");
    assert!(status.contains("NoNewPrivs:\t1\n") && status.contains("Seccomp:\t2\n"), "{status}");
    for word in ["denied", "not permitted", "CAP_"] {
        assert!(!log.contains(word), "{word}: {log}");
    }

    replace(&mut page, &[volume]);
    let shown = docker.run_detached(&page);
    let pid = wait_until_healthy(docker, &shown, "http://127.0.0.1:7070", &[]);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis();
    let (from, to) = (now - 3_600_000, now + 3_600_000);
    let labels = format!("http://127.0.0.1:7070/api/labels?from={from}&to={to}");
    let (code, body) = curl(Some(pid), &[&labels]);
    assert!(code == "200" && body.contains("hopper"), "{code} {body} {}", docker.logs(&shown));
}

/// Has no rights at all, and asks for the token.
fn the_collector_for_several_hosts(docker: &Docker, dir: &Path, mut command: Vec<String>) {
    let (keys, folder) = (Keys::make(), dir.join("collector"));
    fs::create_dir(&folder).unwrap();
    for (from, to) in [("server.pem", "tls.crt"), ("server.key", "tls.key")] {
        fs::copy(keys.path(from), folder.join(to)).unwrap();
    }
    fs::write(folder.join("token"), TOKEN).unwrap();
    for file in ["tls.crt", "tls.key", "token"] {
        fs::set_permissions(folder.join(file), Permissions::from_mode(0o600)).unwrap();
    }
    let mounted = format!("{}:/etc/jvmprof:ro", folder.display());
    replace(&mut command, &[("/etc/jvmprof/collector:/etc/jvmprof:ro", mounted)]);
    let container = docker.run_detached(&command);
    let (ca, url) = (keys.path("ca.pem"), "https://localhost:7070");
    let trusting = ["--cacert", &ca];
    let pid = wait_until_healthy(docker, &container, url, &trusting);
    assert_eq!(curl(Some(pid), &[&trusting[..], &[url]].concat()).0, "401");
    let user = format!("me:{TOKEN}");
    assert_eq!(curl(Some(pid), &[&trusting[..], &["-u", &user, url]].concat()).0, "200");
    let status = status(pid);
    for line in ["CapEff:\t0000000000000000\n", "CapBnd:\t0000000000000000\n", "NoNewPrivs:\t1\n"] {
        assert!(status.contains(line), "{line}: {status}");
    }
}

#[test]
fn the_commands_for_docker_run_as_the_document_has_them() {
    let dir = scratch();
    let commands = commands();
    let [daemon, page, collector] = &commands[..] else { panic!("there are others: {commands:?}") };
    let docker = Docker::start(dir.path());
    docker.load(&daemonset::image(), "localhost/jvmprof:1", "jvmprof");
    the_daemon_and_its_page(&docker, dir.path(), daemon.clone(), page.clone());
    the_collector_for_several_hosts(&docker, dir.path(), collector.clone());
}
