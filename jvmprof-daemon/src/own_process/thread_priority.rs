//! Priorities of the profiler's own threads.

/// Lets the calling thread run soon after it wakes, also on a busy host: what was sampled may be
/// gone some milliseconds later. It wakes seldom and briefly. Threads and processes that it starts
/// from now on inherit this.
pub fn raise_priority() {
    nice(-10);
}

/// Lets everyone else run before the calling thread.
pub fn lower_priority() {
    nice(5);
}

/// For threads that read and write files: as [`lower_priority`], and others' reads and writes go
/// first, but not for ever, since samples wait for what is read.
pub fn lower_priority_and_io() {
    lower_priority();
    io_priority(BEST_EFFORT, LOWEST);
}

/// For threads that read files nobody waits for: as [`lower_priority`], and only while the disk
/// has nothing else to do.
pub fn lower_to_idle_io() {
    lower_priority();
    io_priority(IDLE, 0);
}

/// Classes and levels of include/uapi/linux/ioprio.h.
const BEST_EFFORT: libc::c_int = 2;
const IDLE: libc::c_int = 3;
const LOWEST: libc::c_int = 7;
const WHO_PROCESS: libc::c_int = 1;
const CLASS_SHIFT: u32 = 13;

/// Of the calling thread. Nothing depends on it, and not every disk's scheduler knows priorities.
fn io_priority(class: libc::c_int, level: libc::c_int) {
    // SAFETY: three numbers and no memory.
    let result = unsafe { libc::syscall(libc::SYS_ioprio_set, WHO_PROCESS, 0, class << CLASS_SHIFT | level) };
    if result != 0 {
        let error = std::io::Error::last_os_error();
        tracing::debug!(class, level, %error, "a thread's I/O priority stays as it is");
    }
}

/// Without the right to do so (`CAP_SYS_NICE` for negative ones) nothing changes, and nothing
/// depends on it.
fn nice(niceness: i32) {
    if let Err(error) = rustix::process::setpriority_process(None, niceness) {
        tracing::debug!(niceness, %error, "a thread's priority stays as it is");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Niceness, I/O class and level of a thread after this.
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
    fn file_work_comes_behind_others() {
        let (nice, class, level) = after(lower_priority_and_io);
        assert!(nice >= 5, "{nice}");
        assert_eq!((class, level), (i64::from(BEST_EFFORT), 7));
        let (nice, class, _) = after(lower_to_idle_io);
        assert!(nice >= 5, "{nice}");
        assert_eq!(class, i64::from(IDLE));
    }
}
