//! A real Docker, whose containers belong to no pod.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::image::{pack, run};
use crate::support::{compile, signal};

const BUSY: &str = "int main(void) { volatile unsigned long turns = 0; for (;;) turns++; }";

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
        while !docker.client().arg("version").output().expect("the tests need docker").status.success() {
            let is_up = docker.daemon.try_wait().expect("ours").is_none();
            assert!(is_up, "{}", fs::read_to_string(dir.join("docker.log")).unwrap_or_default());
            std::thread::sleep(Duration::from_millis(100));
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
