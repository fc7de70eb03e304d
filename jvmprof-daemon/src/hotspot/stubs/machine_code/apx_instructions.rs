//! Instructions with a REX2 prefix, which the decoder doesn't know: JVMs from JDK 24 on have some
//! to find out whether the system saves the registers that such instructions reach (openjdk
//! src/hotspot/cpu/x86/vm_version_x86.cpp).
//!
//! Format: Intel Advanced Performance Extensions Architecture Specification, 3.1.1.

use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction, OpKind, Register};

const REX2: u8 = 0xd5;
/// Bits of the second byte: the opcode is one of those behind 0x0f,
const MAP_1: u8 = 0x80;
/// the highest bits of register numbers, for r16 to r31,
const HIGH: u8 = 0x70;
/// and what a REX prefix has, too.
const REX: u8 = 0x0f;
/// Longest instruction, in bytes.
const MAX_LEN: usize = 15;

/// The instruction at the begin of `code`, as it were with a REX prefix: of the registers from r16
/// on it names the ones with a number less by 16. `None` if it has no such prefix, leads elsewhere,
/// or would name a register of a frame that way.
pub(in crate::hotspot::stubs) fn decode(code: &[u8], ip: u64) -> Option<Instruction> {
    let (&[REX2, payload], rest) = code.split_first_chunk::<2>()? else { return None };
    let escape = [0x0f];
    let prefix = if payload & MAP_1 == 0 { &escape[..0] } else { &escape };
    // In this map it is a jump: JMPABS.
    if prefix.is_empty() && matches!(rest.first(), Some(0xa0..=0xa3)) {
        return None;
    }
    let rex = [0x40 | payload & REX];
    let bytes: Vec<u8> = rex.iter().chain(prefix).chain(rest).copied().take(MAX_LEN).collect();
    let mut instruction = Decoder::new(64, &bytes, DecoderOptions::NONE).decode();
    let len = (instruction.len() + 2).checked_sub(1 + prefix.len())?;
    let is_of_frame = |register: Register| matches!(register.full_register(), Register::RSP | Register::RBP);
    let touches_frame = payload & HIGH != 0
        && ((0..instruction.op_count()).any(|operand| match instruction.op_kind(operand) {
            OpKind::Register => is_of_frame(instruction.op_register(operand)),
            _ => false,
        }) || is_of_frame(instruction.memory_base())
            || is_of_frame(instruction.memory_index()));
    if instruction.is_invalid() || instruction.flow_control() != FlowControl::Next || touches_frame {
        return None;
    }
    instruction.set_len(len);
    instruction.set_ip(ip);
    Some(instruction)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn length_and_operands_are_those_of_the_instruction() {
        let moved =
            decode(&[0xd5, 0x18, 0xb8, 1, 2, 3, 4, 5, 6, 7, 8, 0xc3], 0x1000).expect("mov r16, imm64");
        assert_eq!((moved.len(), moved.ip(), moved.op0_register()), (11, 0x1000, Register::RAX));
        // mov [rsi], r31
        let stored = decode(&[0xd5, 0x4c, 0x89, 0x3e, 0x90], 7).expect("a store");
        assert_eq!(
            (stored.len(), stored.next_ip(), stored.memory_base(), stored.op1_register()),
            (4, 11, Register::RSI, Register::R15)
        );
        // imul rax, rbx of the other map
        let multiplied = decode(&[0xd5, 0x88, 0xaf, 0xc3], 0).expect("imul");
        assert_eq!((multiplied.len(), multiplied.op1_register()), (4, Register::RBX));
    }

    #[test]
    fn what_could_be_taken_for_a_change_of_the_frame_is_refused() {
        // mov r20, rax, which has the number of rsp and 16; jmpabs; a jump; nothing that is whole.
        for code in [
            &[0xd5, 0x18, 0x89, 0xc4][..],
            &[0xd5, 0, 0xa1, 1, 2, 3, 4, 5, 6, 7, 8],
            &[0xd5, 0, 0xeb, 0],
            &[0xd5, 0x18],
            &[0xd5],
            &[0x48, 0x89, 0xc3],
        ] {
            assert!(decode(code, 0).is_none(), "{code:x?}");
        }
    }
}
