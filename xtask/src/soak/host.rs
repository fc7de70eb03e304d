//! A host with something to do: JVMs, and processes that live for an instant.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{JoinHandle, sleep, spawn};
use std::time::Duration;

use anyhow::Context as _;

use crate::paths;
use crate::run::run;
use crate::setup::jdk;

/// Some ten milliseconds of work.
const SHORT_LIVED: &str = "i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done";

/// Ends with this value.
#[derive(Debug)]
pub(super) struct Host {
    jvms: Vec<Child>,
    stop: Arc<AtomicBool>,
    forker: Option<JoinHandle<()>>,
}

impl Host {
    pub(super) fn start(folder: &Path, jvms: u32, processes_per_minute: u32) -> anyhow::Result<Self> {
        let found = jdk::found();
        let javac = found.iter().find_map(|jdk| jdk.program("javac")).context("no JDK has a javac")?;
        let java = found.last().and_then(|jdk| jdk.program("java")).context("no JDK is installed")?;
        let classes = folder.join("classes");
        fs::create_dir_all(&classes).with_context(|| format!("creating {}", classes.display()))?;
        let source = paths::workspace().join("xtask/soak/Worker.java");
        run(Command::new(javac).args(["-nowarn", "--release", "8", "-d"]).arg(&classes).arg(source))?;
        let stop = Arc::new(AtomicBool::new(false));
        let mut host = Self { jvms: Vec::new(), stop: Arc::clone(&stop), forker: None };
        for _ in 0..jvms {
            let mut command = Command::new(&java);
            command.args(["-Xmx24m", "-Xss512k", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp"]);
            command
                .arg(&classes)
                .arg("Worker")
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::null());
            host.jvms.push(command.spawn().context("starting a JVM")?);
        }
        let pause = Duration::from_secs(60) / processes_per_minute.max(1);
        host.forker = Some(spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                // One that can't be started is no matter here.
                let child = Command::new("sh").args(["-c", SHORT_LIVED]).stdin(Stdio::null()).spawn();
                sleep(pause);
                let _ = child.map(|mut child| child.wait());
            }
        }));
        Ok(host)
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for jvm in &mut self.jvms {
            let _ = jvm.kill();
            let _ = jvm.wait();
        }
        if let Some(forker) = self.forker.take() {
            let _ = forker.join();
        }
    }
}
