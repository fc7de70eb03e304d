//! The spool on disks that are full or read-only.

use std::time::Duration;

use jvmprof_daemon::event_type::EventType;
use jvmprof_daemon::export::spool::{NewRecord, Spool, SpoolOptions};
use nix::mount::{MntFlags, MsFlags, mount, umount2};

use super::{BUSY, daemon_until, field, free_address, windows};
use crate::support::{Workload, compile, jvmprof, scratch};

/// A small file system in memory.
struct Tmpfs(tempfile::TempDir);

impl Tmpfs {
    fn new(kib: u32) -> Self {
        let dir = scratch();
        let size = format!("size={kib}k");
        mount(Some("tmpfs"), dir.path(), Some("tmpfs"), MsFlags::empty(), Some(&*size)).unwrap();
        Self(dir)
    }

    fn make_read_only(&self) {
        let flags = MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY;
        mount(None::<&str>, self.0.path(), None::<&str>, flags, None::<&str>).unwrap();
    }
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        let _ = umount2(self.0.path(), MntFlags::MNT_DETACH);
    }
}

const SPOOL: SpoolOptions =
    SpoolOptions { max_bytes: 1 << 30, max_age: Duration::from_secs(3600), send_again: false };

fn record(samples: u64) -> NewRecord {
    let body = vec![samples as u8; 3000];
    let (created, event) = (std::time::SystemTime::now(), EventType::Cpu);
    NewRecord { created, event, samples, series: 1, tries: 0, body }
}

#[test]
fn a_full_disk_costs_what_does_not_fit_and_nothing_else() {
    let disk = Tmpfs::new(100);
    let dir = disk.0.path().join("spool");
    let (mut spool, _) = Spool::open(&dir, SPOOL, &[]).unwrap();
    let fits = (1..100).take_while(|samples| spool.append(&record(*samples)).is_ok()).count() as u64;
    assert!((10..40).contains(&fits), "{fits}");
    let error = spool.append(&record(1)).unwrap_err().to_string();
    assert!(error.contains("No space left") && error.contains(dir.to_str().unwrap()), "{error}");
    // Marks need no room: what fits is sent, and there is room again.
    let first = spool.take_next().unwrap().unwrap();
    spool.complete(first.id, first.samples);
    drop(spool);
    let (mut spool, found) = Spool::open(&dir, SPOOL, &[]).unwrap();
    assert_eq!((found.waiting.total(), found.damaged_places), ((2..=fits).sum(), 0));
    let mut sent = Vec::new();
    while let Some(taken) = spool.take_next().unwrap() {
        assert!(taken.body.iter().all(|byte| *byte == taken.samples as u8) && taken.body.len() == 3000);
        spool.complete(taken.id, taken.samples);
        sent.push(taken.samples);
    }
    assert_eq!(sent, (2..=fits).collect::<Vec<_>>());
    spool.append(&record(7)).unwrap();
    assert_eq!(spool.appended().total(), (1..=fits).sum::<u64>() + 7);
}

#[test]
fn a_spool_on_a_read_only_disk_is_an_error_that_names_it() {
    let disk = Tmpfs::new(100);
    let (mut spool, _) = Spool::open(disk.0.path(), SPOOL, &[]).unwrap();
    spool.append(&record(1)).unwrap();
    drop(spool);
    disk.make_read_only();
    let error = Spool::open(disk.0.path(), SPOOL, &[]).unwrap_err().to_string();
    assert!(error.contains("Read-only") && error.contains(disk.0.path().to_str().unwrap()), "{error}");
    let mut daemon = jvmprof();
    daemon.args(["daemon", "--remote-store-address", "127.0.0.1:9", "--spool-directory"]).arg(disk.0.path());
    let output = daemon.output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("Read-only") && stderr.contains("--spool-directory"), "{stderr}");
}

#[test]
fn a_daemon_whose_spool_is_full_goes_on_and_counts() {
    let disk = Tmpfs::new(48);
    let dir = scratch();
    let _load = Workload::start(&compile(dir.path(), "busy", BUSY, &["-O1", "-fno-omit-frame-pointer"]), &[]);
    let address = free_address();
    let args =
        ["--push-interval", "1s", "--remote-store-address", &address, "--remote-store-insecure", "-F", "999"];
    let is_full = |log: &str| log.contains("can't be spooled");
    let (log, success) = daemon_until(disk.0.path(), &args, is_full);
    assert!(success, "{log}");
    let samples = field(&log, "samples");
    assert_eq!(field(&log, "lost") + field(&log, "spooled"), samples, "{log}");
}

#[test]
fn a_backend_that_hangs_and_a_full_spool_keep_no_daemon_from_ending() {
    let disk = Tmpfs::new(48);
    let dir = scratch();
    let _load = Workload::start(&compile(dir.path(), "busy", BUSY, &["-O1", "-fno-omit-frame-pointer"]), &[]);
    // The kernel accepts for it, and nobody ever reads.
    let backend = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = backend.local_addr().unwrap().to_string();
    let args =
        ["--push-interval", "1s", "--remote-store-address", &address, "--remote-store-insecure", "-F", "999"];
    let (log, success) = daemon_until(disk.0.path(), &args, |log| windows(log).count() >= 6);
    assert!(success, "{log}");
    assert_eq!(field(&log, "delivered"), 0, "{log}");
    let lost = field(&log, "lost") + field(&log, "possibly_lost");
    assert_eq!(lost + field(&log, "spooled"), field(&log, "handed_over"), "{log}");
    assert_eq!(field(&log, "handed_over") + field(&log, "lost_before"), field(&log, "taken"), "{log}");
}
