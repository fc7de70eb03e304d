//! Executes a program instruction by instruction, from its start.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use iced_x86::{Decoder, DecoderOptions, Mnemonic};
use jvmprof_common::address::{Avma, StackAddress};
use jvmprof_common::rows::Register;
use jvmprof_common::unwind::Memory;
use jvmprof_daemon::native::byte_source::RegularFile;
use jvmprof_daemon::native::elf::ElfFile;
use nix::sys::ptrace;
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

use super::one_cpu::OneCpu;
use super::truth::Truth;

pub(crate) use libc::user_regs_struct as Registers;

/// The effect of an instruction on the stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum What {
    /// A signal's handler was entered instead.
    Interrupted,
    /// A handler has returned.
    Resumed,
    /// A call that returns to this address.
    Called(u64),
    Other,
}

/// One instruction.
pub(crate) struct Step {
    pub(crate) before: Registers,
    pub(crate) now: Registers,
    pub(crate) what: What,
}

/// A process that stands still between steps.
pub(crate) struct Stepper {
    child: Child,
    _one_cpu: OneCpu,
    memory: File,
    pending: Option<Signal>,
    /// The last step was the entry into a handler. A tracer's signal is dropped there: the kernel
    /// only takes one where it has stopped to deliver one (Linux kernel/signal.c,
    /// `signal_setup_done` and `get_signal`).
    entered: bool,
    /// The last step was a jump or a return, from there.
    jumped_from: Option<u64>,
    /// Mnemonic and length of instructions.
    instructions: RefCell<HashMap<u64, (Mnemonic, u64)>>,
}

impl Stepper {
    pub(crate) fn start(program: &Path) -> Self {
        let mut command = Command::new(program);
        // Nothing of the environment, so that each run does the same. Goroutines take turns on one
        // thread.
        command.env_clear().env("GOMAXPROCS", "1").stdin(Stdio::null()).stdout(Stdio::null());
        // SAFETY: one system call.
        unsafe { command.pre_exec(|| ptrace::traceme().map_err(Into::into)) };
        let child = command.spawn().expect("the program starts");
        let pid = Pid::from_raw(child.id().cast_signed());
        assert_eq!(waitpid(pid, Some(WaitPidFlag::__WALL)), Ok(WaitStatus::Stopped(pid, Signal::SIGTRAP)));
        let memory = File::open(format!("/proc/{pid}/mem")).expect("a traced process's memory");
        Self {
            child,
            _one_cpu: OneCpu::with(pid),
            memory,
            pending: None,
            entered: false,
            jumped_from: None,
            instructions: RefCell::default(),
        }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    fn process(&self) -> Pid {
        Pid::from_raw(self.child.id().cast_signed())
    }

    /// Lets it run up to the file's entry, behind the dynamic linker's work.
    pub(crate) fn run_to_entry(&mut self, program: &Path) {
        let file = File::open(program).expect("the program's file");
        let elf = ElfFile::parse(RegularFile::new(&file).expect("a regular file")).expect("an ELF file");
        let maps = std::fs::read_to_string(format!("/proc/{}/maps", self.pid())).expect("its maps");
        let lowest = maps.lines().find(|line| line.ends_with("/program")).expect("it is mapped");
        let lowest = u64::from_str_radix(lowest.split('-').next().expect("a range"), 16).expect("hex");
        let first = elf.header().segments.iter().map(|it| it.address.0).min().expect("segments");
        let entry = elf.header().entry.0 + lowest - (first & !4095);
        while self.registers().rip != entry {
            ptrace::step(self.process(), None).expect("it is stopped");
            waitpid(self.process(), Some(WaitPidFlag::__WALL)).expect("it is traced");
        }
    }

    pub(crate) fn registers(&self) -> Registers {
        ptrace::getregs(self.process()).expect("it is stopped")
    }

    /// Whether a signal would enter its handler now. While it is blocked the kernel keeps it for
    /// later, and the next step is the program's own.
    pub(crate) fn takes_signals(&self) -> bool {
        if self.entered {
            return false;
        }
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid())).expect("its status");
        let is_among = |field: &str| {
            let signals = status.lines().find_map(|line| line.strip_prefix(field)).expect("its signals");
            let signals = u64::from_str_radix(signals.trim(), 16).expect("hex");
            signals & 1 << (Signal::SIGALRM as u32 - 1) != 0
        };
        is_among("SigCgt:") && !is_among("SigBlk:")
    }

    /// The next step begins with a signal.
    pub(crate) fn interrupt(&mut self) {
        self.pending = self.pending.or(Some(Signal::SIGALRM));
    }

    pub(crate) fn word(&self, address: u64) -> u64 {
        self.try_word(address).expect("the stack is readable")
    }

    pub(crate) fn try_word(&self, address: u64) -> Option<u64> {
        let mut bytes = [0; 8];
        self.memory.read_exact_at(&mut bytes, address).ok()?;
        Some(u64::from_le_bytes(bytes))
    }

    /// Whether a step was `mov rsp, ...`.
    pub(crate) fn has_loaded_rsp(&self, step: &Step) -> bool {
        let (mnemonic, _) = self.instruction(step.before.rip);
        step.what == What::Other && mnemonic == Mnemonic::Mov && step.now.rsp != step.before.rsp
    }

    fn instruction(&self, rip: u64) -> (Mnemonic, u64) {
        *self.instructions.borrow_mut().entry(rip).or_insert_with(|| {
            let mut bytes = [0; 16];
            let read = self.memory.read_at(&mut bytes, rip).expect("code is readable");
            let decoded = Decoder::with_ip(64, &bytes[..read], rip, DecoderOptions::NONE).decode();
            (decoded.mnemonic(), decoded.len() as u64)
        })
    }

    /// One instruction, or the entry into a signal's handler. False once the program has ended.
    pub(crate) fn step(&mut self, truth: &mut Truth, signals: &mut usize) -> bool {
        let Some(Step { before, now, what }) = self.advance() else { return false };
        match what {
            What::Interrupted => {
                *signals += 1;
                truth.interrupted(before.rip, before.rsp, self.word(now.rsp), now.rsp + 8);
            }
            What::Resumed => truth.resumed(),
            What::Called(to) => truth.called(to, before.rsp),
            What::Other => {}
        }
        truth.settle(now.rsp);
        true
    }

    /// As [`Self::step`], and says what has happened; `None` once the program has ended.
    pub(crate) fn advance(&mut self) -> Option<Step> {
        let before = self.registers();
        let (mnemonic, length) = self.instruction(before.rip);
        let signal = self.pending.take();
        let mut delivered = signal;
        loop {
            ptrace::step(self.process(), delivered.take()).expect("it is stopped");
            match waitpid(self.process(), Some(WaitPidFlag::__WALL)).expect("it is traced") {
                WaitStatus::Stopped(_, Signal::SIGTRAP) => break,
                WaitStatus::Stopped(_, signal) => {
                    self.pending = Some(signal);
                    break;
                }
                // It has made a thread.
                WaitStatus::PtraceEvent(..) => {}
                _ => return None,
            }
        }
        let now = self.registers();
        self.entered = signal.is_some();
        let jumps = !self.entered && matches!(mnemonic, Mnemonic::Jmp | Mnemonic::Ret);
        self.jumped_from = jumps.then_some(before.rip);
        let what = if self.entered {
            What::Interrupted
        } else if mnemonic == Mnemonic::Syscall && before.rax == libc::SYS_rt_sigreturn.cast_unsigned() {
            What::Resumed
        } else if mnemonic == Mnemonic::Call && now.rsp + 8 == before.rsp {
            What::Called(before.rip + length)
        } else {
            What::Other
        };
        Some(Step { before, now, what })
    }

    /// Lets it run, all threads of it, until the first one comes to this address; the others stand
    /// still from then on.
    pub(crate) fn run_to(&self, address: u64) {
        let first = self.process();
        ptrace::setoptions(first, ptrace::Options::PTRACE_O_TRACECLONE).expect("it is stopped");
        let place = address as ptrace::AddressType;
        let code = ptrace::read(first, place).expect("code is readable");
        // int3
        ptrace::write(first, place, code & !0xff | 0xcc).expect("code is writable for a tracer");
        ptrace::cont(first, None).expect("it is stopped");
        // Not those of other tests' threads.
        let flags = WaitPidFlag::__WALL | WaitPidFlag::__WNOTHREAD;
        let mut threads = HashSet::new();
        loop {
            let (thread, signal) = match waitpid(None, Some(flags)).expect("it is traced") {
                WaitStatus::Stopped(thread, Signal::SIGTRAP) if thread == first => break,
                WaitStatus::Stopped(thread, Signal::SIGSTOP) => (thread, None),
                WaitStatus::Stopped(thread, signal) => (thread, Some(signal)),
                WaitStatus::PtraceEvent(thread, ..) => (thread, None),
                other => panic!("{other:?}"),
            };
            threads.insert(thread);
            ptrace::cont(thread, signal).expect("it is stopped");
        }
        for thread in threads.into_iter().filter(|thread| *thread != first) {
            // SAFETY: one system call.
            unsafe { libc::syscall(libc::SYS_tgkill, first.as_raw(), thread.as_raw(), libc::SIGSTOP) };
            waitpid(thread, Some(WaitPidFlag::__WALL)).expect("it is traced");
        }
        ptrace::write(first, place, code).expect("code is writable for a tracer");
        let mut registers = self.registers();
        registers.rip = address;
        ptrace::setregs(first, registers).expect("it is stopped");
    }

    /// Where the last step jumped or returned from, if that is what it did.
    pub(crate) fn jumped_from(&self) -> Option<u64> {
        self.jumped_from
    }

    pub(crate) fn memory<'a>(&'a self, registers: &'a Registers) -> Stopped<'a> {
        Stopped { stepper: self, registers: Some(registers), thread: registers.fs_base, copy: None }
    }
}

impl Drop for Stepper {
    fn drop(&mut self) {
        let _ = self.child.kill();
        // The first thread has ended only when all others have been waited for.
        let flags = WaitPidFlag::__WALL | WaitPidFlag::__WNOTHREAD;
        while waitpid(None, Some(flags)).is_ok_and(|it| it.pid() != Some(self.process())) {}
    }
}

/// The stopped process as the unwinder sees it.
pub(crate) struct Stopped<'a> {
    stepper: &'a Stepper,
    registers: Option<&'a Registers>,
    thread: u64,
    /// Where the copied words begin.
    copy: Option<(u64, Vec<u64>)>,
}

impl Stopped<'_> {
    /// Registers are those of the innermost frame alone.
    pub(crate) fn leave_frame(&mut self) {
        self.registers = None;
    }

    fn copied(&self, address: u64) -> Option<u64> {
        let (start, words) = self.copy.as_ref()?;
        words.get(usize::try_from(address.checked_sub(*start)? / 8).ok()?).copied()
    }
}

impl Memory for Stopped<'_> {
    fn read_u64(&mut self, address: StackAddress) -> Option<u64> {
        let address = address.0;
        if !address.is_multiple_of(8) {
            return None;
        }
        if self.copied(address).is_none() {
            let mut bytes = vec![0; 4096];
            let read = self.stepper.memory.read_at(&mut bytes, address).ok()?;
            let words = bytes[..read].as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word));
            self.copy = Some((address, words.collect()));
        }
        self.copied(address)
    }

    fn register(&self, register: Register) -> Option<u64> {
        let r = self.registers?;
        let all = [
            r.rax, r.rcx, r.rdx, r.rbx, r.rsp, r.rbp, r.rsi, r.rdi, r.r8, r.r9, r.r10, r.r11, r.r12, r.r13,
            r.r14, r.r15,
        ];
        all.get(usize::from(register.0)).copied()
    }

    fn thread_pointer(&self) -> Option<Avma> {
        Some(Avma(self.thread))
    }
}
