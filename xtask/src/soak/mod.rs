//! `cargo xtask soak`: a busy host, a backend that is killed, a daemon that is killed and signalled
//! to read its settings again, a disk that is full; in the end every sample that the kernel program
//! took is in the backend once, or counted as lost: of each event by itself.

mod accounting;
mod events;
mod host;
mod kernel;
mod ledger;
mod memory;
mod stored;

use std::fs::{self, File};
use std::io::Write as _;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sys::signal::Signal;

use self::accounting::{Accounting, DaemonRun};
use self::host::SoakHost;
use self::kernel::KernelCounts;
use self::ledger::LedgerEntry;
use self::memory::Memory;
use self::stored::{SETTINGS_LABEL, StoredProfiles};
use crate::files;
use crate::paths;
use crate::run::{LoggedProcess, require_root};
use crate::setup::build;

/// From this length on the daemon's memory has to be flat: before, its caches fill.
const MEMORY_MINUTES: f64 = 10.0;
/// The spool's disk. A short run fills it with a file.
const DISK_KIB: u32 = 4096;
/// The time that the spool may take to become empty at the end.
const DRAIN: Duration = Duration::from_secs(180);
const TICK: Duration = Duration::from_millis(200);
/// The time that what an event is to meet may take to happen.
const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Debug, clap::Args)]
pub(crate) struct SoakArgs {
    /// How long, without start and end
    #[arg(long, default_value_t = 30.0, value_name = "N")]
    minutes: f64,
    /// JVMs that run all the time
    #[arg(long, default_value_t = 20, value_name = "N")]
    jvms: u32,
    /// Processes a minute that live for an instant
    #[arg(long, default_value_t = 300, value_name = "N")]
    processes: u32,
    /// Take this binary instead of building one
    #[arg(long, value_name = "FILE")]
    jvmprof: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
    BackendKilled,
    BackendStarted,
    DaemonKilled,
    DiskFull,
    DiskFreed,
}

/// The events, each after its share of the time.
const SCHEDULE: [(f64, Event); 14] = [
    (0.08, Event::BackendKilled),
    (0.14, Event::BackendStarted),
    (0.22, Event::BackendKilled),
    (0.28, Event::BackendStarted),
    (0.32, Event::DaemonKilled),
    (0.42, Event::BackendKilled),
    (0.45, Event::DiskFull),
    (0.53, Event::DiskFreed),
    (0.56, Event::BackendStarted),
    (0.62, Event::BackendKilled),
    // With a spool that holds something.
    (0.67, Event::DaemonKilled),
    (0.70, Event::BackendStarted),
    (0.80, Event::BackendKilled),
    (0.86, Event::BackendStarted),
];

/// The number of times that the daemon gets SIGHUP, also while the backend is away and the disk is
/// full.
const HANGUPS: u32 = 23;
/// The share of the time in which it does: what the last ones change has to be seen in the backend.
const HANGUPS_SHARE: f64 = 0.95;

/// Runs all that happens in a long soak in little time, for every commit.
pub(crate) fn short(jvmprof: &Path) -> anyhow::Result<()> {
    main(&SoakArgs { minutes: 1.0, jvms: 6, processes: 120, jvmprof: Some(jvmprof.to_owned()) })
}

pub(crate) fn main(args: &SoakArgs) -> anyhow::Result<()> {
    require_root("the soak profiles a whole host and mounts a small disk")?;
    let jvmprof = args.jvmprof.clone().map_or_else(build::fast, Ok)?;
    let folder = paths::target().join("soak");
    let _ = fs::remove_dir_all(&folder);
    files::create_folder(&folder)?;
    let disk = Disk::mount(folder.join("disk"))?;
    let host = SoakHost::start(&folder, args.jvms, args.processes)?;
    let mut scene = Scene::start(jvmprof, folder.clone(), disk, args.minutes)?;
    let mut began = Instant::now();
    for (share, event) in SCHEDULE {
        scene.wait(began + Duration::from_secs_f64(args.minutes * 60.0 * share))?;
        let before = Instant::now();
        scene.wait_until(|scene| scene.is_ready_for(event))?;
        eprintln!("{:>6.1} s: {event:?}", began.elapsed().as_secs_f64());
        scene.apply(event)?;
        // The schedule stands still meanwhile: on a slow machine events would come all at once.
        began += before.elapsed();
    }
    scene.wait(began + Duration::from_secs_f64(args.minutes * 60.0))?;
    let store = folder.join("store");
    scene.wait_until(|scene| stored::has_settings(&store, &labels_version(scene.hangups)))?;
    drop(host);
    let hangups = scene.hangups;
    let (runs, memory) = scene.end()?;
    let stored = StoredProfiles::read(&store)?;
    let mut wrong = Accounting { runs: &runs, stored: &stored }.discrepancies();
    println!("{hangups} times SIGHUP; samples of {} different settings", stored.settings.len());
    if !stored.settings.contains(&labels_version(hangups)) {
        wrong.push("no sample has the last settings' label: the soak has not tested SIGHUP".to_owned());
    }
    let spool_failed = runs.last().and_then(|run| run.recorded.total().losses.get("spool_failed").cloned());
    if spool_failed.unwrap_or_default().total() == 0 {
        wrong.push("the full disk was never noticed: the soak has not tested it".to_owned());
    }
    if let Some((early, late)) = memory.quarters() {
        println!(
            "resident memory of the last daemon: {:.1} MiB, then {:.1} MiB",
            early / 1024.0,
            late / 1024.0
        );
    }
    if args.minutes >= MEMORY_MINUTES && !memory.is_flat() {
        wrong.push("the daemon's memory grows".to_owned());
    }
    if wrong.is_empty() { Ok(()) } else { bail!("{}", wrong.join("\n       ")) }
}

/// The backend, the daemon and the disk.
struct Scene {
    jvmprof: PathBuf,
    folder: PathBuf,
    disk: Disk,
    address: SocketAddr,
    push_interval: &'static str,
    backend: Option<LoggedProcess>,
    daemon: Option<(LoggedProcess, KernelCounts)>,
    memory: Memory,
    runs: Vec<DaemonRun>,
    /// Times that the daemon got SIGHUP.
    hangups: u32,
    /// When the daemon gets it next; `None`: no more.
    next_hangup: Option<Instant>,
    /// How long after that again.
    hangup_interval: Duration,
}

/// Returns the labels' version: each second SIGHUP finds the settings as they were.
fn labels_version(hangups: u32) -> String {
    hangups.div_ceil(2).to_string()
}

impl Scene {
    fn start(jvmprof: PathBuf, folder: PathBuf, disk: Disk, minutes: f64) -> anyhow::Result<Self> {
        let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
        let push_interval = if minutes < MEMORY_MINUTES { "2s" } else { "10s" };
        let hangup_interval = Duration::from_secs_f64(minutes * 60.0 * HANGUPS_SHARE / f64::from(HANGUPS));
        let mut scene = Self {
            jvmprof,
            folder,
            disk,
            address,
            push_interval,
            backend: None,
            daemon: None,
            memory: Memory::default(),
            runs: Vec::new(),
            hangups: 0,
            next_hangup: Some(Instant::now() + hangup_interval),
            hangup_interval,
        };
        scene.write_settings()?;
        scene.start_backend()?;
        scene.start_daemon()?;
        Ok(scene)
    }

    fn apply(&mut self, event: Event) -> anyhow::Result<()> {
        match event {
            Event::BackendKilled => self.backend = None,
            Event::BackendStarted => self.start_backend()?,
            Event::DaemonKilled => {
                self.end_daemon(Signal::SIGKILL)?;
                self.start_daemon()?;
            }
            Event::DiskFull => self.disk.fill()?,
            Event::DiskFreed => self.disk.free()?,
        }
        Ok(())
    }

    /// Returns true if what an event is to meet has happened.
    fn is_ready_for(&self, event: Event) -> bool {
        let recorded = LedgerEntry::read(&self.disk.0).unwrap_or_default();
        let is_something_spooled = recorded.run.spooled.total() > 0;
        match event {
            Event::BackendKilled | Event::DiskFull => true,
            Event::BackendStarted => is_something_spooled,
            Event::DaemonKilled => self.backend.is_some() || is_something_spooled,
            Event::DiskFreed => {
                recorded.total().losses.get("spool_failed").is_some_and(|failed| failed.total() > 0)
            }
        }
    }

    fn start_backend(&mut self) -> anyhow::Result<()> {
        let mut collector = Command::new(&self.jvmprof);
        collector.args(["collector", "--listen", &self.address.to_string(), "--dir"]);
        collector.arg(self.folder.join("store"));
        self.backend = Some(LoggedProcess::start(&mut collector, &self.folder.join("collector.log"))?);
        for _ in 0..100 {
            if TcpStream::connect(self.address).is_ok() {
                return Ok(());
            }
            sleep(TICK);
        }
        bail!("the collector doesn't listen on {}", self.address)
    }

    fn settings(&self) -> PathBuf {
        self.folder.join("jvmprof.toml")
    }

    /// Other labels with each second SIGHUP, other headers with each fourth: for these the sinks
    /// are opened anew.
    fn write_settings(&self) -> anyhow::Result<()> {
        let labels = labels_version(self.hangups);
        let headers = (self.hangups + 1) / 4;
        let text = format!(
            "external-labels = {{ {SETTINGS_LABEL} = '{labels}' }}\nremote-store-grpc-headers = {{ version = '{headers}' }}\n"
        );
        fs::write(self.settings(), text).context("writing the daemon's settings")
    }

    /// Has the daemon read its settings again, if it is time to.
    fn hang_up(&mut self) -> anyhow::Result<()> {
        let is_due = self.next_hangup.is_some_and(|at| Instant::now() >= at);
        let Some((daemon, _)) = self.daemon.as_ref().filter(|_| is_due) else { return Ok(()) };
        self.hangups += 1;
        self.write_settings()?;
        daemon.signal(Signal::SIGHUP)?;
        self.next_hangup = (self.hangups < HANGUPS).then(|| Instant::now() + self.hangup_interval);
        Ok(())
    }

    fn start_daemon(&mut self) -> anyhow::Result<()> {
        let mut daemon = Command::new(&self.jvmprof);
        daemon.args(["daemon", "--remote-store-insecure", "--remote-store-address"]);
        daemon.arg(self.address.to_string()).args(["--push-interval", self.push_interval]);
        daemon
            .args(["--alloc-enabled", "--lock-enabled", "--pauses"])
            .arg("--spool-directory")
            .arg(&self.disk.0)
            .arg("--config")
            .arg(self.settings());
        let log = self.folder.join(format!("daemon-{}.log", self.runs.len() + 1));
        let process = LoggedProcess::start(&mut daemon, &log)?;
        let counts =
            KernelCounts::of(process.pid()).with_context(|| format!("{} has the reason", log.display()))?;
        self.daemon = Some((process, counts));
        self.memory = Memory::default();
        Ok(())
    }

    fn end_daemon(&mut self, signal: Signal) -> anyhow::Result<()> {
        let (mut process, counts) = self.daemon.take().context("no daemon runs")?;
        process.end(signal)?;
        let (kernel, recorded) = (counts.taken()?, LedgerEntry::read(&self.disk.0)?);
        let run = DaemonRun {
            taken: kernel.plus(&recorded.taken_by_daemon),
            recorded,
            killed: signal == Signal::SIGKILL,
        };
        self.runs.push(run);
        Ok(())
    }

    /// Looks after everything until then.
    fn wait(&mut self, until: Instant) -> anyhow::Result<()> {
        while Instant::now() < until {
            if let Some((daemon, _)) = &mut self.daemon {
                daemon.check()?;
                self.memory.sample_rss(daemon.pid());
            }
            if let Some(backend) = &mut self.backend {
                backend.check()?;
            }
            self.hang_up()?;
            sleep(TICK);
        }
        Ok(())
    }

    /// Looks after everything until this is so, or for so long that it won't be: what is missing
    /// then, the account says in the end.
    fn wait_until(&mut self, is_so: impl Fn(&Self) -> bool) -> anyhow::Result<()> {
        let began = Instant::now();
        while !is_so(self) && began.elapsed() < PATIENCE {
            self.wait(Instant::now() + TICK)?;
        }
        Ok(())
    }

    /// Waits until the spool is empty, and ends everything in good order.
    fn end(mut self) -> anyhow::Result<(Vec<DaemonRun>, Memory)> {
        let began = Instant::now();
        while LedgerEntry::read(&self.disk.0)?.run.spooled.total() > 0 && began.elapsed() < DRAIN {
            self.wait(Instant::now() + TICK)?;
        }
        self.end_daemon(Signal::SIGTERM)?;
        if let Some(mut backend) = self.backend.take() {
            backend.end(Signal::SIGTERM)?;
        }
        Ok((self.runs, self.memory))
    }
}

/// A small file system in memory, for the spool.
#[derive(Debug)]
struct Disk(PathBuf);

impl Disk {
    fn mount(path: PathBuf) -> anyhow::Result<Self> {
        files::create_folder(&path)?;
        let size = format!("size={DISK_KIB}k");
        mount(Some("tmpfs"), &path, Some("tmpfs"), MsFlags::empty(), Some(&*size))
            .with_context(|| format!("mounting a tmpfs on {}", path.display()))?;
        Ok(Self(path))
    }

    fn fill(&self) -> anyhow::Result<()> {
        let mut file = File::create(self.0.join("filler")).context("creating the filler")?;
        // Until there is no room: that is the aim.
        while file.write_all(&[0; 4096]).is_ok() {}
        Ok(())
    }

    fn free(&self) -> anyhow::Result<()> {
        fs::remove_file(self.0.join("filler")).context("removing the filler")
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = umount2(&self.0, MntFlags::MNT_DETACH);
    }
}
