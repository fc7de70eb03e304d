//! State of a frame as far as it is known at one instruction: which registers and stack slots hold
//! the return address, the caller's frame pointer and addresses of the stack, in terms of a few
//! unknown base addresses.

use jvmprof_common::rows::{CfaRule, RaRule, RbpRule, Register, Row};
use smallvec::SmallVec;

/// Stack addresses that nothing is known of but their name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::hotspot::stubs) enum LocationBase {
    /// `rsp` at the entry of the code.
    Entry,
    /// `rbp` of an interpreter frame.
    Frame,
    /// The caller's stack pointer, where it is no constant distance from another base.
    Sender,
    /// [`LocationBase::Sender`] of the frame that is put in place of another next.
    NextSender,
    /// `rsp` before the instruction at this offset, which found it unknown.
    At(u32),
}

/// An address on the stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::hotspot::stubs) struct StackLocation {
    pub(in crate::hotspot::stubs) base: LocationBase,
    /// Bytes from the base.
    pub(in crate::hotspot::stubs) offset: i32,
}

impl StackLocation {
    pub(in crate::hotspot::stubs) const fn new(base: LocationBase, offset: i32) -> Self {
        Self { base, offset }
    }

    /// This far above; addresses of generated code wrap around nowhere near a stack.
    pub(in crate::hotspot::stubs) const fn plus(self, bytes: i32) -> Self {
        Self { base: self.base, offset: self.offset.wrapping_add(bytes) }
    }

    /// The distance of this above `other`, if both count from one base.
    fn above(self, other: Self) -> Option<i32> {
        (self.base == other.base).then(|| self.offset.wrapping_sub(other.offset))
    }
}

/// The content of a register or stack slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::hotspot::stubs) enum TrackedValue {
    Unknown,
    ReturnAddress,
    /// The caller's `rbp`.
    CallerRbp,
    Stack(StackLocation),
}

/// Eight bytes of stack and what they hold; never [`TrackedValue::Unknown`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Slot {
    at: StackLocation,
    holds: TrackedValue,
}

/// A stack location as a row states it: by a register and an offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RowLocation {
    Rbp(i32),
    Rsp(i32),
}

const NEXT_SENDER: TrackedValue = TrackedValue::Stack(StackLocation::new(LocationBase::NextSender, 0));

/// Bytes below the stack pointer that not even a signal handler writes to (System V ABI AMD64
/// supplement, 3.2.2).
const RED_ZONE: i32 = 128;
/// Slots that are remembered, at most: frames of generated code save all registers, few of which
/// matter.
const MAX_SLOTS: usize = 24;

/// The state before one instruction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::hotspot::stubs) struct FrameState {
    registers: [TrackedValue; 16],
    slots: SmallVec<[Slot; 8]>,
    /// The caller's stack pointer once this frame is gone.
    cfa: Option<StackLocation>,
    /// [`LocationBase::Entry`] modulo 16, where compiled code, which keeps its stack aligned, is
    /// the only caller.
    entry_modulo: Option<i32>,
    /// The caller's frame was taken off the stack; others are put in its place.
    replacing: bool,
    /// Another name of [`LocationBase::NextSender`].
    next_sender: Option<StackLocation>,
    /// The thread began here: there is no caller.
    outermost: bool,
}

impl FrameState {
    /// Makes a state of which nothing is known but `rsp` by its name, and the CFA.
    fn new(cfa: StackLocation) -> Self {
        Self {
            registers: [TrackedValue::Unknown; 16],
            slots: SmallVec::new(),
            cfa: Some(cfa),
            entry_modulo: None,
            replacing: false,
            next_sender: None,
            outermost: false,
        }
    }

    /// Returns the state right after a call: the return address is on top of the stack.
    pub(in crate::hotspot::stubs) fn called() -> Self {
        let entry = StackLocation::new(LocationBase::Entry, 0);
        let mut state = Self::new(entry.plus(8));
        state.set(Register::RSP, TrackedValue::Stack(entry));
        state.set(Register::RBP, TrackedValue::CallerRbp);
        state.store(entry, TrackedValue::ReturnAddress);
        state
    }

    /// [`Self::called`] by compiled code.
    pub(in crate::hotspot::stubs) fn called_by_compiled() -> Self {
        Self { entry_modulo: Some(8), ..Self::called() }
    }

    /// Entry of interpreted methods: r13 is the caller's stack pointer, below which arguments lie.
    pub(in crate::hotspot::stubs) fn interpreter_entry() -> Self {
        let mut state = Self::called();
        let sender = StackLocation::new(LocationBase::Sender, 0);
        state.cfa = Some(sender);
        state.set(Register::R13, TrackedValue::Stack(sender));
        state
    }

    /// Entry of an i2c adapter: an interpreted caller has put its stack pointer into r13.
    pub(in crate::hotspot::stubs) fn adapter_entry() -> Self {
        let mut state = Self::called();
        state.set(Register::R13, TrackedValue::Stack(StackLocation::new(LocationBase::Entry, 8)));
        state
    }

    /// Returns the state in a complete interpreter frame (openjdk jdk-21
    /// src/hotspot/cpu/x86/frame_x86.hpp: link 0, return address 1, sender sp -1).
    pub(in crate::hotspot::stubs) fn interpreter_frame() -> Self {
        let frame = StackLocation::new(LocationBase::Frame, 0);
        let sender = StackLocation::new(LocationBase::Sender, 0);
        let mut state = Self::new(sender);
        state.set(Register::RBP, TrackedValue::Stack(frame));
        state.store(frame, TrackedValue::CallerRbp);
        state.store(frame.plus(8), TrackedValue::ReturnAddress);
        state.store(frame.plus(-8), TrackedValue::Stack(sender));
        state
    }

    /// Returns the state in a complete frame with a frame pointer.
    pub(in crate::hotspot::stubs) fn framed() -> Self {
        let frame = StackLocation::new(LocationBase::Frame, 0);
        let mut state = Self::new(frame.plus(16));
        state.set(Register::RBP, TrackedValue::Stack(frame));
        state.store(frame, TrackedValue::CallerRbp);
        state.store(frame.plus(8), TrackedValue::ReturnAddress);
        state
    }

    /// Returns the state after a jump from compiled code, whose frame is still there as it was at a
    /// call: no return address was pushed.
    pub(in crate::hotspot::stubs) fn jumped_to() -> Self {
        let entry = StackLocation::new(LocationBase::Entry, 0);
        let mut state = Self { entry_modulo: Some(0), ..Self::new(entry) };
        state.set(Register::RSP, TrackedValue::Stack(entry));
        state.set(Register::RBP, TrackedValue::CallerRbp);
        state
    }

    /// As [`Self::jumped_to`], with the address that an exception was thrown at in rdx.
    pub(in crate::hotspot::stubs) fn thrown() -> Self {
        let mut state = Self::jumped_to();
        state.set(Register(2), TrackedValue::ReturnAddress);
        state
    }

    pub(in crate::hotspot::stubs) fn get(&self, register: Register) -> TrackedValue {
        self.registers.get(usize::from(register.0)).copied().unwrap_or(TrackedValue::Unknown)
    }

    pub(in crate::hotspot::stubs) fn place(&self, register: Register) -> Option<StackLocation> {
        match self.get(register) {
            TrackedValue::Stack(place) => Some(place),
            _ => None,
        }
    }

    /// Writes a register. What lies below a stack pointer that moved up is lost, but for a return
    /// address, which stays there until the stack pointer moves down again.
    pub(in crate::hotspot::stubs) fn set(&mut self, register: Register, value: TrackedValue) {
        if register == Register::RSP
            && let TrackedValue::Stack(top) = value
        {
            let before = self.place(Register::RSP);
            self.slots.retain(|slot| {
                let is_below = |rsp: StackLocation| slot.at.above(rsp).is_some_and(|above| above < 0);
                let is_near = slot.at.above(top).is_some_and(|above| above >= -RED_ZONE);
                match is_below(top) {
                    true => is_near && slot.holds == TrackedValue::ReturnAddress,
                    false => !before.is_some_and(is_below),
                }
            });
        }
        if let Some(held) = self.registers.get_mut(usize::from(register.0)) {
            *held = value;
        }
    }

    pub(in crate::hotspot::stubs) fn load(&self, at: StackLocation) -> TrackedValue {
        self.slots.iter().find(|slot| slot.at == at).map_or(TrackedValue::Unknown, |slot| slot.holds)
    }

    /// Writes the eight bytes at `at`.
    pub(in crate::hotspot::stubs) fn store(&mut self, at: StackLocation, value: TrackedValue) {
        self.clobber(at, 8);
        if value != TrackedValue::Unknown && self.slots.len() < MAX_SLOTS {
            self.slots.push(Slot { at, holds: value });
        }
    }

    /// Notes that a function was called: what lies below the stack pointer is lost.
    pub(in crate::hotspot::stubs) fn clobber_below_rsp(&mut self) {
        let Some(top) = self.place(Register::RSP) else { return };
        self.slots.retain(|slot| slot.at.above(top).is_none_or(|above| above >= 0));
    }

    /// Notes that something unknown was written to these bytes.
    pub(in crate::hotspot::stubs) fn clobber(&mut self, at: StackLocation, bytes: i32) {
        self.slots.retain(|slot| slot.at.above(at).is_none_or(|above| above <= -8 || above >= bytes));
    }

    /// The stack pointer, by a new name if it had none: what counted from this name before is of an
    /// earlier time.
    pub(in crate::hotspot::stubs) fn named_rsp(&mut self, instruction: u32) -> StackLocation {
        if let Some(place) = self.place(Register::RSP) {
            return place;
        }
        let base = LocationBase::At(instruction);
        let stale = |value: TrackedValue| matches!(value, TrackedValue::Stack(place) if place.base == base);
        self.registers
            .iter_mut()
            .filter(|value| stale(**value))
            .for_each(|value| *value = TrackedValue::Unknown);
        self.slots.retain(|slot| slot.at.base != base && !stale(slot.holds));
        self.cfa = self.cfa.filter(|cfa| cfa.base != base);
        self.next_sender = self.next_sender.filter(|sender| sender.base != base);
        let place = StackLocation::new(base, 0);
        self.set(Register::RSP, TrackedValue::Stack(place));
        place
    }

    /// The next lower multiple of `alignment` (a power of two up to 16), if that is known.
    pub(in crate::hotspot::stubs) fn aligned_down(
        &self,
        place: StackLocation,
        alignment: i32,
    ) -> Option<StackLocation> {
        let entry = self.entry_modulo.filter(|_| place.base == LocationBase::Entry && alignment <= 16)?;
        Some(place.plus(-entry.wrapping_add(place.offset).rem_euclid(alignment)))
    }

    /// Discards what is known of the caller's frame, which is being taken apart.
    pub(in crate::hotspot::stubs) fn discard_frame(&mut self) {
        self.slots.clear();
        self.cfa = None;
        self.replacing = true;
    }

    /// Notes that a place was made for a return address that is stored there later. Until then it
    /// is in the JVM's thread alone: code is also entered here with anything in the registers
    /// (openjdk src/hotspot/cpu/x86/sharedRuntime_x86_64.cpp, `exception_in_tls_offset`).
    pub(in crate::hotspot::stubs) fn drop_return_address(&mut self) {
        self.slots.retain(|slot| slot.holds != TrackedValue::ReturnAddress);
        let held = |value: TrackedValue| value == TrackedValue::ReturnAddress;
        self.registers
            .iter_mut()
            .filter(|value| held(**value))
            .for_each(|value| *value = TrackedValue::Unknown);
    }

    /// A register takes the stack pointer, `top`. Where frames are replaced the next one gets it as
    /// its caller's.
    pub(in crate::hotspot::stubs) fn keep_stack_pointer(&mut self, register: Register, top: StackLocation) {
        if !self.replacing || register == Register::RBP {
            return self.set(register, TrackedValue::Stack(top));
        }
        self.rename_next_sender(TrackedValue::Unknown);
        self.set(register, NEXT_SENDER);
        self.next_sender = Some(top);
    }

    /// Begins another frame where frames are replaced: something from elsewhere was pushed to `at`.
    /// It is the return address of a new frame, whose caller's `rbp` is still there. Without its
    /// caller's stack pointer it would be walked wrongly: then nothing is known.
    pub(in crate::hotspot::stubs) fn begin_frame(&mut self, at: StackLocation) {
        let known = self.register_with(NEXT_SENDER).is_some();
        if !self.replacing || !known {
            return;
        }
        let behind = at.plus(8);
        let cfa = match self.next_sender == Some(behind) {
            true => behind,
            false => StackLocation::new(LocationBase::Sender, 0),
        };
        self.slots.clear();
        let stale = |value: TrackedValue| value != NEXT_SENDER;
        self.registers
            .iter_mut()
            .filter(|value| stale(**value))
            .for_each(|value| *value = TrackedValue::Unknown);
        self.rename_next_sender(TrackedValue::Stack(cfa));
        self.next_sender = None;
        self.set(Register::RSP, TrackedValue::Stack(at));
        self.set(Register::RBP, TrackedValue::CallerRbp);
        self.store(at, TrackedValue::ReturnAddress);
        self.cfa = Some(cfa);
    }

    fn rename_next_sender(&mut self, to: TrackedValue) {
        self.registers.iter_mut().filter(|value| **value == NEXT_SENDER).for_each(|value| *value = to);
    }

    /// The caller's stack pointer is this from here on.
    pub(in crate::hotspot::stubs) fn set_cfa(&mut self, cfa: StackLocation) {
        self.cfa = Some(cfa);
    }

    /// The location of the return address in an ordinary frame.
    pub(in crate::hotspot::stubs) fn is_return_address_slot(&self, at: StackLocation) -> bool {
        self.cfa.is_some_and(|cfa| cfa.plus(-8) == at)
    }

    /// Keeps what both states agree on; true if that is less than `self` knew.
    pub(in crate::hotspot::stubs) fn join(&mut self, other: &Self) -> bool {
        let mut changed = false;
        for (held, others) in self.registers.iter_mut().zip(&other.registers) {
            if *held != TrackedValue::Unknown && held != others {
                *held = TrackedValue::Unknown;
                changed = true;
            }
        }
        let slots = self.slots.len();
        self.slots.retain(|slot| other.slots.contains(slot));
        changed |= slots != self.slots.len();
        if self.cfa.is_some() && self.cfa != other.cfa {
            self.cfa = None;
            changed = true;
        }
        if self.entry_modulo.is_some() && self.entry_modulo != other.entry_modulo {
            self.entry_modulo = None;
            changed = true;
        }
        if self.next_sender.is_some() && self.next_sender != other.next_sender {
            self.next_sender = None;
            changed = true;
        }
        if self.replacing && !other.replacing {
            self.replacing = false;
            changed = true;
        }
        if self.outermost && !other.outermost {
            self.outermost = false;
            changed = true;
        }
        changed
    }

    /// Marks the frame as the outermost one if the caller's `rbp`, which is about to be lost, isn't
    /// saved: compilers never do that, and what a thread begins with has none (System V ABI AMD64
    /// supplement, 3.4.1).
    pub(in crate::hotspot::stubs) fn mark_outermost_without_rbp(&mut self) {
        let is_saved = self.slots.iter().any(|slot| slot.holds == TrackedValue::CallerRbp);
        self.outermost |= self.get(Register::RBP) == TrackedValue::CallerRbp && !is_saved;
    }

    /// The row that steps a frame of this state; `None` if the return address or the CFA can't be
    /// found.
    pub(in crate::hotspot::stubs) fn row(&self) -> Option<Row> {
        if self.outermost {
            return Some(Row { ra: RaRule::Undefined, ..Row::AT_CALL });
        }
        let cfa = self.cfa?;
        Some(Row { cfa: self.cfa_rule(cfa)?, ra: self.ra_rule(cfa)?, rbp: self.rbp_rule(cfa), signal: false })
    }

    /// Finds a place by the registers. `rbp` comes first: its rules hold over long stretches, while
    /// `rsp` moves.
    fn find(&self, place: StackLocation) -> Option<RowLocation> {
        let by = |register| self.place(register).and_then(|from| place.above(from));
        by(Register::RBP).map(RowLocation::Rbp).or_else(|| by(Register::RSP).map(RowLocation::Rsp))
    }

    fn cfa_rule(&self, cfa: StackLocation) -> Option<CfaRule> {
        if let Some(found) = self.find(cfa) {
            return Some(match found {
                RowLocation::Rbp(offset) => CfaRule::Rbp(offset),
                RowLocation::Rsp(offset) => CfaRule::Rsp(offset),
            });
        }
        let saved = self.slots.iter().find_map(|slot| {
            let TrackedValue::Stack(saved) = slot.holds else { return None };
            let add = cfa.above(saved)?;
            Some(match self.find(slot.at)? {
                RowLocation::Rbp(at) => CfaRule::RbpIndirect { at, add },
                RowLocation::Rsp(at) => CfaRule::RspIndirect { at, add },
            })
        });
        saved.or_else(|| self.register_with(TrackedValue::Stack(cfa)).map(CfaRule::Register))
    }

    fn ra_rule(&self, cfa: StackLocation) -> Option<RaRule> {
        let at = |place: StackLocation| match place.above(cfa) {
            Some(offset) => Some(RaRule::AtCfa(offset)),
            None => self.find(place).map(|found| match found {
                RowLocation::Rbp(offset) => RaRule::AtRbp(offset),
                RowLocation::Rsp(offset) => RaRule::AtRsp(offset),
            }),
        };
        let below = |place: StackLocation| {
            let above = self.place(Register::RSP).and_then(|top| place.above(top));
            above.filter(|above| *above < 0)
        };
        let usual = cfa.plus(-8);
        if self.load(usual) == TrackedValue::ReturnAddress && below(usual).is_none() {
            return Some(RaRule::AtCfa(-8));
        }
        let slots = || self.slots.iter().filter(|slot| slot.holds == TrackedValue::ReturnAddress);
        let stored = slots().filter(|slot| below(slot.at).is_none()).find_map(|slot| at(slot.at));
        let held = || self.register_with(TrackedValue::ReturnAddress).map(RaRule::Register);
        stored.or_else(held).or_else(|| slots().find_map(|slot| below(slot.at)).map(RaRule::AtRsp))
    }

    fn rbp_rule(&self, cfa: StackLocation) -> RbpRule {
        if self.get(Register::RBP) == TrackedValue::CallerRbp {
            return RbpRule::Same;
        }
        let saved =
            self.slots.iter().filter(|slot| slot.holds == TrackedValue::CallerRbp).find_map(
                |slot| match slot.at.above(cfa) {
                    Some(offset) => Some(RbpRule::AtCfa(offset)),
                    None => self.find(slot.at).map(|found| match found {
                        RowLocation::Rbp(offset) => RbpRule::AtRbp(offset),
                        RowLocation::Rsp(offset) => RbpRule::AtRsp(offset),
                    }),
                },
            );
        saved.unwrap_or(RbpRule::Undefined)
    }

    fn register_with(&self, value: TrackedValue) -> Option<Register> {
        let index = self.registers.iter().position(|held| *held == value)?;
        u8::try_from(index).ok().map(Register)
    }
}
