//! Effects of one instruction on the state (Intel SDM volume 2).

use iced_x86::{FlowControl, Instruction, InstructionInfoFactory, Mnemonic, OpAccess, OpKind};
use jvmprof_common::rows::Register;

use super::frame_state::{FrameState, LocationBase, StackLocation, TrackedValue};

/// Effects of the instructions of a kind of code that the instructions alone don't tell.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::hotspot::stubs) struct ImplicitEffects {
    /// A store to the return address's place is a return address: stubs that return to an
    /// exception's handler, or that were entered by a jump.
    pub(in crate::hotspot::stubs) patches_return_address: bool,
    /// Frames are taken off the stack and others put in their place: deoptimization.
    pub(in crate::hotspot::stubs) replaces_frames: bool,
    /// A return address that is pushed where the stack was realigned ends the arguments of a
    /// compiled callee, which takes the place above for its caller's stack pointer; the true caller
    /// is interpreted and restores its own.
    pub(in crate::hotspot::stubs) calls_compiled: bool,
    /// Code that clears `rbp` without having saved it has no caller.
    pub(in crate::hotspot::stubs) has_roots: bool,
}

/// Registers that C functions may change (System V ABI AMD64 supplement, 3.2.1): rax, rcx, rdx,
/// rsi, rdi, r8 to r11.
const CALLER_SAVED: [u8; 9] = [0, 1, 2, 6, 7, 8, 9, 10, 11];

/// Applies instructions to states.
pub(in crate::hotspot::stubs) struct Transfer {
    implicit_effects: ImplicitEffects,
    factory: InstructionInfoFactory,
}

impl Transfer {
    pub(in crate::hotspot::stubs) fn new(implicit_effects: ImplicitEffects) -> Self {
        Self { implicit_effects, factory: InstructionInfoFactory::new() }
    }

    /// Moves `state` over one instruction at `offset`, to where the next one finds it. A call has
    /// returned by then.
    pub(in crate::hotspot::stubs) fn apply(
        &mut self,
        state: &mut FrameState,
        instruction: &Instruction,
        offset: u32,
    ) {
        match instruction.mnemonic() {
            Mnemonic::Push => self.push(state, instruction, offset),
            Mnemonic::Pop => self.pop(state, instruction, offset),
            Mnemonic::Pushfq => push_value(state, TrackedValue::Unknown, offset),
            Mnemonic::Popfq => drop(pop_value(state, offset)),
            Mnemonic::Mov => self.mov(state, instruction, offset),
            Mnemonic::Lea => self.lea(state, instruction, offset),
            Mnemonic::Add | Mnemonic::Sub => self.add_or_sub(state, instruction, offset),
            Mnemonic::And => self.and(state, instruction, offset),
            Mnemonic::Xchg => self.xchg(state, instruction, offset),
            Mnemonic::Leave => {
                let frame = state.get(Register::RBP);
                state.set(Register::RSP, frame);
                let rbp = pop_value(state, offset);
                state.set(Register::RBP, rbp);
            }
            Mnemonic::Call => {
                clobber_caller_saved(state);
                state.clobber_below_rsp();
            }
            Mnemonic::Xor if self.implicit_effects.has_roots && clears_rbp(instruction) => {
                state.mark_outermost_without_rbp();
                state.set(Register::RBP, TrackedValue::Unknown);
            }
            _ => self.other(state, instruction, offset),
        }
    }

    /// The state at the target of a call within the code: its return address is on top.
    pub(in crate::hotspot::stubs) fn push_return_address(state: &mut FrameState, offset: u32) {
        push_value(state, TrackedValue::Unknown, offset);
    }

    fn push(&mut self, state: &mut FrameState, instruction: &Instruction, offset: u32) {
        state.named_rsp(offset);
        let value = match instruction.op0_kind() {
            OpKind::Register => {
                general(instruction.op0_register()).map_or(TrackedValue::Unknown, |it| state.get(it))
            }
            OpKind::Memory => {
                address(state, instruction, offset).map_or(TrackedValue::Unknown, |at| state.load(at))
            }
            _ => TrackedValue::Unknown,
        };
        push_value(state, value, offset);
        match (instruction.op0_kind(), state.place(Register::RSP)) {
            (OpKind::Memory, Some(top)) if value == TrackedValue::Unknown => state.begin_frame(top),
            (OpKind::Immediate8to64 | OpKind::Immediate32to64, _)
                if self.implicit_effects.replaces_frames =>
            {
                state.drop_return_address();
            }
            _ => {}
        }
        if self.implicit_effects.calls_compiled
            && value == TrackedValue::ReturnAddress
            && let Some(top) = state.place(Register::RSP)
            && top.base != LocationBase::Entry
        {
            state.set_cfa(top.plus(8));
        }
    }

    fn pop(&mut self, state: &mut FrameState, instruction: &Instruction, offset: u32) {
        let value = pop_value(state, offset);
        match instruction.op0_kind() {
            OpKind::Register => {
                if let Some(register) = general(instruction.op0_register()) {
                    state.set(register, value);
                }
            }
            _ => self.store(state, instruction, offset, value),
        }
    }

    fn mov(&mut self, state: &mut FrameState, instruction: &Instruction, offset: u32) {
        match (instruction.op0_kind(), instruction.op1_kind()) {
            (OpKind::Register, OpKind::Register) => {
                let (to, from) = (general(instruction.op0_register()), general(instruction.op1_register()));
                let (Some(to), Some(from)) = (to, from) else {
                    return self.other(state, instruction, offset);
                };
                if from == Register::RSP {
                    let top = state.named_rsp(offset);
                    return state.keep_stack_pointer(to, top);
                }
                state.set(to, state.get(from));
            }
            (OpKind::Register, OpKind::Memory) => {
                let Some(to) = general(instruction.op0_register()) else {
                    return self.other(state, instruction, offset);
                };
                let value =
                    address(state, instruction, offset).map_or(TrackedValue::Unknown, |at| state.load(at));
                state.set(to, value);
            }
            (OpKind::Memory, OpKind::Register) => match general(instruction.op1_register()) {
                Some(from) => self.store(state, instruction, offset, state.get(from)),
                None => self.other(state, instruction, offset),
            },
            _ => self.other(state, instruction, offset),
        }
    }

    /// Stores eight bytes to the instruction's memory operand.
    fn store(&mut self, state: &mut FrameState, instruction: &Instruction, offset: u32, value: TrackedValue) {
        let Some(at) = address(state, instruction, offset) else { return };
        if self.implicit_effects.patches_return_address && state.is_return_address_slot(at) {
            return state.store(at, TrackedValue::ReturnAddress);
        }
        state.store(at, value);
    }

    fn lea(&mut self, state: &mut FrameState, instruction: &Instruction, offset: u32) {
        let Some(to) = general(instruction.op0_register()) else {
            return self.other(state, instruction, offset);
        };
        let value = address(state, instruction, offset).map_or(TrackedValue::Unknown, TrackedValue::Stack);
        state.set(to, value);
    }

    fn add_or_sub(&mut self, state: &mut FrameState, instruction: &Instruction, offset: u32) {
        let Some(to) = general(instruction.op0_register()).filter(|_| is_immediate(instruction.op1_kind()))
        else {
            let pops = instruction.mnemonic() == Mnemonic::Add
                && instruction.op0_register() == iced_x86::Register::RSP;
            if self.implicit_effects.replaces_frames && pops {
                state.discard_frame();
            }
            return self.other(state, instruction, offset);
        };
        if to == Register::RSP {
            state.named_rsp(offset);
        }
        let Ok(bytes) = i32::try_from(instruction.immediate(1).cast_signed()) else {
            return state.set(to, TrackedValue::Unknown);
        };
        let bytes = if instruction.mnemonic() == Mnemonic::Sub { bytes.wrapping_neg() } else { bytes };
        let value =
            state.place(to).map_or(TrackedValue::Unknown, |place| TrackedValue::Stack(place.plus(bytes)));
        state.set(to, value);
    }

    fn and(&mut self, state: &mut FrameState, instruction: &Instruction, offset: u32) {
        let to = general(instruction.op0_register()).filter(|_| is_immediate(instruction.op1_kind()));
        let mask = instruction.try_immediate(1).unwrap_or(0).cast_signed();
        let alignment = i32::try_from(mask.wrapping_neg()).ok().filter(|it| it.count_ones() == 1 && *it > 0);
        let aligned = to.and_then(|to| state.place(to)).zip(alignment);
        let aligned = aligned.and_then(|(place, alignment)| state.aligned_down(place, alignment));
        match (to, aligned) {
            (Some(to), Some(place)) => state.set(to, TrackedValue::Stack(place)),
            _ => self.other(state, instruction, offset),
        }
    }

    fn xchg(&mut self, state: &mut FrameState, instruction: &Instruction, offset: u32) {
        let second = general(instruction.op1_register());
        match (instruction.op0_kind(), general(instruction.op0_register()), second) {
            (OpKind::Register, Some(one), Some(other)) => {
                if one == Register::RSP || other == Register::RSP {
                    state.named_rsp(offset);
                }
                let (of_one, of_other) = (state.get(one), state.get(other));
                state.set(one, of_other);
                state.set(other, of_one);
            }
            (OpKind::Memory, _, Some(register)) => {
                let before =
                    address(state, instruction, offset).map_or(TrackedValue::Unknown, |at| state.load(at));
                self.store(state, instruction, offset, state.get(register));
                state.set(register, before);
            }
            _ => self.other(state, instruction, offset),
        }
    }

    /// Applies any instruction: what it writes is unknown from here on.
    fn other(&mut self, state: &mut FrameState, instruction: &Instruction, offset: u32) {
        // Vector code is most of some stubs.
        if instruction.op0_kind() == OpKind::Register && instruction.op0_register().is_vector_register() {
            return;
        }
        let at = address(state, instruction, offset);
        let info = self.factory.info(instruction);
        for used in info.used_registers() {
            if writes(used.access())
                && let Some(register) = general(used.register().full_register())
            {
                state.set(register, TrackedValue::Unknown);
            }
        }
        let stores = info.used_memory().iter().any(|memory| writes(memory.access()));
        if let (true, Some(at)) = (stores, at) {
            let bytes = i32::try_from(instruction.memory_size().size()).unwrap_or(i32::MAX);
            state.clobber(at, bytes.max(8));
        }
    }
}

fn clears_rbp(instruction: &Instruction) -> bool {
    let register = instruction.op0_register();
    register.full_register() == iced_x86::Register::RBP && instruction.op1_register() == register
}

fn clobber_caller_saved(state: &mut FrameState) {
    CALLER_SAVED.iter().for_each(|register| state.set(Register(*register), TrackedValue::Unknown));
}

fn push_value(state: &mut FrameState, value: TrackedValue, offset: u32) {
    let top = state.named_rsp(offset).plus(-8);
    state.set(Register::RSP, TrackedValue::Stack(top));
    state.store(top, value);
}

fn pop_value(state: &mut FrameState, offset: u32) -> TrackedValue {
    let top = state.named_rsp(offset);
    let value = state.load(top);
    state.set(Register::RSP, TrackedValue::Stack(top.plus(8)));
    value
}

/// The stack address of the memory operand, if it is one.
fn address(state: &mut FrameState, instruction: &Instruction, offset: u32) -> Option<StackLocation> {
    if instruction.memory_index() != iced_x86::Register::None
        || instruction.segment_prefix() != iced_x86::Register::None
    {
        return None;
    }
    let base = general(instruction.memory_base())?;
    if base == Register::RSP {
        state.named_rsp(offset);
    }
    let displacement = i32::try_from(instruction.memory_displacement64().cast_signed()).ok()?;
    Some(state.place(base)?.plus(displacement))
}

/// A 64-bit general-purpose register.
fn general(register: iced_x86::Register) -> Option<Register> {
    if !register.is_gpr64() {
        return None;
    }
    u8::try_from(register.number()).ok().map(Register)
}

fn is_immediate(kind: OpKind) -> bool {
    matches!(kind, OpKind::Immediate8to64 | OpKind::Immediate32to64 | OpKind::Immediate64)
}

fn writes(access: OpAccess) -> bool {
    use OpAccess::{CondWrite, ReadCondWrite, ReadWrite, Write};
    matches!(access, Write | CondWrite | ReadWrite | ReadCondWrite)
}

/// Returns true if the place behind this instruction is behind a call, or behind padding behind
/// one.
pub(in crate::hotspot::stubs) fn follows_call(instruction: &Instruction, after_call: bool) -> bool {
    match instruction.mnemonic() {
        Mnemonic::Call => true,
        Mnemonic::Nop | Mnemonic::Int3 => after_call,
        _ => false,
    }
}

/// Returns true if the instruction after this one is never reached from it.
pub(in crate::hotspot::stubs) fn ends_path(instruction: &Instruction) -> bool {
    use FlowControl::{Exception, IndirectBranch, Interrupt, Return, UnconditionalBranch};
    matches!(
        instruction.flow_control(),
        UnconditionalBranch | IndirectBranch | Return | Exception | Interrupt
    ) || instruction.mnemonic() == Mnemonic::Hlt
}
