//! A real Docker, whose containers belong to no pod.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::image::{pack, run};
use crate::polls::Polls;
use crate::support::{compile, signal};

/// A program that keeps a CPU busy.
pub(crate) const BUSY: &str = "int main(void) { volatile unsigned long turns = 0; for (;;) turns++; }";

/// It ends with its containers.
pub(crate) struct Docker {
    dir: PathBuf,
    daemon: Child,
}

impl Docker {
    pub(crate) fn start(dir: &Path) -> Self {
        let log = File::create(dir.join("docker.log")).expect("the folder is writable");
        let mut command = Command::new("dockerd");
        // Nothing of this machine's network is touched.
        command.args(["--iptables=false", "--ip6tables=false", "--bridge=none", "--storage-driver=vfs"]);
        command.arg("--data-root").arg(dir.join("data")).arg("--exec-root").arg(dir.join("exec"));
        command.arg("--pidfile").arg(dir.join("docker.pid"));
        command.arg("--host").arg(format!("unix://{}", dir.join("docker.sock").display()));
        let daemon = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn();
        let mut docker = Self { dir: dir.to_owned(), daemon: daemon.expect("the tests need dockerd") };
        let polls = Polls::start();
        while !docker.client().arg("version").output().expect("the tests need docker").status.success() {
            let is_up = docker.daemon.try_wait().expect("ours").is_none();
            let log = fs::read_to_string(dir.join("docker.log")).unwrap_or_default();
            assert!(is_up, "{log}");
            polls.wait(|| log);
        }
        docker
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.dir.join("docker.sock")
    }

    fn client(&self) -> Command {
        let mut command = Command::new("docker");
        command.arg("--host").arg(format!("unix://{}", self.socket().display()));
        command
    }

    /// Loads an image of this name, and gives it another one.
    pub(crate) fn load(&self, archive: &Path, name: &str, other: &str) {
        run(self.client().args(["load", "--input"]).arg(archive));
        run(self.client().args(["tag", name, other]));
    }

    /// Runs a container by a command's words behind `docker run --detach`; gives its id.
    pub(crate) fn run_detached(&self, words: &[String]) -> String {
        let start = |words: &[String]| self.client().args(["run", "--detach"]).args(words).output();
        let mut output = start(words).expect("the tests need docker");
        if String::from_utf8_lossy(&output.stderr).contains("unknown capability") {
            let version = run(self.client().args(["version", "--format", "{{.Server.Version}}"]));
            let major: u32 = version.split('.').next().and_then(|it| it.parse().ok()).expect("a version");
            assert!(major < 23, "Docker {version} should know all capabilities");
            output = start(&with_old_capabilities(words)).expect("the tests need docker");
        }
        assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }

    /// The first process of a container; `None` if it has ended.
    pub(crate) fn pid(&self, container: &str) -> Option<u32> {
        let format = "--format={{.State.Pid}}";
        let output = self.client().args(["inspect", format, container]).output().ok()?;
        // Of a container that has ended it is 0.
        String::from_utf8_lossy(&output.stdout).trim().parse().ok().filter(|pid| *pid != 0)
    }

    /// What a container has written so far.
    pub(crate) fn logs(&self, container: &str) -> String {
        let output = self.client().args(["logs", container]).output().expect("the tests need docker");
        String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()
    }

    /// A container that does nothing but run; gives its id.
    pub(crate) fn busy(&self, name: &str, label: &str) -> String {
        let root = self.dir.join("busy-root");
        fs::create_dir_all(&root).expect("the folder is writable");
        let program = compile(&self.dir, "busy", BUSY, &["-O1", "-static"]);
        fs::rename(program, root.join("busy")).expect("the same file system");
        let image = pack(&self.dir, "localhost/busy:1", &root, "/busy");
        run(self.client().args(["load", "--input"]).arg(image));
        let args =
            ["run", "--detach", "--network=none", "--name", name, "--label", label, "localhost/busy:1"];
        run(self.client().args(args)).trim().to_owned()
    }
}

/// The words for a Docker before version 23, which doesn't know the capabilities that were split
/// off from `SYS_ADMIN`: that takes their place, as docs/install.md says.
fn with_old_capabilities(words: &[String]) -> Vec<String> {
    const NEW: [&str; 3] = ["BPF", "PERFMON", "CHECKPOINT_RESTORE"];
    let mut words: Vec<String> = words.to_vec();
    let is_new = |words: &[String]| {
        words.windows(2).position(|pair| pair[0] == "--cap-add" && NEW.contains(&&*pair[1]))
    };
    while let Some(at) = is_new(&words) {
        words.drain(at..at + 2);
    }
    [["--cap-add", "SYS_ADMIN"].map(str::to_owned).to_vec(), words].concat()
}

impl Drop for Docker {
    fn drop(&mut self) {
        let listed = self.client().args(["ps", "--quiet"]).output();
        for id in
            listed.map(|it| String::from_utf8_lossy(&it.stdout).into_owned()).unwrap_or_default().lines()
        {
            let _ = self.client().args(["kill", id]).output();
        }
        // By itself it unmounts what it has mounted, and ends its own containerd.
        signal(self.daemon.id(), "TERM");
        let _ = self.daemon.wait();
    }
}
