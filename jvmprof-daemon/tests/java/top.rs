//! Live views on a terminal of its own, over a real JVM: `top`, and `record`'s progress.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::num::NonZero;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use nix::pty::{Winsize, openpty};
use nix::sys::termios::{Termios, tcgetattr};

use crate::support::processes::until_it_has_run;
use crate::support::{Workload, compile_java_for, jdks, jvmprof, scratch, signal};

const HOT: &str = r"
public class Hot {
    static long crunch(long n) {
        long sum = 0;
        for (long i = 0; i < n; i++) sum += i ^ (sum << 1);
        return sum;
    }
    public static void main(String[] args) { long sum = 0; while (sum != 1) sum = crunch(50_000_000) | 2; }
}
";
const ROWS: NonZero<u16> = NonZero::new(30).unwrap();
const COLUMNS: NonZero<u16> = NonZero::new(120).unwrap();
/// A busy machine takes its time; nothing depends on how long it took.
const PATIENCE: Duration = Duration::from_secs(120);

/// A program on a terminal.
struct OnTerminal {
    child: Child,
    slave: OwnedFd,
    keys: File,
    screen: Arc<Mutex<vt100::Parser>>,
    before: Termios,
}

impl OnTerminal {
    fn start(mut command: Command) -> Self {
        let size = Winsize { ws_row: ROWS.get(), ws_col: COLUMNS.get(), ws_xpixel: 0, ws_ypixel: 0 };
        let pty = openpty(&size, None).unwrap();
        let before = tcgetattr(&pty.slave).unwrap();
        let stdio = || Stdio::from(pty.slave.try_clone().unwrap());
        command.stdin(stdio()).stdout(stdio()).stderr(stdio());
        // SAFETY: both calls are system calls that a child may make between fork and exec.
        unsafe {
            command.pre_exec(|| {
                nix::unistd::setsid()?;
                match libc::ioctl(0, libc::TIOCSCTTY, 0) {
                    0 => Ok(()),
                    _ => Err(std::io::Error::last_os_error()),
                }
            });
        }
        let child = command.spawn().unwrap();
        let screen = Arc::new(Mutex::new(vt100::Parser::new(ROWS, COLUMNS, 0)));
        let mut output = File::from(pty.master.try_clone().unwrap());
        let shown = Arc::clone(&screen);
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(count @ 1..) = output.read(&mut bytes) {
                shown.lock().unwrap().process(&bytes[..count]);
            }
        });
        Self { child, slave: pty.slave, keys: File::from(pty.master), screen, before }
    }

    fn lines(&self) -> Vec<String> {
        let screen = self.screen.lock().unwrap();
        screen.screen().rows(0, COLUMNS.get()).map(|line| line.trim_end().to_owned()).collect()
    }

    fn wait_for(&mut self, what: &str, is_there: impl Fn(&[String]) -> bool) {
        let began = Instant::now();
        while !is_there(&self.lines()) {
            let is_over = began.elapsed() > PATIENCE || self.child.try_wait().unwrap().is_some();
            assert!(!is_over, "{what} isn't there: {:#?}", self.lines());
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn press(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).unwrap();
    }

    /// Waits for the end, and checks that the terminal is as it was.
    fn end(mut self) {
        let began = Instant::now();
        while self.child.try_wait().unwrap().is_none() {
            assert!(began.elapsed() < PATIENCE, "it runs on: {:#?}", self.lines());
            std::thread::sleep(Duration::from_millis(50));
        }
        let status = self.child.wait().unwrap();
        assert!(status.success(), "{status}: {:#?}", self.lines());
        assert_eq!(tcgetattr(&self.slave).unwrap(), self.before);
        // What it wrote last may still be on its way to the reader.
        let is_restored = || {
            let screen = self.screen.lock().unwrap();
            !screen.screen().alternate_screen() && !screen.screen().hide_cursor()
        };
        while !is_restored() {
            assert!(began.elapsed() < PATIENCE, "the screen isn't restored");
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

/// The first row of the table of functions.
fn hottest(lines: &[String]) -> &str {
    let header = lines.iter().position(|line| line.contains("SELF") && line.contains("FUNCTION"));
    header.and_then(|at| lines.get(at + 1)).map_or("", String::as_str)
}

fn hot() -> (tempfile::TempDir, Workload) {
    let (_, home) = jdks().into_iter().next().expect("a JDK");
    let dir = scratch();
    let classes = compile_java_for(8, dir.path(), "Hot", HOT);
    let workload = Workload::start(&home.join("bin/java"), &["-cp", classes.to_str().unwrap(), "Hot"]);
    (dir, workload)
}

#[test]
fn the_hottest_method_is_at_the_top_and_the_terminal_is_restored() {
    let (_dir, jvm) = hot();
    let mut command = jvmprof();
    command.args(["top", "-F", "199", "-p", &jvm.pid().to_string()]);
    let mut top = OnTerminal::start(command);
    top.wait_for("the hottest method", |lines| {
        hottest(lines).contains("Hot.crunch") && hottest(lines).contains("Hot.java:")
    });
    assert!(top.screen.lock().unwrap().screen().alternate_screen());
    top.wait_for("the JVM", |lines| lines[2].contains(" Hot ") && lines[2].contains("% java"));
    top.press("/main");
    top.wait_for("what the filter leaves", |lines| hottest(lines).contains("Hot.main"));
    top.press("\r?");
    top.wait_for("the help", |lines| lines.iter().any(|line| line.contains("quit")));
    top.press("xq");
    top.end();
}

#[test]
fn signals_and_control_c_restore_the_terminal() {
    for end in ["TERM", "HUP", "INT", "key"] {
        let mut command = jvmprof();
        command.args(["top", "-p", &std::process::id().to_string()]);
        let mut top = OnTerminal::start(command);
        top.wait_for("the table", |lines| lines.iter().any(|line| line.contains("FUNCTION")));
        match end {
            "key" => top.press("\u{3}"),
            name => signal(top.child.id(), name),
        }
        top.end();
    }
}

#[test]
fn once_prints_a_table_and_without_a_terminal_there_is_no_other_way() {
    let (_dir, jvm) = hot();
    // The JVM has started, and compiled its method.
    until_it_has_run(jvm.pid(), Duration::from_secs(1));
    let pid = jvm.pid().to_string();
    let output = jvmprof().args(["top", "--once", "-d", "6s", "-p", &pid]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    let lines: Vec<String> = text.lines().map(str::to_owned).collect();
    assert!(hottest(&lines).contains("Hot.crunch"), "{text}");
    assert!(lines[1].contains("cores  Hot: ") && lines[1].contains("% java"), "{text}");

    let output = jvmprof().args(["top", "-p", &pid]).stdin(Stdio::null()).output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(64), "{error}");
    assert!(error.contains("--once") && error.contains("jvmprof record"), "{error}");
}

#[test]
fn a_recording_shows_the_hottest_methods_while_it_goes_on() {
    let (dir, jvm) = hot();
    let file = dir.path().join("hot.pb.gz");
    let mut command = jvmprof();
    command.args(["record", "-F", "199", "-p", &jvm.pid().to_string(), "-o", file.to_str().unwrap()]);
    let mut recording = OnTerminal::start(command);
    recording.wait_for("the hottest method", |lines| {
        lines.iter().any(|line| line.ends_with(" %  Hot.crunch"))
            && lines.iter().any(|line| line.contains(" samples (Ctrl-C ends)"))
    });
    recording.press("\u{3}");
    recording.end();
    assert!(file.exists());
}
