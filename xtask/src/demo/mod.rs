//! `cargo xtask demo`: collector, a JVM with something to do, and the daemon on one machine.

mod children;

use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};

use self::children::{Children, StopFlag};
use crate::files;
use crate::paths;
use crate::run::{require_root, run};
use crate::setup::build;
use crate::setup::installed_jdks::{self, InstalledJdk};

const MAIN_CLASS: &str = "com.acme.shop.Demo";

/// Time within which the collector must listen.
const LISTEN_WITHIN: Duration = Duration::from_secs(10);

#[derive(Debug, clap::Args)]
pub(crate) struct DemoArgs {
    /// Address on which the collector listens and shows its page
    #[arg(long, default_value = "127.0.0.1:7070", value_name = "ADDR")]
    listen: SocketAddr,
    /// End after so many seconds instead of at Ctrl-C
    #[arg(long, value_name = "SECONDS")]
    seconds: Option<u64>,
    /// Take this JDK or Java runtime (by its folder) instead of the newest that is found
    #[arg(long, value_name = "HOME")]
    jdk: Option<PathBuf>,
}

pub(crate) fn main(args: &DemoArgs) -> anyhow::Result<()> {
    require_root("profiling a whole host needs root (or the capabilities in deploy/jvmprof.service)")?;
    let stop = StopFlag::on_signals()?;
    let jvmprof = build::fast()?;
    let folder = paths::target().join("demo");
    let profiles = folder.join("profiles");
    files::remove_folder(&profiles)?;
    files::create_folder(&profiles)?;

    if TcpStream::connect_timeout(&args.listen, Duration::from_millis(200)).is_ok() {
        bail!("something listens on {} already: choose another address with --listen", args.listen);
    }
    let mut children = Children::new(folder.clone());
    let address = args.listen.to_string();
    let mut collector = Command::new(&jvmprof);
    collector.args(["collector", "--listen", &address, "--dir"]).arg(&profiles);
    children.start("collector", &mut collector)?;
    wait_for(&mut children, &stop, args.listen)?;

    match chosen_jdk(args)? {
        Some(jdk) => start_jvm(&mut children, &jdk, &folder)?,
        None => eprintln!(
            "no JDK found: this host is profiled as it is. For the demo JVM install one, such as \
             `apt-get install openjdk-17-jdk-headless`, or name one by --jdk"
        ),
    }
    let mut daemon = Command::new(&jvmprof);
    daemon.args(["daemon", "--remote-store-address", &address, "--remote-store-insecure"]);
    daemon.arg("--spool-directory").arg(folder.join("spool"));
    children.start("daemon", &mut daemon)?;

    println!("\n  flame graph: http://{address}/  (the first profile is there after some 15 s)");
    println!("  profiles:    {}", profiles.display());
    println!("  Ctrl-C ends it\n");
    let until = args.seconds.map(|seconds| Instant::now() + Duration::from_secs(seconds));
    children.watch(&stop, until, || false)?;
    children.stop();
    Ok(())
}

fn wait_for(children: &mut Children, stop: &StopFlag, listen: SocketAddr) -> anyhow::Result<()> {
    let until = Instant::now() + LISTEN_WITHIN;
    let answers = || TcpStream::connect_timeout(&listen, Duration::from_millis(50)).is_ok();
    if !children.watch(stop, Some(until), answers)? && !stop.is_requested() {
        bail!("the collector doesn't listen on {listen} after {LISTEN_WITHIN:?}");
    }
    Ok(())
}

/// Returns the JDK given by `--jdk`, else the newest one.
fn chosen_jdk(args: &DemoArgs) -> anyhow::Result<Option<InstalledJdk>> {
    match &args.jdk {
        Some(home) => {
            let jdk = installed_jdks::at(home);
            Ok(Some(
                jdk.with_context(|| {
                    format!("{} is no JDK: bin/java and release are needed", home.display())
                })?,
            ))
        }
        None => Ok(installed_jdks::found().into_iter().next_back()),
    }
}

/// Starts the demo program, by a JVM without any flag for profilers.
fn start_jvm(children: &mut Children, jdk: &InstalledJdk, folder: &Path) -> anyhow::Result<()> {
    let source = paths::workspace().join("xtask/demo/Demo.java");
    let mut java = Command::new(jdk.program("java").context("the JDK has no bin/java")?);
    java.arg("-Xmx256m");
    match compiler_for(jdk) {
        Some(javac) => {
            let classes = folder.join("classes");
            files::create_folder(&classes)?;
            run(Command::new(javac).arg("-d").arg(&classes).arg(&source))?;
            java.arg("-cp").arg(&classes).arg(MAIN_CLASS);
        }
        // From 11 on java compiles a source file itself, if the image has the compiler's module.
        None => {
            java.arg(&source);
        }
    }
    let pid = children.start("jvm", &mut java)?;
    eprintln!("demo JVM: process {pid}, Java {} of {}", jdk.feature, jdk.home.display());
    Ok(())
}

/// Returns a javac whose classes this JDK can run: its own, else the newest of an older or equal
/// JDK.
fn compiler_for(jdk: &InstalledJdk) -> Option<PathBuf> {
    let older = installed_jdks::found().into_iter().rev().filter(|other| other.feature <= jdk.feature);
    std::iter::once(jdk.clone()).chain(older).find_map(|jdk| jdk.program("javac"))
}
