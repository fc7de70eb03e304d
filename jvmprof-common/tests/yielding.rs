//! The instructions by which `Continuation.doYield` leaves a continuation, as JDKs emit them.

#[macro_use]
#[path = "support/mod.rs"]
mod support;

use jvmprof_common::address::{Avma, StackAddress};
use jvmprof_common::unwind::Memory;
use jvmprof_common::unwind::hotspot::continuation::yielding;

const BEGIN: u64 = 0x7f11_0000_0000;

/// Code at [`BEGIN`].
struct Code(Vec<u8>);

impl Memory for Code {
    fn read_u64(&mut self, StackAddress(address): StackAddress) -> Option<u64> {
        let at = usize::try_from(address.checked_sub(BEGIN)?).ok()?;
        self.0.get(at..at + 8)?.try_into().ok().map(u64::from_le_bytes)
    }
}

target_over_memory!(Code);

const CALL: [u8; 5] = [0xe8, 0x5b, 0xd7, 0xaa, 0x18];
const CLEAR: [u8; 11] = [0x49, 0xc7, 0x87, 0x80, 0x04, 0, 0, 0, 0, 0, 0];
const VZEROUPPER: [u8; 3] = [0xc5, 0xf8, 0x77];
const TEST: [u8; 3] = [0x48, 0x85, 0xc0];
const JNE: [u8; 6] = [0x0f, 0x85, 0x31, 0, 0, 0];
const MOV_RSP: [u8; 7] = [0x49, 0x8b, 0xa7, 0x18, 0x06, 0, 0];
const LOAD: [u8; 5] = [0x48, 0x8b, 0x5c, 0x24, 0x28];
const STORE: [u8; 7] = [0x49, 0x89, 0x9f, 0x20, 0x06, 0, 0];
const ADD: [u8; 4] = [0x48, 0x83, 0xc4, 0x40];
/// `pop rbp; ret`, and what lies behind.
const POP_RET: [u8; 2] = [0x5d, 0xc3];
const BEHIND: [u8; 64] = [0xf4; 64];

/// Returns the code, and the offsets at which its instructions begin. `pairs`: of a load and a
/// store.
fn code(has_avx: bool, pairs: usize, leaves: bool) -> (Code, Vec<usize>) {
    let mut instructions: Vec<&[u8]> = vec![&BEHIND, &CALL, &CLEAR, &CLEAR, &CLEAR];
    instructions.extend(has_avx.then_some(&VZEROUPPER[..]));
    instructions.extend([&TEST[..], &JNE, if leaves { &MOV_RSP } else { &STORE }]);
    (0..pairs).for_each(|_| instructions.extend([&LOAD[..], &STORE]));
    instructions.extend([&ADD[..], &POP_RET[..1], &POP_RET[1..], &BEHIND]);
    let mut bytes = Vec::new();
    let mut offsets = Vec::new();
    for instruction in instructions {
        offsets.push(bytes.len());
        bytes.extend_from_slice(instruction);
    }
    (Code(bytes), offsets)
}

#[test]
fn the_frames_are_copied_from_the_call_to_the_new_stack_pointer() {
    for (has_avx, pairs) in [(true, 3), (false, 3), (true, 2), (false, 2)] {
        let (mut code, offsets) = code(has_avx, pairs, true);
        let (first, last) = (2, if has_avx { 8 } else { 7 });
        for (index, offset) in offsets.iter().enumerate() {
            let is_copied = yielding::is_yielding(&mut code, Avma(BEGIN + *offset as u64));
            assert_eq!(is_copied, (first..=last).contains(&index), "{has_avx} {pairs} {index}");
        }
    }
}

#[test]
fn behind_the_new_stack_pointer_the_entry_is_on_top_until_it_is_taken_off() {
    for (has_avx, pairs) in [(true, 3), (false, 3), (true, 2), (false, 2)] {
        let (mut code, offsets) = code(has_avx, pairs, true);
        let first = if has_avx { 9 } else { 8 };
        for (index, offset) in offsets.iter().enumerate() {
            let bytes = yielding::entry_bytes(&mut code, Avma(BEGIN + *offset as u64));
            let expected = if (first..=first + 2 * pairs).contains(&index) { 0x40 } else { 0 };
            assert_eq!(bytes, expected, "{has_avx} {pairs} {index}");
        }
    }
}

#[test]
fn code_that_keeps_its_stack_pointer_is_another_methods() {
    let (mut code, offsets) = code(true, 3, false);
    for offset in offsets {
        let pc = Avma(BEGIN + offset as u64);
        assert!(!yielding::is_yielding(&mut code, pc));
        assert_eq!(yielding::entry_bytes(&mut code, pc), 0);
    }
}
