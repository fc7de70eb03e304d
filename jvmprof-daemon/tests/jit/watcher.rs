//! The thread that reads perf maps: nobody here asks a map to be read.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use jvmprof_daemon::clock::monotonic_ns;
use jvmprof_daemon::jit::perf_map::inotify_thread::PerfMapWatcher;
use jvmprof_daemon::jit::perf_map::process_perf_map::{PerfMapWriter, ProcessPerfMap};
use jvmprof_daemon::memory_budget::MemoryBudget;
use jvmprof_daemon::types::Avma;

use crate::support::processes::LONGEST_WAIT;

fn watched(root: &Path) -> Arc<Mutex<ProcessPerfMap>> {
    watched_at(&[root])
}

/// In the first of these roots that has it.
fn watched_at(roots: &[&Path]) -> Arc<Mutex<ProcessPerfMap>> {
    let candidate_paths = roots.iter().map(|root| (root.to_path_buf(), "/tmp/perf-1.map".into())).collect();
    let uid = nix::unistd::geteuid().as_raw();
    Arc::new(Mutex::new(ProcessPerfMap::new(
        PerfMapWriter { candidate_paths, uid, started_ns: None },
        MemoryBudget::new(64 << 20),
    )))
}

/// Waits until the address has this name, and tells how long that took.
fn await_name(map: &Mutex<ProcessPerfMap>, address: u64, name: &str) -> Duration {
    let begin = Instant::now();
    loop {
        let map = map.lock().expect("a lock");
        if map.map().lookup(Avma(address), u64::MAX).is_some_and(|found| found.name == name) {
            return begin.elapsed();
        }
        drop(map);
        assert!(begin.elapsed() < LONGEST_WAIT, "{name} isn't seen");
        std::thread::sleep(Duration::from_micros(200));
    }
}

/// A thread that answers: how long that takes says how long threads of this machine wait for a CPU.
struct AnswerTimes {
    ask: Sender<()>,
    answers: Receiver<()>,
}

impl AnswerTimes {
    fn start() -> Self {
        let ((ask, questions), (answer, answers)) = (channel(), channel());
        // It ends with the channels.
        std::thread::spawn(move || questions.iter().all(|()| answer.send(()).is_ok()));
        Self { ask, answers }
    }

    fn measure(&self) -> Duration {
        let begin = Instant::now();
        self.ask.send(()).expect("the thread runs");
        self.answers.recv().expect("the thread answers");
        begin.elapsed()
    }
}

fn append(path: &Path, line: &str) {
    let mut file = OpenOptions::new().create(true).append(true).open(path).expect("a map");
    file.write_all(line.as_bytes()).expect("written");
}

#[test]
fn maps_are_read_when_they_are_written_whatever_becomes_of_file_and_folder() {
    let root = tempfile::tempdir().expect("a root");
    let tmp = root.path().join("tmp");
    let path = tmp.join("perf-1.map");
    fs::create_dir(&tmp).expect("a folder");
    let (map, watcher) = (watched(root.path()), PerfMapWatcher::default());
    watcher.watch(&map).expect("a thread");
    std::thread::sleep(Duration::from_millis(300));

    append(&path, "1000 10 first\n");
    println!("a file that comes: {:?}", await_name(&map, 0x1000, "first"));
    std::thread::sleep(Duration::from_millis(50));
    let answer_times = AnswerTimes::start();
    let (mut times, mut answers): (Vec<Duration>, Vec<Duration>) = (0..20)
        .map(|index| {
            let name = format!("line {index}");
            append(&path, &format!("2000 10 {name}\n"));
            let time = await_name(&map, 0x2000, &name);
            std::thread::sleep(Duration::from_millis(25));
            (time, answer_times.measure())
        })
        .unzip();
    times.sort_unstable();
    answers.sort_unstable();
    println!("a line that comes: {:?} at the middle, {:?} at most", times[10], times[19]);
    // Two threads are woken for a line, as they are for an answer.
    assert!(times[10] < Duration::from_millis(20) + answers[10], "{times:?}, answers: {answers:?}");

    let new = tmp.join("new");
    fs::write(&new, "3000 10 replaced\n").expect("written");
    fs::rename(&new, &path).expect("renamed");
    println!("a file in its place: {:?}", await_name(&map, 0x3000, "replaced"));
    append(&path, "4000 10 watched\n");
    await_name(&map, 0x4000, "watched");

    fs::rename(&tmp, root.path().join("old")).expect("renamed");
    fs::create_dir(&tmp).expect("a folder");
    fs::write(&path, "5000 10 elsewhere\n").expect("written");
    println!("a folder in its place: {:?}", await_name(&map, 0x5000, "elsewhere"));
    std::thread::sleep(Duration::from_millis(1100));
    fs::write(&new, "6000 10 again\n").expect("written");
    fs::rename(&new, &path).expect("renamed");
    println!("a file in that: {:?}", await_name(&map, 0x6000, "again"));
}

#[test]
fn maps_are_seen_where_tmp_is_a_link_though_another_place_is_watched() {
    let (container, host) = (tempfile::tempdir().expect("a root"), tempfile::tempdir().expect("a root"));
    let tmp = container.path().join("var/tmp");
    fs::create_dir_all(&tmp).expect("a folder");
    // Inside of the container, and nowhere else, this leads to its `/var/tmp`.
    std::os::unix::fs::symlink("/var/tmp", container.path().join("tmp")).expect("a link");
    fs::create_dir(host.path().join("tmp")).expect("a folder");
    let (map, watcher) = (watched_at(&[container.path(), host.path()]), PerfMapWatcher::default());
    watcher.watch(&map).expect("a thread");
    std::thread::sleep(Duration::from_millis(300));
    append(&tmp.join("perf-1.map"), "1000 10 first\n");
    await_name(&map, 0x1000, "first");
    append(&tmp.join("perf-1.map"), "2000 10 second\n");
    await_name(&map, 0x2000, "second");
}

/// Has a system call fail on this thread and those that it starts from now on.
fn refuse(call: i64) {
    use nix::libc::{
        BPF_ABS, BPF_JEQ, BPF_JMP, BPF_K, BPF_LD, BPF_RET, BPF_W, EMFILE, PR_SET_NO_NEW_PRIVS,
        PR_SET_SECCOMP, SECCOMP_MODE_FILTER, SECCOMP_RET_ALLOW, SECCOMP_RET_ERRNO, prctl, sock_filter,
        sock_fprog,
    };
    let number = u32::try_from(call).expect("a number");
    let step = |code, jf, k| sock_filter { code: u16::try_from(code).expect("16 bits"), jt: 0, jf, k };
    let mut filter = [
        step(BPF_LD | BPF_W | BPF_ABS, 0, 0),
        step(BPF_JMP | BPF_JEQ | BPF_K, 1, number),
        step(BPF_RET | BPF_K, 0, SECCOMP_RET_ERRNO | EMFILE.cast_unsigned()),
        step(BPF_RET | BPF_K, 0, SECCOMP_RET_ALLOW),
    ];
    let program = sock_fprog { len: 4, filter: filter.as_mut_ptr() };
    // SAFETY: the kernel copies the filter, which outlives the calls.
    let done = unsafe {
        (
            prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0),
            prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &raw const program),
        )
    };
    assert_eq!(done, (0, 0), "{}", std::io::Error::last_os_error());
}

#[test]
fn maps_are_read_where_nothing_tells_of_their_changes() {
    for call in [nix::libc::SYS_inotify_init1, nix::libc::SYS_inotify_add_watch] {
        let root = tempfile::tempdir().expect("a root");
        let tmp = root.path().join("tmp");
        let path = tmp.join("perf-1.map");
        fs::create_dir(&tmp).expect("a folder");
        let map = watched(root.path());
        let work = || {
            refuse(call);
            let watcher = PerfMapWatcher::default();
            watcher.watch(&map).expect("a thread");
            std::thread::sleep(Duration::from_millis(100));
            append(&path, "1000 10 first\n");
            await_name(&map, 0x1000, "first");
            append(&path, "2000 10 second\n");
            await_name(&map, 0x2000, "second");
            let new = tmp.join("new");
            fs::write(&new, "3000 10 replaced\n").expect("written");
            fs::rename(&new, &path).expect("renamed");
            await_name(&map, 0x3000, "replaced");
            drop(watcher);
        };
        std::thread::scope(|scope| scope.spawn(work).join().expect("no panic"));
    }
}

/// Eight functions in turn at each address: no more than are remembered of it.
fn place(index: u64) -> u64 {
    0x1000 + index / 8 * 16
}

/// Writes lines, some at once and some after a while; returns when it began with each and when it
/// was there.
fn write_on(path: &Path, first: u64, seconds: u64) -> Vec<(u64, u64)> {
    let mut file = OpenOptions::new().create(true).append(true).open(path).expect("a map");
    let end = Instant::now() + Duration::from_secs(seconds);
    let mut written = Vec::new();
    for index in first.. {
        if Instant::now() >= end {
            break;
        }
        let (line, begun) = (format!("{:x} 10 f{index}\n", place(index)), monotonic_ns());
        file.write_all(line.as_bytes()).expect("written");
        // The code runs from here on.
        written.push((begun, monotonic_ns()));
        match index % 7 {
            0..4 => {}
            4 => std::thread::yield_now(),
            5 => std::thread::sleep(Duration::from_micros(700 * (index % 11))),
            _ => std::thread::sleep(Duration::from_millis(3 + index % 41)),
        }
    }
    written
}

/// Asked for each moment between the lines; while other threads keep the machine busy.
#[test]
fn a_name_that_is_wrong_is_told_to_be_ambiguous_however_busy_the_machine_is() {
    let root = tempfile::tempdir().expect("a root");
    fs::create_dir(root.path().join("tmp")).expect("a folder");
    let path = root.path().join("tmp/perf-1.map");
    let (map, watcher) = (watched(root.path()), PerfMapWatcher::default());
    watcher.watch(&map).expect("a thread");
    let is_over = AtomicBool::new(false);
    let (mut asked, mut wrong, mut ambiguous) = (0u64, 0u64, 0u64);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        let mut first = 0;
        for _ in 0..4 {
            let written = write_on(&path, first, 1);
            let mut map = map.lock().expect("a lock");
            map.read_new(monotonic_ns());
            for (index, pair) in (first..).zip(written.windows(2)) {
                let [(_, from), (to, _)] = *pair else { continue };
                for at_ns in
                    [from + 1, (from + to) / 2, to - 1].into_iter().filter(|at| (from..to).contains(at))
                {
                    let Some(found) = map.map().lookup(Avma(place(index)), at_ns) else { continue };
                    let is_right = found.name == format!("f{index}");
                    asked += 1;
                    wrong += u64::from(!is_right);
                    ambiguous += u64::from(found.is_ambiguous);
                    assert!(is_right || found.is_ambiguous, "{} instead of f{index}", found.name);
                }
            }
            first += written.len() as u64;
        }
        is_over.store(true, Ordering::Relaxed);
    });
    println!("{asked} moments, {wrong} wrong, {ambiguous} ambiguous");
    assert!(asked > 100);
}

#[test]
fn a_watcher_that_is_dropped_takes_its_thread_along() {
    let root = tempfile::tempdir().expect("a root");
    let map = watched(root.path());
    let watcher = PerfMapWatcher::default();
    watcher.watch(&map).expect("a thread");
    drop(watcher);
    let begin = Instant::now();
    let runs = || {
        let tasks = fs::read_dir("/proc/self/task").expect("tasks").flatten();
        // The other test has a thread of that name, too.
        tasks
            .filter(|task| {
                fs::read_to_string(task.path().join("comm")).is_ok_and(|it| it.trim() == "jit-maps")
            })
            .count()
    };
    while runs() > 1 {
        assert!(begin.elapsed() < LONGEST_WAIT, "it runs on");
        std::thread::sleep(Duration::from_millis(10));
    }
}
