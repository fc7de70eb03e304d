//! A daemon with all three kinds of sinks, each a collector of its own, one of which comes late:
//! each account adds up to the same samples, whatever becomes of the others, and to what is stored.

use std::cell::RefCell;
use std::path::Path;

use jvmprof_daemon::export::delivery::{DeliveryCounts, read_ledger};

use super::{BUSY, collector, collector_at, daemon_until, field, free_address, stored};
use crate::support::{KilledChild, Workload, compile, scratch, signal};

fn end(mut collector: KilledChild) {
    signal(collector.id(), "TERM");
    assert!(collector.wait().unwrap().success());
}

/// The port of an address, which is in the names of spools and in lines of the log.
fn port(address: &str) -> &str {
    address.rsplit_once(':').unwrap().1
}

/// The account of a backend, by the ledger of its folder.
fn account(spool: &Path, address: &str) -> DeliveryCounts<u64> {
    let folders = std::fs::read_dir(spool).unwrap().map(|entry| entry.unwrap().path());
    let mut own = folders.filter(|folder| folder.to_str().unwrap().contains(&format!("_{}-", port(address))));
    let total = read_ledger(&own.next().unwrap()).unwrap().unwrap().total();
    assert_eq!(total.unaccounted(), 0, "{address}: {total:?}");
    total.of_all_events()
}

/// Returns true if a sink has delivered what had waited in its spool, by the log.
fn has_caught_up(log: &str, address: &str) -> bool {
    let of_sink = |line: &&str| line.contains(&format!(":{}", port(address))) && line.contains("spooled=");
    let last = log.lines().rfind(|line| line.contains("delivered_late=") && of_sink(line));
    last.is_some_and(|line| line.contains("spooled=0 ") && !line.contains("delivered_late=0 "))
}

#[test]
fn parca_otlp_and_pyroscope_each_have_every_sample_in_their_accounts() {
    let dir = scratch();
    let _load = Workload::start(&compile(dir.path(), "busy", BUSY, &["-O1", "-fno-omit-frame-pointer"]), &[]);
    let [spool, parca_dir, otlp_dir, pyroscope_dir] =
        ["spool", "parca", "otlp", "pyroscope"].map(|name| dir.path().join(name));
    let (parca, parca_address) = collector(&parca_dir);
    let (pyroscope, pyroscope_address) = collector(&pyroscope_dir);
    let late_address = free_address();
    let otlp_address = format!("http://{late_address}");
    let args = [
        "--remote-store-address",
        &parca_address,
        "--otlp-address",
        &otlp_address,
        "--pyroscope-address",
        &pyroscope_address,
    ];
    let late = RefCell::new(None);
    let (log, success) = daemon_until(&spool, &args, |log| {
        let mut late = late.borrow_mut();
        if late.is_none() && log.contains("the server doesn't take profiles") {
            *late = Some(collector_at(&late_address, &otlp_dir).0);
        }
        has_caught_up(log, &otlp_address)
    });
    assert!(success, "{log}");
    [parca, pyroscope, late.into_inner().unwrap()].into_iter().for_each(end);
    let samples = field(&log, "samples");
    assert!(samples > 100, "{log}");
    assert_eq!(field(&log, "taken"), samples + field(&log, "lost_before"), "{log}");
    for (address, dir) in
        [(&parca_address, &parca_dir), (&otlp_address, &otlp_dir), (&pyroscope_address, &pyroscope_dir)]
    {
        let counts = account(&spool, address);
        assert_eq!(counts.handed_over, samples, "{address}: {counts:?} {log}");
        // A machine without a free CPU ends the daemon before all is answered.
        let in_doubt = counts.losses.possibly_lost;
        assert_eq!(counts.losses.total(), in_doubt, "{address}: {counts:?} {log}");
        assert_eq!(counts.delivered + counts.spooled + in_doubt, samples, "{address}: {counts:?} {log}");
        let stored = stored(dir);
        let least = counts.delivered;
        assert!((least..=least + in_doubt).contains(&stored), "{address}: {stored}, {counts:?} {log}");
        assert!(counts.delivered_late > 0 || *address != otlp_address, "{counts:?} {log}");
    }
}
