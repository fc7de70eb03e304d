//! Requests to a collector, by curl.

use std::process::Command;

/// Status and body of what a server answers; status 000 without an answer. `network_of`: a process
/// in whose network the request is sent.
pub(crate) fn curl(network_of: Option<u32>, args: &[&str]) -> (String, String) {
    let mut command = match network_of {
        None => Command::new("curl"),
        Some(pid) => {
            let mut nsenter = Command::new("nsenter");
            nsenter.arg(format!("--net=/proc/{pid}/ns/net")).arg("curl");
            nsenter
        }
    };
    command.args(["-s", "-w", "\n%{http_code}"]).args(args);
    let output = command.output().expect("the tests need curl and nsenter");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let (body, status) = text.rsplit_once('\n').unwrap_or_else(|| panic!("{command:?} says no status"));
    (status.to_owned(), body.to_owned())
}
