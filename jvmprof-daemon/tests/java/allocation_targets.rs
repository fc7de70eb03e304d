//! The JVMs whose allocations are seen: those whose functions can be found, and that rules choose;
//! and what a JVM that lies of itself comes to.

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use jvmprof_daemon::export::store::{Matcher, Store, TimeRange};
use jvmprof_daemon::profile::pprof::decode::{DecodeLimits, decode};
use tempfile::TempDir;

use crate::allocation::{
    BOXING, BREAKPOINTS, is_jvm, own_jdk, patched_bytes, record_allocations, row, start,
};
use crate::support::processes::{until_it_has_run, wait_until};
use crate::support::recording::{Gate, Recording, SEES_ALLOCATIONS, SEES_NO_ALLOCATIONS, compile_recorded};
use crate::support::{Workload, compile, has_file, jdks, jvmprof, scratch, signal};

#[test]
fn a_jvm_without_symbols_says_so() {
    let dir = scratch();
    let classes = compile_recorded(dir.path(), "Boxing", BOXING);
    let (_, home) = jdks().into_iter().next().expect("there is one");
    let copy = stripped_jdk(&home, dir.path());
    let library = copy.join("lib/server/libjvm.so");
    let status = Command::new("objcopy").arg("--remove-section=.note.gnu.build-id").arg(&library).status();
    assert!(status.expect("the tests need objcopy").success());
    let java = copy.join("bin/java");
    let [java, classes] = [&java, &classes].map(|path| path.to_str().expect("UTF-8"));
    let mut recording = Recording::start(&["-e", "alloc", "--", java, "-cp", classes, "Boxing", "1", "-1"]);
    recording.wait_for(&[SEES_NO_ALLOCATIONS]);
    let summary = recording.end();
    assert_eq!(summary["losses"]["allocation_unseen_jvms: no symbols"], 1, "{summary}");
    assert_eq!(summary["allocation"]["bytes"], 0);
}

#[test]
fn a_jvm_whose_libjvm_was_deleted_or_upgraded_is_seen_beside_one_of_the_new_file() {
    let dir = scratch();
    let classes = compile_recorded(dir.path(), "Boxing", BOXING);
    let mut homes = jdks().into_iter();
    let (_, home) = homes.next().expect("there is one");
    let copy = dir.path().join("jdk");
    let copied =
        Command::new("cp").arg("-a").arg(home.canonicalize().expect("it is there")).arg(&copy).status();
    assert!(copied.expect("cp runs").success());
    let library = copy.join("lib/server/libjvm.so");
    let other = fs::read(homes.next().expect("two JDKs").1.join("lib/server/libjvm.so")).expect("readable");
    let allocated = |jvm: &Workload| {
        let summary = record_allocations(&["-e", "alloc", "-p", &jvm.pid().to_string()]);
        summary["allocation"]["bytes"].as_u64().unwrap_or_else(|| panic!("{summary}"))
    };
    // It starts no more then: while it does, it finds its folder by the file.
    let until_it_has_started = |jvm: &Workload| until_it_has_run(jvm.pid(), Duration::from_secs(1));
    let old = start(&copy, &classes);
    until_it_has_started(&old);
    // As a package's upgrade does it: the path is a new file, the old one goes on without a name.
    let same = fs::read(&library).expect("readable");
    fs::remove_file(&library).expect("it is ours");
    assert!(allocated(&old) > 0, "a file without a name");
    fs::write(&library, other).expect("the folder is writable");
    assert!(allocated(&old) > 0, "another version is at its path");
    fs::remove_file(&library).expect("it is ours");
    fs::write(&library, same).expect("the folder is writable");
    let new = start(&copy, &classes);
    until_it_has_started(&new);
    assert!(allocated(&new) > 0, "the new file");
    let pids = [&old, &new].map(|jvm| jvm.pid().to_string());
    let mut recording = Recording::start(&["-e", "alloc", "-p", &pids[0], "-p", &pids[1]]);
    let are_seen = |recording: &Recording| recording.log().matches(SEES_ALLOCATIONS).count() == 2;
    recording.wait_until("the allocations of both are seen", are_seen);
    let summary = recording.end();
    assert!(summary["allocation"]["bytes"].as_u64() > Some(0), "{summary}");
    wait_until("no breakpoint is left", || patched_bytes(new.pid()) == 0);
}

/// Copies a JDK into a folder, without the symbols of its libjvm.
fn stripped_jdk(home: &Path, into: &Path) -> PathBuf {
    let copy = into.join("jdk");
    let copied =
        Command::new("cp").arg("-a").arg(home.canonicalize().expect("it is there")).arg(&copy).status();
    assert!(copied.expect("cp runs").success());
    let library = copy.join("lib/server/libjvm.so");
    let status = Command::new("objcopy").arg("--strip-all").arg(&library).status();
    assert!(status.expect("the tests need objcopy").success());
    copy
}

#[test]
fn breakpoints_are_not_where_a_container_says() {
    let dir = scratch();
    let classes = compile_recorded(dir.path(), "Boxing", BOXING);
    let (_, home) = jdks().into_iter().next().expect("there is one");
    let library = home.join("lib/server/libjvm.so").canonicalize().expect("it is there");
    let jdk = stripped_jdk(&home, dir.path());
    // A debug file whose build id is right, and whose functions begin amid instructions.
    let build_id = Command::new("readelf").arg("-n").arg(&library).output().expect("readelf runs");
    let notes = String::from_utf8_lossy(&build_id.stdout).into_owned();
    let build_id = notes.lines().find_map(|line| line.trim().strip_prefix("Build ID: "));
    let (first, rest) = build_id.expect("it has one").split_at(2);
    let root = dir.path().join("root");
    let debug = root.join("usr/lib/debug/.build-id").join(first).join(format!("{rest}.debug"));
    fs::create_dir_all(debug.parent().expect("it has one")).expect("the folder is writable");
    let names = [
        "_ZN11AllocTracer27send_allocation_in_new_tlabEP5KlassPP12HeapWordImplmmP10JavaThread",
        "_ZN11AllocTracer28send_allocation_outside_tlabEP5KlassPP12HeapWordImplmP10JavaThread",
    ];
    let functions = names.map(|name| format!(".globl {name}\n.type {name}, @function\n{name}: nop\n"));
    let source = dir.path().join("lie.s");
    fs::write(&source, functions.concat()).expect("the folder is writable");
    let symbols = Command::new("readelf").arg("-Ws").arg(&library).output().expect("readelf runs");
    let symbols = String::from_utf8_lossy(&symbols.stdout).into_owned();
    let real = symbols.lines().find(|line| line.ends_with(names[0])).expect("it has symbols");
    let real = u64::from_str_radix(real.split_whitespace().nth(1).expect("an address"), 16).expect("hex");
    let mut lie = Command::new("gcc");
    lie.args(["-shared", "-nostdlib"]).arg(format!("-Wl,-Ttext={:#x}", real + 5));
    lie.arg(format!("-Wl,--build-id=0x{first}{rest}")).arg("-o").arg(&debug).arg(&source);
    assert!(lie.status().expect("the tests need gcc").success());
    // A root of its own, in which all is as outside but the debug file.
    let script = format!(
        "mount --rbind / {root}/host && for d in usr/bin usr/lib/x86_64-linux-gnu lib lib64 etc proc tmp var dev sys; do \
         [ -e /$d ] || continue; mkdir -p {root}/$d && mount --rbind /$d {root}/$d; done; \
         exec chroot {root} /host{java} -cp /host{classes} Boxing 1 -1",
        root = root.display(),
        java = jdk.join("bin/java").display(),
        classes = classes.display()
    );
    fs::create_dir_all(root.join("host")).expect("the folder is writable");
    let jvm = Workload::start(Path::new("/usr/bin/unshare"), &["--mount", "sh", "-c", &script]);
    wait_until("the JVM maps its library", || {
        fs::read_to_string(format!("/proc/{}/maps", jvm.pid())).is_ok_and(|maps| maps.contains("libjvm.so"))
    });
    let mut recording = Recording::start(&["-e", "alloc", "-p", &jvm.pid().to_string()]);
    recording.wait_for(&[SEES_NO_ALLOCATIONS]);
    let summary = recording.end();
    assert_eq!(summary["losses"]["allocation_unseen_jvms: no symbols"], 1, "{summary}");
    assert_eq!(patched_bytes(jvm.pid()), 0);
}

/// A server of debug files, of elfutils.
struct DebuginfodServer(Child);

impl DebuginfodServer {
    /// Serves a folder's files at this port.
    fn start(folder: &Path, port: u16) -> Self {
        let mut command = Command::new("debuginfod");
        command.args(["-F", "-d", ":memory:", "-p", &port.to_string(), "-t", "1"]).arg(folder);
        command.env("HOME", folder).env_remove("DEBUGINFOD_URLS");
        let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        Self(child.expect("this test runs debuginfod, of Debian's package of that name"))
    }
}

impl Drop for DebuginfodServer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_debug_file_from_debuginfod_shows_the_allocations_of_a_stripped_jvm() {
    let dir = scratch();
    let classes = compile_recorded(dir.path(), "Boxing", BOXING);
    let (_, home) = jdks().into_iter().next().expect("there is one");
    let copy = stripped_jdk(&home, dir.path());
    let served = dir.path().join("served");
    fs::create_dir(&served).expect("the folder is writable");
    let mut debug = Command::new("objcopy");
    debug.arg("--only-keep-debug").arg(home.join("lib/server/libjvm.so")).arg(served.join("libjvm.debug"));
    assert!(debug.status().expect("the tests need objcopy").success());
    let port =
        TcpListener::bind("127.0.0.1:0").and_then(|socket| socket.local_addr()).expect("a port").port();
    let _server = DebuginfodServer::start(&served, port);
    let url = format!("http://127.0.0.1:{port}");
    // Until the server has read its folder it says that it has nothing.
    let notes = Command::new("readelf").arg("-n").arg(copy.join("lib/server/libjvm.so")).output();
    let notes = String::from_utf8_lossy(&notes.expect("readelf runs").stdout).into_owned();
    let id =
        notes.lines().find_map(|line| line.trim().strip_prefix("Build ID: ")).expect("it has one").to_owned();
    wait_until("the server has the file", || has_file(port, &format!("/buildid/{id}/debuginfo")));
    let jvm = start(&copy, &classes);
    let cache = dir.path().join("cache");
    let summary = record_allocations(&[
        "-e",
        "alloc",
        "--debuginfod-url",
        &url,
        "--debuginfod-cache",
        cache.to_str().expect("UTF-8"),
        "-p",
        &jvm.pid().to_string(),
    ]);
    assert!(row(&summary, "methods", "Boxing.arrays").is_some(), "{summary}");
    assert_eq!(summary["losses"]["allocation_unseen_jvms: no symbols"].as_u64().unwrap_or(0), 0);
}

/// A daemon that follows the allocations of a test's programs, and writes into a folder.
struct Daemon {
    dir: TempDir,
    child: Child,
}

impl Daemon {
    /// Starts it with these rules, of programs that have this folder among their arguments: into
    /// JVMs of other tests it puts no breakpoints.
    fn start(folder: &Path, rules: &str) -> Self {
        let dir = scratch();
        let file = dir.path().join("jvmprof.toml");
        let own = format!(
            "[[relabel-configs]]\nsource_labels = ['__meta_process_cmdline']\nregex = '.*{}.*'\n\
             action = 'keep'\n",
            folder.display()
        );
        fs::write(&file, own + rules).expect("the folder is writable");
        let mut command = jvmprof();
        command.args(["daemon", "--alloc-enabled", "--push-interval", "2s", "--config"]).arg(file);
        command.arg("--local-store-directory").arg(dir.path().join("store"));
        let log = fs::File::create(dir.path().join("log")).expect("the folder is writable");
        Self { child: command.stderr(log).spawn().expect("the binary runs"), dir }
    }

    fn log(&self) -> String {
        fs::read_to_string(self.dir.path().join("log")).unwrap_or_default()
    }

    /// Ends it.
    fn stop(&mut self) {
        signal(self.child.id(), "TERM");
        assert!(self.child.wait().expect("it ends").success(), "{}", self.log());
    }

    /// Bytes by the class that a JVM is said to have allocated.
    fn allocated(&self, pid: u32) -> Vec<(String, i64)> {
        let store = Store::open_for_reading(&self.dir.path().join("store"));
        let Ok(store) = store else { return Vec::new() };
        let of_jvm = [Matcher::equal("__name__", "memory"), Matcher::equal("pid", pid.to_string())];
        let mut classes = Vec::new();
        for profile in store.profiles(TimeRange::ALL, &of_jvm) {
            let bytes = store.read(&profile).expect("it was stored");
            let pprof = decode(&bytes, DecodeLimits::default()).expect("it is a profile");
            for sample in &pprof.sample {
                let leaf =
                    pprof.location.iter().find(|it| it.id == sample.location_id[0]).expect("a location");
                let function = leaf.line.first().map_or(0, |line| line.function_id);
                let function = pprof.function.iter().find(|it| it.id == function);
                let name = function.map_or("", |it| &pprof.string_table[it.name as usize]);
                classes.push((name.to_owned(), sample.value[1]));
            }
        }
        classes
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", self.log());
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn total(classes: &[(String, i64)]) -> i64 {
    classes.iter().map(|(_, bytes)| bytes).sum()
}

#[test]
fn rules_choose_the_jvms_whose_allocations_are_seen() {
    let dir = scratch();
    let classes = compile_recorded(dir.path(), "Boxing", BOXING);
    let mut homes = jdks().into_iter();
    let (wanted, unwanted) = (homes.next().expect("one JDK"), homes.next().expect("two JDKs"));
    let jvms = [&wanted, &unwanted]
        .map(|(feature, home)| start(&own_jdk(home, dir.path().join(format!("jdk{feature}"))), &classes));
    let rule = format!(
        "[[relabel-configs]]\nsource_labels = ['__name__', '__meta_jvm_version']\nregex = 'memory;{}.*'\n\
         action = 'drop'\n",
        unwanted.0
    );
    let mut daemon = Daemon::start(dir.path(), &rule);
    wait_until("the one has profiles", || total(&daemon.allocated(jvms[0].pid())) > 0);
    assert_eq!((patched_bytes(jvms[0].pid()), patched_bytes(jvms[1].pid())), (BREAKPOINTS, 0));
    daemon.stop();
    assert_eq!(daemon.allocated(jvms[1].pid()), []);
    let store = Store::open_for_reading(&daemon.dir.path().join("store")).expect("it was made");
    let cpu = [Matcher::equal("__name__", "process_cpu"), Matcher::equal("pid", jvms[1].pid().to_string())];
    assert!(!store.profiles(TimeRange::ALL, &cpu).is_empty(), "its CPU time is wanted");
}

/// Runs the rest of the command line with a JDK that lies in an overlay, as an image's layer does.
const IN_OVERLAY: &str = r#"
mount -t tmpfs none "$DIR" && mkdir "$DIR/upper" "$DIR/work" "$DIR/jdk"
mount -t overlay -o "lowerdir=$JDK,upperdir=$DIR/upper,workdir=$DIR/work" none "$DIR/jdk"
[ -z "$COPIED" ] || { cp "$DIR/jdk/lib/server/libjvm.so" "$DIR/new" && mv "$DIR/new" "$DIR/jdk/lib/server/libjvm.so"; }
exec "$DIR/jdk/bin/java" "$@"
"#;

#[test]
fn jvms_of_containers_are_seen_whether_they_share_a_libjvm_or_not() {
    let dir = scratch();
    let classes = compile_recorded(dir.path(), "Boxing", BOXING);
    let classes = classes.to_str().expect("a path in UTF-8");
    let mut containers = Vec::new();
    for (feature, home) in jdks() {
        let home = own_jdk(&home, dir.path().join(format!("jdk{feature}")));
        // Two of one layer, and one that has written a libjvm of its own.
        for copied in ["", "", "yes"] {
            let folder = dir.path().join(format!("container{}", containers.len()));
            fs::create_dir(&folder).expect("the folder is writable");
            let variables = [
                format!("DIR={}", folder.display()),
                format!("JDK={}", home.display()),
                format!("COPIED={copied}"),
            ];
            let command =
                ["unshare", "--mount", "--pid", "--kill-child", "--fork", "sh", "-ec", IN_OVERLAY, "sh"];
            let java = ["-Xmx64m", "-cp", classes, "Boxing", "1", "-1"];
            let variables = variables.iter().map(String::as_str);
            let arguments: Vec<&str> = variables.chain(command).chain(java).collect();
            containers.push(Workload::start(Path::new("/usr/bin/env"), &arguments));
        }
    }
    let jvm_of = |container: &Workload| {
        let children = fs::read_to_string(format!("/proc/{0}/task/{0}/children", container.pid()));
        let child = children.ok()?.split_whitespace().next()?.parse::<u32>().ok()?;
        let maps = fs::read_to_string(format!("/proc/{child}/maps")).ok()?;
        maps.contains("libjvm.so").then_some(child)
    };
    wait_until("all are JVMs", || containers.iter().all(|it| jvm_of(it).is_some()));
    let mut pids: Vec<u32> = containers.iter().filter_map(jvm_of).collect();
    let mut daemon = Daemon::start(dir.path(), "");
    wait_until("all have profiles", || pids.iter().all(|pid| total(&daemon.allocated(*pid)) > 0));
    // Every third one ends: the others go on.
    for index in [3, 0] {
        drop(containers.remove(index));
        pids.remove(index);
    }
    let before: Vec<i64> = pids.iter().map(|pid| total(&daemon.allocated(*pid))).collect();
    wait_until("the others go on", || {
        pids.iter().zip(&before).all(|(pid, before)| total(&daemon.allocated(*pid)) > *before)
    });
    daemon.stop();
    wait_until("no breakpoint is left", || pids.iter().all(|pid| patched_bytes(*pid) == 0));
    for pid in pids {
        let allocated = daemon.allocated(pid);
        let arrays =
            allocated.iter().filter(|(class, _)| class == "byte[]").map(|(_, bytes)| bytes).sum::<i64>();
        assert!(arrays * 100 > total(&allocated) * 90, "{allocated:?}");
    }
}

/// Overwrites what the JVM says of its own structures.
const LIAR: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <string.h>
#include <unistd.h>
struct entry { const char *type, *field, *type_string; int is_static; unsigned long offset; void *address; };
static void *lie(void *unused) {
    void *jvm;
    while (!(jvm = dlopen("libjvm.so", RTLD_LAZY | RTLD_NOLOAD))) usleep(100);
    struct entry *entry = *(struct entry **)dlsym(jvm, "gHotSpotVMStructs");
    for (; entry->type; entry++) {
        if (!strcmp(entry->field, "_allocated_bytes")) entry->offset = 3;
        if (!strcmp(entry->field, "_layout_helper")) entry->offset += 4;
        if (!strcmp(entry->field, "_total_collections")) entry->offset = 1;
    }
    return 0;
}
__attribute__((constructor)) static void start(void) {
    pthread_t thread;
    pthread_create(&thread, 0, lie, 0);
}
"#;

/// Copies a JDK whose libjvm says that other functions, with other arguments, report allocations.
fn lying_jdk(home: &Path, into: &Path) -> PathBuf {
    let copy = into.join("lying");
    let copied =
        Command::new("cp").arg("-a").arg(home.canonicalize().expect("it is there")).arg(&copy).status();
    assert!(copied.expect("cp runs").success());
    let library = copy.join("lib/server/libjvm.so");
    let exchanged = [
        (
            "_ZN11AllocTracer27send_allocation_in_new_tlabEP5KlassPP12HeapWordImplmmP10JavaThread",
            "_ZN15G1CollectedHeap17allocate_new_tlabEmmPm",
        ),
        (
            "_ZN11AllocTracer28send_allocation_outside_tlabEP5KlassPP12HeapWordImplmP10JavaThread",
            "_ZN15G1CollectedHeap12mem_allocateEmPb",
        ),
    ];
    let mut objcopy = Command::new("objcopy");
    for (index, (real, other)) in exchanged.into_iter().enumerate() {
        objcopy
            .arg(format!("--redefine-sym={real}=true{index}"))
            .arg(format!("--redefine-sym={other}={real}"));
    }
    assert!(objcopy.arg(&library).status().expect("the tests need objcopy").success());
    copy
}

#[test]
fn a_libjvm_that_lies_harms_its_own_profile_alone() {
    const ARRAYS: i64 = 1_500_000;
    let dir = scratch();
    let classes = compile_recorded(dir.path(), "Boxing", BOXING);
    let (_, home) = jdks().into_iter().next().expect("there is one");
    let jdk = lying_jdk(&home, dir.path());
    let liar = compile(dir.path(), "liar.so", LIAR, &["-shared", "-fPIC"]);
    let preload = format!("LD_PRELOAD={}", liar.display());
    let java = jdk.join("bin/java");
    let arguments = [&preload, java.to_str().expect("UTF-8"), "-XX:+UseG1GC", "-Xmx64m", "-cp"];
    let classes_path = classes.to_str().expect("UTF-8");
    let arguments = [&arguments[..], &[classes_path, "Boxing", "1", "-1"]].concat();
    let lying = Workload::start(Path::new("/usr/bin/env"), &arguments);
    let mut daemon = Daemon::start(dir.path(), "");
    wait_until("it is a JVM", || {
        fs::read_to_string(format!("/proc/{}/maps", lying.pid())).is_ok_and(|maps| maps.contains("libjvm.so"))
    });
    wait_until("it believes where functions are", || patched_bytes(lying.pid()) == BREAKPOINTS);
    let arrays = ARRAYS.to_string();
    let java = own_jdk(&home, dir.path().join("honest")).join("bin/java");
    let gate = Gate::new();
    let [begin, done] = gate.args();
    let program = ["-Xmx64m", "-cp", classes_path, "Boxing", "1", &arrays, &begin, &done];
    let honest = Workload::start(&java, &program);
    let pid = honest.pid();
    wait_until("its allocations are seen", || is_jvm(pid) && patched_bytes(pid) == BREAKPOINTS);
    gate.open();
    wait_until("it has allocated all arrays", || gate.is_done());
    // It ends with its files.
    drop(gate);
    // An array of 10,000 to 10,007 bytes has a header of 16, and ends at a multiple of 8.
    let (true_bytes, at_most) = (ARRAYS * 10_016, ARRAYS * 10_024 + (50 << 20));
    wait_until("the honest one has ended", || !Path::new(&format!("/proc/{pid}/exe")).exists());
    std::thread::sleep(Duration::from_secs(1));
    assert!(
        fs::exists(format!("/proc/{}/exe", lying.pid())).is_ok_and(|runs| runs),
        "it has not been harmed"
    );
    daemon.stop();
    wait_until("no breakpoint is left", || patched_bytes(lying.pid()) == 0);
    let allocated = daemon.allocated(pid);
    let total = total(&allocated);
    assert!((true_bytes..at_most).contains(&total), "{total} bytes: {}", daemon.log());
    let arrays = allocated.iter().filter(|(class, _)| class == "byte[]").map(|(_, bytes)| bytes).sum::<i64>();
    assert!(arrays * 100 > total * 97, "{allocated:?}");
    // What it says of classes was not believed.
    let named = daemon.allocated(lying.pid());
    assert!(named.iter().all(|(class, _)| class == "byte[]" || class.starts_with('[')), "{named:?}");
}
