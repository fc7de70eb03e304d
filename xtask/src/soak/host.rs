//! A host with something to do: JVMs, and processes that live for an instant.

use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{JoinHandle, sleep, spawn};
use std::time::Duration;

use anyhow::Context as _;

use crate::run::KillOnDrop;
use crate::setup::installed_jdks;

/// Some ten milliseconds of work.
const SHORT_LIVED: &str = "i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done";

/// Ends with this value.
#[derive(Debug)]
pub(super) struct SoakHost {
    jvms: Vec<KillOnDrop>,
    stop: Arc<AtomicBool>,
    forker: Option<JoinHandle<()>>,
}

impl SoakHost {
    pub(super) fn start(folder: &Path, jvms: u32, processes_per_minute: u32) -> anyhow::Result<Self> {
        let java = installed_jdks::found()
            .last()
            .and_then(|jdk| jdk.program("java"))
            .context("no JDK is installed")?;
        let classes = folder.join("classes");
        installed_jdks::compile("soak/Worker.java", &classes)?;
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
            host.jvms.push(KillOnDrop(command.spawn().context("starting a JVM")?));
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

impl Drop for SoakHost {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.jvms.clear();
        if let Some(forker) = self.forker.take() {
            let _ = forker.join();
        }
    }
}
