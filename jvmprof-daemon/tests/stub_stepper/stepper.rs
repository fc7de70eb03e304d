//! Executes one thread of a JVM instruction by instruction.

use nix::sys::ptrace;
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

use crate::support::one_cpu::OneCpu;

pub(crate) use libc::user_regs_struct as Registers;

/// A thread that is held while nobody asks for a step.
pub(crate) struct Stepper {
    thread: Pid,
    _one_cpu: OneCpu,
    /// A signal that stopped it and that it has yet to get.
    pending: Option<Signal>,
}

impl Stepper {
    pub(crate) fn attach(thread: i32) -> Self {
        let thread = Pid::from_raw(thread);
        ptrace::seize(thread, ptrace::Options::empty()).expect("root may trace");
        ptrace::interrupt(thread).expect("a seized thread can be stopped");
        let mut stepper = Self { thread, _one_cpu: OneCpu::with(thread), pending: None };
        stepper.wait();
        stepper
    }

    pub(crate) fn registers(&self) -> Registers {
        ptrace::getregs(self.thread).expect("the thread is stopped")
    }

    /// One instruction, or the entry into a signal's handler.
    pub(crate) fn step(&mut self) {
        ptrace::step(self.thread, self.pending.take()).expect("the thread is stopped");
        self.wait();
    }

    /// Does what `popfq` would do, whose execution in a step makes Linux believe that the thread
    /// itself asked to be trapped (arch/x86/kernel/step.c, `enable_single_step`): once it was let
    /// go, that would kill it.
    pub(crate) fn pop_flags(&self, flags: u64) {
        let mut registers = self.registers();
        registers.eflags = flags;
        registers.rsp += 8;
        registers.rip += 1;
        ptrace::setregs(self.thread, registers).expect("the thread is stopped");
    }

    /// Writes one word of the thread's memory.
    pub(crate) fn write(&self, address: u64, word: u64) {
        let at = address as ptrace::AddressType;
        ptrace::write(self.thread, at, word.cast_signed()).expect("the thread is stopped");
    }

    fn wait(&mut self) {
        match waitpid(self.thread, Some(WaitPidFlag::__WALL)).expect("the thread is traced") {
            WaitStatus::Stopped(_, Signal::SIGTRAP) | WaitStatus::PtraceEvent(..) => {}
            WaitStatus::Stopped(_, signal) => self.pending = Some(signal),
            other => panic!("the thread ended: {other:?}"),
        }
    }
}

impl Drop for Stepper {
    fn drop(&mut self) {
        let _ = ptrace::detach(self.thread, self.pending.take());
    }
}
