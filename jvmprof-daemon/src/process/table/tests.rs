//! What becomes of processes by their events.

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
fn exec_forgets_the_old_program_and_gets_another_key() {
    let mut table = ProcessTable::default();
    table.exec(A, "first", 0);
    table.map(A, 10, code(0x1000, "/bin/first"));
    let first = table.sampled(A, 77, "first", 20, none).key;
    table.exec(A, "second", 0);
    table.map(A, 30, code(0x8000, "/bin/second"));
    let process = table.sampled(A, 77, "second", 40, none);
    assert_ne!(process.key, first);
    assert_eq!(&*process.comm, "second");
    assert!(process.mappings.find(Avma(0x1000)).is_none());
    assert_eq!(process.executable(), Some(PathBuf::from("/bin/second")));
}

#[test]
fn a_child_begins_with_its_parents_code() {
    let mut table = ProcessTable::default();
    table.exec(A, "sh", 0);
    table.map(A, 10, code(0x1000, "/bin/sh"));
    table.fork(B, A);
    table.map(A, 20, code(0x9000, "/later"));
    let child = table.sampled(B, 99, "sh", 30, none);
    assert!(child.mappings.find(Avma(0x1000)).is_some());
    assert!(child.mappings.find(Avma(0x9000)).is_none());
}

#[test]
fn another_start_time_is_another_process() {
    let mut table = ProcessTable::default();
    table.exec(A, "old", 0);
    table.map(A, 10, code(0x1000, "/bin/old"));
    let old = table.sampled(A, 1_000 * NS_PER_TICK, "old", 20, none).key;
    assert_eq!(table.sampled(A, 1_000 * NS_PER_TICK, "old", 30, none).key, old);
    let new = table.sampled(A, 2_000 * NS_PER_TICK, "new", 40, none);
    assert_ne!(new.key, old);
    assert!(new.mappings.is_empty(), "nothing of the old process is believed");
}

#[test]
fn code_replaced_at_its_address_changes_the_generation() {
    let mut table = ProcessTable::default();
    table.exec(A, "jit", 0);
    table.map(A, 10, code(0x1000, "//anon"));
    let before = table.sampled(A, 5, "jit", 11, none).generation;
    table.map(A, 12, code(0x4000, "/lib/new.so"));
    assert_eq!(table.sampled(A, 5, "jit", 13, none).generation, before);
    table.map(A, 14, code(0x1000, "/lib/over.so"));
    assert_ne!(table.sampled(A, 5, "jit", 15, none).generation, before);
}

#[test]
fn a_process_that_ran_before_is_read_from_proc() {
    let pid = std::process::id();
    let ticks = procfs::facts(pid).expect("a process may read itself").start_ticks;
    let mut table = ProcessTable::default();
    let process = table.sampled(pid, ticks * NS_PER_TICK + 1, "?", 1, none);
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
