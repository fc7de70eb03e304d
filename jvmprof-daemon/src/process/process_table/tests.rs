//! Changes of the table by events.

use std::io::Write as _;

use super::*;

/// Pids that can't exist: above the kernel's PID_MAX_LIMIT of 4,194,304.
const A: u32 = 5_000_000;
const B: u32 = 5_000_001;

fn none(_: &Process) -> Option<std::iter::Empty<Avma>> {
    None
}

fn code(start: u64, path: &str) -> MappedCode {
    mapped_code(7, Avma(start), 0x1000, FileOffset(0), path, None)
}

#[test]
fn exec_drops_the_old_program_and_gets_another_key() {
    let mut table = ProcessTable::default();
    table.exec(A, "first", 0);
    table.insert_mapping(A, 10, code(0x1000, "/bin/first"));
    let first = table.process_of_sample(A, 77, "first", 20, none).key;
    table.exec(A, "second", 0);
    table.insert_mapping(A, 30, code(0x8000, "/bin/second"));
    let process = table.process_of_sample(A, 77, "second", 40, none);
    assert_ne!(process.key, first);
    assert_eq!(&*process.comm, "second");
    assert!(process.mappings.find(Avma(0x1000)).is_none());
    assert_eq!(process.executable(), Some(PathBuf::from("/bin/second")));
}

#[test]
fn a_child_begins_with_its_parents_code() {
    let mut table = ProcessTable::default();
    table.exec(A, "sh", 0);
    table.insert_mapping(A, 10, code(0x1000, "/bin/sh"));
    table.fork(B, A);
    table.insert_mapping(A, 20, code(0x9000, "/later"));
    let child = table.process_of_sample(B, 99, "sh", 30, none);
    assert!(child.mappings.find(Avma(0x1000)).is_some());
    assert!(child.mappings.find(Avma(0x9000)).is_none());
}

/// Waits until a child has ended, and leaves it there without a program.
fn until_it_ends(pid: u32) {
    let id = nix::sys::wait::Id::Pid(nix::unistd::Pid::from_raw(pid.cast_signed()));
    let flags = nix::sys::wait::WaitPidFlag::WEXITED | nix::sys::wait::WaitPidFlag::WNOWAIT;
    nix::sys::wait::waitid(id, flags).expect("it ends");
}

/// The process has no memory any more, but `/proc/PID/maps` can still be read.
#[test]
fn a_process_that_waits_for_its_parent_keeps_its_mappings() {
    let mut child = std::process::Command::new("true").spawn().expect("a child");
    until_it_ends(child.id());
    let mut table = ProcessTable::default();
    table.exec(child.id(), "true", 0);
    table.insert_mapping(child.id(), 10, code(0x1000, "/bin/true"));
    let outside = |_: &Process| Some(std::iter::once(Avma(0x9999_0000)));
    let process = table.process_of_sample(child.id(), 1, "true", u64::MAX / 2, outside);
    assert!(process.mappings.find(Avma(0x1000)).is_some());
    assert_eq!(table.counts().reads, 1);
    child.wait().expect("it has ended");
}

#[test]
fn another_start_time_is_another_process() {
    let mut table = ProcessTable::default();
    table.exec(A, "old", 0);
    table.insert_mapping(A, 10, code(0x1000, "/bin/old"));
    let old = table.process_of_sample(A, 1_000 * NS_PER_TICK, "old", 20, none).key;
    assert_eq!(table.process_of_sample(A, 1_000 * NS_PER_TICK, "old", 30, none).key, old);
    let new = table.process_of_sample(A, 2_000 * NS_PER_TICK, "new", 40, none);
    assert_ne!(new.key, old);
    assert!(new.mappings.is_empty(), "nothing of the old process is believed");
}

#[test]
fn code_replaced_at_its_address_changes_the_generation() {
    let mut table = ProcessTable::default();
    table.exec(A, "jit", 0);
    table.insert_mapping(A, 10, code(0x1000, "//anon"));
    let before = table.process_of_sample(A, 5, "jit", 11, none).generation;
    table.insert_mapping(A, 12, code(0x4000, "/lib/new.so"));
    assert_eq!(table.process_of_sample(A, 5, "jit", 13, none).generation, before);
    table.insert_mapping(A, 14, code(0x1000, "/lib/over.so"));
    assert_ne!(table.process_of_sample(A, 5, "jit", 15, none).generation, before);
}

/// The read of `/proc` is later than the sample: its mappings may not have been there at the
/// sample's time.
#[test]
fn mappings_of_events_stay_whatever_an_address_outside_brings() {
    let pid = std::process::id();
    let ticks = procfs::process_info(pid).expect("a process may read itself").start_ticks;
    let here = Avma(mappings_of_events_stay_whatever_an_address_outside_brings as *const () as u64);
    let page = Avma(here.0 & !0xfff);
    let mut table = ProcessTable::default();
    table.exec(pid, "test", 0);
    // By now there is another file.
    table.insert_mapping(pid, 10, code(page.0, "/lib/earlier.so"));
    let vdso = procfs::mappings(pid).expect("a process may read itself");
    let vdso = vdso.iter().find(|it| it.backing == Backing::Vdso).expect("it has a vdso").start;
    let outside = |_: &Process| Some(std::iter::once(vdso));
    let process = table.process_of_sample(pid, ticks * NS_PER_TICK + 1, "test", u64::MAX / 2, outside);
    assert!(process.mappings.find(vdso).is_some(), "what no event from_event is read");
    assert_eq!(&*process.mappings.find(here).expect("known").path, "/lib/earlier.so");
    // An event that is older than the read has the same mapping, and its build id.
    let build_id = BuildId::new(&[7; 20]);
    let known = process.mappings.find(vdso).expect("known").as_ref().clone();
    let generation = process.generation;
    let from_event = MappedCode { build_id, ..known };
    assert!(!table.replaces_file_code(pid, 15, &from_event));
    table.insert_mapping(pid, 15, from_event.clone());
    let process = table.get(pid).expect("known");
    assert_eq!(process.generation, generation, "nothing has changed");
    assert_eq!(process.mappings.find(vdso).expect("known").build_id, build_id);
    let other = MappedCode { build_id: BuildId::new(&[8; 20]), ..from_event };
    assert!(table.replaces_file_code(pid, 16, &other), "another file");
    // Nor is an event refused that is older than that read.
    table.insert_mapping(pid, 20, code(page.0, "/lib/later.so"));
    let known = |table: &ProcessTable| {
        let process = table.get(pid).expect("known");
        process.mappings.find(here).expect("known").path.clone()
    };
    assert_eq!(&*known(&table), "/lib/later.so");
    // But where events were lost, `/proc` alone is right.
    table.invalidate_all();
    table.process_of_sample(pid, ticks * NS_PER_TICK + 1, "test", u64::MAX / 2, none);
    assert_eq!(Path::new(&*known(&table)), std::env::current_exe().expect("a name"));
}

#[test]
fn a_process_that_ran_before_is_read_from_proc() {
    let pid = std::process::id();
    let ticks = procfs::process_info(pid).expect("a process may read itself").start_ticks;
    let mut table = ProcessTable::default();
    let process = table.process_of_sample(pid, ticks * NS_PER_TICK + 1, "?", 1, none);
    assert_eq!(process.executable(), std::env::current_exe().ok());
    assert!(process.main_mapping().is_some());
    table.exit(pid, pid);
    table.remove_exited();
    assert!(table.get(pid).is_some(), "the process still runs");
    table.exec(A, "gone", 0);
    table.exit(A, A);
    table.remove_exited();
    assert!(table.get(A).is_none(), "the process has ended");
}

/// A shell that begins `sleep` in its place once a byte arrives.
fn shell_before_exec() -> std::process::Child {
    let mut shell = std::process::Command::new("sh");
    shell.args(["-c", "read line; exec sleep 60"]).stdin(std::process::Stdio::piped());
    let shell = shell.spawn().expect("sh is there");
    until_it_runs(shell.id(), "sh");
    shell
}

fn begin_sleep(shell: &mut std::process::Child) {
    shell.stdin.take().expect("it is piped").write_all(b"\n").expect("it reads");
    until_it_runs(shell.id(), "sleep");
}

/// Waits until a process has begun the program: whoever started it may go on in the middle of its
/// exec, and the kernel sets the name before the arguments.
fn until_it_runs(pid: u32, program: &str) {
    let began = std::time::Instant::now();
    loop {
        let arguments = std::fs::read_to_string(format!("/proc/{pid}/cmdline")).expect("it runs");
        if arguments.starts_with(program) {
            return;
        }
        assert!(began.elapsed().as_secs() < 60, "{program} doesn't run, but {arguments:?}");
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}

fn start_ns(pid: u32) -> u64 {
    procfs::process_info(pid).expect("it runs").start_ticks * NS_PER_TICK
}

#[test]
fn an_exec_whose_event_was_lost_is_another_program() {
    let mut shell = shell_before_exec();
    let (pid, start_ns) = (shell.id(), start_ns(shell.id()));
    let mut table = ProcessTable::default();
    let first = table.process_of_sample(pid, start_ns, "sh", 20, none).key;
    table.invalidate_all();
    assert_eq!(table.process_of_sample(pid, start_ns, "sh", 30, none).key, first, "it is the same");
    begin_sleep(&mut shell);
    table.invalidate_all();
    let process = table.process_of_sample(pid, start_ns, "sleep", 40, none);
    assert_ne!(process.key, first);
    assert_eq!(&*process.comm, "sleep");
    let ends_in_sleep =
        |path: PathBuf| path.to_string_lossy().contains("sleep") || path.ends_with("coreutils");
    assert!(process.executable().is_some_and(ends_in_sleep));
    let key = process.key;
    assert_eq!(table.process_of_sample(pid, start_ns, "sleep", 50, none).key, key);
    shell.kill().expect("it is ours");
    shell.wait().expect("it has ended");
    // Its end was in the lost events, too.
    table.invalidate_all();
    assert_eq!(table.remove_exited(), [key]);
}

#[test]
fn a_child_that_was_sampled_before_its_exec_is_its_parents_program() {
    let mut shell = shell_before_exec();
    let pid = shell.id();
    let own = std::process::id();
    let mut table = ProcessTable::default();
    let info = procfs::process_info(own).expect("it is us");
    table.insert_running(own, &info, 10);
    // As if the shell were still to begin in a child of this process.
    table.fork(pid, own);
    begin_sleep(&mut shell);
    let child = table.process_of_sample(pid, start_ns(pid), "tests", 30, none);
    assert_eq!(child.info().map(|info| &info.cmdline), Some(&info.cmdline));
    assert_eq!(child.executable(), info.executable);
    assert_eq!(child.inner_pid(), pid, "that is its own");
    let before = child.key;
    table.exec(pid, "sleep", 40);
    let child = table.process_of_sample(pid, start_ns(pid), "sleep", 50, none);
    assert!(child.info().is_some_and(|info| info.cmdline.starts_with("sleep")));
    let replaced = table.iter_with_replaced().find(|process| process.key == before);
    assert!(replaced.is_some_and(Process::is_replaced), "its frames may still be named");
    table.remove_exited();
    assert!(!table.iter_with_replaced().any(|process| process.key == before));
    shell.kill().expect("it is ours");
    shell.wait().expect("it has ended");
}

/// Makes what is known of a process what is read of it in the middle of an exec.
fn cut_off(table: &mut ProcessTable, pid: u32) {
    let process = table.by_pid.get_mut(&pid).expect("it is known");
    let info = process.info.as_mut().expect("it was read");
    *info = Arc::new(ProcessInfo { is_in_exec: true, cmdline: String::new(), ..(**info).clone() });
}

#[test]
fn a_program_that_was_read_in_the_middle_of_its_exec_is_read_again_a_limited_number_of_times() {
    let own = std::process::id();
    let mut table = ProcessTable::default();
    let whole = table.process_of_sample(own, start_ns(own), "test", 10, none);
    let (key, whole) = (whole.key, whole.info().expect("it is readable").cmdline.clone());
    for reads in 0..12 {
        cut_off(&mut table, own);
        let process = table.process_of_sample(own, start_ns(own), "test", 20, none);
        assert_eq!(process.key, key, "it is the same program");
        let read = &process.info().expect("it was read").cmdline;
        assert_eq!(*read, if reads < 8 { whole.clone() } else { String::new() }, "read {reads}");
    }
}

#[test]
fn what_was_read_in_the_middle_of_an_exec_stays_where_the_process_has_ended_since() {
    let mut shell = shell_before_exec();
    let (pid, start_ns) = (shell.id(), start_ns(shell.id()));
    let mut table = ProcessTable::default();
    let process = table.process_of_sample(pid, start_ns, "sh", 10, none);
    let (key, executable) = (process.key, process.executable());
    assert!(process.info().is_some_and(|info| info.executable.is_some()));
    let is_known = |table: &mut ProcessTable, time_ns: u64| {
        cut_off(table, pid);
        let process = table.process_of_sample(pid, start_ns, "sh", time_ns, none);
        assert_eq!(process.key, key);
        process.info().and_then(|info| info.executable.clone()) == executable
    };
    shell.kill().expect("it is ours");
    until_it_ends(pid);
    assert!(is_known(&mut table, 20));
    shell.wait().expect("it has ended");
    assert!(is_known(&mut table, 30));
    assert_eq!(table.counts().unreadable, 0, "its first sample found it");
}

#[test]
fn a_child_with_its_parents_program_is_not_read_again_where_that_was_in_the_middle_of_an_exec() {
    let mut shell = shell_before_exec();
    let (pid, own) = (shell.id(), std::process::id());
    let mut table = ProcessTable::default();
    table.insert_running(own, &procfs::process_info(own).expect("it is us"), 10);
    cut_off(&mut table, own);
    table.fork(pid, own);
    begin_sleep(&mut shell);
    let programs = [20, 30].map(|time_ns| {
        let child = table.process_of_sample(pid, start_ns(pid), "tests", time_ns, none);
        (child.key, child.executable())
    });
    assert_eq!(programs[0], programs[1], "its exec is still to come");
    assert_eq!(programs[0].1, std::env::current_exe().ok());
    shell.kill().expect("it is ours");
    shell.wait().expect("it has ended");
}

#[test]
fn so_many_replaced_programs_are_kept_and_no_more() {
    let mut table = ProcessTable::default();
    for time in 0..600 {
        table.process_of_sample(A, 77, "sh", 2 * time, none);
        table.exec(A, "sh", 2 * time + 1);
    }
    assert_eq!(table.iter_with_replaced().count(), 1 + 256);
    // Two with more code together than there is room for.
    table.remove_exited();
    for _ in 0..2 {
        let mut at = 0;
        while table.get(A).is_some_and(|process| process.mappings.bytes() < 3 << 20) {
            at += 0x2000;
            table.insert_mapping(A, 1, code(at, "/a/path/of/some/length"));
        }
        table.process_of_sample(A, 77, "sh", 2, none);
        table.exec(A, "sh", 3);
    }
    assert_eq!(table.iter_with_replaced().count(), 1 + 1);
}
