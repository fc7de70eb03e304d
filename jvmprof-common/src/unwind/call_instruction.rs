//! Call instructions: whether a return address follows one, and where it leads.
//!
//! A chain that leaves the stack mostly ends in a value that is no return address at all. The bytes
//! before a true one are a call instruction: `E8 rel32`, or `FF /2` with any addressing mode (Intel
//! SDM volume 2, CALL; table 2-2 for ModRM).

use crate::address::Avma;

/// Returns true if the eight bytes that end at a return address (little-endian: the last one is the
/// highest) end in a call.
#[inline(always)]
pub const fn ends_in_call(before: u64) -> bool {
    let [_, b7, b6, b5, b4, b3, b2, b1] = before.to_le_bytes();
    // The opcode `FF` and the ModRM byte after it, by the length of what follows the two.
    b5 == 0xe8
        || (b2 == 0xff && is_call_modrm(b1, 0))
        || (b3 == 0xff && is_call_modrm(b2, 1))
        || (b4 == 0xff && is_call_modrm(b3, 2))
        || (b6 == 0xff && is_call_modrm(b5, 4))
        || (b7 == 0xff && is_call_modrm(b6, 5))
}

/// Returns where `call rel32` leads, which ends at this return address, by the eight bytes before
/// it; 0 if it is no such call.
#[inline(always)]
pub const fn direct_callee(before: u64, return_address: Avma) -> Avma {
    if (before >> 24) as u8 != 0xe8 {
        return Avma(0);
    }
    return_address.wrapping_add_signed((before >> 32) as i32 as i64)
}

/// Returns true if this ModRM byte means `/2` and needs this many bytes of SIB and displacement.
#[inline(always)]
const fn is_call_modrm(modrm: u8, following: u8) -> bool {
    if modrm >> 3 & 7 != 2 {
        return false;
    }
    let sib = if modrm & 7 == 4 { 1 } else { 0 };
    let needed = match modrm >> 6 {
        0 if modrm & 7 == 5 => 4,
        0 => sib,
        1 => sib + 1,
        2 => sib + 4,
        _ => 0,
    };
    needed == following
}

#[cfg(test)]
mod tests {
    use super::*;

    fn word(instruction: &[u8]) -> u64 {
        let mut bytes = [0x90; 8];
        bytes[8 - instruction.len()..].copy_from_slice(instruction);
        u64::from_le_bytes(bytes)
    }

    #[test]
    fn every_encoding_of_a_near_call_is_known() {
        let calls: [&[u8]; 10] = [
            &[0xe8, 1, 2, 3, 4],             // call rel32
            &[0xff, 0xd0],                   // call rax
            &[0x41, 0xff, 0xd4],             // call r12
            &[0xff, 0x10],                   // call [rax]
            &[0xff, 0x50, 0x18],             // call [rax+0x18]
            &[0xff, 0x14, 0xc8],             // call [rax+rcx*8]
            &[0xff, 0x54, 0xc8, 0x08],       // call [rax+rcx*8+8]
            &[0xff, 0x15, 1, 2, 3, 4],       // call [rip+disp32]
            &[0xff, 0x90, 1, 2, 3, 4],       // call [rax+disp32]
            &[0xff, 0x94, 0x24, 1, 2, 3, 4], // call [rsp+disp32]
        ];
        for call in calls {
            assert!(ends_in_call(word(call)), "{call:x?}");
        }
    }

    #[test]
    fn a_direct_call_says_where_it_leads() {
        assert_eq!(direct_callee(word(&[0xe8, 0xf0, 0xff, 0xff, 0xff]), Avma(0x7000)).0, 0x6ff0);
        assert_eq!(direct_callee(word(&[0xe8, 0x00, 0x10, 0, 0]), Avma(0x7000)).0, 0x8000);
        assert_eq!(direct_callee(word(&[0xff, 0x90, 1, 2, 3, 4]), Avma(0x7000)).0, 0);
    }

    #[test]
    fn other_instructions_are_no_calls() {
        let others: [&[u8]; 6] = [
            &[0xff, 0xe0],       // jmp rax
            &[0xff, 0x60, 0x18], // jmp [rax+0x18]
            &[0xff, 0x75, 0x08], // push [rbp+8]
            &[0xe9, 1, 2, 3, 4], // jmp rel32
            &[0x0f, 0x05],       // syscall
            &[0x48, 0x89, 0xe5], // mov rbp, rsp
        ];
        for other in others {
            assert!(!ends_in_call(word(other)), "{other:x?}");
        }
        assert!(!ends_in_call(0));
        assert!(!ends_in_call(u64::MAX), "FF FF is no call");
    }
}
