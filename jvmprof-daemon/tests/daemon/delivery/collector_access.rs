//! A collector for other hosts: daemons push over TLS with a token, and whoever has none gets
//! nothing.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;

use super::{BUSY, collector_with, daemon_until, field, has_emptied_spool, stored};
use crate::support::keys::Keys;
use crate::support::{KilledChild, Workload, compile, scratch, signal};
use crate::telemetry::{documented_metrics, exposed_metrics};

const TOKEN: &str = "correct-horse-battery";

/// What curl says of a request: the status, and the body.
fn curl(keys: &Keys, url: &str, args: &[&str]) -> (String, String) {
    let output = Command::new("curl")
        .args(["-s", "--cacert", &keys.path("ca.pem"), "-w", "\n%{http_code}"])
        .args(args)
        .arg(url)
        .output()
        .expect("the tests need curl");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let (body, status) = text.rsplit_once('\n').expect("a status");
    (status.to_owned(), body.to_owned())
}

#[test]
fn daemons_push_over_tls_with_the_token_and_nobody_without_it() {
    let dir = scratch();
    let keys = Keys::make();
    let file = |name: &str, text: &str| {
        let path = dir.path().join(name);
        fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let (token, wrong) = (file("token", TOKEN), file("wrong", "correct-horse-batterx"));
    let _load = Workload::start(&compile(dir.path(), "busy", BUSY, &["-O1", "-fno-omit-frame-pointer"]), &[]);
    let (server, key) = (keys.path("server.pem"), keys.path("server.key"));
    let access = ["--tls-cert", &server, "--tls-key", &key, "--token-file", &token];
    let (mut collector, printed) = collector_with("127.0.0.1:0", &dir.path().join("store"), &access);
    // The certificate's name.
    let address = printed.replace("127.0.0.1", "localhost");
    assert!(address.starts_with("https://localhost:"), "{printed}");
    let ca = keys.path("ca.pem");
    let to = ["--remote-store-address", &address, "--remote-store-ca-file", &ca];
    let with_token = |token| [&to[..], &["--remote-store-bearer-token-file", token]].concat();

    // Refusals: what the daemons sampled waits in their spools.
    for (spool, args) in [("no-token", to.to_vec()), ("wrong-token", with_token(wrong.as_str()))] {
        let is_refused = |log: &str| log.contains("bearer token is missing or wrong");
        let spool = dir.path().join(spool);
        let (log, success) = daemon_until(&spool, &args, is_refused);
        assert!(success, "{log}");
        assert_eq!(field(&log, "delivered"), 0, "{log}");
        assert_eq!(stored(&dir.path().join("store")), 0, "{log}");
    }
    // Right, and with it what the daemon with the wrong token had to keep.
    let args = with_token(token.as_str());
    let (log, success) = daemon_until(&dir.path().join("wrong-token"), &args, has_emptied_spool);
    assert!(success, "{log}");
    let delivered = field(&log, "delivered");
    assert!(delivered > 0 && !log.contains("found=0 "), "{log}");
    let possible = delivered..=delivered + field(&log, "possibly_lost");
    assert!(possible.contains(&stored(&dir.path().join("store"))), "{log}");

    // The page and its data; pushes of other kinds.
    let paths = ["/", "/assets/collector.js", "/api/labels", "/api/pprof", "/v1development/profiles", "/x"];
    for path in paths.into_iter().chain(["/metrics"]) {
        let url = format!("{address}{path}");
        for refused in [&[][..], &["-u", "me:wrong"], &["-H", "Authorization: Bearer correct-horse-batterx"]]
        {
            let (status, body) = curl(&keys, &url, refused);
            assert!(status == "401" && body.contains("token"), "{path} {refused:?}: {status} {body}");
        }
    }
    let (_, head) = curl(&keys, &address, &["--head"]);
    assert!(head.to_lowercase().contains("www-authenticate: basic "), "{head}");
    for push in ["/push.v1.PusherService/Push", "/v1development/profiles"] {
        let json = ["-H", "Content-Type: application/json", "--data", "{}"];
        assert_eq!(curl(&keys, &format!("{address}{push}"), &json).0, "401", "{push}");
    }
    let basic = BASE64_STANDARD.encode(format!("me:{TOKEN}"));
    for header in [format!("Bearer {TOKEN}"), format!("Basic {basic}")] {
        let with = ["-H", &format!("Authorization: {header}")];
        let (status, body) = curl(&keys, &address, &with);
        assert!(status == "200" && body.contains("<html"), "{status} {body}");
        assert_eq!(curl(&keys, &format!("{address}/assets/collector.js"), &with).0, "200");
        let (status, metrics) = curl(&keys, &format!("{address}/metrics"), &with);
        let stored = stored(&dir.path().join("store"));
        let samples = format!("\njvmprof_collector_samples_total {stored}.0\n");
        assert!(status == "200" && metrics.contains(&samples), "{samples} {status} {metrics}");
        let [_, documented] = documented_metrics();
        assert_eq!(exposed_metrics(&metrics), documented);
        assert!(metrics.contains("\njvmprof_collector_sums_total{result=\"refused\"} 0.0\n"), "{metrics}");
    }
    assert_eq!(curl(&keys, &format!("{address}/healthz"), &[]).1, "ok\n");
    let plain = curl(&keys, &address.replace("https", "http"), &["-u", &format!("me:{TOKEN}")]);
    assert_eq!(plain.0, "000", "{plain:?}");

    // The log of a daemon that expects no TLS names it.
    let plain = address.replace("https://", "http://");
    let args = ["--remote-store-address", &plain, "--remote-store-bearer-token-file", &token];
    let (log, _) = daemon_until(&dir.path().join("plain"), &args, |log| log.contains("TLS"));
    assert!(log.contains("TLS") && field(&log, "delivered") == 0, "{log}");

    signal(collector.id(), "TERM");
    assert!(collector.wait().unwrap().success());
}

#[test]
fn a_collector_that_ends_says_whom_it_has_refused() {
    let dir = scratch();
    let keys = Keys::make();
    let token = dir.path().join("token");
    fs::write(&token, TOKEN).unwrap();
    let log = dir.path().join("log");
    let collector = crate::support::jvmprof()
        .args(["collector", "--listen", "127.0.0.1:0", "--dir"])
        .arg(dir.path().join("store"))
        .args(["--tls-cert", &keys.path("server.pem"), "--tls-key", &keys.path("server.key"), "--token-file"])
        .arg(&token)
        .stdout(Stdio::piped())
        .stderr(fs::File::create(&log).unwrap())
        .spawn();
    let mut collector = KilledChild(collector.unwrap());
    let mut address = String::new();
    BufReader::new(collector.stdout.take().unwrap()).read_line(&mut address).unwrap();
    let address = address.trim().replace("127.0.0.1", "localhost");
    assert_eq!(curl(&keys, &address, &[]).0, "401");
    // No TLS.
    curl(&keys, &address.replace("https", "http"), &[]);
    signal(collector.id(), "TERM");
    assert!(collector.wait().unwrap().success());
    let log = fs::read_to_string(&log).unwrap();
    for said in ["requests were refused", "TLS handshakes failed"] {
        assert!(log.contains(said), "{said} in {log}");
    }
}

#[test]
fn files_that_protect_the_port_must_be_there_and_good() {
    let dir = scratch();
    let keys = Keys::make();
    let store = dir.path().join("store");
    let short = dir.path().join("short");
    fs::write(&short, "hunter2").unwrap();
    let (server, key, other) = (keys.path("server.pem"), keys.path("server.key"), keys.path("client.key"));
    let short = short.display().to_string();
    for (args, code, said) in [
        (vec!["--tls-cert", &server], 64, "--tls-key"),
        (vec!["--tls-key", &key], 64, "--tls-cert"),
        (vec!["--tls-cert", &server, "--tls-key", "/nowhere"], 1, "reading the key /nowhere"),
        (vec!["--tls-cert", &server, "--tls-key", &other], 1, "serving the certificate"),
        (vec!["--token-file", "/nowhere"], 1, "reading the token /nowhere"),
        (vec!["--token-file", &short], 1, "7 characters"),
    ] {
        let output = crate::support::jvmprof()
            .args(["collector", "--listen", "127.0.0.1:0", "--dir"])
            .arg(&store)
            .args(&args)
            .output()
            .unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{args:?}: {error}");
        assert!(error.contains(said) && !error.contains("hunter2"), "{args:?}: {error}");
    }
}
