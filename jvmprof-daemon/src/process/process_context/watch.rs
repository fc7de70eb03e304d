//! Schedule by which a process's context is searched for and read again.

use std::sync::Arc;
use std::time::Instant;

use super::reader::{read, read_header, search};
use super::{ContextCounts, ContextError, ProcessContext};
use crate::types::Avma;

const SECOND_NS: u64 = 1_000_000_000;

/// Shortest interval of checking whether a context has changed, in ns. It doubles with each change,
/// so that a process can't have its series renamed all the time.
const MIN_CHECK_NS: u64 = SECOND_NS;
const MAX_CHECK_NS: u64 = 64 * SECOND_NS;

/// Shortest interval of searching a process's mappings, in ns. It doubles with each search.
const MIN_SEARCH_NS: u64 = SECOND_NS;
const MAX_SEARCH_NS: u64 = 256 * SECOND_NS;

/// Searching one process's mappings takes at most 1/SEARCH_SHARE of wall time.
const SEARCH_SHARE: u64 = 1000;

/// The context of one process, as it is known.
#[derive(Debug)]
pub(in crate::process) struct ContextWatch {
    /// The last one that was read. It stays when its mapping is gone: an SDK that ends may remove
    /// it before its process ends.
    context: Option<Arc<ProcessContext>>,
    /// Address and time of publication of what was read or refused last.
    known: Option<(Avma, u64)>,
    /// Time of the next check or search, in ns of `CLOCK_MONOTONIC`.
    next_ns: u64,
    check_ns: u64,
    search_ns: u64,
}

impl Default for ContextWatch {
    fn default() -> Self {
        Self { context: None, known: None, next_ns: 0, check_ns: MIN_CHECK_NS, search_ns: MIN_SEARCH_NS }
    }
}

impl ContextWatch {
    pub(in crate::process) fn context(&self) -> Option<&Arc<ProcessContext>> {
        self.context.as_ref()
    }

    /// Returns true if [`Self::check`] has something to do.
    pub(in crate::process) fn is_due(&self, now_ns: u64) -> bool {
        self.next_ns <= now_ns
    }

    /// Has the mappings searched soon: a library was loaded, which may publish a context.
    pub(in crate::process) fn expect(&mut self, now_ns: u64) {
        if self.known.is_none() {
            self.search_ns = MIN_SEARCH_NS;
            self.next_ns = self.next_ns.min(now_ns.saturating_add(MIN_SEARCH_NS));
        }
    }

    /// Has the context checked within a second: it should have changed. One that changes all the
    /// time keeps its interval.
    pub(in crate::process) fn expect_change(&mut self, now_ns: u64) {
        if self.known.is_some() && self.check_ns <= 4 * MIN_CHECK_NS {
            self.next_ns = self.next_ns.min(now_ns.saturating_add(MIN_CHECK_NS));
        }
    }

    /// Reads the context if one of these mappings has one: they were just read anyway.
    pub(in crate::process) fn found(
        &mut self,
        pid: u32,
        at: &[Avma],
        now_ns: u64,
        counts: &mut ContextCounts,
    ) {
        if self.known.is_none() {
            self.read_first(pid, at, counts);
            // The next search isn't sooner for this one.
            let earliest = now_ns.saturating_add(MIN_CHECK_NS);
            self.next_ns = if self.known.is_some() { earliest } else { self.next_ns.max(earliest) };
        }
    }

    /// Reads the context again if it has changed, or searches for one. To be called when it is due.
    pub(in crate::process) fn check(&mut self, pid: u32, now_ns: u64, counts: &mut ContextCounts) {
        if let Some((at, published_at)) = self.known {
            match read_header(pid, at) {
                Ok(header) if header.published_at == published_at => {
                    self.check_ns = (self.check_ns / 2).max(MIN_CHECK_NS);
                }
                // Another context, one that is being written, or one that is refused.
                Ok(_) | Err(ContextError::Torn | ContextError::Size(_)) => {
                    self.read(pid, at, counts);
                    self.check_ns = (self.check_ns * 2).min(MAX_CHECK_NS);
                }
                Err(_) => {
                    self.known = None;
                    self.search_ns = MIN_SEARCH_NS;
                }
            }
            self.next_ns = now_ns.saturating_add(self.check_ns);
            return;
        }
        // A process that has just begun, whose mappings are known by events: most such end soon.
        if self.next_ns == 0 {
            self.next_ns = now_ns.saturating_add(MIN_SEARCH_NS);
            return;
        }
        let began = Instant::now();
        let found = search(pid);
        let taken = u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.read_first(pid, &found, counts);
        let step = if self.known.is_some() { self.check_ns } else { self.search_ns };
        self.search_ns = (self.search_ns * 2).min(MAX_SEARCH_NS);
        self.next_ns = now_ns.saturating_add(taken.saturating_mul(SEARCH_SHARE).max(step));
    }

    /// Reads the first of these mappings that has a context.
    fn read_first(&mut self, pid: u32, at: &[Avma], counts: &mut ContextCounts) {
        for at in at {
            self.read(pid, *at, counts);
            if self.known.is_some() {
                return;
            }
        }
    }

    fn read(&mut self, pid: u32, at: Avma, counts: &mut ContextCounts) {
        let result = read(pid, at);
        counts.count(result.as_ref().map(|(_, context)| context).map_err(|error| *error));
        match result {
            Ok((header, context)) => {
                self.known = Some((at, header.published_at));
                // Labels are made anew for another context only.
                if self.context.as_deref() != Some(&context) {
                    self.context = Some(Arc::new(context));
                }
            }
            // It isn't read again before it changes.
            Err(ContextError::Malformed) => {
                self.known = read_header(pid, at).ok().map(|header| (at, header.published_at));
            }
            Err(error) => tracing::debug!(pid, %error, "a process's context isn't used"),
        }
    }
}
