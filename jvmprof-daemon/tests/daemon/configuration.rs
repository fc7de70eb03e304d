//! `jvmprof daemon` with a file: what is refused, what SIGHUP changes, what rules drop. Needs root.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Output, Stdio};
use std::time::{Duration, Instant};

use crate::support::{Workload, compile, jvmprof, scratch, signal};
use jvmprof_daemon::export::store::{Matcher, Store, TimeRange};

const BUSY: &str = r"
volatile unsigned long sink;
__attribute__((noinline)) void spin(void) { for (int i = 0; i < 20000; i++) sink += i * i; }
int main(void) { for (;;) spin(); }
";

/// A daemon whose log can be read while it runs.
struct Daemon {
    child: Child,
    log: PathBuf,
}

impl Daemon {
    fn start(dir: &Path, file: &Path) -> Self {
        let log = dir.join("log");
        let child = jvmprof()
            .args(["--log-level", "info", "daemon", "--config"])
            .arg(file)
            .stderr(fs::File::create(&log).unwrap())
            .env("NO_COLOR", "1")
            .spawn()
            .unwrap();
        Self { child, log }
    }

    fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap()
    }

    /// Waits until so many lines of the log hold this text.
    fn await_lines(&mut self, text: &str, count: usize) {
        let give_up = Instant::now() + Duration::from_secs(120);
        while self.log().lines().filter(|line| line.contains(text)).count() < count {
            assert!(Instant::now() < give_up, "no {count} lines with {text:?} in {}", self.log());
            assert!(self.child.try_wait().unwrap().is_none(), "the daemon has ended: {}", self.log());
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Waits for some windows from now on.
    fn await_windows(&mut self, count: usize) {
        let before = self.log().lines().filter(|line| line.contains("event_loop: window")).count();
        self.await_lines("event_loop: window", before + count);
    }

    fn end(mut self) -> String {
        signal(self.child.id(), "TERM");
        assert!(self.child.wait().unwrap().success(), "{}", self.log());
        self.log()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A collector that doesn't outlive its test.
struct Collector(Child);

impl Drop for Collector {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A number of the last line with this text.
fn field(log: &str, line: &str, name: &str) -> u64 {
    let last = log.lines().rfind(|it| it.contains(line)).unwrap_or_else(|| panic!("no {line} in {log}"));
    let is_whole = |end: usize| !last[end..].starts_with(|it: char| it.is_ascii_alphanumeric() || it == '_');
    let mut ends = last.match_indices(name).map(|(at, name)| at + name.len());
    let at = ends.find(|end| is_whole(*end)).unwrap_or_else(|| panic!("no {name} in {last}"));
    let digits = last[at..].trim_start_matches(['=', '"', ':', ' ']);
    let end = digits.find(|it: char| !it.is_ascii_digit()).unwrap_or(digits.len());
    digits[..end].parse().unwrap_or_else(|_| panic!("{name} is no number in {last}"))
}

/// A loss as the last window's line has it; those that are zero aren't there.
fn loss(log: &str, name: &str) -> u64 {
    let last = log.lines().rfind(|line| line.contains(" window ")).unwrap_or_default();
    if last.contains(name) { field(last, " window ", name) } else { 0 }
}

fn samples(dir: &Path, labels: &[(&str, &str)]) -> u64 {
    let store = Store::open_for_reading(dir).unwrap();
    let matchers: Vec<Matcher> = labels.iter().map(|(name, value)| Matcher::equal(*name, *value)).collect();
    store.profiles(TimeRange::ALL, &matchers).iter().map(|profile| profile.samples).sum()
}

fn check(file: &Path, variables: &[(&str, &str)]) -> (Output, String) {
    let output = jvmprof()
        .args(["daemon", "--check-config", "--config"])
        .arg(file)
        .envs(variables.iter().copied())
        .output()
        .unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    (output, stderr)
}

#[test]
fn a_bad_file_is_refused_before_anything_starts() {
    let dir = scratch();
    let file = dir.path().join("bad.toml");
    let text =
        "frequency = 0\n[remote-store]\nadress = 'x'\n[[relabel-configs]]\nregex = '('\naction = 'drop'\n";
    fs::write(&file, text).unwrap();
    let (output, stderr) = check(&file, &[("JVMPROF_SYMBOLIZE", "nobody")]);
    assert_eq!(output.status.code(), Some(64), "{stderr}");
    let path = file.display();
    for expected in [
        format!("{path}:1:13: frequency: \"0\": 0 is not in 1..=20000"),
        format!("{path}:3:1: unknown key \"remote-store-adress\": did you mean \"remote-store-address\"?"),
        format!("{path}:5:1: relabel-configs[0]: regex \"(\": unclosed group"),
        "environment variable JVMPROF_SYMBOLIZE: \"nobody\": must be one of local, server, auto".to_owned(),
    ] {
        assert!(stderr.lines().any(|line| line == expected), "{expected} isn't in\n{stderr}");
    }
    let missing = dir.path().join("missing.toml");
    assert_eq!(check(&missing, &[]).0.status.code(), Some(64));
}

#[test]
fn each_bad_rule_is_told_with_the_line_of_what_is_wrong() {
    let dir = scratch();
    let file = dir.path().join("rules.toml");
    let rules = [
        (2, "source_labels = ['comm']\naction = 'kep'", "unknown action \"kep\""),
        (1, "regex = 'a(b'\naction = 'drop'", "regex \"a(b\": unclosed group"),
        (0, "source_labels = ['comm']", "action replace needs target_label"),
        (0, "action = 'hashmod'\ntarget_label = 'x'", "action hashmod needs a modulus that isn't 0"),
        (2, "source_labels = ['comm']\ntarget_label = 'a-b'", "target_label \"a-b\" is no label name"),
        (1, "source_labels = ['ok', 'a-b']\ntarget_label = 'a'", "source label \"a-b\" is no label name"),
        (3, "action = 'labeldrop'\nregex = 'a'\nseparator = ','", "action labeldrop takes no separator"),
        (2, "action = 'drop'\nregexp = 'a'", "unknown field `regexp`"),
        (2, "action = 'drop'\nsource_labels = 'comm'", "invalid type: string \"comm\", expected a sequence"),
        (2, "target_label = 'a'\nmodulus = -1", "invalid value"),
    ];
    let mut text = String::new();
    let mut expected = Vec::new();
    for (nth, (line_in_rule, rule, told)) in rules.iter().enumerate() {
        let line = text.lines().count() + 1 + line_in_rule;
        expected.push((format!("{}:{line}:1: relabel-configs[{nth}]: ", file.display()), told));
        text += &format!("[[relabel-configs]]\n{rule}\n\n");
    }
    fs::write(&file, text).unwrap();
    let (output, stderr) = check(&file, &[]);
    assert_eq!(output.status.code(), Some(64), "{stderr}");
    for (place, told) in expected {
        let is_told = |line: &str| line.strip_prefix(&place).is_some_and(|rest| rest.contains(told));
        assert!(stderr.lines().any(is_told), "{place}{told} isn't in\n{stderr}");
    }
    assert_eq!(stderr.lines().filter(|line| line.contains("rules.toml:")).count(), rules.len(), "{stderr}");
}

#[test]
fn what_cannot_work_is_refused_with_the_place_that_says_so() {
    let dir = scratch();
    let file = dir.path().join("bad.toml");
    let path = file.display();
    for (text, told, place) in [
        (
            "remote-store-address = ['http://a:1', 'http://A:1/']\n",
            "named twice",
            "1:1: says remote-store-address",
        ),
        (
            "remote-store-insecure = true\nremote-store-address = ['a:1']\ncollector-address = 'http://a:1'\n",
            "named twice",
            "3:1: says collector-address",
        ),
        ("\nsymbolize = 'server'\n", "needs a --remote-store-address", "2:1: says symbolize"),
        (
            "remote-store = { bearer-token = 'x', bearer-token-file = '/y' }\n",
            "cannot be used with",
            "1:38: says",
        ),
        (
            "frequency = 9\nremote-store-address = '::1:7070'\n",
            "--remote-store-address: the address",
            "2:1: says",
        ),
        ("collector-address = 'x'\n", "--collector-address: the address", "1:1: says collector-address"),
        (
            "remote-store = { address = 'a:1', ca-file = '/nope' }\n",
            "--remote-store-ca-file: reading the CA certificates /nope",
            "1:35: says remote-store-ca-file",
        ),
        (
            "remote-store = { address = 'a:1', bearer-token-file = '/nope' }\n",
            "--remote-store-bearer-token-file: reading the bearer token /nope",
            "1:35: says remote-store-bearer-token-file",
        ),
        (
            "pyroscope-address = ['http://a:1', { address = 'http://b:1', bearer-token-file = '/nope' }]\n",
            "--pyroscope-address: reading the credentials /nope",
            "1:1: says pyroscope-address",
        ),
        (
            "otlp-address = [{ address = 'http://a:1', tennant = 'x' }]\n",
            "otlp-address[0]: not an address: unknown field `tennant`",
            "1:1",
        ),
        ("spool-directory = ''\n", "\"\": must not be empty", "1:19: spool-directory"),
        ("frequency = [[[[\n", "unclosed array", "1:17"),
        ("log-level = 'foo=bar=baz'\n", "error parsing level filter", "1:13: log-level"),
        ("push-interval = '18446744073709551615'\n", "1day at most", "1:17: push-interval"),
        ("[remote-store.grpc-headers]\n'a(b' = 'c'\n", "can't be the name", "2:9: remote-store-grpc-headers"),
    ] {
        fs::write(&file, text).unwrap();
        let (output, stderr) = check(&file, &[]);
        assert_eq!(output.status.code(), Some(64), "{text}{stderr}");
        assert!(stderr.contains(told) && stderr.contains(&format!("{path}:{place}")), "{text}{stderr}");
    }
}

#[test]
fn a_good_file_is_told_and_its_secrets_are_not() {
    let dir = scratch();
    let file = dir.path().join("good.toml");
    fs::write(&file, "remote-store = { address = 'http://127.0.0.1:9', bearer-token = 'geheim' }\n").unwrap();
    let (output, stderr) = check(&file, &[("JVMPROF_FREQUENCY", "19")]);
    let stdout = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{stderr}");
    for line in [
        "frequency = 19 (environment)",
        "remote-store-address = http://127.0.0.1:9 (file)",
        "remote-store-bearer-token = (hidden) (file)",
    ] {
        assert!(stdout.lines().any(|it| it == line), "{line} isn't in\n{stdout}");
    }
    assert!(!stdout.contains("geheim") && !stderr.contains("geheim"));
}

#[test]
fn variables_without_a_value_say_nothing_and_misspelt_ones_are_told() {
    let output = jvmprof()
        .args(["daemon", "--check-config"])
        .envs(
            ["CONFIG", "FREQUENCY", "SPOOL_DIRECTORY", "EXTERNAL_LABELS", "HTTP_ADDRESS"]
                .map(|name| (format!("JVMPROF_{name}"), "")),
        )
        .envs([("JVMPROF_LOG_FORMAT", ""), ("JVMPROF_LOG", ""), ("JVMPROF_REMOTE_STORE_ADDRESS", "")])
        // A setting, almost one, and a service of Kubernetes that is called jvmprof.
        .envs([
            ("JVMPROF_MAX_SERIES", "7"),
            ("JVMPROF_MAX_SERYES", "8"),
            ("JVMPROF_SERVICE_HOST", "10.0.0.1"),
        ])
        .output()
        .unwrap();
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{stderr}");
    assert_eq!(stdout, "max-series = 7 (environment)\nthe configuration is valid\n");
    assert!(
        stderr.contains("JVMPROF_MAX_SERYES is no setting: did you mean JVMPROF_MAX_SERIES?"),
        "{stderr}"
    );
    assert!(!stderr.contains("SERVICE_HOST"), "{stderr}");
    let help = jvmprof().args(["daemon", "--help"]).env("JVMPROF_FREQUENCY", "").output().unwrap();
    assert!(help.status.success() && String::from_utf8_lossy(&help.stdout).contains("JVMPROF_MAX_SERIES"));
    let record = jvmprof().args(["record", "--help"]).env("JVMPROF_LOG_FORMAT", "").output().unwrap();
    assert!(record.status.success());
}

/// A collector on a free port, and its address.
fn collector(dir: &Path) -> (Collector, String) {
    let mut collector = jvmprof()
        .args(["collector", "--listen", "127.0.0.1:0", "--dir"])
        .arg(dir)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(collector.stdout.take().unwrap()).read_line(&mut line).unwrap();
    (Collector(collector), line.trim().trim_end_matches('/').to_owned())
}

/// `dropped`: the program that rules drop.
fn configuration(address: &str, phase: &str, dropped: &str, more: &str) -> String {
    format!(
        "push-interval = '1s'\nremote-store-address = '{address}'\nexternal-labels = {{ phase = '{phase}' }}\n{more}
[[relabel-configs]]
source_labels = ['comm']
regex = '{dropped}'
action = 'drop'

[[relabel-configs]]
source_labels = ['__meta_process_executable_name', '__meta_process_uid']
regex = '(.*);0'
target_label = 'job'
"
    )
}

#[test]
fn sighup_takes_over_what_is_good_and_keeps_what_was_where_it_is_bad() {
    let dir = scratch();
    let flags = ["-O1", "-fno-omit-frame-pointer"];
    let _first = Workload::start(&compile(dir.path(), "first", BUSY, &flags), &[]);
    let _second = Workload::start(&compile(dir.path(), "second", BUSY, &flags), &[]);
    let (one, other) = (dir.path().join("one"), dir.path().join("other"));
    let ((mut at_one, one_address), (mut at_other, other_address)) = (collector(&one), collector(&other));
    let file = dir.path().join("jvmprof.toml");
    fs::write(&file, configuration(&one_address, "before", "first", "")).unwrap();
    let mut daemon = Daemon::start(dir.path(), &file);
    daemon.await_windows(4);

    fs::write(&file, "frequency = 'often'\n").unwrap();
    signal(daemon.child.id(), "HUP");
    daemon.await_lines("jvmprof.toml:1:13: frequency: \"often\"", 1);
    daemon.await_windows(2);

    let more = "frequency = 49\nsymbol-cache-mib = 25";
    fs::write(&file, configuration(&other_address, "after", "second", more)).unwrap();
    signal(daemon.child.id(), "HUP");
    daemon.await_lines("the configuration was read again", 1);
    daemon.await_windows(4);
    let log = daemon.end();
    signal(at_one.0.id(), "TERM");
    signal(at_other.0.id(), "TERM");
    assert!(at_one.0.wait().unwrap().success() && at_other.0.wait().unwrap().success());

    // Who was dropped isn't there, who wasn't is, under the labels of the time.
    assert!(samples(&one, &[("job", "second"), ("phase", "before")]) > 0, "{log}");
    assert_eq!(samples(&one, &[("comm", "first")]), 0, "{log}");
    assert_eq!(samples(&one, &[("phase", "after")]), 0, "a window has one configuration");
    assert!(samples(&other, &[("job", "first"), ("phase", "after")]) > 0, "{log}");
    assert_eq!(samples(&other, &[("comm", "second")]), 0, "{log}");
    assert_eq!(samples(&other, &[("phase", "before")]), 0, "{log}");

    let fixed = log.lines().find(|line| line.contains("need a restart")).expect(&log);
    assert!(fixed.contains("symbol-cache-mib") && !fixed.contains("frequency"), "{fixed}");

    // Each sample is accounted for, and most of what was dropped wasn't even taken.
    let ended = |name| field(&log, " ended ", name);
    let lost = ["\"shed\"", "\"ring_buffer_full\"", "\"unwinder_unavailable\""].map(|name| loss(&log, name));
    assert_eq!(ended("taken"), ended("samples") + lost.iter().sum::<u64>(), "{log}");
    // On a busy machine a request may have had no answer when the sinks were changed.
    let (delivered, possibly_lost) = (ended(" delivered"), ended("possibly_lost"));
    let stored = samples(&one, &[]) + samples(&other, &[]);
    assert!((delivered..=delivered + possibly_lost).contains(&stored), "{stored} are stored: {log}");
    let by_daemon = ended("samples") - ended("handed_over");
    let dropped = loss(&log, "\"dropped_by_rules\"");
    assert!(dropped > by_daemon, "the kernel program dropped nothing by itself: {log}");
}

#[test]
fn settings_that_cannot_be_carried_out_change_nothing_and_the_next_sighup_tries_them_again() {
    let dir = scratch();
    let flags = ["-O1", "-fno-omit-frame-pointer"];
    let _load = Workload::start(&compile(dir.path(), "busy", BUSY, &flags), &[]);
    let store = dir.path().join("store");
    let (mut collector, address) = collector(&store);
    let file = dir.path().join("jvmprof.toml");
    let write = |phase: &str, spool: &Path| {
        let more = format!(
            "spool-directory = '{}'\nremote-store-grpc-headers = {{ phase = '{phase}' }}",
            spool.display()
        );
        fs::write(&file, configuration(&address, phase, "nobody", &more)).unwrap();
    };
    let (spool, blocked) = (dir.path().join("spool"), dir.path().join("blocked"));
    fs::write(&blocked, "no folder").unwrap();
    write("before", &spool);
    let mut daemon = Daemon::start(dir.path(), &file);
    daemon.await_windows(3);

    write("after", &blocked);
    signal(daemon.child.id(), "HUP");
    daemon.await_lines("the configuration is kept as it was", 1);
    daemon.await_windows(3);
    assert_eq!(samples(&store, &[("phase", "after")]), 0, "all or nothing: {}", daemon.log());

    fs::remove_file(&blocked).unwrap();
    signal(daemon.child.id(), "HUP");
    daemon.await_lines("profiles go there from now on", 1);
    // The same settings, and the spool is still there: its books go on.
    write("later", &blocked);
    signal(daemon.child.id(), "HUP");
    daemon.await_lines("profiles go there from now on", 2);
    daemon.await_windows(3);
    let log = daemon.end();
    assert!(samples(&store, &[("phase", "after")]) + samples(&store, &[("phase", "later")]) > 0, "{log}");

    let mut next = Daemon::start(dir.path(), &file);
    next.await_windows(1);
    let next = next.end();
    signal(collector.0.id(), "TERM");
    assert!(collector.0.wait().unwrap().success());
    for log in [log, next] {
        assert!(!log.contains("in good order") && !log.contains("report it"), "{log}");
        let ended = |name| field(&log, " ended ", name);
        let arrived = ended(" delivered") + ended("possibly_lost") + ended("spooled");
        assert!(arrived >= ended("handed_over") && ended(" lost") == 0, "{log}");
    }
}
