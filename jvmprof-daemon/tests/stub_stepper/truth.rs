//! The frames that a thread's stack has, known by having watched every call.

use super::stepper::Registers;

/// A frame whose call was seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Called {
    pub(crate) return_address: u64,
    /// The caller's `rsp` once the call has returned.
    pub(crate) sp: u64,
    /// The caller's `rbp`.
    pub(crate) fp: u64,
    /// First instruction that was executed in it.
    pub(crate) entry: u64,
    /// Called by the interpreter or the call stub, which restore their own `rsp`, so that the
    /// callee need not keep to it.
    pub(crate) interpreted: bool,
}

/// The calls that haven't returned yet.
#[derive(Debug, Default)]
pub(crate) struct Truth {
    pub(crate) calls: Vec<Called>,
}

impl Truth {
    /// A call was executed: `before` are the registers at the call, `now` those behind it.
    /// `restores`: as [`Called::interpreted`].
    pub(crate) fn called(
        &mut self,
        return_address: u64,
        before: &Registers,
        now: &Registers,
        restores: bool,
    ) {
        let (sp, fp) = (before.rsp, before.rbp);
        self.calls.push(Called { return_address, sp, fp, entry: now.rip, interpreted: restores });
    }

    /// The interpreter has pushed a return address and jumps to a method's entry, with its stack
    /// pointer in r13.
    pub(crate) fn jumped(&mut self, return_address: u64, now: &Registers) {
        let (sp, fp) = (now.r13, now.rbp);
        self.calls.push(Called { return_address, sp, fp, entry: now.rip, interpreted: true });
    }

    /// Drops the calls that have returned, and those whose frames an exception or a deoptimization
    /// has removed.
    pub(crate) fn settle(&mut self, now: &Registers) {
        while let Some(last) = self.calls.last() {
            let (same, highest) =
                if last.interpreted { (now.rbp == last.fp, last.fp) } else { (now.rsp == last.sp, last.sp) };
            let returned = now.rip == last.return_address && same;
            if !returned && now.rsp <= highest {
                return;
            }
            self.calls.pop();
        }
    }
}
