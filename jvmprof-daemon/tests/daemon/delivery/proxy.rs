//! The way through proxies, to the collector and to Parca itself, whose binary `JVMPROF_TEST_PARCA`
//! names: nginx with TLS, client certificates and a bearer token, and a tunnel (CONNECT) that the
//! environment names.

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use jvmprof_daemon::profile::pprof;
use jvmprof_daemon::profile::pprof::decode::{DecodeLimits, decode};
use tempfile::TempDir;

use super::{BUSY, collector, field, free_address, stored};
use crate::support::keys::Keys;
use crate::support::nginx::{Nginx, TOKEN};
use crate::support::{KilledChild, Workload, compile, jvmprof, parca_program, scratch, signal};

/// nginx in front of a backend that takes requests by gRPC with a header.
fn grpc_proxy(keys: &Keys, backend: &str) -> Nginx {
    let project = r#"if ($http_projectid != "42") { return 403; }"#;
    Nginx::start(keys, &format!("{project} grpc_pass grpc://{backend};"))
}

/// A daemon that runs until it is told to end.
pub(super) struct Daemon {
    child: KilledChild,
    log: PathBuf,
    _dir: TempDir,
}

impl Daemon {
    pub(super) fn start(args: &[String], environment: &[(&str, String)]) -> Self {
        let dir = scratch();
        let log = dir.path().join("log");
        let mut daemon = jvmprof();
        daemon.args(["--log-level", "info", "daemon", "--push-interval", "2s", "--spool-directory"]);
        daemon.arg(dir.path().join("spool")).args(args).env("NO_COLOR", "1");
        daemon.envs(environment.iter().map(|(name, value)| (*name, value)));
        let child = KilledChild(daemon.stderr(File::create(&log).unwrap()).spawn().unwrap());
        Self { child, log, _dir: dir }
    }

    fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap()
    }

    /// Waits until it has logged this.
    pub(super) fn until(&self, text: &str) {
        let started = Instant::now();
        while !self.log().contains(text) {
            assert!(started.elapsed() < Duration::from_secs(120), "no {text:?} in {}", self.log());
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Waits until so many samples are delivered, as its log says.
    pub(super) fn until_delivered(&self, samples: u64) {
        let started = Instant::now();
        let delivered = |line: &str| {
            let value = line.split_whitespace().find_map(|word| word.strip_prefix("delivered="))?;
            value.parse::<u64>().ok()
        };
        while self.log().lines().filter_map(delivered).max().unwrap_or(0) < samples {
            assert!(started.elapsed() < Duration::from_secs(120), "{}", self.log());
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn until_spool_is_empty(&self) {
        let started = Instant::now();
        // The local store comes last, and has none.
        let last = |log: &str| {
            let line = log
                .lines()
                .rfind(|line| line.contains("https://") && line.contains("spooled="))
                .map(str::to_owned);
            line.is_some_and(|line| line.contains("spooled=0 "))
        };
        while !last(&self.log()) {
            assert!(started.elapsed() < Duration::from_secs(120), "{}", self.log());
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    pub(super) fn end(mut self) -> String {
        signal(self.child.0.id(), "TERM");
        assert!(self.child.0.wait().unwrap().success(), "{}", self.log());
        self.log()
    }
}

fn tls_args(keys: &Keys, port: u16, token: &Path) -> Vec<String> {
    let pairs = [
        ("--remote-store-address", format!("https://localhost:{port}")),
        ("--remote-store-ca-file", keys.path("ca.pem")),
        ("--remote-store-client-cert", keys.path("client.pem")),
        ("--remote-store-client-key", keys.path("client.key")),
        ("--remote-store-bearer-token-file", token.display().to_string()),
        ("--remote-store-grpc-headers", "projectid=42".to_owned()),
    ];
    pairs.into_iter().flat_map(|(name, value)| [name.to_owned(), value]).collect()
}

pub(super) fn busy(dir: &Path, name: &str) -> Workload {
    Workload::start(&compile(dir, name, BUSY, &["-O1", "-fno-omit-frame-pointer"]), &[])
}

#[test]
fn through_a_tls_proxy_with_a_certificate_and_a_token_that_is_replaced_meanwhile() {
    let dir = scratch();
    let _load = busy(dir.path(), "busy");
    let store = dir.path().join("store");
    let (mut collector, address) = collector(&store);
    let keys = Keys::make();
    let nginx = grpc_proxy(&keys, address.strip_prefix("http://").unwrap());
    let token = dir.path().join("token");
    fs::write(&token, "expired\n").unwrap();
    let daemon = Daemon::start(&tls_args(&keys, nginx.port, &token), &[]);
    // Nothing is lost while we aren't let in.
    daemon.until("401 Unauthorized");
    fs::write(&token, format!("{TOKEN}\n")).unwrap();
    daemon.until("the server answers again");
    daemon.until_delivered(50);
    let log = daemon.end();
    assert_eq!((field(&log, "lost"), field(&log, "possibly_lost")), (0, 0), "{log}");
    signal(collector.id(), "TERM");
    assert!(collector.wait().unwrap().success());
    assert_eq!(field(&log, "delivered") + field(&log, "spooled"), field(&log, "samples"), "{log}");
    assert_eq!(stored(&store), field(&log, "delivered"), "{log}");
    assert!(!log.contains(TOKEN) && !log.contains("expired"), "tokens aren't logged: {log}");
}

/// A proxy that tunnels, and remembers what it was asked.
pub(super) fn tunnel() -> (u16, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let asked = Arc::new(Mutex::new(Vec::new()));
    let heard = Arc::clone(&asked);
    std::thread::spawn(move || {
        for client in listener.incoming().flatten() {
            let heard = Arc::clone(&heard);
            std::thread::spawn(move || relay(client, &heard));
        }
    });
    (port, asked)
}

fn relay(mut client: TcpStream, heard: &Mutex<Vec<String>>) {
    let mut head = String::new();
    let mut reader = BufReader::new(client.try_clone().unwrap());
    while !head.ends_with("\r\n\r\n") && reader.read_line(&mut head).is_ok_and(|read| read > 0) {}
    let target = head.split_whitespace().nth(1).unwrap_or_default().replace("localhost", "127.0.0.1");
    heard.lock().unwrap().push(head);
    let Ok(mut server) = TcpStream::connect(target) else { return };
    client.write_all(b"HTTP/1.1 200 OK\r\n\r\n").unwrap();
    let (mut back, mut forth) = (server.try_clone().unwrap(), client.try_clone().unwrap());
    std::thread::spawn(move || std::io::copy(&mut back, &mut forth));
    let _ = std::io::copy(&mut reader.by_ref(), &mut server);
}

#[test]
fn through_the_tunnel_that_the_environment_names() {
    let dir = scratch();
    let _load = busy(dir.path(), "busy");
    let store = dir.path().join("store");
    let (mut collector, address) = collector(&store);
    let keys = Keys::make();
    let nginx = grpc_proxy(&keys, address.strip_prefix("http://").unwrap());
    let token = dir.path().join("token");
    fs::write(&token, TOKEN).unwrap();
    let (port, asked) = tunnel();
    let environment = [
        ("HTTPS_PROXY", format!("http://user:pass@127.0.0.1:{port}")),
        ("NO_PROXY", "elsewhere.example".to_owned()),
    ];
    let daemon = Daemon::start(&tls_args(&keys, nginx.port, &token), &environment);
    daemon.until_delivered(50);
    let log = daemon.end();
    signal(collector.id(), "TERM");
    assert!(collector.wait().unwrap().success());
    assert_eq!(stored(&store), field(&log, "delivered"), "{log}");
    let asked = asked.lock().unwrap();
    let head = format!("CONNECT localhost:{} HTTP/1.1\r\n", nginx.port);
    assert!(!asked.is_empty() && asked.iter().all(|asked| asked.starts_with(&head)), "{asked:?}");
    let credentials = BASE64_STANDARD.encode("user:pass");
    assert!(
        asked[0]
            .to_lowercase()
            .contains(&format!("proxy-authorization: basic {}", credentials.to_lowercase()))
    );
    assert!(!log.contains("pass@"), "{log}");
}

/// Parca on a free port.
fn parca(binary: &str, dir: &Path) -> (KilledChild, String) {
    let (data, config, address) = (dir.join("data"), dir.join("parca.yaml"), free_address());
    fs::create_dir(&data).unwrap();
    let bucket = format!("{{type: FILESYSTEM, config: {{directory: {}}}}}", data.display());
    fs::write(&config, format!("object_storage: {{bucket: {bucket}}}\n")).unwrap();
    let mut parca = Command::new(binary);
    parca.arg(format!("--config-path={}", config.display())).arg(format!("--http-address={address}"));
    parca
        .arg(format!("--storage-path={}", data.join("frost").display()))
        .arg("--debuginfod-upstream-servers=");
    parca.stdout(Stdio::null()).stderr(File::create(dir.join("parca.log")).unwrap());
    let process = KilledChild(parca.spawn().unwrap_or_else(|error| panic!("{binary}: {error}")));
    let started = Instant::now();
    let health = ["-s", "-f", "-o", "/dev/null", &format!("http://{address}/metrics")].map(str::to_owned);
    while !Command::new("curl").args(&health).status().is_ok_and(|status| status.success()) {
        assert!(started.elapsed() < Duration::from_secs(60), "Parca doesn't become healthy");
        std::thread::sleep(Duration::from_millis(200));
    }
    (process, address)
}

/// Nanoseconds of CPU that a sample stands for, at the default of 99 Hz: Parca answers in these.
const PERIOD_NS: u64 = 1_000_000_000 / 99;

/// CPU time of the series with a label, as Parca answers a query.
fn nanoseconds_in_parca(address: &str, label: &str, value: &str) -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    let time =
        |seconds| humantime::format_rfc3339_seconds(UNIX_EPOCH + Duration::from_secs(seconds)).to_string();
    let mut curl = Command::new("curl");
    curl.args(["-s", "-f", "-G", &format!("http://{address}/api/profiles/query")]);
    for data in [
        "mode=MODE_MERGE".to_owned(),
        "report_type=REPORT_TYPE_PPROF".to_owned(),
        format!("merge.query=process_cpu:samples:count:cpu:nanoseconds:delta{{{label}=\"{value}\"}}"),
        format!("merge.start={}", time(now - 600)),
        format!("merge.end={}", time(now + 60)),
    ] {
        curl.args(["--data-urlencode", &data]);
    }
    let output = curl.output().unwrap();
    let Ok(answer) = serde_json::from_slice::<serde_json::Value>(&output.stdout) else { return 0 };
    let Some(profile) = answer["pprof"].as_str() else { return 0 };
    let profile = decode(&BASE64_STANDARD.decode(profile).unwrap(), DecodeLimits::default()).unwrap();
    pprof::total(&profile)
}

/// Samples of the series with a label in the collector's folder.
fn samples_in_store(store: &Path, label: &str, value: &str) -> u64 {
    use jvmprof_daemon::export::store::{Store, TimeRange};
    use jvmprof_daemon::profile::model::LabelSet;
    let store = Store::open_for_reading(store).unwrap();
    let all = store.series(TimeRange::ALL, &[]);
    let has_it = |labels: &LabelSet| labels.get(label).is_some_and(|it| it == value);
    all.iter().filter(|series| has_it(&series.labels)).map(|series| series.samples).sum()
}

#[test]
fn parca_behind_a_tls_proxy_answers_with_the_samples_that_the_local_store_has() {
    let binary = parca_program();
    let dir = scratch();
    let load = busy(dir.path(), "busy");
    let pid = load.pid();
    let (_parca, address) = parca(&binary, dir.path());
    let keys = Keys::make();
    let nginx = grpc_proxy(&keys, &address);
    let (token, store) = (dir.path().join("token"), dir.path().join("store"));
    fs::write(&token, "expired").unwrap();
    let mut args = tls_args(&keys, nginx.port, &token);
    args.extend(["--local-store", "--local-store-directory", store.to_str().unwrap()].map(str::to_owned));
    args.extend(["--remote-store-compression", "gzip"].map(str::to_owned));
    // As it is looked for: by a label that rules have made of what nobody else sees, and not by
    // those that they took away.
    let team = "{ source_labels = ['__meta_process_executable_name', '__meta_process_pid'], separator = '-', target_label = 'team' }";
    let without = "{ regex = 'pid|comm', action = 'labeldrop' }";
    args.extend(["--relabel-configs", team, "--relabel-configs", without].map(str::to_owned));
    let team = format!("busy-{pid}");
    let daemon = Daemon::start(&args, &[]);
    daemon.until("401 Unauthorized");
    fs::write(&token, TOKEN).unwrap();
    daemon.until("the server answers again");
    daemon.until_delivered(100);
    drop(load);
    daemon.until_spool_is_empty();
    let log = daemon.end();
    assert_eq!(
        (field(&log, "lost"), field(&log, "possibly_lost"), field(&log, "spooled")),
        (0, 0, 0),
        "{log}"
    );
    let expected = samples_in_store(&store, "team", &team);
    assert!(expected > 20, "{log}");
    let started = Instant::now();
    while nanoseconds_in_parca(&address, "team", &team) != expected * PERIOD_NS {
        let found = nanoseconds_in_parca(&address, "team", &team);
        assert!(started.elapsed() < Duration::from_secs(60), "{found} ns for {expected} samples: {log}");
        std::thread::sleep(Duration::from_millis(500));
    }
    assert_eq!(nanoseconds_in_parca(&address, "pid", &pid.to_string()), 0, "that label was dropped");
}
