//! Settings of glibc's allocator, so that it returns freed memory to the system.
//!
//! By default each thread has an arena of its own that others can't use, and a large block that was
//! freed once raises the threshold above which blocks are mapped by themselves. Reading a program's
//! unwind rows and encoding a window take some megabytes for a moment, on threads that come and go,
//! which left the daemon with twice the memory that it used.

/// Size in bytes from which on blocks are mapped by themselves, and unmapped when they are freed.
/// Without this setting the threshold rises with each one, to 32 MiB.
const MMAP_THRESHOLD: libc::c_int = 256 << 10;
/// Free bytes at the heap's end that are kept.
const TRIM_THRESHOLD: libc::c_int = 1 << 20;
/// Number of arenas: all threads share one, as they seldom allocate at the same time.
const MAX_ARENAS: libc::c_int = 1;
/// Free bytes within the heap from which on it is trimmed.
const TRIM_HEAP_FROM: usize = 8 << 20;

/// Makes the allocator keep little freed memory. Call it before there are threads.
pub fn configure_malloc() {
    #[cfg(target_env = "gnu")]
    for (option, value) in [
        (libc::M_ARENA_MAX, MAX_ARENAS),
        (libc::M_MMAP_THRESHOLD, MMAP_THRESHOLD),
        (libc::M_TRIM_THRESHOLD, TRIM_THRESHOLD),
    ] {
        // SAFETY: two numbers; it takes the allocator's lock.
        if unsafe { libc::mallopt(option, value) } == 0 {
            tracing::debug!(option, value, "the allocator doesn't know this setting");
        }
    }
}

/// Returns free memory between blocks in use to the system, if it is much; that takes about a
/// millisecond.
pub fn trim_heap() {
    #[cfg(target_env = "gnu")]
    {
        // SAFETY: no arguments; both take the allocator's locks.
        let free = unsafe { libc::mallinfo2() }.fordblks;
        if free >= TRIM_HEAP_FROM {
            // SAFETY: as above.
            unsafe { libc::malloc_trim(0) };
        }
    }
}

#[cfg(test)]
#[cfg(target_env = "gnu")]
mod tests {
    use super::*;

    /// Returns the resident bytes of this process's anonymous memory.
    fn resident() -> usize {
        let status = std::fs::read_to_string("/proc/self/status").expect("one's own status");
        let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).expect("RssAnon");
        line.trim().trim_end_matches("kB").trim().parse::<usize>().expect("a number") << 10
    }

    #[test]
    fn free_memory_between_blocks_in_use_is_returned() {
        const BLOCK: usize = 1 << 10;
        const BLOCKS: usize = 64 << 10;
        configure_malloc();
        let mut blocks: Vec<Option<Box<[u8]>>> = (0..BLOCKS).map(|_| Some(vec![1; BLOCK].into())).collect();
        let full = resident();
        // One in 64 stays, so that the heap's end can't be cut off.
        for (at, block) in blocks.iter_mut().enumerate() {
            if at % 64 != 0 {
                *block = None;
            }
        }
        assert!(blocks.iter().flatten().all(|block| block[0] == 1));
        // Other tests allocate meanwhile, for a moment: half of the 64 MiB is proof enough,
        // whenever it is seen.
        let is_back = || {
            trim_heap();
            let left = resident();
            std::thread::sleep(std::time::Duration::from_millis(20));
            left + BLOCK * BLOCKS / 2 < full
        };
        let began = std::time::Instant::now();
        while !is_back() {
            assert!(began.elapsed().as_secs() < 60, "{full} bytes before, {} after", resident());
        }
        drop(blocks);
    }
}
