//! Processes of a headless Chromium, spoken to over their DevTools pipes: JSON messages with a NUL
//! behind each, no port and no library. A test has one for itself. Those that begin while others
//! run get the process of a test that has passed, since a start costs a second of CPU time.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;

use serde_json::{Value, json};

use super::PATIENCE;

const PROGRAMS: [&str; 3] = ["chromium", "chromium-browser", "google-chrome"];

/// Pages have sizes of their own, and none is larger.
const WINDOW_SIZE: &str = "--window-size=1920,1200";

/// What nobody looks at isn't slowed down.
const UNTHROTTLED: [&str; 3] = [
    "--disable-backgrounding-occluded-windows",
    "--disable-renderer-backgrounding",
    "--disable-background-timer-throttling",
];

/// A process, ended when it is dropped.
pub(super) struct Chromium {
    process: Child,
    commands: ChildStdin,
    messages: Receiver<Value>,
    last_id: u64,
    _profile: tempfile::TempDir,
}

/// The processes that no test uses, and the number of those that one does.
struct Pool {
    idle: Vec<Chromium>,
    in_use: usize,
}

static POOL: Mutex<Pool> = Mutex::new(Pool { idle: Vec::new(), in_use: 0 });

fn pool() -> MutexGuard<'static, Pool> {
    POOL.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Chromium {
    /// Takes one that no test uses, or starts one.
    pub(super) fn take() -> Self {
        let idle = pool().idle.pop();
        let running = idle.and_then(|mut idle| matches!(idle.process.try_wait(), Ok(None)).then_some(idle));
        let taken = running.unwrap_or_else(Self::start);
        pool().in_use += 1;
        taken
    }

    /// Ends the use of one, which is `None` if no other test should have it. The last use ends all
    /// processes.
    pub(super) fn give_back(chromium: Option<Self>) {
        let mut pool = pool();
        pool.in_use -= 1;
        pool.idle.extend(chromium);
        let unneeded = if pool.in_use == 0 { std::mem::take(&mut pool.idle) } else { Vec::new() };
        drop(pool);
        drop(unneeded);
    }

    fn start() -> Self {
        let profile = tempfile::tempdir().expect("a folder for the browser's profile");
        // The pipe is file descriptors 3 and 4 of the browser; a shell moves stdin and stdout
        // there.
        let mut process = Command::new("sh")
            .args(["-c", r#"exec "$@" 3<&0 4>&1 </dev/null >/dev/null 2>/dev/null"#, "sh"])
            .arg(program())
            .args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"])
            .args(["--disable-background-networking", "--disable-component-update", "--disable-sync"])
            .args(["--remote-debugging-pipe", "--hide-scrollbars", "--force-color-profile=srgb"])
            .args(UNTHROTTLED)
            .arg(WINDOW_SIZE)
            .arg(format!("--user-data-dir={}", profile.path().display()))
            .arg("about:blank")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the shell starts");
        let commands = process.stdin.take().expect("stdin is a pipe");
        let output = process.stdout.take().expect("stdout is a pipe");
        let (sender, messages) = channel();
        thread::spawn(move || {
            for message in BufReader::new(output).split(0) {
                let Ok(message) = message else { break };
                if sender.send(serde_json::from_slice(&message).expect("DevTools speaks JSON")).is_err() {
                    break;
                }
            }
        });
        Self { process, commands, messages, last_id: 0, _profile: profile }
    }

    /// Sends a command to the page of a session or, if that is empty, to the browser, and returns
    /// the result. Hands all that arrives meanwhile to `note`.
    pub(super) fn call(
        &mut self,
        session: &str,
        method: &str,
        parameters: &Value,
        mut note: impl FnMut(&Value),
    ) -> Result<Value, String> {
        self.last_id += 1;
        let mut message = json!({"id": self.last_id, "method": method, "params": parameters});
        if !session.is_empty() {
            message["sessionId"] = session.into();
        }
        let mut bytes = message.to_string().into_bytes();
        bytes.push(0);
        self.commands.write_all(&bytes).map_err(|error| format!("{method}: Chromium has ended: {error}"))?;
        loop {
            let Ok(answer) = self.messages.recv_timeout(PATIENCE) else {
                return Err(format!("Chromium didn't answer {method}: it ended, or hangs"));
            };
            note(&answer);
            if answer["id"] == self.last_id {
                let is_error = answer.get("error").is_some();
                return if is_error {
                    Err(format!("{method}: {answer}"))
                } else {
                    Ok(answer["result"].clone())
                };
            }
        }
    }
}

impl Drop for Chromium {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The browser to use: `$CHROMIUM`, or the first that is installed.
fn program() -> String {
    if let Ok(program) = std::env::var("CHROMIUM") {
        return program;
    }
    let runs = |program: &&&str| Command::new(program).arg("--version").output().is_ok();
    let found = PROGRAMS.iter().find(runs);
    found.map(ToString::to_string).unwrap_or_else(|| {
        panic!("this test needs Chromium: install the package `chromium`, or set CHROMIUM to its path")
    })
}
