//! Waiting for the rings with epoll: for an urgent sample, and for a ring that fills up.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::time::Duration;

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::eventfd::{EfdFlags, EventFd};

/// The samples' ring and the perf rings of all CPUs, waited on together.
#[derive(Debug)]
pub(in crate::sampler) struct RingEpoll {
    epoll: Epoll,
    interrupt: EventFd,
}

const SAMPLES: u64 = 0;
const RECORDS: u64 = 1;
const INTERRUPT: u64 = 2;

impl RingEpoll {
    /// Makes an instance without rings.
    ///
    /// # Errors
    /// Returns an error if the process has no descriptor left.
    pub(in crate::sampler) fn new() -> io::Result<Self> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        let interrupt = EventFd::from_value_and_flags(0, EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
        epoll.add(&interrupt, EpollEvent::new(EpollFlags::EPOLLIN, INTERRUPT))?;
        Ok(Self { epoll, interrupt })
    }

    /// Ends the current wait, or else the next one.
    pub(in crate::sampler) fn interrupt(&self) {
        // A full counter wakes as well.
        let _ = self.interrupt.write(1);
    }

    /// Adds the samples' ring.
    ///
    /// # Errors
    /// Returns the error of `epoll_ctl`.
    pub(in crate::sampler) fn add_samples(&self, ring: impl AsFd) -> io::Result<()> {
        Ok(self.epoll.add(ring, EpollEvent::new(EpollFlags::EPOLLIN, SAMPLES))?)
    }

    /// Adds a CPU's perf ring.
    ///
    /// # Errors
    /// Returns the error of `epoll_ctl`.
    pub(in crate::sampler) fn add_records(&self, ring: &impl AsRawFd) -> io::Result<()> {
        // SAFETY: the descriptor is open as long as `ring` is borrowed, and is not kept.
        let ring = unsafe { BorrowedFd::borrow_raw(ring.as_raw_fd()) };
        Ok(self.epoll.add(ring, EpollEvent::new(EpollFlags::EPOLLIN, RECORDS))?)
    }

    /// Waits for `limit` at most. Returns true if an urgent sample arrived or the samples' ring
    /// fills up.
    pub(in crate::sampler) fn wait(&self, limit: Duration) -> bool {
        let mut events = [EpollEvent::empty(); 16];
        let timeout = EpollTimeout::try_from(limit).unwrap_or(EpollTimeout::ZERO);
        // An interrupted wait is a short one.
        let ready = self.epoll.wait(&mut events, timeout).unwrap_or(0);
        let ready = &events[..ready.min(events.len())];
        let has = |what| ready.iter().any(|event| event.data() == what);
        if has(INTERRUPT) {
            let _ = self.interrupt.read();
        }
        has(SAMPLES)
    }
}
