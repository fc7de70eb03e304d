//! Waiting for the rings: for a sample that is to be looked at at once, and for a ring that fills
//! up.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::time::Duration;

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::eventfd::{EfdFlags, EventFd};

/// The samples' ring and the process records' rings of all CPUs, waited on together.
#[derive(Debug)]
pub(in crate::sampler) struct Waker {
    rings: Epoll,
    called: EventFd,
}

const SAMPLES: u64 = 0;
const RECORDS: u64 = 1;
const CALLED: u64 = 2;

impl Waker {
    /// # Errors
    /// The process has no descriptor left.
    pub(in crate::sampler) fn new() -> io::Result<Self> {
        let rings = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        let called = EventFd::from_value_and_flags(0, EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
        rings.add(&called, EpollEvent::new(EpollFlags::EPOLLIN, CALLED))?;
        Ok(Self { rings, called })
    }

    /// Ends the wait that is under way, or else the next one.
    pub(in crate::sampler) fn call(&self) {
        // A full counter wakes as well.
        let _ = self.called.write(1);
    }

    /// # Errors
    /// As the kernel says.
    pub(in crate::sampler) fn add_samples(&self, ring: impl AsFd) -> io::Result<()> {
        Ok(self.rings.add(ring, EpollEvent::new(EpollFlags::EPOLLIN, SAMPLES))?)
    }

    /// # Errors
    /// As the kernel says.
    pub(in crate::sampler) fn add_records(&self, ring: &impl AsRawFd) -> io::Result<()> {
        // SAFETY: the descriptor is open as long as `ring` is borrowed, and is not kept.
        let ring = unsafe { BorrowedFd::borrow_raw(ring.as_raw_fd()) };
        Ok(self.rings.add(ring, EpollEvent::new(EpollFlags::EPOLLIN, RECORDS))?)
    }

    /// Waits for `limit` at most. True if what woke is a sample that is to be looked at at once, or
    /// the samples' ring fills up.
    pub(in crate::sampler) fn wait(&self, limit: Duration) -> bool {
        let mut events = [EpollEvent::empty(); 16];
        let timeout = EpollTimeout::try_from(limit).unwrap_or(EpollTimeout::ZERO);
        // An interrupted wait is a short one.
        let ready = self.rings.wait(&mut events, timeout).unwrap_or(0);
        let ready = &events[..ready.min(events.len())];
        let has = |what| ready.iter().any(|event| event.data() == what);
        if has(CALLED) {
            let _ = self.called.read();
        }
        has(SAMPLES)
    }
}
