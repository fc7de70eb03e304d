//! Compares rows with the truth at each step.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic};
use jvmprof_common::rows::Row;
use jvmprof_common::unwind::{Cursor, row_stepper};
use jvmprof_daemon::hotspot::stubs::{BlobKind, StubRows, kind_of_blob, kind_of_codelet};
use jvmprof_daemon::hotspot::{Hotspot, LiveMemory, ProcessMemory, images};
use jvmprof_daemon::types::Avma;

use super::interrupted::Interrupted;
use super::stepper::{Registers, Stepper};
use super::truth::{Called, Truth};

/// A named range of generated code.
#[derive(Clone, Debug)]
struct Code {
    end: u64,
    name: String,
    /// `None` for nmethods.
    kind: Option<BlobKind>,
    bytecode: bool,
}

pub(crate) struct Watch {
    hotspot: Hotspot<LiveMemory>,
    memory: LiveMemory,
    rows: StubRows,
    codes: BTreeMap<u64, Code>,
    code: std::ops::Range<u64>,
    truth: Truth,
    steps: usize,
    /// Steps and program counters whose row led to the true caller.
    right: usize,
    pcs: BTreeMap<u64, usize>,
    without_row: BTreeMap<String, usize>,
    without_truth: usize,
    wrong: HashMap<(String, String), (usize, String)>,
    seen_unknown: BTreeSet<u64>,
}

impl Watch {
    pub(crate) fn new(pid: u32) -> Self {
        let memory = LiveMemory::new(pid);
        let hotspot = Hotspot::attach(&images(pid).unwrap(), memory).expect("a running JVM");
        let code = hotspot.jvm().code_start..hotspot.jvm().code_end;
        let mut watch = Self {
            hotspot,
            memory,
            rows: StubRows::default(),
            codes: BTreeMap::new(),
            code,
            truth: Truth::default(),
            steps: 0,
            right: 0,
            pcs: BTreeMap::new(),
            without_row: BTreeMap::new(),
            without_truth: 0,
            wrong: HashMap::new(),
            seen_unknown: BTreeSet::new(),
        };
        watch.refresh();
        watch
    }

    fn refresh(&mut self) {
        let blobs = self.hotspot.stub_blobs().unwrap();
        let (codelets, interpreter) = self.hotspot.codelets().unwrap();
        let start = Avma(self.hotspot.jvm().interpreter_start);
        self.rows.update(&blobs, &codelets, start, &interpreter);
        self.codes.clear();
        for blob in self.hotspot.blobs().unwrap().into_iter().filter(|blob| &*blob.name != "Interpreter") {
            let kind = kind_of_blob(&blob.name);
            let code = Code { end: blob.code.end.0, name: blob.name.to_string(), kind, bytecode: false };
            self.codes.insert(blob.code.start.0, code);
        }
        for codelet in codelets {
            let kind = Some(kind_of_codelet(&codelet.description));
            let bytecode = codelet.bytecode.is_some();
            let name = codelet.description.to_string();
            self.codes.insert(codelet.code.start.0, Code { end: codelet.code.end.0, name, kind, bytecode });
        }
    }

    fn code_at(&self, pc: u64) -> Option<(u64, &Code)> {
        let (start, code) = self.codes.range(..=pc).next_back()?;
        (pc < code.end).then_some((*start, code))
    }

    fn is_generated(&self, pc: u64) -> bool {
        self.code.contains(&pc)
    }

    /// Executes a thread for so many steps. What was called before isn't known.
    pub(crate) fn run(&mut self, thread: i32, steps: usize) {
        let mut stepper = Stepper::attach(thread);
        self.truth = Truth::default();
        let until = self.steps + steps;
        let mut before = stepper.registers();
        while self.steps < until {
            match self.flags_to_pop(&before) {
                Some(flags) => stepper.pop_flags(flags),
                None => stepper.step(),
            }
            self.steps += 1;
            let now = stepper.registers();
            if self.is_generated(now.rip)
                && self.code_at(now.rip).is_none()
                && self.seen_unknown.insert(now.rip)
            {
                self.refresh();
            }
            self.hide_trap_flag(&before, &now, &stepper);
            self.note_call(&before, &now);
            self.truth.settle(&now);
            if self.is_generated(now.rip) {
                self.compare(&now);
            }
            before = now;
        }
    }

    /// Flags that are pushed while the thread is executed in steps say so; popped after it was let
    /// go, they would kill it.
    fn hide_trap_flag(&self, before: &Registers, now: &Registers, stepper: &Stepper) {
        const TRAP: u64 = 1 << 8;
        if now.rsp == before.rsp.wrapping_sub(8)
            && self.instruction(before.rip).is_some_and(|it| it.mnemonic() == Mnemonic::Pushfq)
            && let Some(flags) = ProcessMemory::read_u64(&self.memory, Avma(now.rsp))
        {
            stepper.write(now.rsp, flags & !TRAP);
        }
    }

    fn flags_to_pop(&self, now: &Registers) -> Option<u64> {
        if !self.is_generated(now.rip) || self.instruction(now.rip)?.mnemonic() != Mnemonic::Popfq {
            return None;
        }
        ProcessMemory::read_u64(&self.memory, Avma(now.rsp))
    }

    /// Keeps the truth: what a call instruction does, and what the interpreter does to call.
    fn note_call(&mut self, before: &Registers, now: &Registers) {
        if now.rsp == before.rsp.wrapping_sub(8)
            && let Some(pushed) = ProcessMemory::read_u64(&self.memory, Avma(now.rsp))
            && (before.rip + 2..=before.rip + 8).contains(&pushed)
            && now.rip != pushed
            && self
                .instruction(before.rip)
                .is_some_and(|it| it.next_ip() == pushed && it.mnemonic() == Mnemonic::Call)
        {
            // The call stub is the one that calls methods and adapters.
            let by_stub =
                self.code_at(before.rip).is_some_and(|(_, it)| it.kind == Some(BlobKind::StubRoutines));
            let to_method = self.code_at(now.rip).is_some_and(|(_, code)| {
                matches!(code.kind, None | Some(BlobKind::Adapter | BlobKind::InterpreterEntry))
            });
            return self.truth.called(pushed, before, now, by_stub && to_method);
        }
        let from = self.code_at(before.rip).is_some_and(|(_, code)| {
            code.bytecode && code.name.contains("invoke") && code.kind == Some(BlobKind::InterpreterFrame)
        });
        let to = self.is_generated(now.rip)
            && self.code_at(now.rip).is_some_and(|(_, code)| code.kind != Some(BlobKind::InterpreterFrame))
            && now.rsp == before.rsp;
        let is_jump = || {
            let jump = self.instruction(before.rip);
            jump.is_some_and(|it| it.flow_control() == FlowControl::IndirectBranch)
        };
        if from
            && to
            && is_jump()
            && let Some(return_address) = ProcessMemory::read_u64(&self.memory, Avma(now.rsp))
        {
            self.truth.jumped(return_address, now);
        }
    }

    fn instruction(&self, pc: u64) -> Option<Instruction> {
        let bytes = self.memory.read_bytes(Avma(pc), 15).or_else(|| self.memory.read_bytes(Avma(pc), 4))?;
        let instruction = Decoder::with_ip(64, &bytes, pc, DecoderOptions::NONE).decode();
        (!instruction.is_invalid()).then_some(instruction)
    }

    fn compare(&mut self, now: &Registers) {
        let Some((start, code)) = self.code_at(now.rip).map(|(start, code)| (start, code.clone())) else {
            return;
        };
        if code.kind.is_none() {
            return self.compare_nmethod(start, &code, now);
        }
        let Some(row) = self.rows.row(Avma(now.rip)) else {
            let at = format!("{}+{:#x}", code.name, now.rip - start);
            *self.without_row.entry(at).or_default() += 1;
            return;
        };
        let mut cursor = Cursor::interrupted(now.rip, now.rsp, now.rbp);
        let stepped =
            row_stepper::step(&mut cursor, &row, &mut Interrupted::new(&self.memory, now, &self.rows));
        // Within the interpreter, a call to code of the same frame is no frame of its own.
        let mut calls = self.truth.calls.iter().rev();
        let own = |call: &&Called| (start..code.end).contains(&call.return_address);
        let interpreted =
            code.kind == Some(BlobKind::InterpreterFrame) || code.kind == Some(BlobKind::InterpreterEntry);
        let truth = calls.find(|call| !(interpreted && own(call) && (start..code.end).contains(&call.entry)));
        let Some(truth) = truth.copied() else {
            self.without_truth += 1;
            return;
        };
        let problem = match stepped {
            Err(stop) => Some(format!("{stop:?}")),
            Ok(()) => self.problem(&code, &cursor, &truth),
        };
        match problem {
            None => {
                self.right += 1;
                *self.pcs.entry(now.rip).or_default() += 1;
            }
            Some(problem) => self.note_wrong(&code, now.rip, start, &row, &problem),
        }
    }

    /// Compiled code has no rows: the kernel program's stepper judges it by its instructions.
    fn compare_nmethod(&mut self, start: u64, code: &Code, now: &Registers) {
        // An exception goes on in a handler, and the frames that it left are gone without a return.
        let mut calls = self.truth.calls.iter().rev();
        let Some(truth) = calls.find(|call| call.interpreted || now.rsp < call.sp).copied() else {
            self.without_truth += 1;
            return;
        };
        let mut interrupted = Interrupted::new(&self.memory, now, &self.rows);
        let found = interrupted.caller(self.hotspot.jvm());
        let frame_bytes = interrupted.frame_bytes(self.hotspot.jvm());
        let problem = match found {
            Err(stop) => Some(format!("{stop:?}")),
            Ok(cursor) => self.problem(code, &cursor, &truth),
        };
        let Some(problem) = problem else {
            self.right += 1;
            *self.pcs.entry(now.rip).or_default() += 1;
            return;
        };
        let around = |from: u64, bytes: usize| {
            let code = self.memory.read_bytes(Avma(from), bytes).unwrap_or_default();
            code.iter().map(|byte| format!("{byte:02x}")).collect::<String>()
        };
        let place = format!(
            "{}: {} | {} frame {frame_bytes:#x}",
            code.name,
            around(now.rip - 24, 24),
            around(now.rip, 24)
        );
        let detail = format!("{problem} at +{:#x}, rsp {:#x}, truth {truth:x?}", now.rip - start, now.rsp);
        self.wrong.entry((place, String::new())).or_insert((0, detail)).0 += 1;
    }

    fn problem(&self, code: &Code, found: &Cursor, truth: &Called) -> Option<String> {
        if found.pc.0 != truth.return_address {
            let jumped_to = matches!(
                code.kind,
                Some(BlobKind::Exception | BlobKind::Safepoint | BlobKind::Deoptimization)
            );
            // Jumped to by an nmethod: its frame is the caller.
            let by_nmethod = self.code_at(found.pc.0).is_some_and(|(_, code)| code.kind.is_none());
            if jumped_to && by_nmethod && found.sp.0 <= truth.sp {
                return None;
            }
            // A frame's handler of exceptions hands over where they were thrown, or where they go
            // on, in the same method.
            let method_of =
                |pc| self.code_at(pc).filter(|(_, code)| code.kind.is_none()).map(|(start, _)| start);
            let of_one_method =
                method_of(found.pc.0).is_some() && method_of(found.pc.0) == method_of(truth.return_address);
            if of_one_method && code.name.contains("exception") && found.sp.0 == truth.sp {
                return None;
            }
            return Some(format!("return address {:#x}, not {:#x}", found.pc.0, truth.return_address));
        }
        // Adapters on the way from the interpreter to its callee make another stack pointer of it.
        if found.sp.0 != truth.sp && !truth.interpreted {
            return Some(format!("caller's rsp {:#x}, not {:#x}", found.sp.0, truth.sp));
        }
        (found.fp.0 != truth.fp).then(|| format!("caller's rbp {:#x}, not {:#x}", found.fp.0, truth.fp))
    }

    fn note_wrong(&mut self, code: &Code, pc: u64, start: u64, row: &Row, problem: &str) {
        let instruction = self.instruction(pc).map(|it| format!("{:?}", it.code())).unwrap_or_default();
        let place = format!("{}+{:#x} {instruction}", code.name, pc - start);
        let what = problem.split(' ').take(2).collect::<Vec<_>>().join(" ");
        let entry = self.wrong.entry((place, what)).or_insert_with(|| (0, format!("{problem}; {row:?}")));
        entry.0 += 1;
    }

    /// What was wrong, by place.
    pub(crate) fn wrong(&self) -> Vec<String> {
        let mut all: Vec<String> = self
            .wrong
            .iter()
            .map(|((place, _), (count, what))| format!("{place}: {count} times {what}"))
            .collect();
        all.sort();
        all
    }

    pub(crate) fn checked_pcs(&self) -> usize {
        self.pcs.len()
    }

    pub(crate) fn summary(&self) -> String {
        let coverage = self.rows.coverage();
        let mut kinds: BTreeMap<String, usize> = BTreeMap::new();
        for pc in self.pcs.keys() {
            if let Some((_, code)) = self.code_at(*pc) {
                *kinds.entry(format!("{:?}", code.kind)).or_default() += 1;
            }
        }
        let missing: usize = self.without_row.values().sum();
        format!(
            "{} steps, {} right at {} pcs, {} wrong, {missing} without row {:?}, {} without truth; {coverage:?}; {kinds:?}",
            self.steps,
            self.right,
            self.pcs.len(),
            self.wrong.values().map(|(count, _)| count).sum::<usize>(),
            self.without_row,
            self.without_truth,
        )
    }
}
