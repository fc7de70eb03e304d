//! Stripped programs get their names from a server that has their debug files: one that stands in
//! for Parca, and Parca itself, whose binary `JVMPROF_TEST_PARCA` names. Needs root, gcc, binutils
//! and curl.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::debuginfo_server::DebuginfoServer;
use crate::support::{KilledChild, Workload, parca_program};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use jvmprof_daemon::native::byte_source::RegularFile;
use jvmprof_daemon::native::elf::ElfFile;
use jvmprof_daemon::profile::pprof::decode::{DecodeLimits, decode};
use jvmprof_daemon::proto::pprof::Profile;
use serde_json::Value;
use tempfile::TempDir;

const CODE: &str = r#"
volatile unsigned long sink;
static inline __attribute__((always_inline)) void inlined_secret(unsigned long i) { sink += i * i; }
__attribute__((noipa)) static void burn_in_secret(unsigned long n) {
    for (unsigned long i = 0; i < n; i++) inlined_secret(i);
}
__attribute__((noipa)) static void caller_in_secret(unsigned long n) { burn_in_secret(n); sink++; }
int main(void) { for (;;) caller_in_secret(1000000); }
"#;

/// Folders of what else runs on a host: whole hosts are profiled, and these tests send nothing of
/// them. The folder of the tests' own build is another one.
const EXCLUDED: [&str; 7] = ["/usr/**", "/lib*/**", "/bin/**", "/sbin/**", "/opt/**", "/root/**", "/home/**"];

/// Each test's daemon sees the programs of the others.
static ALONE: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

const UPLOADED: &str = "debug file uploaded";
const NOT_WANTED: &str = "doesn't want";

fn run(program: &str, arguments: &[&str]) -> Vec<u8> {
    let output = Command::new(program).args(arguments).output();
    let output = output.unwrap_or_else(|e| panic!("this test runs {program}: {e}"));
    assert!(output.status.success(), "{program} {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}

/// The folder that holds what is built of this repository.
fn builds() -> PathBuf {
    let own = std::env::current_exe().expect("a test has a program");
    own.ancestors().nth(3).expect("target/debug/deps").to_owned()
}

fn text(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}

/// A stripped program, whose debug file lies beside it.
struct Stripped {
    scratch: TempDir,
    program: PathBuf,
    id: String,
}

impl Stripped {
    fn build(name: &str, flags: &[&str]) -> Self {
        Self::of_code(CODE, name, flags)
    }

    fn of_code(code: &str, name: &str, flags: &[&str]) -> Self {
        let scratch = crate::support::scratch();
        let flags = [&["-O2", "-Wl,--build-id=sha1"], flags].concat();
        let code = format!("{code}\nconst char *place = \"{}\";\n", scratch.path().display());
        let program = crate::support::compile(scratch.path(), name, &code, &flags);
        let debug = scratch.path().join(format!("{name}.debug"));
        run("objcopy", &["--only-keep-debug", text(&program), text(&debug)]);
        run("strip", &[text(&program)]);
        run("objcopy", &[&format!("--add-gnu-debuglink={}", text(&debug)), text(&program)]);
        let file = File::open(&program).expect("there");
        let elf = ElfFile::parse(RegularFile::new(&file).expect("regular")).expect("an ELF file");
        let id = elf.build_id().expect("a build id").to_string();
        Self { scratch, program, id }
    }

    /// Whether a log says this of the program.
    fn is_said(&self, log: &str, what: &str) -> bool {
        log.lines().any(|line| line.contains(what) && line.contains(text(&self.program)))
    }

    /// Profiles it until the daemon has said this of its upload, and gives the daemon's log.
    fn profile(&self, address: &str, until: &str, more: &[&str]) -> String {
        let _workload = Workload::start(&self.program, &[]);
        self.profile_running(address, more, |log| self.is_said(log, until))
    }

    /// As [`Self::profile`], of the program as it runs already, until the daemon's log or something
    /// else is as it should be, and for two windows more.
    fn profile_running(&self, address: &str, more: &[&str], is_done: impl Fn(&str) -> bool) -> String {
        let log = self.scratch.path().join("log");
        let level = "info,jvmprof_daemon::export::parca::debuginfo_upload=debug";
        let daemon = crate::support::jvmprof()
            .args([
                "--log-level",
                level,
                "daemon",
                "--push-interval",
                "1s",
                "--spool-directory",
                "none",
                "--remote-store-address",
                address,
            ])
            .args(EXCLUDED.iter().flat_map(|glob| ["--upload-exclude", glob]))
            .args(["--upload-exclude", &format!("{}/**", builds().display())])
            .args(more)
            .stderr(File::create(&log).expect("created"))
            .env("NO_COLOR", "1")
            .spawn();
        let mut daemon = KilledChild(daemon.expect("the binary runs"));
        let until = |is_so: &dyn Fn(&str) -> bool| {
            let end = Instant::now() + Duration::from_secs(120);
            loop {
                let log = fs::read_to_string(&log).expect("a log");
                if is_so(&log) {
                    return log;
                }
                assert!(Instant::now() < end, "{more:?}: {log}");
                std::thread::sleep(Duration::from_millis(50));
            }
        };
        let windows = |log: &str| log.lines().filter(|line| line.contains(" samples_total=")).count();
        let done = windows(&until(&is_done));
        until(&|log| windows(log) >= done + 2);
        crate::support::signal(daemon.0.id(), "TERM");
        assert!(daemon.0.wait().expect("it ends").success());
        fs::read_to_string(log).expect("a log")
    }
}

/// Whether a log says that a file below this folder was uploaded.
fn is_uploaded_from(log: &str, folder: &str) -> bool {
    log.lines().any(|line| line.contains(UPLOADED) && line.contains(&format!("path=\"{folder}")))
}

/// A number of the line that tells of uploads at the end.
fn count(log: &str, name: &str) -> u64 {
    let line = log.lines().find(|line| line.contains("uploads ended")).expect("uploads were on");
    let (_, rest) = line.split_once(&format!(" {name}: ")).unwrap_or_else(|| panic!("{name} in {line}"));
    let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().expect("a number")
}

fn names(profile: &Profile) -> BTreeSet<String> {
    let text = |index: i64| profile.string_table[usize::try_from(index).expect("an index")].clone();
    profile.function.iter().map(|function| text(function.name)).collect()
}

fn curl(url: &str, data: &[String]) -> Vec<u8> {
    let mut arguments = vec!["-sS", "-m", "60", "-f", "-G", url];
    for item in data {
        arguments.extend(["--data-urlencode", item]);
    }
    run("curl", &arguments)
}

fn now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970")
}

// --- a server that takes debug files

#[test]
fn a_server_can_name_what_daemons_leave_to_it() {
    let _alone = alone();
    let server = DebuginfoServer::start();
    let stripped = Stripped::build("secret_c", &["-g"]);
    let log = stripped.profile(&server.address, UPLOADED, &["--symbolize", "server"]);
    let found = server.names("secret_c");
    for name in ["main", "caller_in_secret", "burn_in_secret", "inlined_secret"] {
        assert!(found.contains(name), "{name} in {found:?}\n{log}");
    }
    let inlined = ["inlined_secret", "burn_in_secret"];
    assert!(server.frames("secret_c").iter().any(|names| *names == inlined), "inlined lines share a frame");
    assert_eq!((count(&log, "failed"), count(&log, "refused")), (0, 0), "{log}");
    assert!(count(&log, "excluded") > 0, "libc and others");
    assert!(server.debug_file(&stripped.id).exists(), "{log}");
    for folder in EXCLUDED.iter().map(|glob| glob.trim_end_matches("*/**").trim_end_matches("**")) {
        assert!(!is_uploaded_from(&log, folder), "{folder}: {log}");
    }
    assert!(
        !is_uploaded_from(&log, text(&builds())) && is_uploaded_from(&log, text(stripped.scratch.path()))
    );
    // Another daemon of the fleet asks and sends nothing.
    let log = stripped.profile(&server.address, NOT_WANTED, &["--symbolize", "server"]);
    assert!(!stripped.is_said(&log, UPLOADED), "{log}");
}

/// The kernel's own code in each process has a build id, and no file.
#[test]
fn a_server_can_name_code_of_the_vdso_by_what_is_uploaded() {
    let _alone = alone();
    let server = DebuginfoServer::start();
    let clock =
        Stripped::of_code(include_str!("../record/mapped_files/programs/clock.c"), "secret_v", &["-g"]);
    let _workload = Workload::start(&clock.program, &[]);
    let is_done = |log: &str| clock.is_said(log, UPLOADED) && is_uploaded_from(log, "[vdso]");
    let log = clock.profile_running(&server.address, &["--symbolize", "server"], is_done);
    let found = server.names("secret_v");
    // libc, which has a function of that name, too, is excluded.
    assert!(found.contains("ask") && found.contains("clock_gettime"), "{found:?}\n{log}");
}

#[test]
fn what_has_a_name_here_is_neither_left_out_nor_uploaded() {
    let _alone = alone();
    let server = DebuginfoServer::start();
    let stripped = Stripped::build("secret_a", &[]);
    let workload = Workload::start(&stripped.program, &[]);
    let is_named = |_: &str| server.names("secret_a").contains("burn_in_secret");
    let log = stripped.profile_running(&server.address, &["--symbolize", "auto"], is_named);
    drop(workload);
    assert!(!stripped.is_said(&log, UPLOADED), "{log}");
    fs::remove_file(stripped.scratch.path().join("secret_a.debug")).expect("removed");
    let log = stripped.profile(&server.address, "nothing that a server could use", &["--symbolize", "auto"]);
    assert!(!stripped.is_said(&log, UPLOADED), "{log}");
}

#[test]
fn an_excluded_file_never_leaves_the_host() {
    let _alone = alone();
    let server = DebuginfoServer::start();
    let stripped = Stripped::build("secret_x", &[]);
    let glob = format!("{}/**", stripped.scratch.path().display());
    let exclude = ["--symbolize", "server", "--upload-exclude", &glob];
    let log = stripped.profile(&server.address, "excluded", &exclude);
    assert!(!stripped.is_said(&log, UPLOADED) && !server.debug_file(&stripped.id).exists(), "{log}");
    assert!(!server.names("secret_x").contains("burn_in_secret"));
}

/// What a package manager does to a program that runs: its mapping's path ends in ` (deleted)` from
/// then on.
#[test]
fn an_excluded_file_that_was_replaced_while_it_runs_never_leaves_the_host() {
    let _alone = alone();
    let server = DebuginfoServer::start();
    let stripped = Stripped::build("secret_r", &[]);
    let _workload = Workload::start(&stripped.program, &[]);
    let newer = stripped.scratch.path().join("newer");
    fs::copy(&stripped.program, &newer).expect("copied");
    fs::rename(&newer, &stripped.program).expect("replaced");
    for glob in
        [text(&stripped.program).to_owned(), format!("{}/secret_?", stripped.scratch.path().display())]
    {
        let exclude = ["--symbolize", "server", "--upload-exclude", &glob];
        let is_excluded = |log: &str| stripped.is_said(log, "excluded");
        let log = stripped.profile_running(&server.address, &exclude, is_excluded);
        assert!(
            !stripped.is_said(&log, UPLOADED) && !server.debug_file(&stripped.id).exists(),
            "{glob}: {log}"
        );
    }
}

#[test]
fn a_server_can_only_name_what_it_is_sent() {
    let output = crate::support::jvmprof()
        .args(["daemon", "--symbolize", "server"])
        .output()
        .expect("the binary runs");
    assert_eq!(output.status.code(), Some(64));
    assert!(String::from_utf8_lossy(&output.stderr).contains("--remote-store-address"));
}

// --- Parca

struct Parca {
    _process: KilledChild,
    address: String,
    _scratch: TempDir,
}

impl Parca {
    fn start(binary: &str) -> Self {
        let scratch = crate::support::scratch();
        let data = scratch.path().join("data");
        fs::create_dir(&data).expect("made");
        let config = scratch.path().join("parca.yaml");
        let bucket = format!("{{type: FILESYSTEM, config: {{directory: {}}}}}", data.display());
        fs::write(&config, format!("object_storage: {{bucket: {bucket}}}\n")).expect("written");
        let socket = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = socket.local_addr().expect("bound").port();
        drop(socket);
        let process = Command::new(binary)
            .arg(format!("--config-path={}", config.display()))
            .arg(format!("--http-address=127.0.0.1:{port}"))
            .arg(format!("--storage-path={}", data.join("frost").display()))
            .arg("--debuginfod-upstream-servers=")
            .stdout(Stdio::null())
            .stderr(File::create(scratch.path().join("parca.log")).expect("created"))
            .spawn()
            .unwrap_or_else(|e| panic!("{binary}: {e}"));
        let parca = Self {
            _process: KilledChild(process),
            address: format!("http://127.0.0.1:{port}"),
            _scratch: scratch,
        };
        let end = Instant::now() + Duration::from_secs(60);
        while Command::new("curl")
            .args(["-s", "-f", "-o", "/dev/null", &format!("{}/metrics", parca.address)])
            .status()
            .is_ok_and(|status| !status.success())
        {
            assert!(Instant::now() < end, "Parca doesn't become healthy");
            std::thread::sleep(Duration::from_millis(200));
        }
        parca
    }

    fn merged(&self, comm: &str) -> Profile {
        let time = |seconds: u64| {
            let at = UNIX_EPOCH + Duration::from_secs(seconds);
            humantime::format_rfc3339_seconds(at).to_string()
        };
        let data = [
            "mode=MODE_MERGE".to_owned(),
            "report_type=REPORT_TYPE_PPROF".to_owned(),
            format!("merge.query=process_cpu:samples:count:cpu:nanoseconds:delta{{comm=\"{comm}\"}}"),
            format!("merge.start={}", time(now().as_secs() - 600)),
            format!("merge.end={}", time(now().as_secs() + 60)),
        ];
        let answer: Value =
            serde_json::from_slice(&curl(&format!("{}/api/profiles/query", self.address), &data))
                .expect("JSON");
        let pprof = BASE64_STANDARD.decode(answer["pprof"].as_str().expect("a pprof")).expect("base64");
        decode(&pprof, DecodeLimits::default()).expect("a profile")
    }
}

#[test]
fn parca_names_what_daemons_leave_to_it() {
    let parca = Parca::start(&parca_program());
    // With DWARF, and with symbols only; position-independent or not.
    let programs = [
        ("secret_p", &["-g"][..]),
        ("secret_s", &[]),
        ("secret_e", &["-g", "-no-pie"]),
        ("secret_z", &["-g", "-gz=zlib"]),
    ];
    let stripped = programs.map(|(name, flags)| Stripped::build(name, flags));
    let profile_until = |what: &str| {
        let _workloads = stripped.each_ref().map(|it| Workload::start(&it.program, &[]));
        let is_said = |log: &str| stripped.iter().all(|it| it.is_said(log, what));
        stripped[0].profile_running(&parca.address, &["--symbolize", "server"], is_said)
    };
    let log = profile_until(UPLOADED);
    assert_eq!(count(&log, "failed"), 0, "{log}");
    for (name, flags) in programs {
        let end = Instant::now() + Duration::from_secs(60);
        loop {
            let found = names(&parca.merged(name));
            let wanted = ["main", "caller_in_secret", "burn_in_secret"];
            let has_inlined = flags.is_empty() || found.contains("inlined_secret");
            if wanted.iter().all(|name| found.contains(*name)) && has_inlined {
                break;
            }
            assert!(Instant::now() < end, "{name}: {found:?}\n{log}");
            std::thread::sleep(Duration::from_millis(200));
        }
    }
    let log = profile_until(NOT_WANTED);
    for (stripped, (name, _)) in stripped.iter().zip(programs) {
        assert!(!stripped.is_said(&log, UPLOADED), "{name}: {log}");
    }
}
