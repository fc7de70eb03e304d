//! Spills that compiled code keeps below its frame around a call of a collector's barrier.
#![allow(clippy::expect_used, reason = "a test ends by its first surprise")]

#[macro_use]
#[path = "support/mod.rs"]
mod support;

use jvmprof_common::address::{Avma, StackAddress};
use jvmprof_common::unwind::Memory;
use jvmprof_common::unwind::hotspot::compiled::barrier_spills::{restore_length, spilled_bytes};

/// As objdump has them: what restores registers, as far as C2 uses them for that, and the length of
/// each is its own.
const RESTORING: &[&[u8]] = &[
    &[0x48, 0x8b, 0xd0],                                        // mov rdx, rax
    &[0x4c, 0x89, 0xc1],                                        // mov rcx, r8
    &[0x48, 0x8b, 0x04, 0x24],                                  // mov rax, [rsp]
    &[0x48, 0x8b, 0x4c, 0x24, 0x08],                            // mov rcx, [rsp + 8]
    &[0x4c, 0x8b, 0x94, 0x24, 0x80, 0, 0, 0],                   // mov r10, [rsp + 128]
    &[0xc5, 0xf8, 0x77],                                        // vzeroupper
    &[0xc5, 0xfa, 0x7e, 0x44, 0x24, 0x10],                      // vmovq xmm0, [rsp + 16]
    &[0xc5, 0x7a, 0x6f, 0x24, 0x24],                            // vmovdqu xmm12, [rsp]
    &[0xc5, 0xfe, 0x6f, 0x8c, 0x24, 0x90, 0, 0, 0],             // vmovdqu ymm1, [rsp + 144]
    &[0xf3, 0x0f, 0x6f, 0x44, 0x24, 0x20],                      // movdqu xmm0, [rsp + 32]
    &[0xf3, 0x44, 0x0f, 0x7e, 0x44, 0x24, 0x08],                // movq xmm8, [rsp + 8]
    &[0xc4, 0xe1, 0xf8, 0x90, 0x4c, 0x24, 0x08],                // kmovq k1, [rsp + 8]
    &[0x62, 0xf1, 0xfe, 0x48, 0x6f, 0x44, 0x24, 0x01],          // vmovdqu64 zmm0, [rsp + 64]
    &[0x62, 0xe1, 0xfe, 0x48, 0x6f, 0x84, 0x24, 0x10, 0, 0, 0], // vmovdqu64 zmm16, [rsp + 16]
];

/// What else may stand behind a call.
const OTHERS: &[&[u8]] = &[
    &[0x48, 0x83, 0xc4, 0x20],             // add rsp, 32
    &[0x48, 0x81, 0xc4, 0x90, 0, 0, 0],    // add rsp, 144
    &[0xe9, 0, 0, 0, 0],                   // jmp
    &[0x5d],                               // pop rbp
    &[0x48, 0x89, 0x44, 0x24, 0x08],       // mov [rsp + 8], rax
    &[0x48, 0x8b, 0x45, 0x08],             // mov rax, [rbp + 8]
    &[0x48, 0x8b, 0x44, 0x0c, 0x08],       // mov rax, [rsp + rcx + 8]
    &[0x48, 0x8b, 0x46, 0x24],             // mov rax, [rsi + 36]
    &[0x8b, 0x44, 0x24, 0x08],             // mov eax, [rsp + 8]
    &[0xc5, 0xf9, 0xef, 0xc0],             // vpxor xmm0, xmm0, xmm0
    &[0xc5, 0xfa, 0x7f, 0x44, 0x24, 0x10], // vmovdqu [rsp + 16], xmm0
    &[0xf3, 0x0f, 0x10, 0x44, 0x24, 0x08], // movss xmm0, [rsp + 8]
    &[0x62, 0xf1, 0xfe, 0x48, 0x7f, 0x44, 0x24, 0x01],
    &[0xff, 0xd0], // call rax
];

/// The first eight bytes, with others behind a shorter one.
fn word(instruction: &[u8], behind: u8) -> u64 {
    let bytes: Vec<u8> = instruction.iter().copied().chain([behind; 8]).take(8).collect();
    u64::from_le_bytes(bytes.try_into().expect("eight bytes"))
}

#[test]
fn what_brings_a_register_back_is_told_from_what_does_not() {
    for behind in [0x00, 0x24, 0x90, 0xff] {
        for instruction in RESTORING {
            let length = instruction.len() as u64;
            assert_eq!(restore_length(word(instruction, behind)), length, "{instruction:02x?}");
        }
        for instruction in OTHERS {
            assert_eq!(restore_length(word(instruction, behind)), 0, "{instruction:02x?}");
        }
    }
}

/// The code behind a call.
struct Code(Vec<u8>);

impl Memory for Code {
    fn read_u64(&mut self, address: StackAddress) -> Option<u64> {
        let bytes = self.0.get(usize::try_from(address.0).ok()?..)?;
        Some(word(bytes, 0xcc))
    }
}

target_over_memory!(Code);

const ADD_16: &[u8] = &[0x48, 0x83, 0xc4, 0x10];
const ADD_144: &[u8] = &[0x48, 0x81, 0xc4, 0x90, 0, 0, 0];
const JMP: &[u8] = &[0xe9, 0, 0, 0, 0];
const MOV_RSI_RAX: &[u8] = &[0x48, 0x8b, 0xf0];
const POP_RAX: &[u8] = &[0x58];

#[test]
fn what_lies_below_a_frame_is_told_by_what_takes_it_off_again() {
    let cases: &[(&[&[u8]], u64)] = &[
        // C2.
        (&[RESTORING[2], RESTORING[3], ADD_144, JMP], 144),
        (&[RESTORING[0], RESTORING[5], ADD_16, JMP], 16),
        // C1: the reference is in rax, in another register, and rax is kept besides.
        (&[ADD_16, JMP], 16),
        (&[ADD_16, MOV_RSI_RAX, JMP], 16),
        (&[ADD_16, MOV_RSI_RAX, POP_RAX, JMP], 24),
        // Epilogues, and code that goes on.
        (&[ADD_144, &[0x5d], &[0xc3]], 0),
        (&[ADD_144, &[0x5d], JMP], 0),
        (&[MOV_RSI_RAX, JMP], 0),
        (&[POP_RAX, JMP], 0),
        (&[ADD_16, MOV_RSI_RAX, &[0xc3]], 0),
    ];
    for (code, bytes) in cases {
        assert_eq!(spilled_bytes(&mut Code(code.concat()), Avma(0)), *bytes, "{code:02x?}");
    }
}

/// The begin of a native wrapper's way back from the JVM: the call returns to it, or it jumps over
/// the other call.
const SKIP_CALL: &[u8] = &[0x48, 0x83, 0xc4, 0x08, 0xe9, 5, 0, 0, 0, 0xe8, 1, 2, 3, 4];
/// `cmp rsp, [r15 + 0x620]; jb 11; mov qword [r15 + 0x620], 0`, of JDK 25's.
const POP_FASTPATH: &[u8] =
    &[0x49, 0x3b, 0xa7, 0x20, 6, 0, 0, 0x72, 11, 0x49, 0xc7, 0x87, 0x20, 6, 0, 0, 0, 0, 0, 0];
const POP_R9: &[u8] = &[0x41, 0x59];
const POP_RDX: &[u8] = &[0x5a];
const POP_RSI: &[u8] = &[0x5e];
const MOVSD_XMM1: &[u8] = &[0xf2, 0x0f, 0x10, 0x0c, 0x24];
const VMOVSD_XMM1: &[u8] = &[0xc5, 0xfb, 0x10, 0x0c, 0x24];

#[test]
fn arguments_that_a_native_wrapper_keeps_are_counted_by_what_takes_them_back() {
    let cases: &[(&[&[u8]], u64)] = &[
        (&[POP_RSI, JMP], 8),
        (&[POP_R9, POP_RDX, POP_RSI, JMP], 24),
        (&[SKIP_CALL, POP_RDX, POP_RSI, JMP], 24),
        (&[POP_RDX, MOVSD_XMM1, ADD_16, POP_RSI, JMP], 32),
        (&[SKIP_CALL, VMOVSD_XMM1, ADD_16, &[0xeb, 0]], 24),
        (&[SKIP_CALL, POP_FASTPATH, POP_R9, POP_RDX, POP_RSI, JMP], 32),
        (&[POP_FASTPATH, POP_RDX, POP_RSI, JMP], 16),
        // What goes on otherwise, and registers that have no arguments.
        (&[POP_FASTPATH, JMP], 0),
        (&[POP_RDX, POP_RSI, &[0xc3]], 0),
        (&[POP_RDX, &[0x5d], JMP], 0),
        (&[VMOVSD_XMM1, JMP], 0),
        (&[SKIP_CALL, JMP], 0),
    ];
    for (code, bytes) in cases {
        assert_eq!(spilled_bytes(&mut Code(code.concat()), Avma(0)), *bytes, "{code:02x?}");
    }
}
