//! A headless Chromium, driven over its DevTools pipe: JSON messages with a NUL behind each, no
//! port and no library.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

const PROGRAMS: [&str; 3] = ["chromium", "chromium-browser", "google-chrome"];
const PATIENCE: Duration = Duration::from_secs(60);

/// A running browser with one page; ended when it is dropped.
pub(crate) struct Browser {
    process: Child,
    commands: ChildStdin,
    messages: Receiver<Value>,
    next_id: u64,
    session: String,
    /// What the page complained of: exceptions, errors on the console, refusals by the page's own
    /// security policy.
    pub(crate) complaints: Vec<String>,
    _profile: tempfile::TempDir,
}

impl Browser {
    /// Starts the browser with a window of this size.
    pub(crate) fn start(width: u32, height: u32) -> Self {
        let profile = tempfile::tempdir().expect("a folder for the browser's profile");
        // The pipe is file descriptors 3 and 4 of the browser; a shell moves stdin and stdout
        // there.
        let mut process = Command::new("sh")
            .args(["-c", r#"exec "$@" 3<&0 4>&1 </dev/null >/dev/null 2>/dev/null"#, "sh"])
            .arg(program())
            .args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"])
            .args(["--disable-background-networking", "--disable-component-update", "--disable-sync"])
            .args(["--remote-debugging-pipe", "--hide-scrollbars", "--force-color-profile=srgb"])
            .arg(format!("--window-size={width},{height}"))
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
        let mut browser = Self {
            process,
            commands,
            messages,
            next_id: 0,
            session: String::new(),
            complaints: Vec::new(),
            _profile: profile,
        };
        browser.attach(width, height);
        browser
    }

    fn attach(&mut self, width: u32, height: u32) {
        let target = self.call("Target.createTarget", &json!({"url": "about:blank"}));
        let attached =
            self.call("Target.attachToTarget", &json!({"targetId": target["targetId"], "flatten": true}));
        self.session = attached["sessionId"].as_str().expect("a session").to_owned();
        for domain in ["Page", "Runtime", "Log"] {
            self.call(&format!("{domain}.enable"), &json!({}));
        }
        self.resize(width, height);
    }

    pub(crate) fn resize(&mut self, width: u32, height: u32) {
        let metrics = json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": false});
        self.call("Emulation.setDeviceMetricsOverride", &metrics);
    }

    /// What `prefers-color-scheme` says from now on.
    pub(crate) fn prefer(&mut self, scheme: &str) {
        let features = json!({"features": [{"name": "prefers-color-scheme", "value": scheme}]});
        self.call("Emulation.setEmulatedMedia", &features);
    }

    /// Makes the window one of a touch screen.
    pub(crate) fn emulate_touch(&mut self) {
        self.call("Emulation.setTouchEmulationEnabled", &json!({"enabled": true, "maxTouchPoints": 2}));
    }

    pub(crate) fn open(&mut self, url: &str) {
        self.evaluate("void (globalThis.isLeft = true)");
        let answer = self.call("Page.navigate", &json!({"url": url}));
        assert!(answer.get("errorText").is_none(), "cannot open {url}: {answer}");
        // The document before is there, and complete, until the other one is; another fragment
        // stays in it.
        let is_another = if answer.get("loaderId").is_some() { "!globalThis.isLeft && " } else { "" };
        self.wait_for(&format!("{is_another}document.readyState === 'complete'"));
    }

    /// The value of a JavaScript expression; promises are awaited.
    pub(crate) fn evaluate(&mut self, expression: &str) -> Value {
        let parameters = json!({"expression": expression, "returnByValue": true, "awaitPromise": true});
        let answer = self.call("Runtime.evaluate", &parameters);
        assert!(answer.get("exceptionDetails").is_none(), "{expression}: {answer}");
        answer["result"]["value"].clone()
    }

    /// Waits until the expression is true.
    pub(crate) fn wait_for(&mut self, expression: &str) {
        let start = Instant::now();
        while self.evaluate(expression) != Value::Bool(true) {
            if start.elapsed() >= PATIENCE {
                let address = self.evaluate("location.href");
                panic!("still not true at {address}: {expression}; {:?}", self.complaints);
            }
            thread::sleep(Duration::from_millis(30));
        }
    }

    /// Milliseconds of CPU time that the page's main thread has taken.
    #[allow(dead_code, reason = "the bench measures, tests don't")]
    pub(crate) fn cpu_ms(&mut self) -> f64 {
        self.call("Performance.enable", &json!({"timeDomain": "threadTicks"}));
        let answer = self.call("Performance.getMetrics", &json!({}));
        let metrics = answer["metrics"].as_array().expect("metrics");
        let tasks = metrics.iter().find(|metric| metric["name"] == "TaskDuration").expect("time of tasks");
        tasks["value"].as_f64().expect("a number") * 1e3
    }

    /// Presses a key with the focus where it is: a character or a name such as `Enter`.
    pub(crate) fn press(&mut self, key: &str) {
        self.press_with(key, 0);
    }

    /// Presses a key together with Shift.
    pub(crate) fn press_with_shift(&mut self, key: &str) {
        self.press_with(key, 8);
    }

    fn press_with(&mut self, key: &str, modifiers: u32) {
        let code = match key {
            "Tab" => 9,
            "Enter" => 13,
            "Escape" => 27,
            "ArrowLeft" => 37,
            "ArrowUp" => 38,
            "ArrowRight" => 39,
            "ArrowDown" => 40,
            _ => 0,
        };
        let mut event =
            json!({"type": "keyDown", "key": key, "windowsVirtualKeyCode": code, "modifiers": modifiers});
        match code {
            0 => event["text"] = key.into(),
            // Buttons are pressed by the character.
            13 => event["text"] = "\r".into(),
            _ => {}
        }
        self.call("Input.dispatchKeyEvent", &event);
        event["type"] = "keyUp".into();
        self.call("Input.dispatchKeyEvent", &event);
    }

    /// Types text where the focus is.
    pub(crate) fn type_text(&mut self, text: &str) {
        self.call("Input.insertText", &json!({"text": text}));
    }

    /// Moves the mouse to the middle of the element that the expression gives, and clicks if asked
    /// to.
    pub(crate) fn point(&mut self, element: &str, click: bool) {
        let place = self.middle(element);
        self.mouse("mouseMoved", &place);
        if click {
            self.mouse("mousePressed", &place);
            self.mouse("mouseReleased", &place);
        }
    }

    /// Touches the middle of the element that the expression gives, for so long.
    pub(crate) fn touch(&mut self, element: &str, time: Duration) {
        let place = self.middle(element);
        let points = json!([{"x": place[0], "y": place[1]}]);
        self.call("Input.dispatchTouchEvent", &json!({"type": "touchStart", "touchPoints": points}));
        thread::sleep(time);
        self.call("Input.dispatchTouchEvent", &json!({"type": "touchEnd", "touchPoints": []}));
    }

    /// Draws a finger from one place to another, in window coordinates, and takes it away there.
    pub(crate) fn touch_drag(&mut self, from: [f64; 2], to: [f64; 2]) {
        // By many small moves: of the first ones a browser sees whether it is to scroll.
        let steps = ((to[0] - from[0]).hypot(to[1] - from[1]) / 8.0).ceil().max(1.0);
        let at = |step: f64, axis: usize| from[axis] + (to[axis] - from[axis]) * step / steps;
        let point = |step: f64| json!([{"x": at(step, 0), "y": at(step, 1)}]);
        let start = json!({"type": "touchStart", "touchPoints": point(0.0)});
        self.call("Input.dispatchTouchEvent", &start);
        for step in 1..=steps as u32 {
            let event = json!({"type": "touchMove", "touchPoints": point(f64::from(step))});
            self.call("Input.dispatchTouchEvent", &event);
        }
        // What is let go while it moves goes on by itself.
        thread::sleep(Duration::from_millis(200));
        self.call("Input.dispatchTouchEvent", &json!({"type": "touchEnd", "touchPoints": []}));
    }

    fn middle(&mut self, element: &str) -> Value {
        self.evaluate(&format!(
            "(() => {{ const b = ({element}).getBoundingClientRect(); return [b.x + b.width / 2, b.y + b.height / 2] }})()"
        ))
    }

    /// Presses the button at one place and lets go at another, in window coordinates.
    pub(crate) fn drag(&mut self, from: [f64; 2], to: [f64; 2]) {
        self.mouse("mouseMoved", &json!(from));
        self.mouse("mousePressed", &json!(from));
        self.mouse("mouseMoved", &json!([(from[0] + to[0]) / 2.0, to[1]]));
        self.mouse("mouseMoved", &json!(to));
        self.mouse("mouseReleased", &json!(to));
    }

    /// Has the mouse do something (`mouseMoved`, `mousePressed`, `mouseReleased`) at a place in the
    /// window.
    #[allow(dead_code, reason = "the bench measures, tests don't")]
    pub(crate) fn mouse_at(&mut self, kind: &str, place: [f64; 2]) {
        self.mouse(kind, &json!(place));
    }

    fn mouse(&mut self, kind: &str, place: &Value) {
        let buttons = u8::from(kind != "mouseReleased");
        let button = if kind == "mouseMoved" { "none" } else { "left" };
        let event = json!({"type": kind, "x": place[0], "y": place[1], "button": button, "buttons": buttons, "clickCount": 1});
        self.call("Input.dispatchMouseEvent", &event);
    }

    /// Writes a picture of the window.
    pub(crate) fn screenshot(&mut self, path: &Path) {
        // The names of frames are set when an animation has ended.
        thread::sleep(Duration::from_millis(700));
        let answer = self.call("Page.captureScreenshot", &json!({"format": "png"}));
        let png = base64(answer["data"].as_str().expect("a picture"));
        std::fs::write(path, png).expect("the picture is written");
    }

    /// Returns what the page itself complained of: Chromium also does of each answer that is no
    /// success.
    pub(crate) fn complaints_of_the_page(&self) -> Vec<&str> {
        let complaints = self.complaints.iter().map(String::as_str);
        complaints.filter(|it| !it.starts_with("\"Failed to load resource: ")).collect()
    }

    fn call(&mut self, method: &str, parameters: &Value) -> Value {
        self.next_id += 1;
        let mut message = json!({"id": self.next_id, "method": method, "params": parameters});
        if !self.session.is_empty() {
            message["sessionId"] = self.session.clone().into();
        }
        let mut bytes = message.to_string().into_bytes();
        bytes.push(0);
        self.commands.write_all(&bytes).expect("Chromium runs");
        loop {
            let Ok(answer) = self.messages.recv_timeout(PATIENCE) else {
                panic!("Chromium didn't answer {method}: it ended, or hangs");
            };
            self.note_complaint(&answer);
            if answer["id"] == self.next_id {
                assert!(answer.get("error").is_none(), "{method}: {answer}");
                return answer["result"].clone();
            }
        }
    }

    fn note_complaint(&mut self, message: &Value) {
        let parameters = &message["params"];
        let complaint = match message["method"].as_str() {
            Some("Runtime.exceptionThrown") => &parameters["exceptionDetails"],
            Some("Log.entryAdded") if parameters["entry"]["level"] == "error" => &parameters["entry"]["text"],
            Some("Runtime.consoleAPICalled") if parameters["type"] == "error" => &parameters["args"],
            _ => return,
        };
        self.complaints.push(complaint.to_string());
    }
}

impl Drop for Browser {
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

fn base64(text: &str) -> Vec<u8> {
    let value = |byte: u8| match byte {
        b'A'..=b'Z' => byte - b'A',
        b'a'..=b'z' => byte - b'a' + 26,
        b'0'..=b'9' => byte - b'0' + 52,
        b'+' => 62,
        _ => 63,
    };
    let digits: Vec<u8> = text.bytes().filter(|byte| *byte != b'=').map(value).collect();
    let mut bytes = Vec::with_capacity(digits.len() * 3 / 4);
    for group in digits.chunks(4) {
        let bits =
            group.iter().enumerate().fold(0, |bits, (at, digit)| bits | u32::from(*digit) << (18 - 6 * at));
        bytes.extend_from_slice(&bits.to_be_bytes()[1..group.len()]);
    }
    bytes
}
