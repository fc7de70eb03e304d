//! The rest of a stack: where the kernel program lacked data of the code, its walk is continued
//! over the stack it copied, by the same steppers.

use std::collections::HashMap;

use jvmprof_common::abi::Stop;
use jvmprof_common::address::StackAddress;
use jvmprof_common::frame::{FrameWord, UserFrame};
use jvmprof_common::rows::{CfaRule, RaRule, RbpRule, Register, Row};
use jvmprof_common::unwind::hotspot::compiled::instructions::LoadedCode;
use jvmprof_common::unwind::hotspot::{self, EncodedFrame, HotspotTarget};
use jvmprof_common::unwind::{Cursor, Memory, UnwindRule, is_code_address, step};

use crate::hotspot::{LoadedPieces, ProcessMemory};
use crate::sampler::StackSample;
use crate::symbolize::java::AttachedJvm;
use crate::types::Avma;

/// Maximum number of frames that are walked here: as many as fit a copied stack.
const MAX_FRAMES: usize = 1024;

/// Rules by address, since the same few return addresses end every stack.
#[derive(Debug, Default)]
pub(in crate::symbolize) struct RuleCache {
    by_address: HashMap<Avma, UnwindRule>,
}

impl RuleCache {
    fn at(&mut self, address: Avma, find: impl FnOnce(Avma) -> UnwindRule) -> UnwindRule {
        if let Some(rule) = self.by_address.get(&address) {
            return *rule;
        }
        let rule = find(address);
        // Code may be mapped there a moment later.
        if !matches!(rule, UnwindRule::Unknown) {
            self.by_address.insert(address, rule);
        }
        rule
    }
}

/// The end of a walk: its reason, and the last rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::symbolize) struct WalkEnd {
    pub(in crate::symbolize) stop: Stop,
    pub(in crate::symbolize) rule: UnwindRule,
    /// Cursor of the last frame.
    pub(in crate::symbolize) cursor: Cursor,
}

/// Continues the walk from the last of `frames`, which is stepped again. `find` returns the rule of
/// native code, `generated` that of other code than HotSpot's that was there at the time.
pub(in crate::symbolize) fn complete(
    sample: &StackSample,
    java: Option<&AttachedJvm>,
    frames: &mut Vec<UserFrame>,
    rules: &mut RuleCache,
    mut find: impl FnMut(Avma) -> UnwindRule,
    mut generated: impl FnMut(Avma) -> Option<UnwindRule>,
) -> WalkEnd {
    let header = &sample.header;
    let Some((pc, exact)) = frames.last().map(|frame| frame_pc(frame, java)) else {
        return WalkEnd { stop: sample.stop, rule: UnwindRule::Unknown, cursor: Cursor::default() };
    };
    let (sp, fp) = (StackAddress(header.tail_sp), StackAddress(header.tail_fp));
    let mut cursor = Cursor { pc, sp, fp, exact };
    let mut target = SampleTarget {
        stack: (sample.tail_start(), sample.tail()),
        sample,
        registers: (frames.len() == 1).then_some(&header.registers),
        java,
        loaded: LoadedPieces::NONE,
    };
    let mut rule_at = |at: Avma| generated(at).unwrap_or_else(|| rules.at(at, &mut find));
    loop {
        let at = if cursor.exact { cursor.pc } else { Avma(cursor.pc.0.saturating_sub(1)) };
        let is_java = |at: Avma| java.is_some_and(|java| contains(java, at));
        let (stepped, rule) = match java.filter(|_| is_java(at)) {
            Some(java) => (target.step_java(&mut cursor, java, frames), UnwindRule::Unknown),
            None => {
                let mut rule = rule_at(at);
                if matches!(rule, UnwindRule::Row(Row::AT_CALL)) && target.is_archived_entry(cursor.pc) {
                    rule = UnwindRule::Row(AT_INTERPRETER_ENTRY);
                }
                (step(&mut cursor, &mut target, &rule), rule)
            }
        };
        if let Err(stop) = stepped {
            return WalkEnd { stop, rule, cursor };
        }
        if frames.len() >= MAX_FRAMES {
            return WalkEnd { stop: Stop::DepthReached, rule, cursor };
        }
        let caller = Avma(cursor.pc.0.saturating_sub(1));
        if !is_code_address(cursor.pc) || !is_java(caller) && matches!(rule_at(caller), UnwindRule::Unknown) {
            return WalkEnd { stop: Stop::UnknownCode, rule, cursor };
        }
        target.registers = None;
        let word = FrameWord::native(cursor.pc.0, cursor.exact);
        frames.push(UserFrame::Native { pc: word.address(), exact: word.is_exact() });
    }
}

/// Returns a frame's pc, and whether it is that of an instruction that was interrupted.
pub(in crate::symbolize) fn frame_pc(frame: &UserFrame, java: Option<&AttachedJvm>) -> (Avma, bool) {
    match *frame {
        UserFrame::Native { pc, exact }
        | UserFrame::Compiled { pc, exact, .. }
        | UserFrame::Stub { pc, exact, .. } => (Avma(pc), exact),
        UserFrame::Interpreted { pc, exact, .. } => {
            (Avma(java.map_or(0, |java| java.jvm().interpreter_start) + u64::from(pc)), exact)
        }
    }
}

fn contains(java: &AttachedJvm, address: Avma) -> bool {
    (java.jvm().code_start..java.jvm().code_end).contains(&address.0)
}

/// Row at an entry of the interpreter. Up to JDK 15 methods of archived classes are entered by
/// jumps in the archive, some to adapters, some to the interpreter. The latter come from an
/// adapter, which has put arguments above the return address and the caller's stack pointer into
/// r13 (openjdk jdk-11 src/hotspot/share/oops/method.cpp, `Method::link_method`;
/// src/hotspot/cpu/x86/sharedRuntime_x86_64.cpp, `gen_c2i_adapter`).
const AT_INTERPRETER_ENTRY: Row =
    Row { cfa: CfaRule::Register(Register::R13), rbp: RbpRule::Same, ra: RaRule::AtRsp(0), signal: false };
/// Opcode of `mov r10, imm64`.
const MOV: [u8; 2] = [0x49, 0xba];
const MOV_BYTES: usize = 10;
/// Opcode of `jmp r10`.
const JUMP: [u8; 3] = [0x41, 0xff, 0xe2];
/// Bytes of code that are read: as many as the `mov` has before the pc, and both instructions.
const ARCHIVED_JUMP_BYTES: usize = 2 * MOV_BYTES + JUMP.len();

/// Returns the target of a jump through `r10` that begins at the pc, or whose second instruction
/// does.
fn archived_jump(code: &[u8; ARCHIVED_JUMP_BYTES]) -> Option<u64> {
    [MOV_BYTES, 0].into_iter().find_map(|at| {
        let immediate = code[at..].strip_prefix(&MOV)?.first_chunk()?;
        code[at + MOV_BYTES..].starts_with(&JUMP).then_some(u64::from_le_bytes(*immediate))
    })
}

/// The unwind target of a sample: the copied stack, and the live process for the rest.
struct SampleTarget<'a> {
    /// Address of the copy, and its words.
    stack: (Avma, &'a [u64]),
    sample: &'a StackSample,
    registers: Option<&'a [u64; 16]>,
    java: Option<&'a AttachedJvm>,
    loaded: LoadedPieces,
}

impl SampleTarget<'_> {
    /// Steps a frame of HotSpot's code, which takes the place of the last of `frames`: what it is
    /// shows now.
    fn step_java(
        &mut self,
        cursor: &mut Cursor,
        java: &AttachedJvm,
        frames: &mut Vec<UserFrame>,
    ) -> Result<(), Stop> {
        let mut encoded = EncodedFrame::default();
        let stepped = if self.registers.is_some() {
            hotspot::step_leaf(cursor, self, java.jvm(), &mut encoded)
        } else {
            hotspot::step(cursor, self, java.jvm(), &mut encoded)
        };
        let mut taken = &encoded.words[..encoded.count as usize];
        if let Some(frame) = UserFrame::take(&mut taken) {
            frames.pop();
            frames.push(frame);
        }
        stepped
    }

    fn read(&self, address: Avma, into: &mut [u8]) -> bool {
        self.java.is_some_and(|java| java.memory().read_into(address, into))
    }

    /// Returns whether the interrupted instruction is a jump of an archive of classes that leads to
    /// an entry of the interpreter.
    fn is_archived_entry(&self, pc: Avma) -> bool {
        let Some(java) = self.java.filter(|_| self.registers.is_some()) else { return false };
        let mut code = [0; ARCHIVED_JUMP_BYTES];
        let interpreter = java.jvm().interpreter_start..java.jvm().interpreter_end;
        self.read(pc.wrapping_sub(MOV_BYTES as u64), &mut code)
            && archived_jump(&code).is_some_and(|to| interpreter.contains(&to))
    }
}

impl Memory for SampleTarget<'_> {
    fn read_u64(&mut self, address: StackAddress) -> Option<u64> {
        std::iter::once(self.stack).chain(self.sample.stretches()).find_map(|(start, words)| {
            let offset = address.0.checked_sub(start.0).filter(|offset| offset.is_multiple_of(8))?;
            words.get(usize::try_from(offset / 8).ok()?).copied()
        })
    }

    fn read_object(&mut self, address: Avma) -> Option<u64> {
        if let Some(word) =
            self.sample.header.thread_pointer.ne(&0).then(|| self.read_u64(StackAddress(address.0))).flatten()
        {
            return Some(word);
        }
        let mut bytes = [0; 8];
        self.read(address, &mut bytes).then(|| u64::from_le_bytes(bytes))
    }

    fn thread_pointer(&self) -> Option<Avma> {
        Some(Avma(self.sample.header.thread_pointer)).filter(|thread| thread.0 != 0)
    }

    fn register(&self, register: Register) -> Option<u64> {
        self.registers?.get(usize::from(register.0)).copied()
    }
}

impl HotspotTarget for SampleTarget<'_> {
    type Row = Row;

    fn read_u8(&mut self, address: Avma) -> Option<u8> {
        let mut byte = [0];
        self.read(address, &mut byte).then_some(byte[0])
    }

    fn load_header(&mut self, address: Avma) -> bool {
        self.java.is_some_and(|java| self.loaded.load_header(&java.memory(), address))
    }

    fn header_word(&self, index: usize) -> u64 {
        self.loaded.header_word(index)
    }

    fn load_code(&mut self, address: Avma) -> bool {
        self.java.is_some_and(|java| self.loaded.load_code(&java.memory(), address))
    }

    fn code(&self) -> &LoadedCode {
        self.loaded.code()
    }

    fn stub_row(&mut self, _: u32, address: Avma) -> Option<Row> {
        self.java?.stubs().row(address)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jumps_of_an_archive_are_followed_from_both_instructions() {
        // mov r10, 0x7f9c0060e640; jmp r10
        let jump = [0x49, 0xba, 0x40, 0xe6, 0x60, 0x00, 0x9c, 0x7f, 0, 0, 0x41, 0xff, 0xe2, 0, 0, 0];
        let padded: Vec<u8> = [[0; 16], jump, jump].concat();
        let at = |pc: usize| {
            let from = pc - MOV_BYTES;
            archived_jump(padded[from..].first_chunk().expect("there are enough"))
        };
        let jumps: Vec<usize> = (MOV_BYTES..32).filter(|pc| at(*pc) == Some(0x7f9c_0060_e640)).collect();
        assert_eq!(jumps, [16, 16 + MOV_BYTES]);
        assert!((MOV_BYTES..32).all(|pc| jumps.contains(&pc) || at(pc).is_none()));
    }
}
