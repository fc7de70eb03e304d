//! CPU and I/O priorities of the profiler's own threads.

/// Raises the priority of the calling thread, so that it runs soon after it wakes, also on a busy
/// host: a sampled process may be gone some milliseconds later. The thread wakes seldom and
/// briefly. Threads and processes that it starts from now on inherit this. Returns false without
/// the right to do so, `CAP_SYS_NICE`.
pub fn raise_priority() -> bool {
    set_niceness(-10)
}

/// Gives the calling thread the default priority.
pub fn default_priority() {
    set_niceness(0);
}

/// Lowers the priority of the calling thread below the default.
pub fn lower_priority() {
    set_niceness(5);
}

/// Lowers CPU and I/O priority of a thread that reads and writes files. Its I/O isn't starved,
/// since samples wait for it.
pub fn lower_priority_and_io() {
    lower_priority();
    set_io_priority(BEST_EFFORT, LOWEST);
}

/// Lowers the priority of a thread that reads files in the background: its I/O only runs while the
/// disk is idle.
pub fn lower_to_idle_io() {
    lower_priority();
    set_io_priority(IDLE, 0);
}

/// Classes and levels of include/uapi/linux/ioprio.h.
const BEST_EFFORT: libc::c_int = 2;
const IDLE: libc::c_int = 3;
const LOWEST: libc::c_int = 7;
const WHO_PROCESS: libc::c_int = 1;
const CLASS_SHIFT: u32 = 13;

/// Sets the I/O priority of the calling thread. A failure has no effect on correctness, and not
/// every I/O scheduler has priorities.
fn set_io_priority(class: libc::c_int, level: libc::c_int) {
    // SAFETY: three numbers and no memory.
    let result = unsafe { libc::syscall(libc::SYS_ioprio_set, WHO_PROCESS, 0, class << CLASS_SHIFT | level) };
    if result != 0 {
        let error = std::io::Error::last_os_error();
        tracing::debug!(class, level, %error, "a thread's I/O priority stays as it is");
    }
}

/// Sets the niceness of the calling thread. Without the right to do so (`CAP_SYS_NICE` for a
/// negative one) it stays as it is, which only makes the thread slower: false.
fn set_niceness(niceness: i32) -> bool {
    rustix::process::setpriority_process(None, niceness)
        .inspect_err(|error| tracing::debug!(niceness, %error, "a thread's priority stays as it is"))
        .is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns niceness, I/O class and level of a thread after `set`.
    fn after(set: fn()) -> (i32, i64, i64) {
        let thread = std::thread::spawn(move || {
            set();
            let nice = rustix::process::getpriority_process(None).expect("one's own");
            // SAFETY: two numbers and no memory.
            let io = unsafe { libc::syscall(libc::SYS_ioprio_get, WHO_PROCESS, 0) };
            (nice, io >> CLASS_SHIFT, io & 7)
        });
        thread.join().expect("no panic")
    }

    #[test]
    fn file_work_runs_after_others() {
        let (nice, class, level) = after(lower_priority_and_io);
        assert!(nice >= 5, "{nice}");
        assert_eq!((class, level), (i64::from(BEST_EFFORT), 7));
        let (nice, class, _) = after(lower_to_idle_io);
        assert!(nice >= 5, "{nice}");
        assert_eq!(class, i64::from(IDLE));
    }
}
