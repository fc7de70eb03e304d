//! What the daemon of one host sends: requests and bytes a minute, by each protocol at once, as a
//! proxy before the receiver counts them.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use nix::sys::signal::Signal;

use super::requests::Metrics;
use super::{STEADY, port_of, start_jvms};
use crate::bench::BenchArgs;
use crate::files;
use crate::run::LoggedProcess;

/// Protocols and the flags of their addresses.
const PROTOCOLS: [(&str, &str); 3] = [
    ("Parca", "--remote-store-address"),
    ("OTLP by gRPC", "--otlp-address"),
    ("Pyroscope", "--pyroscope-address"),
];
/// Sets of events, and the flags of those that CPU time isn't.
const EVENTS: [(&str, &[&str]); 2] =
    [("CPU", &[]), ("all", &["--alloc-enabled", "--offcpu-enabled", "--lock-enabled", "--pauses"])];
const FORWARDED_AT_ONCE: usize = 64 << 10;

/// Measures CPU time alone and then all events, each for `--minutes` after a first one, and prints
/// a row for each.
///
/// # Errors
/// A process ends by itself.
pub(in crate::bench) fn measure(args: &BenchArgs, jvmprof: &Path, folder: &Path) -> anyhow::Result<()> {
    let folder = folder.join("traffic");
    files::remove_folder(&folder)?;
    files::create_folder(&folder)?;
    let length = Duration::from_secs(u64::from(args.minutes) * 60);
    let _loads = start_jvms(args.jvms, 2 * (STEADY + length), &folder)?;
    let rows = EVENTS.map(|(name, flags)| {
        let folder = folder.join(name);
        sent(jvmprof, flags, length, &folder).map(|sent| (name, sent))
    });
    println!("\n{} JVMs, {} minutes; a minute, bytes with those of answers", args.jvms, args.minutes);
    println!("events samples others  protocol        requests         kB");
    for row in rows {
        let (events, sent) = row?;
        for (protocol, [requests, bytes]) in PROTOCOLS.iter().map(|(name, _)| name).zip(sent.by_protocol) {
            let [samples, others] = sent.samples;
            println!(
                "{events:<6} {samples:>7.0} {others:>6.0}  {protocol:<14} {requests:>9.1} {:>10.1}",
                bytes / 1e3
            );
        }
    }
    Ok(())
}

/// Numbers of a minute.
struct MinuteRates {
    /// Of CPU time, and of all other events.
    samples: [f64; 2],
    /// Requests and bytes.
    by_protocol: [[f64; 2]; PROTOCOLS.len()],
}

/// Runs a daemon with these flags, and returns what it sends from the end of its first minute on.
fn sent(jvmprof: &Path, flags: &[&str], length: Duration, folder: &Path) -> anyhow::Result<MinuteRates> {
    files::create_folder(folder)?;
    let mut collector = Command::new(jvmprof);
    collector.args(["collector", "--listen", "127.0.0.1:0", "--dir"]).arg(folder.join("store"));
    let mut collector = LoggedProcess::start(&mut collector, &folder.join("collector.log"))?;
    let receiver = format!("127.0.0.1:{}", port_of(&mut collector, "http")?);
    let receiver: SocketAddr = receiver.parse().context("parsing the collector's address")?;
    let proxies = [(); PROTOCOLS.len()].map(|()| CountingProxy::start(receiver));
    let [first, second, third] = proxies;
    let proxies = [first?, second?, third?];

    let (settings, socket) = (folder.join("jvmprof.toml"), folder.join("http"));
    files::write(&settings, settings_without_receiver(std::process::id()))?;
    let mut daemon = Command::new(jvmprof);
    daemon.arg("daemon").args(flags).arg("--spool-directory").arg(folder.join("spool"));
    daemon.arg("--http-address").arg(format!("unix:{}", socket.display())).arg("--config").arg(&settings);
    for ((_, flag), proxy) in PROTOCOLS.iter().zip(&proxies) {
        daemon.arg(flag).arg(proxy.url());
    }
    // Addresses of this machine are reached without a proxy of the environment.
    let mut daemon = LoggedProcess::start(daemon.env("NO_PROXY", "127.0.0.1"), &folder.join("log"))?;
    sleep(STEADY);
    daemon.check()?;
    let (began, before) = (Instant::now(), Counters::read(&proxies, &socket)?);
    sleep(length);
    let (after, took) = (Counters::read(&proxies, &socket)?, began.elapsed());
    daemon.end(Signal::SIGTERM)?;
    collector.end(Signal::SIGTERM)?;
    Ok(after.since(&before, took))
}

/// Returns the settings by which the daemon leaves the collector out, and this process with the
/// proxies.
fn settings_without_receiver(own_pid: u32) -> String {
    let rule = |label: &str, regex: &str| {
        format!("[[relabel-configs]]\nsource_labels = [\"{label}\"]\nregex = '{regex}'\naction = \"drop\"\n")
    };
    let collector = rule("__meta_process_cmdline", ".* collector --listen .*");
    collector + &rule("__meta_process_pid", &own_pid.to_string())
}

/// What has been counted so far.
struct Counters {
    samples: [f64; 2],
    by_protocol: [[f64; 2]; PROTOCOLS.len()],
}

impl Counters {
    fn read(proxies: &[CountingProxy; PROTOCOLS.len()], socket: &Path) -> anyhow::Result<Self> {
        let metrics = Metrics::of_daemon(socket)?;
        let sink = |proxy: &CountingProxy| format!("sink=\"{}\"", proxy.url());
        let by_protocol = proxies.each_ref().map(|proxy| {
            let requests = metrics.sum("jvmprof_delivery_requests_total", &sink(proxy));
            [requests, proxy.bytes.load(Ordering::Relaxed) as f64]
        });
        // Each sink gets the same samples.
        const HANDED_OVER: &str = "jvmprof_samples_handed_over_total";
        let of_one = sink(&proxies[0]);
        let all = metrics.sum(HANDED_OVER, &of_one);
        let cpu = metrics.sum(HANDED_OVER, &format!("{of_one},event=\"cpu\""));
        Ok(Self { samples: [cpu, all - cpu], by_protocol })
    }

    /// Returns the numbers of a minute since an earlier time.
    fn since(&self, before: &Self, took: Duration) -> MinuteRates {
        let minutes = took.as_secs_f64() / 60.0;
        let rate = |[first, second]: [f64; 2], before: [f64; 2]| {
            [(first - before[0]) / minutes, (second - before[1]) / minutes]
        };
        let mut by_protocol = self.by_protocol;
        for (now, before) in by_protocol.iter_mut().zip(before.by_protocol) {
            *now = rate(*now, before);
        }
        MinuteRates { samples: rate(self.samples, before.samples), by_protocol }
    }
}

/// A proxy that forwards connections and counts their bytes, of both directions, until this process
/// ends.
struct CountingProxy {
    address: SocketAddr,
    bytes: Arc<AtomicU64>,
}

impl CountingProxy {
    fn start(receiver: SocketAddr) -> anyhow::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").context("opening a port")?;
        let address = listener.local_addr().context("asking for a port's address")?;
        let bytes = Arc::<AtomicU64>::default();
        let counted = Arc::clone(&bytes);
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                // A connection that can't be forwarded is closed.
                let Ok(server) = TcpStream::connect(receiver) else { continue };
                let (Ok(to_client), Ok(to_server)) = (client.try_clone(), server.try_clone()) else {
                    continue;
                };
                for (from, to) in [(client, to_server), (server, to_client)] {
                    let counted = Arc::clone(&counted);
                    thread::spawn(move || forward(from, to, &counted));
                }
            }
        });
        Ok(Self { address, bytes })
    }

    fn url(&self) -> String {
        format!("http://{}", self.address)
    }
}

/// Forwards one direction of a connection to its end.
fn forward(mut from: TcpStream, mut to: TcpStream, bytes: &AtomicU64) {
    let mut buffer = vec![0; FORWARDED_AT_ONCE];
    while let Ok(length) = from.read(&mut buffer) {
        if length == 0 || to.write_all(&buffer[..length]).is_err() {
            break;
        }
        bytes.fetch_add(length as u64, Ordering::Relaxed);
    }
    // The other side learns of the end; it may have ended itself.
    let _ = to.shutdown(Shutdown::Write);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proxy_counts_the_bytes_of_both_directions() {
        let receiver = TcpListener::bind("127.0.0.1:0").unwrap();
        let proxy = CountingProxy::start(receiver.local_addr().unwrap()).unwrap();
        let answers = thread::spawn(move || {
            let (mut client, _) = receiver.accept().unwrap();
            let mut question = Vec::new();
            client.read_to_end(&mut question).unwrap();
            client.write_all(b"four").unwrap();
            question
        });
        let mut client = TcpStream::connect(proxy.address).unwrap();
        client.write_all(b"seven!!").unwrap();
        client.shutdown(Shutdown::Write).unwrap();
        let mut answer = Vec::new();
        client.read_to_end(&mut answer).unwrap();
        assert_eq!((answer, answers.join().unwrap()), (b"four".to_vec(), b"seven!!".to_vec()));
        assert_eq!(proxy.bytes.load(Ordering::Relaxed), 11);
    }

    #[test]
    fn numbers_are_those_of_a_minute() {
        let before = Counters { samples: [10.0, 0.0], by_protocol: [[1.0, 100.0]; 3] };
        let after = Counters { samples: [40.0, 6.0], by_protocol: [[7.0, 400.0]; 3] };
        let sent = after.since(&before, Duration::from_secs(180));
        assert_eq!(sent.samples, [10.0, 2.0]);
        assert_eq!(sent.by_protocol, [[2.0, 100.0]; 3]);
    }

    #[test]
    fn the_receiver_and_the_proxies_are_left_out() {
        let settings = settings_without_receiver(4711);
        for rule in ["regex = '.* collector --listen .*'\n", "regex = '4711'\n"] {
            assert!(settings.contains(rule), "{settings}");
        }
    }
}
