//! Layouts of frames, at each instruction of prologues and epilogues as HotSpot emits them.
#![allow(clippy::expect_used, reason = "a test ends by its first surprise")]

#[macro_use]
#[path = "support/mod.rs"]
mod support;

use jvmprof_common::address::StackAddress;
use jvmprof_common::unwind::Memory;
use jvmprof_common::unwind::hotspot::compiled::epilogue::may_be_unbuilt;
use jvmprof_common::unwind::hotspot::compiled::instructions::{
    CODE_BEFORE, CODE_BYTES, CODE_WORDS, LoadedCode,
};
use jvmprof_common::unwind::hotspot::compiled::layout_at_pc::layout_at_pc;
use jvmprof_common::unwind::hotspot::compiled::prologue::{self, PrologueShape};
use jvmprof_common::unwind::hotspot::compiled::string_indexof::has_pcmpestri;
use jvmprof_common::unwind::hotspot::frame_layout::{FrameLayout, SavedRbp};
use jvmprof_common::verifier::Scalar;

/// A target that has loaded code, and no memory.
struct Code(LoadedCode);

impl Memory for Code {
    fn read_u64(&mut self, _: StackAddress) -> Option<u64> {
        None
    }
}

target_over_memory!(Code, |code| &code.0);

fn layout(code: &LoadedCode, left: u64, bytes: u64) -> FrameLayout {
    layout_at_pc(&mut Code(*code), left, bytes)
}

const ENTRY: FrameLayout = FrameLayout::AT_ENTRY;
const PUSHED: FrameLayout = FrameLayout::RBP_PUSHED;

const fn built(bytes: u64) -> FrameLayout {
    FrameLayout::new(bytes - 8, SavedRbp::AtSp(bytes - 16))
}

/// One instruction and the state before it.
type Step = (&'static [u8], FrameLayout);

// Instructions around those that are tested, of a body that has nothing to do with frames.
const BODY: &[u8] = &[0x8b, 0x46, 0x0c, 0x44, 0x8b, 0x5e, 0x10, 0x41, 0x03, 0xc3, 0x48, 0x8b, 0xd6, 0x90];
// mov [rsp - 0x14000], eax
const BANG: &[u8] = &[0x89, 0x84, 0x24, 0x00, 0xc0, 0xfe, 0xff];
const PUSH: &[u8] = &[0x55];
const MOV_RBP_RSP: &[u8] = &[0x48, 0x8b, 0xec];
// cmp dword [r15 + 0x20], 1; jne stub
const BARRIER: &[u8] = &[0x41, 0x81, 0x7f, 0x20, 0x01, 0x00, 0x00, 0x00];
const BARRIER_JNE: &[u8] = &[0x0f, 0x85, 0x10, 0x01, 0x00, 0x00];
const SUB_20: &[u8] = &[0x48, 0x83, 0xec, 0x20];
const SUB_110: &[u8] = &[0x48, 0x81, 0xec, 0x10, 0x01, 0x00, 0x00];
const ADD_20: &[u8] = &[0x48, 0x83, 0xc4, 0x20];
const ADD_110: &[u8] = &[0x48, 0x81, 0xc4, 0x10, 0x01, 0x00, 0x00];
// sub rsp, imm32, as C2 emits it whatever the size; mov [rsp + SIZE - 16], rbp
const SUB_8_LONG: &[u8] = &[0x48, 0x81, 0xec, 0x08, 0x00, 0x00, 0x00];
const STORE_0: &[u8] = &[0x48, 0x89, 0x2c, 0x24];
const SUB_28_LONG: &[u8] = &[0x48, 0x81, 0xec, 0x28, 0x00, 0x00, 0x00];
const STORE_20: &[u8] = &[0x48, 0x89, 0x6c, 0x24, 0x20];
const SUB_118_LONG: &[u8] = &[0x48, 0x81, 0xec, 0x18, 0x01, 0x00, 0x00];
const STORE_110: &[u8] = &[0x48, 0x89, 0xac, 0x24, 0x10, 0x01, 0x00, 0x00];
const POP: &[u8] = &[0x5d];
const RET: &[u8] = &[0xc3];
// JDK 17 and later: cmp rsp, [r15 + disp8 or disp32]; ja stub
const CMP_SHORT: &[u8] = &[0x49, 0x3b, 0x67, 0x28];
const CMP_LONG: &[u8] = &[0x49, 0x3b, 0xa7, 0x48, 0x04, 0x00, 0x00];
const JA: &[u8] = &[0x0f, 0x87, 0x80, 0x00, 0x00, 0x00];
// JDK 11: mov r10, [r15 + disp32]; test [r10], eax
const LOAD_R10: &[u8] = &[0x4d, 0x8b, 0x97, 0x08, 0x01, 0x00, 0x00];
const TEST_R10: &[u8] = &[0x41, 0x85, 0x02];
// JDK 8: test [rip + disp32], eax
const TEST_RIP: &[u8] = &[0x85, 0x05, 0x10, 0x20, 0x30, 0xff];
// JDK 8, polling page out of reach: mov r10, imm64
const MOV_R10: &[u8] = &[0x49, 0xba, 0x00, 0x50, 0xc3, 0x12, 0x4f, 0x7f, 0x00, 0x00];

// Graal on JDK 11: mov rcx, [r15 + disp32]; test [rcx], eax
const LOAD_RCX: &[u8] = &[0x49, 0x8b, 0x8f, 0x08, 0x01, 0x00, 0x00];
const TEST_RCX: &[u8] = &[0x85, 0x01];
const VZEROUPPER: &[u8] = &[0xc5, 0xf8, 0x77];

const POLLS: [&[&[u8]]; 7] = [
    &[],
    &[CMP_SHORT, JA],
    &[CMP_LONG, JA],
    &[LOAD_R10, TEST_R10],
    &[TEST_RIP],
    &[MOV_R10, TEST_R10],
    &[LOAD_RCX, TEST_RCX],
];

/// The bytes around `pc` of some code, with another method's instructions before and behind it.
fn around(code: &[u8], pc: usize) -> [u64; CODE_WORDS] {
    let filler = |from: usize| (0..CODE_BYTES).map(move |at| BODY[(at + from) % BODY.len()]);
    let all: Vec<u8> = filler(0).chain(code.iter().copied()).chain(filler(3)).collect();
    let start = CODE_BYTES + pc - CODE_BEFORE;
    let mut words = [0; CODE_WORDS];
    for (word, bytes) in words.iter_mut().zip(all[start..start + CODE_BYTES].chunks_exact(8)) {
        *word = u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
    }
    words
}

/// `complete`: whether the prologue ends with the last instruction, or has ended before the first
/// one.
fn check(bytes: u64, complete: bool, steps: &[Step]) {
    let code: Vec<u8> = steps.iter().flat_map(|(instruction, _)| instruction.iter().copied()).collect();
    let mut pc = 0;
    for (instruction, state) in steps {
        let left = if complete { 0 } else { code.len() - pc };
        let found = layout(&around(&code, pc), left as u64, bytes);
        assert_eq!(found, *state, "frame of {bytes} bytes, at {instruction:02x?} of {steps:02x?}");
        let is_told = left > 0 || found == built(bytes) || may_be_unbuilt(&around(&code, pc));
        assert!(is_told, "at {instruction:02x?} of {steps:02x?}");
        pc += instruction.len();
    }
    if !complete {
        assert_eq!(layout(&around(&code, pc), 0, bytes), built(bytes), "behind {steps:02x?}");
    }
}

#[test]
fn code_that_is_passed_over_quickly_has_a_built_frame() {
    // Every instruction that is looked for, at random places.
    let known: Vec<&[u8]> =
        [PUSH, MOV_RBP_RSP, SUB_20, ADD_20, POP, RET, CMP_SHORT, JA, LOAD_R10, TEST_R10, TEST_RIP]
            .into_iter()
            .chain([LOAD_RCX, TEST_RCX, VZEROUPPER])
            .chain([
                BANG,
                MOV_R10,
                &[0x4d, 0x89, 0x97, 0x80, 0x03, 0, 0],
                &[0xe9, 1, 2, 3, 4],
                &[0x4c, 0x8d, 0x15, 1, 0, 0, 0],
            ])
            .chain([&[0xc9, 0x49, 0x83, 0x7f, 0x08, 0][..], &[0xc9, 0x49, 0x81, 0x7f, 8, 0, 0, 0, 0], BODY])
            .collect();
    let mut state = 1u64;
    let mut random = move |limit: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % limit
    };
    let (mut passed, mut unbuilt) = (0, 0);
    for _ in 0..200_000 {
        let mut code: Vec<u8> = (0..random(8)).map(|_| random(256) as u8).collect();
        while code.len() < 2 * CODE_BYTES {
            code.extend_from_slice(known[random(known.len())]);
        }
        let code = around(&code, random(CODE_BYTES) + CODE_BEFORE);
        for bytes in [16, 0x30] {
            let is_built = layout(&code, 0, bytes) == built(bytes);
            assert!(is_built || may_be_unbuilt(&code), "{bytes}: {code:016x?}");
            passed += usize::from(!may_be_unbuilt(&code));
            unbuilt += usize::from(!is_built);
        }
    }
    assert!(passed > 10_000 && unbuilt > 10_000, "{passed} passed over, {unbuilt} not built");
}

#[test]
fn an_on_stack_replacement_of_c1_has_a_second_prologue() {
    for (bytes, sub) in [(0x30, SUB_20), (0x120, SUB_110)] {
        let rest = [(BODY, built(bytes)), (RET, ENTRY)];
        let bare = [(BANG, ENTRY), (PUSH, ENTRY), (sub, PUSHED)];
        check(bytes, true, &[&bare[..], &rest].concat());
        check(bytes, true, &[&[(BANG, ENTRY), (BANG, ENTRY)], &bare[..], &rest].concat());
        let kept = [(BODY, built(bytes)), (BANG, ENTRY), (PUSH, ENTRY), (MOV_RBP_RSP, PUSHED), (sub, PUSHED)];
        check(bytes, true, &[&kept[..], &rest].concat());
    }
    // Of another size it is no prologue of this method.
    check(0x40, true, &[(BANG, built(0x40)), (PUSH, built(0x40)), (SUB_20, built(0x40))]);
}

#[test]
fn graal_takes_its_frame_off_at_once() {
    // mov rbp, [rsp + SIZE - 16]; add rsp, SIZE - 8
    const LOAD_20: &[u8] = &[0x48, 0x8b, 0x6c, 0x24, 0x20];
    const ADD_28: &[u8] = &[0x48, 0x83, 0xc4, 0x28];
    const LOAD_110: &[u8] = &[0x48, 0x8b, 0xac, 0x24, 0x10, 0x01, 0x00, 0x00];
    const ADD_118: &[u8] = &[0x48, 0x81, 0xc4, 0x18, 0x01, 0x00, 0x00];
    const LOAD_0: &[u8] = &[0x48, 0x8b, 0x2c, 0x24];
    const ADD_8: &[u8] = &[0x48, 0x83, 0xc4, 0x08];
    for (bytes, load, add) in [(0x10, LOAD_0, ADD_8), (0x30, LOAD_20, ADD_28), (0x120, LOAD_110, ADD_118)] {
        for poll in POLLS {
            let begin: [Step; 3] = [(BODY, built(bytes)), (load, built(bytes)), (add, built(bytes))];
            let end = poll.iter().map(|instruction| (*instruction, ENTRY));
            let end: Vec<Step> =
                end.chain([(VZEROUPPER, ENTRY), (RET, ENTRY), (BODY, built(bytes))]).collect();
            check(bytes, true, &[&begin[..], &end].concat());
        }
    }
}

#[test]
fn an_index_that_looks_like_a_return_is_none() {
    // test [rbx + rax * 8], eax; test [r11 + r8 * 8], eax
    for test in [&[0x85, 0x04, 0xc3][..], &[0x43, 0x85, 0x04, 0xc3], &[0x41, 0x85, 0x04, 0xc3]] {
        let code = [BODY, test, BODY].concat();
        for bytes in [0x10, 0x30] {
            assert_eq!(layout(&around(&code, BODY.len()), 0, bytes), built(bytes), "{test:02x?}");
        }
    }
}

/// The shape of a method that begins with these instructions.
fn shape(instructions: &[&[u8]], bytes: u64) -> PrologueShape {
    let code = around(&instructions.concat(), CODE_BEFORE);
    prologue::shape(&Code(code), bytes)
}

#[test]
fn a_frame_without_a_place_for_rbp_is_told_by_its_prologue() {
    const SUB_28: &[u8] = &[0x48, 0x83, 0xec, 0x28];
    let of = |bytes, instructions: &[&[u8]]| shape(instructions, bytes);
    let told = |built, saves_rbp| PrologueShape::Frame { built, saves_rbp };
    assert_eq!(of(0x30, &[SUB_28, STORE_20]), told(9, true));
    assert_eq!(of(0x30, &[BANG, SUB_28, STORE_20, BODY]), told(16, true));
    assert_eq!(of(0x30, &[BANG, BANG, SUB_28_LONG, BARRIER, BARRIER_JNE, STORE_20]), told(40, true));
    assert_eq!(of(0x120, &[SUB_118_LONG, STORE_110]), told(15, true));
    assert_eq!(of(0x10, &[SUB_8_LONG, STORE_0]), told(11, true));
    assert_eq!(of(0x30, &[BANG, SUB_28, BODY]), told(11, false));
    // Of other prologues, and of a frame of another size, nothing is told.
    for other in
        [&[PUSH, SUB_20][..], &[BANG, PUSH, MOV_RBP_RSP, SUB_20], &[BODY], &[SUB_118_LONG, STORE_110]]
    {
        assert_eq!(of(0x30, other), PrologueShape::Unknown, "{other:02x?}");
    }
}

#[test]
fn code_that_begins_with_a_long_nop_and_builds_nothing_has_no_frame() {
    const NOP: &[u8] = &[0x0f, 0x1f, 0x44, 0x00, 0x00];
    const SUB_8: &[u8] = &[0x48, 0x83, 0xec, 0x08];
    let of = |instructions: &[&[u8]]| shape(instructions, 0x10);
    assert_eq!(of(&[NOP, BODY]), PrologueShape::NoFrame);
    assert_eq!(of(&[NOP, LOAD_RCX, TEST_RCX, VZEROUPPER, RET]), PrologueShape::NoFrame);
    assert_eq!(of(&[NOP, PUSH, MOV_RBP_RSP]), PrologueShape::Unknown);
    assert_eq!(of(&[NOP, SUB_8, STORE_0]), PrologueShape::Frame { built: 13, saves_rbp: true });
    assert_eq!(of(&[BANG, NOP, BODY]), PrologueShape::Unknown);
}

#[test]
fn prologues_that_push_first() {
    for (bytes, sub) in [(0x30, SUB_20), (0x120, SUB_110)] {
        let whole = built(bytes);
        check(bytes, false, &[(PUSH, ENTRY), (sub, PUSHED)]);
        check(bytes, false, &[(BANG, ENTRY), (PUSH, ENTRY), (sub, PUSHED)]);
        check(bytes, false, &[(BANG, ENTRY), (PUSH, ENTRY), (MOV_RBP_RSP, PUSHED), (sub, PUSHED)]);
        let barrier: [Step; 2] = [(BARRIER, whole), (BARRIER_JNE, whole)];
        check(bytes, false, &[&[(BANG, ENTRY), (PUSH, ENTRY), (sub, PUSHED)], &barrier[..]].concat());
    }
}

#[test]
fn prologues_that_store_later() {
    for (bytes, sub, store) in [(0x30, SUB_28_LONG, STORE_20), (0x120, SUB_118_LONG, STORE_110)] {
        let moved = FrameLayout::new(bytes - 8, SavedRbp::InRegister);
        check(bytes, false, &[(sub, ENTRY), (store, moved)]);
        let whole = built(bytes);
        check(bytes, false, &[(sub, ENTRY), (store, moved), (BARRIER, whole), (BARRIER_JNE, whole)]);
    }
}

#[test]
fn prologues_of_frames_that_hold_nothing_but_rbp() {
    check(16, false, &[(PUSH, ENTRY)]);
    let whole = built(16);
    check(16, false, &[(BANG, ENTRY), (PUSH, ENTRY), (BARRIER, whole), (BARRIER_JNE, whole)]);
    let moved = FrameLayout::new(8, SavedRbp::InRegister);
    check(16, false, &[(SUB_8_LONG, ENTRY), (STORE_0, moved), (BARRIER, whole), (BARRIER_JNE, whole)]);
}

#[test]
fn epilogues_with_every_poll() {
    for poll in POLLS {
        let behind: Vec<Step> = poll.iter().chain([&RET]).map(|it| (*it, ENTRY)).collect();
        for (bytes, add) in [(0x30, ADD_20), (0x120, ADD_110)] {
            let epilogue: [Step; 2] = [(add, built(bytes)), (POP, PUSHED)];
            check(bytes, true, &[&epilogue[..], &behind].concat());
        }
        check(16, true, &[&[(POP, built(16))][..], &behind].concat());
    }
}

/// `MacroAssembler::reserved_stack_check`, which ends far behind the `pop rbp`.
#[test]
fn epilogues_that_check_the_reserved_zone() {
    // cmp rsp, [r15 + 0x3b8]; jb; as much code as enables the zone; then poll and ret.
    const CMP: &[u8] = &[0x49, 0x3b, 0xa7, 0xb8, 0x03, 0x00, 0x00];
    for (bytes, add) in [(0x30, ADD_20), (0x120, ADD_110)] {
        for poll in &POLLS[..3] {
            let head = [(add, built(bytes)), (POP, PUSHED), (CMP, ENTRY)];
            check(bytes, true, &head);
            let behind: Vec<Step> = poll.iter().chain([&RET]).map(|it| (*it, ENTRY)).collect();
            check(bytes, true, &behind);
            check(16, true, &behind);
        }
    }
}

#[test]
fn wrappers_that_check_something_before_they_have_a_frame() {
    // The identity hash of an object whose header has it: cmp, jne, mov, test, je, shr, and, je,
    // ret.
    const CHECKS: [&[u8]; 9] = [
        &[0x48, 0x83, 0xfe, 0x00],
        &[0x0f, 0x85, 0x04, 0x00, 0x00, 0x00],
        &[0x48, 0x8b, 0x06],
        &[0x48, 0xf7, 0xc0, 0x01, 0x00, 0x00, 0x00],
        &[0x0f, 0x84, 0x12, 0x00, 0x00, 0x00],
        &[0x48, 0xc1, 0xe8, 0x08],
        &[0x48, 0x81, 0xe0, 0xff, 0xff, 0xff, 0x7f],
        &[0x0f, 0x84, 0x01, 0x00, 0x00, 0x00],
        RET,
    ];
    let mut steps: Vec<Step> = CHECKS.map(|check| (check, ENTRY)).into();
    steps.extend([(BANG, ENTRY), (PUSH, ENTRY), (MOV_RBP_RSP, PUSHED), (SUB_20, PUSHED)]);
    steps.extend([(BARRIER, built(0x30)), (BARRIER_JNE, built(0x30))]);
    check(0x30, false, &steps);
}

#[test]
fn native_wrappers_end_with_leave() {
    const LEAVE: &[u8] = &[0xc9];
    const CMP: &[u8] = &[0x49, 0x81, 0x7f, 0x08, 0x00, 0x00, 0x00, 0x00];
    const JNE: &[u8] = &[0x0f, 0x85, 0x01, 0x00, 0x00, 0x00];
    const CMP_8: &[u8] = &[0x49, 0x83, 0x7f, 0x08, 0x00];
    const JMP: &[u8] = &[0xe9, 0x0f, 0x76, 0xe1, 0xff];
    const TEST_POLL: &[u8] = &[0x41, 0xf6, 0x47, 0x28, 0x01];
    const JE: &[u8] = &[0x74, 0x16];
    const SAVE_R10: &[u8] = &[0x4d, 0x89, 0x97, 0x38, 0x05, 0x00, 0x00];
    let polls: [&[&[u8]]; 2] = [&[], &[TEST_POLL, JE, MOV_R10, SAVE_R10, JMP]];
    for poll in polls {
        for cmp in [CMP_8, CMP] {
            // No JDK has the poll and the longer comparison.
            if poll.is_empty() || cmp == CMP_8 {
                let mut steps: Vec<Step> = vec![(LEAVE, built(0x50))];
                steps.extend(poll.iter().chain(&[cmp, JNE, RET, JMP]).map(|it| (*it, ENTRY)));
                check(0x50, true, &steps);
            }
        }
    }
}

#[test]
fn stubs_of_polls_at_returns_are_behind_the_frame() {
    const LEA: &[u8] = &[0x4c, 0x8d, 0x15, 0x70, 0xff, 0xff, 0xff];
    const MOV: &[u8] = &[0x49, 0xba, 0xa6, 0xc8, 0x70, 0x88, 0x78, 0x7f, 0x00, 0x00];
    const STORE: &[u8] = &[0x4d, 0x89, 0x97, 0x68, 0x04, 0x00, 0x00];
    const JMP: &[u8] = &[0xe9, 0x00, 0x11, 0x22, 0xff];
    for bytes in [16, 0x30, 0x120] {
        check(bytes, true, &[(LEA, ENTRY), (STORE, ENTRY), (JMP, ENTRY)]);
        check(bytes, true, &[(MOV, ENTRY), (STORE, ENTRY), (JMP, ENTRY)]);
    }
}

#[test]
fn bodies_that_look_like_frame_code_of_another_size() {
    // add rsp and pop rbp of an inner use of the stack, with another immediate.
    for bytes in [0x40, 0x140] {
        let whole = built(bytes);
        check(bytes, true, &[(ADD_20, whole), (POP, whole), (RET, ENTRY)]);
        check(bytes, true, &[(SUB_20, whole), (STORE_20, whole), (BODY, whole)]);
    }
}

#[test]
fn layouts_survive_being_words() {
    for return_address in [0, 8, 16, 0x28, 1 << 20] {
        for rbp in [SavedRbp::InRegister, SavedRbp::AtSp(0), SavedRbp::AtSp(return_address)] {
            let layout = FrameLayout::new(return_address, rbp);
            assert_eq!((layout.return_address(), layout.saved_rbp()), (return_address, rbp));
            assert_eq!(FrameLayout::from_bits(layout.to_bits()), layout);
            assert_eq!(Option::<FrameLayout>::from_scalar(Some(layout).to_scalar()), Some(layout));
            let in_register = FrameLayout::new(return_address, SavedRbp::InRegister);
            assert_eq!(layout.with_rbp_in_register(u64::MAX), in_register);
            assert_eq!(layout.with_rbp_in_register(0), layout);
        }
    }
    assert_eq!(Option::<FrameLayout>::from_scalar(None::<FrameLayout>.to_scalar()), None);
}

#[test]
fn a_search_in_strings_is_seen_at_each_byte_and_nothing_else_is_one() {
    // pcmpestri xmm0, [rbx], 0xc and vpcmpestri xmm0, [rbx], 0xc
    let searches: [&[u8]; 2] = [&[0x66, 0x0f, 0x3a, 0x61, 0x03, 0x0c], &[0xc4, 0xe3, 0x79, 0x61, 0x03, 0x0c]];
    for search in searches {
        let code: Vec<u8> = BODY.iter().chain(search).chain(BODY).copied().collect();
        for pc in 0..code.len() {
            assert!(has_pcmpestri(&around(&code, pc)), "{pc}");
        }
    }
    assert!(!has_pcmpestri(&around(BODY, 0)));
    assert!(!has_pcmpestri(&around(&[0x66, 0x0f, 0x61, 0xc1], 2)), "punpcklwd");
}
