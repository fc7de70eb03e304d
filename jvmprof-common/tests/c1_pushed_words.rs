//! Words that C1's code pushes above its frame, at each instruction of its copy of an array and of
//! its check of a type.
#![allow(clippy::expect_used, reason = "a test ends by its first surprise")]

#[macro_use]
#[path = "support/mod.rs"]
mod support;

use jvmprof_common::address::StackAddress;
use jvmprof_common::unwind::Memory;
use jvmprof_common::unwind::hotspot::compiled::c1_pushed_words::{
    ArrayCopyState, BEFORE, BETWEEN, COPY_BYTES, array_copy_state, popped_bytes, pushed_ahead,
};
use jvmprof_common::unwind::hotspot::compiled::instructions::{CODE_BYTES, CODE_WORDS, LoadedCode};

/// A target that has loaded code, and no memory.
struct Code(LoadedCode);

impl Memory for Code {
    fn read_u64(&mut self, _: StackAddress) -> Option<u64> {
        None
    }
}

target_over_memory!(Code, |code| &code.0);

/// One instruction, and the bytes that are pushed before it.
type Step = (&'static [u8], u64);

const BODY: &[u8] = &[0x8b, 0x46, 0x0c, 0x44, 0x8b, 0x5e, 0x10, 0x41, 0x03, 0xc3, 0x48, 0x8b, 0xd6, 0x90];

/// push rsi; push r8; mov esi, [rsi + 8]; mov r8d, [r8 + 8]; the check's fast path; its slow path;
/// cmp esi, 0; both ends.
const COPY: &[Step] = &[
    (&[0x56], 0),
    (&[0x41, 0x50], 8),
    (&[0x8b, 0x76, 0x08], 16),
    (&[0x45, 0x8b, 0x40, 0x08], 16),
    (&[0x49, 0x3b, 0xf0], 16),
    (&[0x0f, 0x84, 0x60, 0, 0, 0], 16),
    (&[0x41, 0x8b, 0x50, 0x10], 16),
    (&[0x4c, 0x3b, 0x04, 0x16], 16),
    (&[0x0f, 0x84, 0x50, 0, 0, 0], 16),
    (&[0x83, 0xfa, 0x20], 16),
    (&[0x0f, 0x85, 0x20, 0, 0, 0], 16),
    (&[0x56], 16),
    (&[0x41, 0x50], 24),
    (&[0xe8, 0, 1, 0, 0], 32),
    (&[0x41, 0x58], 32),
    (&[0x5e], 24),
    (&[0x83, 0xfe, 0x00], 16),
    (&[0x0f, 0x85, 0x30, 0, 0, 0], 16),
    (&[0x41, 0x58], 16),
    (&[0x5e], 8),
    (&[0xe9, 0, 2, 0, 0], 0),
    (&[0x41, 0x58], 16),
    (&[0x5e], 8),
    (BODY, 0),
];

/// The same with compact headers (JDK 28), which takes more instructions.
const LONG_COPY: &[Step] = &[
    (&[0x48, 0x63, 0xd2], 0),
    (&[0x4d, 0x63, 0xc0], 0),
    (&[0x56], 0),
    (&[0x51], 8),
    (&[0x48, 0x8b, 0x36], 16),
    (&[0x48, 0xc1, 0xee, 0x2a], 16),
    (&[0x48, 0xc1, 0xe6, 0x0a], 16),
    (&[0x41, 0xba, 0x00, 0x00, 0x00, 0x57], 16),
    (&[0x49, 0x03, 0xf2], 16),
    (&[0x48, 0x8b, 0x09], 16),
    (&[0x48, 0xc1, 0xe9, 0x2a], 16),
    (&[0x48, 0xc1, 0xe1, 0x0a], 16),
    (&[0x41, 0xba, 0x00, 0x00, 0x00, 0x57], 16),
    (&[0x49, 0x03, 0xca], 16),
    (&[0x48, 0x3b, 0xf1], 16),
    (&[0x0f, 0x84, 0xa8, 0x00, 0x00, 0x00], 16),
    (&[0x8b, 0x79, 0x10], 16),
    (&[0x48, 0x3b, 0x0c, 0x3e], 16),
    (&[0x0f, 0x84, 0x9b, 0x00, 0x00, 0x00], 16),
    (&[0x83, 0xff, 0x20], 16),
    (&[0x0f, 0x85, 0x11, 0x00, 0x00, 0x00], 16),
    (&[0x56], 16),
    (&[0x51], 24),
    (&[0xe8, 0x8d, 0xb1, 0x5e, 0x07], 32),
    (&[0x59], 32),
    (&[0x5e], 24),
    (&[0x85, 0xf6], 16),
    (&[0x0f, 0x85, 0x81, 0x00, 0x00, 0x00], 16),
    (&[0x59], 16),
    (&[0x5e], 8),
    (&[0x48, 0x89, 0x0c, 0x24], 0),
    (&[0x4c, 0x89, 0x44, 0x24, 0x08], 0),
];

/// push rax; push rbx; call; pop rbx; pop rax; test eax, eax; je
const CHECK: &[Step] = &[
    (BODY, 0),
    (&[0x50], 0),
    (&[0x53], 8),
    (&[0xe8, 0, 1, 0, 0], 16),
    (&[0x5b], 16),
    (&[0x58], 8),
    (&[0x85, 0xc0], 0),
    (&[0x0f, 0x84, 0x10, 0, 0, 0], 0),
    (BODY, 0),
];

fn words(bytes: &[u8]) -> [u64; CODE_WORDS] {
    let mut words = [0; CODE_WORDS];
    for (word, bytes) in words.iter_mut().zip(bytes.chunks_exact(8)) {
        *word = u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
    }
    words
}

#[test]
fn each_instruction_shows_what_is_pushed() {
    for steps in [COPY, LONG_COPY, CHECK] {
        let code = steps.iter().flat_map(|(instruction, _)| instruction.iter().copied());
        let body = || BODY.iter().copied().cycle().take(2 * CODE_BYTES);
        let all: Vec<u8> = body().chain(code).chain(body()).collect();
        let mut pc = 2 * CODE_BYTES;
        for (instruction, expected) in steps {
            let here = words(&all[pc..pc + CODE_BYTES]);
            let mut found = pushed_ahead(&Code(here));
            let windows = [pc - BEFORE, pc - BEFORE - BETWEEN]
                .map(|at| array_copy_state(&words(&all[at..at + CODE_BYTES])));
            let shown = windows.into_iter().find(|window| *window != ArrayCopyState::UNKNOWN);
            if found == 0 && shown == Some(ArrayCopyState::BEGUN) {
                found = COPY_BYTES;
            }
            // What isn't pushed yet has no meaning.
            let is_first = *expected == 0 && instruction[0] & 0xf8 == 0x50;
            assert!(found == *expected || is_first, "{found}, not {expected}, at {instruction:02x?}");
            pc += instruction.len();
        }
    }
}

#[test]
fn a_call_of_the_check_returns_to_code_that_pops_all_of_it() {
    let behind = |steps: &[Step]| {
        let call = steps.iter().position(|(instruction, _)| instruction[0] == 0xe8).expect("a call");
        let code: Vec<u8> = steps[call + 1..].iter().flat_map(|(bytes, _)| bytes.iter().copied()).collect();
        popped_bytes(&words(&[code, vec![0x90; CODE_BYTES]].concat()), 0)
    };
    assert_eq!((behind(COPY), behind(CHECK)), (32, 16));
    assert_eq!(popped_bytes(&words(&[0x90; CODE_BYTES]), 0), 0);
}

/// mov [rsi + 0x54], r10d, whose last two bytes are those of push rsi and push rsp; mov rdx, rsi;
/// the rest of G1's barrier; a null check.
const FIELD_STORE: &[u8] = &[
    0x44, 0x89, 0x56, 0x54, 0x48, 0x8b, 0xd6, 0x48, 0x33, 0xd0, 0x48, 0xc1, 0xea, 0x14, 0x48, 0x83, 0xfa,
    0x00, 0x0f, 0x85, 0xe6, 0x36, 0, 0, 0x48, 0x3b, 0x00,
];

#[test]
fn bytes_of_an_operand_are_no_pushes() {
    let mut load_after_it = FIELD_STORE.to_vec();
    // mov rdx, [rsi + 0x57]: as if what was pushed were loaded.
    load_after_it.splice(4..7, [0x48, 0x8b, 0x56, 0x57]);
    for code in [FIELD_STORE.to_vec(), load_after_it] {
        for before in 0..=BEFORE - code.len() {
            let after = CODE_BYTES - before - code.len();
            let window = [vec![0x90; before], code.clone(), vec![0x90; after]].concat();
            let state = array_copy_state(&words(&window));
            assert_eq!(state, ArrayCopyState::UNKNOWN, "{before} bytes before it");
        }
    }
}
