//! The listener, asked over real sockets.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};

use super::*;
use crate::telemetry::MetricsSnapshot;

fn address(text: &str) -> HttpAddress {
    text.parse().expect("an address")
}

fn tcp(server: &HttpServer) -> SocketAddr {
    match server.address() {
        HttpAddress::Tcp(address) => *address,
        HttpAddress::Unix(path) => panic!("{} is no TCP address", path.display()),
    }
}

/// Returns the server's answer to these bytes until it closes.
fn exchange(mut stream: impl Read + Write, request: &[u8]) -> String {
    stream.write_all(request).expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("text");
    answer
}

fn get(server: &HttpServer, path: &str) -> String {
    let stream = TcpStream::connect(tcp(server)).expect("it listens");
    exchange(stream, format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").as_bytes())
}

/// An event loop that answers who asks.
fn event_loop(monitor: &Arc<HealthMonitor>) -> std::thread::JoinHandle<()> {
    let monitor = Arc::clone(monitor);
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        runtime.block_on(async {
            monitor.snapshot_requested().await;
            monitor.publish(MetricsSnapshot { windows: 7, ..MetricsSnapshot::default() });
        });
    })
}

#[test]
fn metrics_and_health_are_served() {
    let monitor = Arc::new(HealthMonitor::default());
    let server = HttpServer::start(&address("127.0.0.1:0"), Arc::clone(&monitor)).expect("a free port");
    let answering = event_loop(&monitor);
    let metrics = get(&server, "/metrics");
    answering.join().expect("asked once");
    assert!(metrics.starts_with("HTTP/1.1 200 OK\r\n"), "{metrics}");
    assert!(metrics.contains("content-type: application/openmetrics-text; version=1.0.0"), "{metrics}");
    assert!(metrics.contains("\njvmprof_windows_total 7.0\n") && metrics.ends_with("# EOF\n"), "{metrics}");
    assert!(get(&server, "/healthz").ends_with("\r\n\r\nok\n"));
    let ready = get(&server, "/readyz");
    assert!(ready.starts_with("HTTP/1.1 503") && ready.contains("sampling hasn't begun"), "{ready}");
    monitor.heartbeat(true);
    monitor.set_ready();
    assert!(get(&server, "/readyz").ends_with("\r\n\r\nok\n"));
    assert!(get(&server, "/etc/passwd").starts_with("HTTP/1.1 404"));
}

#[test]
fn a_unix_socket_is_made_for_its_group_and_taken_over_from_the_dead() {
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("http.sock");
    // A socket on which nobody listens any more.
    drop(std::os::unix::net::UnixListener::bind(&path).expect("bound"));
    let at = HttpAddress::Unix(path.clone());
    let server = HttpServer::start(&at, Arc::new(HealthMonitor::default())).expect("taken over");
    let mode = fs::metadata(&path).expect("there").permissions().mode();
    assert_eq!(mode & 0o777, 0o660);
    let stream = UnixStream::connect(&path).expect("it listens");
    let health = exchange(stream, b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    assert!(health.ends_with("ok\n"), "{health}");
    let second = HttpServer::start(&at, Arc::new(HealthMonitor::default())).expect_err("somebody listens");
    assert!(second.to_string().contains("http.sock"), "{second}");
    drop(server);
    assert!(!path.exists());
}

#[test]
fn what_is_no_socket_is_never_removed() {
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("precious");
    fs::write(&path, "data").expect("written");
    HttpServer::start(&HttpAddress::Unix(path.clone()), Arc::new(HealthMonitor::default()))
        .expect_err("a file");
    assert_eq!(fs::read(&path).expect("still there"), b"data");
}

#[test]
fn whoever_holds_connections_open_shuts_nobody_out_and_does_not_stop_the_end() {
    let server =
        HttpServer::start(&address("127.0.0.1:0"), Arc::new(HealthMonitor::default())).expect("a free port");
    let mut open: Vec<TcpStream> =
        (0..limits().connections).map(|_| TcpStream::connect(tcp(&server)).expect("room")).collect();
    for stream in &mut open {
        stream.write_all(b"PRI * HTTP/2.0\r\n").expect("sent");
    }
    // The listener takes connections in the order in which they came.
    assert!(get(&server, "/healthz").ends_with("ok\n"));
    assert!(server.refused() <= 1, "{}", server.refused());
    drop(server);
    drop(open);
}

#[test]
fn large_headers_are_refused() {
    let server =
        HttpServer::start(&address("127.0.0.1:0"), Arc::new(HealthMonitor::default())).expect("a free port");
    let mut stream = TcpStream::connect(tcp(&server)).expect("it listens");
    stream.write_all(b"GET /healthz HTTP/1.1\r\nX: ").expect("sent");
    let mut sent = 0_usize;
    // It closes its side long before all of this is sent.
    while sent < 16 << 20 && stream.write_all(&[b'x'; 4096]).is_ok() {
        sent += 4096;
    }
    let _ = stream.shutdown(Shutdown::Write);
    assert!(sent < 16 << 20, "{sent} bytes of a header were taken");
    assert!(get(&server, "/healthz").ends_with("ok\n"));
}

#[test]
fn addresses_are_read_and_nonsense_is_explained() {
    assert_eq!(address("unix:/run/x").to_string(), "unix:/run/x");
    assert_eq!(address("[::1]:7071").to_string(), "[::1]:7071");
    for (text, why) in
        [("localhost", "127.0.0.1:7071"), ("unix:x", "absolute"), ("7071", "IP address"), ("", "IP address")]
    {
        let error = text.parse::<HttpAddress>().expect_err(text);
        assert!(error.contains(why), "{text}: {error}");
    }
}
