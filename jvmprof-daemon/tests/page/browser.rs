//! A page in a headless Chromium.

// Also where a bench has this file as its own module.
#[path = "browser/chromium.rs"]
mod chromium;

use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use self::chromium::Chromium;

const PATIENCE: Duration = Duration::from_secs(60);

/// A browser that knows nothing, with one page, until it is dropped.
pub(crate) struct Browser {
    /// There until the end.
    chromium: Option<Chromium>,
    /// What the page stores and fetches is kept apart from that of other tests' pages.
    context: String,
    session: String,
    /// What the page complained of: exceptions, errors on the console, refusals by the page's own
    /// security policy.
    pub(crate) complaints: Vec<String>,
}

impl Browser {
    /// Starts the browser with a window of this size.
    pub(crate) fn start(width: u32, height: u32) -> Self {
        let mut browser = Self {
            chromium: Some(Chromium::take()),
            context: String::new(),
            session: String::new(),
            complaints: Vec::new(),
        };
        browser.attach(width, height);
        browser
    }

    fn attach(&mut self, width: u32, height: u32) {
        let text = |answer: &Value| answer.as_str().expect("DevTools gives it an id").to_owned();
        let context = self.call("Target.createBrowserContext", &json!({}));
        self.context = text(&context["browserContextId"]);
        let target = json!({"url": "about:blank", "browserContextId": self.context});
        let target = self.call("Target.createTarget", &target);
        let attached =
            self.call("Target.attachToTarget", &json!({"targetId": target["targetId"], "flatten": true}));
        self.session = text(&attached["sessionId"]);
        for domain in ["Page", "Runtime", "Log"] {
            self.call(&format!("{domain}.enable"), &json!({}));
        }
        // Whichever of the process's windows is in front.
        self.call("Emulation.setFocusEmulationEnabled", &json!({"enabled": true}));
        self.prefer("light");
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
        let mut pause = Duration::from_millis(2);
        while self.evaluate(expression) != Value::Bool(true) {
            if start.elapsed() >= PATIENCE {
                let address = self.evaluate("location.href");
                panic!("still not true at {address}: {expression}; {:?}", self.complaints);
            }
            thread::sleep(pause);
            pause = (2 * pause).min(Duration::from_millis(30));
        }
    }

    /// Milliseconds of CPU time that the page's main thread has taken.
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

    /// Taps the middle of the element that the expression gives, for as short as possible: on a
    /// slow machine the finger would rest.
    pub(crate) fn tap(&mut self, element: &str) {
        let start = self.touch_start(element);
        self.call(TOUCH, &start);
        self.call(TOUCH, &touch_end());
    }

    /// Rests a finger on the middle of the element that the expression gives, until another
    /// expression is true.
    pub(crate) fn rest(&mut self, element: &str, until: &str) {
        let start = self.touch_start(element);
        self.call(TOUCH, &start);
        self.wait_for(until);
        self.call(TOUCH, &touch_end());
    }

    fn touch_start(&mut self, element: &str) -> Value {
        let place = self.middle(element);
        json!({"type": "touchStart", "touchPoints": [{"x": place[0], "y": place[1]}]})
    }

    /// Draws a finger from one place to another, in window coordinates, and takes it away there.
    pub(crate) fn touch_drag(&mut self, from: [f64; 2], to: [f64; 2]) {
        // By many small moves: of the first ones a browser sees whether it is to scroll.
        let steps = ((to[0] - from[0]).hypot(to[1] - from[1]) / 8.0).ceil().max(1.0);
        let at = |step: f64, axis: usize| from[axis] + (to[axis] - from[axis]) * step / steps;
        let point = |step: f64| json!([{"x": at(step, 0), "y": at(step, 1)}]);
        let start = json!({"type": "touchStart", "touchPoints": point(0.0)});
        self.call(TOUCH, &start);
        for step in 1..=steps as u32 {
            let event = json!({"type": "touchMove", "touchPoints": point(f64::from(step))});
            self.call(TOUCH, &event);
        }
        // What is let go while it moves goes on by itself.
        thread::sleep(Duration::from_millis(200));
        self.call(TOUCH, &touch_end());
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
        let Self { chromium, session, complaints, .. } = self;
        let chromium = chromium.as_mut().expect("it is there until the end");
        let session = session.as_str();
        let note = |message: &Value| complaints.extend(complaint(session, message));
        chromium.call(session, method, parameters, note).unwrap_or_else(|error| panic!("{error}"))
    }
}

/// Returns what a message says that the page of a session complains of.
fn complaint(session: &str, message: &Value) -> Option<String> {
    // Pages of earlier tests may still have some to say.
    message["sessionId"].as_str().filter(|of| *of == session)?;
    let parameters = &message["params"];
    let complaint = match message["method"].as_str()? {
        "Runtime.exceptionThrown" => &parameters["exceptionDetails"],
        "Log.entryAdded" if parameters["entry"]["level"] == "error" => &parameters["entry"]["text"],
        "Runtime.consoleAPICalled" if parameters["type"] == "error" => &parameters["args"],
        _ => return None,
    };
    Some(complaint.to_string())
}

const TOUCH: &str = "Input.dispatchTouchEvent";

fn touch_end() -> Value {
    json!({"type": "touchEnd", "touchPoints": []})
}

impl Drop for Browser {
    /// Closes the page. A test that fails may have hung up the process.
    fn drop(&mut self) {
        let chromium = self.chromium.take().filter(|_| !thread::panicking());
        let context = json!({"browserContextId": self.context});
        let clean = chromium.and_then(|mut chromium| {
            let closed = chromium.call("", "Target.disposeBrowserContext", &context, |_| ());
            closed.is_ok().then_some(chromium)
        });
        Chromium::give_back(clean);
    }
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
