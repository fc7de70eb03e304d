//! nginx with TLS in front of a backend.

use std::fs;
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use super::keys::Keys;
use super::{KilledChild, scratch};

/// What clients have to send as a bearer token.
pub(crate) const TOKEN: &str = "s3cret";

/// nginx that takes who has the client's certificate and the token.
pub(crate) struct Nginx {
    _process: KilledChild,
    pub(crate) port: u16,
    dir: TempDir,
}

impl Nginx {
    /// `pass`: what happens to those with the token.
    pub(crate) fn start(keys: &Keys, pass: &str) -> Self {
        Self::start_with(keys, "", pass)
    }

    /// As [`Self::start`], with more directives of all servers.
    pub(crate) fn start_with(keys: &Keys, directives: &str, pass: &str) -> Self {
        let dir = scratch();
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let at = dir.path().display();
        let config = format!(
            r#"daemon off; pid {at}/pid; error_log {at}/error.log; master_process off;
            events {{}}
            http {{
                log_format times "$msec $status"; access_log {at}/access.log times;
                client_body_temp_path {at}/body; proxy_temp_path {at}/proxy;
                fastcgi_temp_path {at}/fastcgi; uwsgi_temp_path {at}/uwsgi; scgi_temp_path {at}/scgi;
                client_max_body_size 64m; {directives}
                server {{
                    listen 127.0.0.1:{port} ssl http2;
                    ssl_certificate {server}; ssl_certificate_key {key};
                    ssl_client_certificate {ca}; ssl_verify_client on;
                    location / {{
                        if ($http_authorization != "Bearer {TOKEN}") {{ return 401; }}
                        {pass}
                    }}
                }}
            }}"#,
            server = keys.path("server.pem"),
            key = keys.path("server.key"),
            ca = keys.path("ca.pem"),
        );
        let file = dir.path().join("nginx.conf");
        fs::write(&file, config).unwrap();
        let mut nginx = Command::new("nginx");
        nginx.arg("-c").arg(&file).arg("-e").arg(dir.path().join("error.log")).stdin(Stdio::null());
        let process = KilledChild(nginx.spawn().expect("the tests need nginx"));
        let started = Instant::now();
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            let log = fs::read_to_string(dir.path().join("error.log")).unwrap_or_default();
            assert!(started.elapsed() < Duration::from_secs(30), "nginx doesn't listen: {log}");
            std::thread::sleep(Duration::from_millis(50));
        }
        Self { _process: process, port, dir }
    }

    /// The requests so far: when each was answered, in seconds since 1970, and the status.
    pub(crate) fn answers(&self) -> Vec<(f64, u16)> {
        let log = fs::read_to_string(self.dir.path().join("access.log")).unwrap();
        let answer = |line: &str| {
            let (time, status) = line.split_once(' ')?;
            Some((time.parse().ok()?, status.parse().ok()?))
        };
        log.lines().map(|line| answer(line).unwrap_or_else(|| panic!("{line}"))).collect()
    }
}
