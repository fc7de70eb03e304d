//! Control flow: which instructions a range of code has, from where to where they lead, and the
//! state before each.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};

use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic, OpKind};
use jvmprof_common::rows::{Register, Row};

use super::apx_instructions;
use super::frame_state::{FrameState, TrackedValue};
use super::instruction_effects::{ImplicitEffects, Transfer, ends_path, follows_call};
use super::relocatable_fields::RelocatableField;
use super::rows_by_offset::RowsByOffset;

/// The use of one byte of code, as far as it is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ByteUse {
    Free,
    /// The first byte of an instruction.
    Start,
    /// Within an instruction.
    Inside,
    /// Never executed: between pieces of code.
    Padding,
}

/// The kind of code that calls within the same range lead to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::hotspot::stubs) enum LocalCalls {
    /// To functions.
    Functions,
    /// To more code of the same frame (openjdk jdk-17 src/hotspot/cpu/x86/macroAssembler_x86.cpp,
    /// `call_VM`).
    SameFrame,
}

/// The piece of code that was entered at one place and isn't known yet.
#[derive(Debug, Default)]
struct ExploredCode {
    /// With their offsets, which rise once the piece is complete.
    instructions: Vec<(u32, Instruction)>,
    /// Offsets at which states are kept: the entry and the targets of jumps. They rise once the
    /// piece is complete.
    leaders: Vec<u32>,
    /// Functions that it calls.
    functions: Vec<u32>,
    fields: Vec<RelocatableField>,
}

impl ExploredCode {
    fn sort(&mut self) {
        self.instructions.sort_unstable_by_key(|(offset, _)| *offset);
        self.leaders.sort_unstable();
        self.leaders.dedup();
    }

    fn position(&self, offset: u32) -> Option<usize> {
        self.instructions.binary_search_by_key(&offset, |(at, _)| *at).ok()
    }
}

/// A piece of code contradicts what is known, so that it was entered by a wrong assumption.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::hotspot::stubs) struct Contradiction;

/// The rows of one range of code as they are found out.
pub(in crate::hotspot::stubs) struct ControlFlow<'c> {
    code: &'c [u8],
    base: u64,
    bytes: Vec<ByteUse>,
    rows: RowsByOffset,
    /// Functions within the range that were called and may not have been looked at.
    functions: Vec<u32>,
    /// Offsets at which functions are known to begin: what falls into one behind a call never
    /// returned from it.
    entries: BTreeSet<u32>,
    /// A call before an aligned address may never return.
    doubts_calls: bool,
    /// The state before jumps whose targets aren't in the code, by offset.
    indirect: BTreeMap<u32, FrameState>,
    calls: LocalCalls,
    transfer: Transfer,
    /// Bytes of its instructions of which nothing is made.
    fields: Vec<RelocatableField>,
    /// Instructions that may still be looked at.
    budget: usize,
}

/// Visits of a block, at most: states have few facts to lose.
const MAX_VISITS: usize = 64;

impl<'c> ControlFlow<'c> {
    pub(in crate::hotspot::stubs) fn new(
        code: &'c [u8],
        base: u64,
        calls: LocalCalls,
        implicit_effects: ImplicitEffects,
    ) -> Self {
        Self {
            code,
            base,
            bytes: vec![ByteUse::Free; code.len()],
            rows: RowsByOffset::new(code.len()),
            functions: Vec::new(),
            entries: BTreeSet::new(),
            doubts_calls: false,
            indirect: BTreeMap::new(),
            calls,
            transfer: Transfer::new(implicit_effects),
            fields: Vec::new(),
            budget: usize::MAX,
        }
    }

    /// Looks at so many instructions at most: code of files may be made to be looked at again and
    /// again.
    pub(in crate::hotspot::stubs) fn set_budget(&mut self, instructions: usize) {
        self.budget = instructions;
    }

    /// The bytes of all instructions of which nothing is made.
    pub(in crate::hotspot::stubs) fn take_fields(&mut self) -> Vec<RelocatableField> {
        std::mem::take(&mut self.fields)
    }

    pub(in crate::hotspot::stubs) fn is_exhausted(&self) -> bool {
        self.budget == 0
    }

    /// Functions are known to begin at these offsets.
    pub(in crate::hotspot::stubs) fn set_entries(&mut self, entries: &[u32]) {
        self.entries = entries.iter().copied().collect();
    }

    /// The state in which the targets of a jump through a table are entered, if `offset` may be
    /// one: the last such jump before it is of the same function, for all that is known.
    pub(in crate::hotspot::stubs) fn jumped_to(&self, offset: u32) -> Option<FrameState> {
        let (jump, state) = self.indirect.range(..offset).next_back()?;
        let is_same = self.entries.range(jump + 1..=offset).next().is_none();
        is_same.then(|| state.clone())
    }

    /// The row from each of these offsets on, which rise; padding belongs to the code before it.
    pub(in crate::hotspot::stubs) fn into_rows(self) -> impl Iterator<Item = (u32, Option<Row>)> {
        let mut known = true;
        self.bytes.into_iter().enumerate().filter_map(move |(offset, byte)| {
            let free = byte == ByteUse::Free;
            let ends = free && known;
            known = !free && (known || byte != ByteUse::Padding);
            let row = if ends { Some(None) } else { self.rows.get(offset as u32) };
            row.map(|row| (offset as u32, row))
        })
    }

    /// The first instruction from `offset` on that is known, or `end` if there is none before it.
    pub(in crate::hotspot::stubs) fn next_decoded(&self, offset: u32, end: u32) -> u32 {
        let range = self.bytes.get(offset as usize..).unwrap_or_default();
        let range = &range[..range.len().min(end.saturating_sub(offset) as usize)];
        range.iter().position(|byte| *byte == ByteUse::Start).map_or(end, |ahead| offset + ahead as u32)
    }

    pub(in crate::hotspot::stubs) fn take_function(&mut self) -> Option<u32> {
        self.functions.pop()
    }

    /// The first byte from `offset` on of which nothing is known and that isn't padding.
    pub(in crate::hotspot::stubs) fn next_undecoded(&mut self, mut offset: u32) -> Option<u32> {
        loop {
            match self.bytes.get(offset as usize)? {
                ByteUse::Free => match self.padding(offset) {
                    0 => return Some(offset),
                    bytes => {
                        let until = (offset as usize + bytes).min(self.code.len());
                        self.bytes[offset as usize..until].fill(ByteUse::Padding);
                        offset += bytes as u32;
                    }
                },
                _ => offset += 1,
            }
        }
    }

    pub(in crate::hotspot::stubs) fn is_decoded(&self, offset: u32) -> bool {
        self.bytes.get(offset as usize).is_some_and(|byte| *byte == ByteUse::Start)
    }

    /// Returns true if code of which the rows are known ends right before `offset`, or before
    /// padding there.
    pub(in crate::hotspot::stubs) fn follows_decoded(&self, offset: u32) -> bool {
        let before = self.bytes.get(..offset as usize).unwrap_or_default();
        let last = before.iter().rev().find(|byte| **byte != ByteUse::Padding);
        last.is_none_or(|byte| *byte != ByteUse::Free)
    }

    pub(in crate::hotspot::stubs) fn instruction(&self, offset: u32) -> Option<Instruction> {
        let code = self.code.get(offset as usize..)?;
        let mut decoder = Decoder::with_ip(64, code, self.base + u64::from(offset), DecoderOptions::NONE);
        let instruction = decoder.decode();
        if instruction.is_invalid() {
            return apx_instructions::decode(code, self.base + u64::from(offset));
        }
        Some(instruction)
    }

    /// Bytes of the padding instruction at `offset`; 0 if it is none.
    fn padding(&self, offset: u32) -> usize {
        if self.code[offset as usize] == 0 {
            return 1;
        }
        match self.instruction(offset) {
            Some(it) if matches!(it.mnemonic(), Mnemonic::Nop | Mnemonic::Int3 | Mnemonic::Hlt) => it.len(),
            _ => 0,
        }
    }

    /// Finds the rows of what is reached from `entry` and not known yet.
    ///
    /// `guessed`: nobody said that code is entered there. Then nothing is kept that contradicts the
    /// assumption.
    ///
    /// # Errors
    /// [`Contradiction`], and nothing is known that wasn't before.
    pub(in crate::hotspot::stubs) fn explore(
        &mut self,
        entry: u32,
        state: FrameState,
        guessed: bool,
    ) -> Result<(), Contradiction> {
        if self.is_decoded(entry) {
            return Ok(());
        }
        let mut piece = ExploredCode::default();
        let found = self.discover(entry, guessed, &mut piece);
        piece.sort();
        match found.and_then(|()| self.states(&piece, entry, state, guessed)) {
            Ok(rows) => {
                rows.into_iter().for_each(|(offset, row)| self.rows.set(offset, row));
                self.functions.extend(piece.functions);
                self.fields.extend(piece.fields);
                Ok(())
            }
            Err(contradiction) => {
                for (offset, instruction) in piece.instructions {
                    let bytes = offset as usize..offset as usize + instruction.len();
                    self.bytes[bytes].fill(ByteUse::Free);
                }
                Err(contradiction)
            }
        }
    }

    /// As [`Self::explore`] of what may be a function of compiled code.
    pub(in crate::hotspot::stubs) fn explore_function(&mut self, entry: u32, state: &FrameState) -> bool {
        for doubts_calls in [false, true] {
            self.doubts_calls = doubts_calls;
            if self.explore(entry, state.clone(), true).is_ok() {
                return true;
            }
        }
        false
    }

    fn offset_of(&self, address: u64) -> Option<u32> {
        let offset = address.checked_sub(self.base)?;
        u32::try_from(offset).ok().filter(|offset| (*offset as usize) < self.code.len())
    }

    /// Decodes what is reached from `entry`.
    fn discover(&mut self, entry: u32, guessed: bool, piece: &mut ExploredCode) -> Result<(), Contradiction> {
        piece.leaders.push(entry);
        // With each: whether a call leads there, which may never return.
        let mut to_do = vec![(entry, false)];
        while let Some((mut at, mut after_call)) = to_do.pop() {
            loop {
                if after_call && self.ends_after_call(at) {
                    break;
                }
                match self.bytes.get(at as usize) {
                    Some(ByteUse::Free | ByteUse::Padding) => {}
                    Some(ByteUse::Start) => break,
                    _ if after_call => break,
                    Some(ByteUse::Inside) | None => return Err(Contradiction),
                }
                self.budget = self.budget.saturating_sub(1);
                if self.is_exhausted() {
                    return Err(Contradiction);
                }
                let instruction = match self.instruction(at) {
                    Some(instruction) => instruction,
                    None if after_call => break,
                    None => return Err(Contradiction),
                };
                // Data that was taken for code.
                if guessed && instruction.is_privileged() && instruction.mnemonic() != Mnemonic::Hlt {
                    return Err(Contradiction);
                }
                let next = at + instruction.len() as u32;
                let insides = at as usize + 1..next as usize;
                if self.bytes[insides.clone()]
                    .iter()
                    .any(|byte| matches!(byte, ByteUse::Start | ByteUse::Inside))
                {
                    return Err(Contradiction);
                }
                self.bytes[at as usize] = ByteUse::Start;
                self.bytes[insides].fill(ByteUse::Inside);
                self.note_target(&instruction, next, piece, &mut to_do);
                piece.fields.extend(self.field(at, &instruction));
                piece.instructions.push((at, instruction));
                if ends_path(&instruction) {
                    break;
                }
                after_call = follows_call(&instruction, after_call);
                at = next;
            }
        }
        Ok(())
    }

    /// Returns true if what stands at `offset`, behind a call and padding, is other code: the call
    /// never returns.
    fn ends_after_call(&self, offset: u32) -> bool {
        let aligned = (self.base + u64::from(offset)).is_multiple_of(ALIGNMENT);
        self.entries.contains(&offset) || self.doubts_calls && aligned
    }

    fn field(&self, at: u32, instruction: &Instruction) -> Option<RelocatableField> {
        let is_branch = instruction.op0_kind() == OpKind::NearBranch64;
        let leads_out = is_branch && self.target(instruction).is_none();
        if !RelocatableField::may_be_of(instruction, leads_out) {
            return None;
        }
        let code = self.code.get(at as usize..)?;
        let mut decoder = Decoder::with_ip(64, code, instruction.ip(), DecoderOptions::NONE);
        let decoded = decoder.decode();
        // What that doesn't know may say anything.
        let is_known = !decoded.is_invalid() && decoded.len() == instruction.len();
        is_known
            .then(|| RelocatableField::of(at, &decoded, decoder.get_constant_offsets(&decoded), leads_out))?
    }

    fn note_target(
        &self,
        instruction: &Instruction,
        next: u32,
        piece: &mut ExploredCode,
        to_do: &mut Vec<(u32, bool)>,
    ) {
        let Some(target) = self.target(instruction) else { return };
        if instruction.mnemonic() == Mnemonic::Call && self.calls == LocalCalls::Functions && target != next {
            piece.functions.push(target);
            return;
        }
        piece.leaders.push(target);
        to_do.push((target, false));
    }

    /// The target of a direct jump or call within the code.
    fn target(&self, instruction: &Instruction) -> Option<u32> {
        if !matches!(instruction.op0_kind(), OpKind::NearBranch64) {
            return None;
        }
        self.offset_of(instruction.near_branch_target())
    }

    /// The row before each instruction of `piece`.
    fn states(
        &mut self,
        piece: &ExploredCode,
        entry: u32,
        state: FrameState,
        guessed: bool,
    ) -> Result<Vec<(u32, Option<Row>)>, Contradiction> {
        let number = |leader: u32| piece.leaders.binary_search(&leader).ok();
        let mut states: Vec<Option<FrameState>> = vec![None; piece.leaders.len()];
        let first = number(entry).ok_or(Contradiction)?;
        states[first] = Some(state);
        let mut to_do = BTreeSet::from([first]);
        let mut visits = 0;
        while let Some(leader) = to_do.pop_first() {
            visits += 1;
            if visits > MAX_VISITS * piece.leaders.len() || self.is_exhausted() {
                return Err(Contradiction);
            }
            let Some(state) = states[leader].clone() else { continue };
            self.walk(piece, leader, state, &mut |_, _, _| {}, &mut |target, state| {
                // Other code is known already, with its rows.
                let Some(target) = piece.position(target).and_then(|_| number(target)) else { return };
                let lost = match &mut states[target] {
                    Some(known) => known.join(state),
                    none => none.replace(state.clone()).is_none(),
                };
                if lost {
                    to_do.insert(target);
                }
            });
        }
        self.rows_of(piece, states, guessed)
    }

    fn rows_of(
        &mut self,
        piece: &ExploredCode,
        states: Vec<Option<FrameState>>,
        guessed: bool,
    ) -> Result<Vec<(u32, Option<Row>)>, Contradiction> {
        let mut rows = Vec::with_capacity(piece.instructions.len());
        let mut indirect = BTreeMap::new();
        let wrong = Cell::new(false);
        let functions = self.calls == LocalCalls::Functions;
        let known = std::mem::replace(&mut self.rows, RowsByOffset::new(0));
        for (leader, state) in states.into_iter().enumerate() {
            let Some(state) = state else { continue };
            self.walk(
                piece,
                leader,
                state,
                &mut |offset, instruction, state| {
                    let returns = functions && instruction.flow_control() == FlowControl::Return;
                    wrong.set(wrong.get() || (returns && returns_elsewhere(state)));
                    // Where the return address is on top, it is a call that came last.
                    if instruction.flow_control() == FlowControl::IndirectBranch && returns_elsewhere(state) {
                        indirect.insert(offset, state.clone());
                    }
                    rows.push((offset, state.row()));
                },
                &mut |target, state| {
                    // Code that was known before says the same, or this isn't how it is entered.
                    let other = known.get(target).is_some_and(|row| row.is_some() && row != state.row());
                    wrong.set(wrong.get() || other);
                },
            );
        }
        self.rows = known;
        if wrong.get() && guessed {
            return Err(Contradiction);
        }
        self.indirect.extend(indirect);
        Ok(rows)
    }

    /// Follows the instructions from a leader, by its number, to the next one or to the path's end:
    /// `at` is called for each with the state before it, `to` for each target of a jump.
    fn walk(
        &mut self,
        piece: &ExploredCode,
        leader: usize,
        mut state: FrameState,
        at: &mut impl FnMut(u32, &Instruction, &FrameState),
        to: &mut impl FnMut(u32, &FrameState),
    ) {
        let Some(first) = piece.leaders.get(leader).and_then(|leader| piece.position(*leader)) else {
            return;
        };
        // Instructions follow each other without a gap, so that no later leader comes before the
        // next one.
        let next_leader = piece.leaders.get(leader + 1).copied().unwrap_or(u32::MAX);
        let mut after_call = false;
        let following = piece.instructions.iter().skip(first + 1).map(|(offset, _)| *offset);
        let following = following.chain([u32::MAX]);
        for (&(offset, ref instruction), known_next) in piece.instructions[first..].iter().zip(following) {
            at(offset, instruction, &state);
            self.budget = self.budget.saturating_sub(1);
            after_call = follows_call(instruction, after_call);
            let next = offset + instruction.len() as u32;
            let target = self.target(instruction);
            if instruction.mnemonic() != Mnemonic::Call {
                self.transfer.apply(&mut state, instruction, offset);
                target.iter().for_each(|target| to(*target, &state));
            } else if target == Some(next) {
                // To know its own address; this call never returns.
                Transfer::push_return_address(&mut state, offset);
            } else {
                if let (Some(target), LocalCalls::SameFrame) = (target, self.calls) {
                    let mut inner = state.clone();
                    Transfer::push_return_address(&mut inner, offset);
                    to(target, &inner);
                }
                self.transfer.apply(&mut state, instruction, offset);
            }
            if ends_path(instruction) || after_call && self.ends_after_call(next) {
                return;
            }
            if next >= next_leader || next != known_next {
                return to(next, &state);
            }
        }
    }
}

/// Compilers align functions to this, mostly.
const ALIGNMENT: u64 = 16;

/// Returns true unless it is known that a `ret` finds the return address.
fn returns_elsewhere(state: &FrameState) -> bool {
    state.place(Register::RSP).is_none_or(|top| state.load(top) != TrackedValue::ReturnAddress)
}
