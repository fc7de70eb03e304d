//! A server's process, and questions to it over HTTP.

use std::fs;
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

/// A server that `cargo xtask test` has built, until it is killed.
pub(crate) struct Server(Child);

impl Server {
    /// Starts the program that this environment variable names, with its log in a folder, and waits
    /// until it listens at an address.
    pub(crate) fn start(variable: &str, args: &[String], dir: &Path, address: &str) -> Self {
        Self::start_with(variable, args, &[], dir, address)
    }

    /// As [`Self::start`], with more variables in its environment.
    pub(crate) fn start_with(
        variable: &str,
        args: &[String],
        environment: &[(&str, &str)],
        dir: &Path,
        address: &str,
    ) -> Self {
        let program = std::env::var(variable).unwrap_or_else(|_| {
            panic!("{variable} names the server: run `cargo xtask test --servers`, which builds it")
        });
        let log = fs::OpenOptions::new().create(true).append(true).open(dir.join("log")).unwrap();
        let mut server = Command::new(&program);
        server.args(args).envs(environment.iter().copied()).current_dir(dir);
        server.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
        let child = server.spawn().unwrap_or_else(|error| panic!("starting {program}: {error}"));
        let mut server = Self(child);
        let started = Instant::now();
        while TcpStream::connect(address).is_err() {
            let log = || fs::read_to_string(dir.join("log")).unwrap_or_default();
            assert!(server.0.try_wait().unwrap().is_none(), "{program} has ended: {}", log());
            assert!(started.elapsed() < PATIENCE, "nobody listens at {address}: {}", log());
            std::thread::sleep(Duration::from_millis(20));
        }
        server
    }
}

impl Drop for Server {
    /// Kills it: SIGKILL.
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// An address of this machine on which nobody listens.
pub(crate) fn free_address() -> String {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string()
}

/// Returns a server's answer to a question by HTTP, which is JSON.
pub(crate) fn get(url: &str, parameters: &[(&str, &str)]) -> Value {
    let mut request = ureq::get(url);
    for (name, value) in parameters {
        request = request.query(name, value);
    }
    let mut answer = request.call().unwrap_or_else(|error| panic!("{url} {parameters:?}: {error}"));
    serde_json::from_str(&answer.body_mut().read_to_string().unwrap()).unwrap()
}

/// The same of a question that is JSON itself.
pub(crate) fn post(url: &str, question: &Value) -> Value {
    let request = ureq::post(url).header("content-type", "application/json");
    let answer = request.send(question.to_string());
    let mut answer = answer.unwrap_or_else(|error| panic!("{url} {question}: {error}"));
    serde_json::from_str(&answer.body_mut().read_to_string().unwrap()).unwrap()
}
