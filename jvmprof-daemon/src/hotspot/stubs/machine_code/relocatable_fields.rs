//! Fields of instructions that differ where the same code lies at another address.

use iced_x86::{ConstantOffsets, Instruction, Mnemonic, OpKind};

/// Bytes of an instruction that say nothing about frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::hotspot::stubs) struct RelocatableField(u32);

/// The kind of such bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FieldKind {
    /// Four bytes: where a jump or call out of the code leads, from the end of the bytes on.
    Branch,
    /// Four bytes: where data is, from the instruction's end on.
    Data,
    /// Eight bytes.
    Address,
}

impl RelocatableField {
    const KIND: u32 = 30;

    fn new(what: FieldKind, offset: usize) -> Option<Self> {
        let offset = u32::try_from(offset).ok().filter(|offset| offset >> Self::KIND == 0)?;
        Some(Self((what as u32) << Self::KIND | offset))
    }

    /// The field of an instruction at `at`, if it has one. `leads_out`: it is a branch whose target
    /// is outside of the code.
    pub(in crate::hotspot::stubs) fn of(
        at: u32,
        instruction: &Instruction,
        offsets: ConstantOffsets,
        leads_out: bool,
    ) -> Option<Self> {
        let behind = |offset: usize| at as usize + offset;
        if leads_out && offsets.immediate_size() == 4 {
            return Self::new(FieldKind::Branch, behind(offsets.immediate_offset()));
        }
        if instruction.is_ip_rel_memory_operand() && offsets.displacement_size() == 4 {
            return Self::new(FieldKind::Data, behind(offsets.displacement_offset()));
        }
        let is_address =
            instruction.mnemonic() == Mnemonic::Mov && instruction.op1_kind() == OpKind::Immediate64;
        if is_address && offsets.immediate_size() == 8 {
            return Self::new(FieldKind::Address, behind(offsets.immediate_offset()));
        }
        None
    }

    /// Returns true if an instruction may have one.
    pub(in crate::hotspot::stubs) fn may_be_of(instruction: &Instruction, leads_out: bool) -> bool {
        leads_out || instruction.is_ip_rel_memory_operand() || instruction.op1_kind() == OpKind::Immediate64
    }

    /// Returns the field as a number, to be stored.
    pub(in crate::hotspot::stubs) fn to_bits(self) -> u32 {
        self.0
    }

    /// The reverse of [`Self::to_bits`].
    pub(in crate::hotspot::stubs) fn from_bits(bits: u32) -> Self {
        Self(bits)
    }

    fn kind(self) -> FieldKind {
        match self.0 >> Self::KIND {
            0 => FieldKind::Branch,
            1 => FieldKind::Data,
            _ => FieldKind::Address,
        }
    }

    pub(in crate::hotspot::stubs) fn offset(self) -> usize {
        (self.0 & ((1 << Self::KIND) - 1)) as usize
    }

    pub(in crate::hotspot::stubs) fn bytes(self) -> usize {
        if self.kind() == FieldKind::Address { 8 } else { 4 }
    }

    /// Returns true if it is no branch, or one that leads out of this code.
    pub(in crate::hotspot::stubs) fn leads_out(self, code: &[u8]) -> bool {
        let displacement = code.get(self.offset()..).and_then(|field| field.first_chunk::<4>());
        let end = self.offset() as i64 + 4;
        let target = displacement.map(|bytes| end + i64::from(i32::from_le_bytes(*bytes)));
        let is_inside = |target: i64| usize::try_from(target).is_ok_and(|target| target < code.len());
        self.kind() != FieldKind::Branch || target.is_some_and(|target| !is_inside(target))
    }
}
