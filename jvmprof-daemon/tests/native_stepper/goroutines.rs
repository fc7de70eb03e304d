//! The true stacks of goroutines that take turns on one thread, by having watched every call,
//! return, signal and switch of stacks. What the functions that switch do is written in go
//! src/runtime/asm_amd64.s.

use std::collections::HashMap;

use jvmprof_common::rows::{GO_G_M, GO_G_SCHED};

use super::stepper::{Registers, Step, Stepper, What};
use super::truth::Caller;

/// The function that an instruction which loads `rsp` is part of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Switch {
    /// `mcall`: leaves the goroutine for the system stack, for good.
    Leaves,
    /// `mcall` at the goroutine's end.
    Ends,
    /// `gogo`: goes on with a goroutine.
    Enters,
    /// Any other: the goroutine goes on, on another stack.
    Stays,
}

/// The stacks of all goroutines, of which one runs.
#[derive(Debug, Default)]
pub(crate) struct Goroutines {
    /// Callers of what runs, outermost first, and the stack that each one's frame is on.
    callers: Vec<(Caller, StackId)>,
    stack: StackId,
    /// Whose callers these are: its `g`.
    owner: Option<u64>,
    /// Those that wait, their callers as they are called: the innermost one goes on.
    waiting: HashMap<u64, Vec<(Caller, StackId)>>,
    /// `gogo` has loaded the stack pointer of this one and jumps there soon.
    entering: Option<u64>,
    /// Where the first frame of each goroutine returns to, in `runtime.goexit`.
    end: u64,
    /// What runs has waited since before anything was watched.
    is_unknown: bool,
    /// Where the callers that signals have interrupted are among all.
    handlers: Vec<usize>,
    /// A handler has changed one of two registers of what it has interrupted.
    is_between: bool,
    /// What was seen.
    pub(crate) switches: usize,
    pub(crate) moves: usize,
}

/// A stack by its lowest address; 0 is the thread's own.
type StackId = u64;

impl Goroutines {
    /// At the first instruction of `main.main`. `is_end`: whether an address is in
    /// `runtime.goexit`.
    pub(crate) fn at_main(stepper: &Stepper, mut is_end: impl FnMut(u64) -> bool) -> Self {
        let now = stepper.registers();
        let g = now.r14;
        let (low, high) = (stepper.word(g), stepper.word(g + 8));
        // Above all frames.
        let begins = (1..16).map(|word| high - 8 * word).find(|at| is_end(stepper.word(*at)));
        let begins = begins.expect("a goroutine's first frame returns to its end");
        let caller = |at: u64| (Caller { pc: stepper.word(at), sp: at + 8, interrupted: false }, low);
        Self {
            callers: vec![caller(begins), caller(now.rsp)],
            stack: low,
            owner: Some(g),
            end: stepper.word(begins),
            ..Self::default()
        }
    }

    pub(crate) fn callers(&self) -> Vec<Caller> {
        match self.entering {
            Some(_) => Vec::new(),
            None => self.callers.iter().map(|(caller, _)| *caller).collect(),
        }
    }

    /// Whether the stack can be known.
    pub(crate) fn is_known(&self) -> bool {
        !self.is_unknown && !self.is_between
    }

    /// `gogo` does its last instructions, which belong to no stack.
    pub(crate) fn is_entering(&self) -> bool {
        self.entering.is_some()
    }

    /// The function that called last goes on there.
    pub(crate) fn innermost(&self) -> Option<Caller> {
        self.callers.last().map(|(caller, _)| *caller)
    }

    /// Takes in what an instruction has done. `switch`: what it is part of, if it may have loaded
    /// `rsp`.
    pub(crate) fn follow(&mut self, step: &Step, stepper: &Stepper, switch: Option<Switch>) {
        let Step { before, now, what } = step;
        if let Some(target) = self.entering {
            self.arrive(target, now, stepper);
            return;
        }
        match *what {
            What::Interrupted => {
                let interrupted = Caller { pc: before.rip, sp: before.rsp, interrupted: true };
                self.handlers.push(self.callers.len());
                self.callers.push((interrupted, self.stack));
                self.stack = stack_of(stepper, now, self.stack);
                let frame = Caller { pc: stepper.word(now.rsp), sp: now.rsp + 8, interrupted: false };
                self.callers.push((frame, self.stack));
            }
            What::Resumed => {
                self.handlers.pop();
                while let Some((caller, stack)) = self.callers.pop() {
                    if caller.interrupted {
                        self.stack = stack;
                        break;
                    }
                }
            }
            What::Called(to) => {
                self.callers.push((Caller { pc: to, sp: before.rsp, interrupted: false }, self.stack));
            }
            What::Other => {}
        }
        match switch {
            Some(switch) => self.switch(switch, before, now, stepper),
            None => self.settle(now.rsp),
        }
        self.follow_copy(stepper);
        self.follow_context(stepper);
    }

    fn settle(&mut self, sp: u64) {
        while self.callers.last().is_some_and(|(caller, stack)| *stack == self.stack && caller.sp <= sp) {
            self.callers.pop();
        }
    }

    fn switch(&mut self, switch: Switch, before: &Registers, now: &Registers, stepper: &Stepper) {
        self.switches += 1;
        match switch {
            Switch::Leaves | Switch::Ends => {
                let left = std::mem::take(&mut self.callers);
                if switch == Switch::Leaves && !self.is_unknown {
                    self.waiting.insert(before.rax, left);
                }
                (self.owner, self.stack, self.is_unknown) = (None, 0, false);
            }
            Switch::Enters => {
                let own = std::mem::take(&mut self.callers);
                if let Some(owner) = self.owner.take().filter(|_| !self.is_unknown) {
                    let own = own.into_iter().filter(|(_, stack)| *stack != 0).collect();
                    self.waiting.insert(owner, own);
                }
                self.entering = Some(now.r14);
            }
            Switch::Stays => {
                let to = stack_of(stepper, now, 0);
                // Back on a stack that was left: what was called meanwhile on the other one has
                // returned.
                if self.callers.iter().any(|(_, stack)| *stack == to) {
                    while self.callers.last().is_some_and(|(_, stack)| *stack != to) {
                        self.callers.pop();
                    }
                }
                self.stack = to;
                self.settle(now.rsp);
            }
        }
    }

    /// Once `gogo` has jumped.
    fn arrive(&mut self, target: u64, now: &Registers, stepper: &Stepper) {
        if stepper.jumped_from().is_none() {
            return;
        }
        let stack = stepper.word(target);
        (self.owner, self.stack, self.entering) = (Some(target), stack, None);
        self.is_unknown = false;
        let Some(mut callers) = self.waiting.remove(&target) else {
            let end = Caller { pc: stepper.word(now.rsp), sp: now.rsp + 8, interrupted: false };
            self.is_unknown = end.pc != self.end;
            self.callers = vec![(end, stack)];
            return;
        };
        if let Some((caller, _)) = callers.pop_if(|(caller, _)| caller.pc == now.rip) {
            let moved = now.rsp.wrapping_sub(caller.sp);
            self.moves += usize::from(moved != 0);
            for (caller, on) in &mut callers {
                caller.sp = caller.sp.wrapping_add(moved);
                *on = stack;
            }
        }
        // Else a panic was recovered: the function that deferred is returned from.
        self.callers = callers;
        self.settle(now.rsp);
    }

    /// A handler may let the interrupted code call something: from when on its context says so.
    fn follow_context(&mut self, stepper: &Stepper) {
        self.is_between = false;
        let Some(at) = self.handlers.last_mut() else { return };
        let (Some((interrupted, stack)), Some((frame, _))) =
            (self.callers.get(*at).copied(), self.callers.get(*at + 1))
        else {
            return;
        };
        // rsp and rip of the context (Linux arch/x86/include/uapi/asm/sigcontext.h), which the
        // frame begins with.
        let (sp, pc) = (stepper.word(frame.sp + 160), stepper.word(frame.sp + 168));
        if pc == interrupted.pc {
            self.is_between = sp != interrupted.sp;
            return;
        }
        *at += 1;
        self.callers.insert(*at, (Caller { pc, sp, interrupted: true }, stack));
    }

    /// While its system stack runs, a goroutine's own may be copied elsewhere: from when on its
    /// registers say so.
    fn follow_copy(&mut self, stepper: &Stepper) {
        let Some(owner) = self.owner.filter(|_| self.stack == 0 && self.entering.is_none()) else { return };
        let Some(last) = self.callers.iter().rposition(|(_, stack)| *stack != 0) else { return };
        let (sp, pc) = (stepper.word(owner + GO_G_SCHED), stepper.word(owner + GO_G_SCHED + 8));
        let (caller, _) = self.callers[last];
        if sp == 0 || sp == caller.sp || pc != caller.pc || caller.interrupted {
            return;
        }
        let (moved, stack) = (sp.wrapping_sub(caller.sp), stepper.word(owner));
        self.moves += 1;
        for (caller, on) in self.callers.iter_mut().filter(|(_, stack)| *stack != 0) {
            caller.sp = caller.sp.wrapping_add(moved);
            *on = stack;
        }
    }
}

/// The stack that `rsp` is on: that of the thread's `g`, its signals' or its current goroutine's,
/// or else `other`.
fn stack_of(stepper: &Stepper, now: &Registers, other: StackId) -> StackId {
    let word = |address: u64| stepper.try_word(address).unwrap_or_default();
    let g = word(now.fs_base.wrapping_sub(8));
    let m = word(g.wrapping_add(GO_G_M));
    // g0, gsignal, curg (go src/runtime/runtime2.go): any word of m may be one.
    let words = (0..32).map(|at| word(m.wrapping_add(8 * at)));
    let is_on = |g: u64| {
        let (low, high) = (stepper.try_word(g)?, stepper.try_word(g.checked_add(8)?)?);
        (low..high).contains(&now.rsp).then_some(low)
    };
    let g0 = word(m);
    let found = [g].into_iter().chain(words).find_map(|g| is_on(g).map(|low| (g, low)));
    match found {
        Some((g, _)) if g == g0 => 0,
        Some((_, low)) => low,
        None => other,
    }
}
