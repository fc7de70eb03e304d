//! The frames that a thread's stack has, known by having watched every call, return and signal.

use jvmprof_common::unwind::Cursor;

/// A frame that waits for its callee.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Caller {
    /// Where it goes on.
    pub(crate) pc: u64,
    /// Its `rsp` then.
    pub(crate) sp: u64,
    /// By a signal, rather than that it called.
    pub(crate) interrupted: bool,
}

impl Caller {
    /// Its registers, as far as they are known.
    pub(crate) fn cursor(&self) -> Cursor {
        Cursor { exact: self.interrupted, ..Cursor::interrupted(self.pc, self.sp, 0) }
    }
}

/// The frames that wait, outermost first.
#[derive(Debug, Default)]
pub(crate) struct Truth(Vec<Caller>);

impl Truth {
    pub(crate) fn callers(&self) -> &[Caller] {
        &self.0
    }

    pub(crate) fn called(&mut self, pc: u64, sp: u64) {
        self.0.push(Caller { pc, sp, interrupted: false });
    }

    /// A signal's handler was entered: it returns to `restorer`, in whose frame `sp` is.
    pub(crate) fn interrupted(&mut self, pc: u64, sp: u64, restorer: u64, frame: u64) {
        self.0.push(Caller { pc, sp, interrupted: true });
        self.0.push(Caller { pc: restorer, sp: frame, interrupted: false });
    }

    /// A handler has returned.
    pub(crate) fn resumed(&mut self) {
        while self.0.pop().is_some_and(|caller| !caller.interrupted) {}
    }

    /// Frames below `sp` are gone: they have returned, or an exception or a jump has removed them.
    pub(crate) fn settle(&mut self, sp: u64) {
        while self.0.last().is_some_and(|caller| caller.sp <= sp) {
            self.0.pop();
        }
    }
}
