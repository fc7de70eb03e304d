//! `--host-fraction`: hosts that are profiled, hosts that are idle, and the change between the two.

use std::fs;
use std::path::Path;
use std::rc::Rc;

use crate::delivery::{collector_at, daemon_until, field, free_address, has_taken, stored};
use crate::support::{scratch, signal};
use crate::telemetry::{Daemon, sum};

/// How many kernel programs and perf events a process holds.
fn kernel_objects(daemon: &Daemon) -> usize {
    let files = fs::read_dir(format!("/proc/{}/fd", daemon.child.id())).unwrap();
    let targets = files.filter_map(|file| fs::read_link(file.ok()?.path()).ok());
    targets
        .filter(|target| ["bpf-prog", "[perf_event]"].iter().any(|it| target.to_string_lossy().ends_with(it)))
        .count()
}

/// Waits until the daemon says that it is idle, and checks that it is.
fn is_idle(daemon: &Daemon) {
    daemon.until("idle", |daemon| {
        daemon.get("/readyz").is_some_and(|(_, text)| text.starts_with("ok, idle: "))
    });
    let (status, text) = daemon.get("/readyz").unwrap();
    assert_eq!(status, 200, "a rollout waits for readiness: {text}");
    assert!(text.contains("isn't among those that are profiled"), "{text}");
    assert_eq!(daemon.get("/healthz"), Some((200, "ok\n".to_owned())));
    assert_eq!(kernel_objects(daemon), 0, "{}", daemon.log());
    // A busy machine may answer a scrape with numbers of before.
    let mut metrics = daemon.metrics();
    daemon.until("counted anew", |daemon| {
        metrics = daemon.metrics();
        metrics["jvmprof_host_profiled"] < 0.5
    });
    assert!(sum(&metrics, "jvmprof_samples_taken_total") < 0.5, "{metrics:?}");
}

/// Waits until the daemon has delivered samples, and checks what it says of itself.
fn is_profiled(daemon: &Daemon) {
    daemon.until("ready", |daemon| daemon.get("/readyz") == Some((200, "ok\n".to_owned())));
    daemon.until("delivering", |daemon| {
        let metrics = daemon.metrics();
        metrics["jvmprof_host_profiled"] > 0.5 && sum(&metrics, "jvmprof_samples_delivered_total") > 0.0
    });
    assert!(kernel_objects(daemon) > 0);
}

#[test]
fn sighup_makes_an_idle_host_a_profiled_one_and_takes_it_back() {
    let config = tempfile::NamedTempFile::new().unwrap();
    let reload = |daemon: &Daemon, settings: &str| {
        fs::write(config.path(), settings).unwrap();
        signal(daemon.child.id(), "HUP");
    };
    fs::write(config.path(), "host-fraction = 0\n").unwrap();
    let daemon = Daemon::start(&[], &["--config", config.path().to_str().unwrap()], &[]);
    is_idle(&daemon);

    // Others need a restart for another size of a cache; here there is none yet.
    reload(&daemon, "host-fraction = 1\nfrequency = 49\nsymbol-cache-mib = 25\n");
    is_profiled(&daemon);
    let metrics = daemon.metrics();
    let frequency = metrics["jvmprof_sampling_frequency_hertz{which=\"current\"}"];
    assert!((frequency - 49.0).abs() < 0.5, "{metrics:?}");
    assert!(!daemon.log().contains("need a restart"), "{}", daemon.log());

    reload(&daemon, "host-fraction = '0%'\n");
    is_idle(&daemon);
    let dir = Rc::clone(&daemon.dir);
    let log = daemon.end();
    assert!(log.contains("ended: the host was idle"), "{log}");
    assert!(!log.contains("nothing counts"), "{log}");
    let profiled = log.lines().find(|line| line.contains("event_loop: ended")).expect(&log);
    let delivered = field(profiled, "delivered");
    assert!(delivered > 0, "{log}");
    assert_eq!(stored(&dir.path().join("store")), delivered, "{log}");
}

#[test]
fn the_environment_and_the_name_of_the_node_decide_too() {
    // Their places are 0.916 and 0.001.
    let half = Path::new("50%");
    for (node, profiled) in [("node-1", false), ("node-2", true)] {
        let by_node = ["--host-fraction-by", "node", "--node", node];
        let daemon = Daemon::start(&[], &by_node, &[("JVMPROF_HOST_FRACTION", half)]);
        if profiled {
            is_profiled(&daemon);
        } else {
            is_idle(&daemon);
        }
        assert!((daemon.metrics()["jvmprof_host_fraction_ratio"] - 0.5).abs() < 1e-9);
        daemon.end();
    }
}

#[test]
fn what_waits_in_the_spool_of_an_idle_host_is_sent() {
    let (spool, store) = (scratch(), scratch());
    let address = free_address();
    let remote = ["--remote-store-address", &format!("http://{address}")];
    let load = scratch();
    let busy = crate::support::compile(
        load.path(),
        "busy",
        "volatile unsigned long sink; int main(void) { for (;;) sink++; }",
        &["-O1", "-fno-omit-frame-pointer"],
    );
    let load = crate::support::Workload::start(&busy, &[]);
    let (log, success) = daemon_until(spool.path(), &remote, |log| has_taken(log, 0));
    drop(load);
    assert!(success, "{log}");
    let spooled = field(&log, "spooled");
    assert!(spooled > 0, "{log}");

    let (mut collector, _) = collector_at(&address, store.path());
    let spool = ["--host-fraction", "0", "--spool-directory", spool.path().to_str().unwrap()];
    let daemon = Daemon::start(&[], &[&spool[..], &remote[..]].concat(), &[]);
    daemon.until("sending", |daemon| {
        daemon.get("/metrics").is_some_and(|(status, _)| status == 200) && {
            let metrics = daemon.metrics();
            let sent = sum(&metrics, "jvmprof_samples_delivered_total");
            sent > 0.0
                && sum(&metrics, "jvmprof_samples_spooled") + sum(&metrics, "jvmprof_samples_queued") < 0.5
        }
    });
    is_idle(&daemon);
    daemon.end();
    signal(collector.id(), "TERM");
    assert!(collector.wait().unwrap().success());
    assert_eq!(stored(store.path()), spooled);
}
