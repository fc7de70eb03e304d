//! Where the frames of a chunk begin while the JVM is bringing them back, over memory as it leaves
//! it.
#![allow(clippy::expect_used, reason = "a test ends by its first surprise")]

#[macro_use]
#[path = "support/mod.rs"]
mod support;

use std::collections::BTreeMap;

use jvmprof_common::abi::Stop;
use jvmprof_common::address::{Avma, StackAddress};
use jvmprof_common::frame::FrameWord;
use jvmprof_common::jvm::{Jvm, JvmLayout, StackChunkLayout};
use jvmprof_common::rows::Register;
use jvmprof_common::unwind::hotspot::EncodedFrame;
use jvmprof_common::unwind::hotspot::continuation::stack_chunk::FrozenWalk;
use jvmprof_common::unwind::hotspot::continuation::{frozen_frames, return_barrier, thawing};
use jvmprof_common::unwind::{Cursor, Memory};

fn caller(pc: u64, sp: u64, fp: u64) -> Cursor {
    Cursor { exact: false, ..Cursor::interrupted(pc, sp, fp) }
}

/// Words by address.
struct Words(BTreeMap<u64, u64>);

impl Memory for Words {
    fn read_u64(&mut self, StackAddress(address): StackAddress) -> Option<u64> {
        let word = |address| self.0.get(&address).copied();
        // Fields of 32 bits lie two in a word.
        word(address).or_else(|| word(address & !7).map(|word| word >> (address % 8 * 8)))
    }
}

target_over_memory!(Words);

const KLASS: u64 = 0x1234_5678;
const CHUNK: u64 = 0x7_0000_0000;
/// Fields of the chunk, and where its words begin.
const KLASS_AT: u16 = 8;
const SIZE: u16 = 16;
const SP: u16 = 20;
const BOTTOM: u16 = 24;
const LEFT: u16 = 28;
const STACK: u16 = 64;
const WORDS: u64 = 100;
const ENTRY: u64 = 0x7f00_0000_8000;
const ENTRY_BYTES: u16 = 64;
/// Beside what the chunk has to bring the room has four words.
const EXTRA: u64 = 4;
const COMPILED: u64 = 0x7f11_0010_0000;
const INTERPRETED: u64 = 0x7f11_0000_1000;
const RETURN: u64 = 0x7f11_0020_0000;

fn jvm(return_pc: u64, says_left: bool) -> Jvm {
    let chunks = StackChunkLayout {
        klass: KLASS,
        klass_mask: u64::from(u32::MAX),
        klass_at: KLASS_AT,
        size: SIZE,
        sp: SP,
        bottom: BOTTOM,
        max_thawing: if says_left { LEFT } else { 0 },
        stack: STACK,
        ..StackChunkLayout::default()
    };
    let layout = JvmLayout { cont_entry_bytes: ENTRY_BYTES, interpreter_bcp_slot: 8, ..JvmLayout::default() };
    Jvm {
        code_start: 0x7f11_0000_0000,
        code_end: 0x7f11_1000_0000,
        interpreter_start: 0x7f11_0000_0000,
        interpreter_end: 0x7f11_0001_0000,
        cont_entry_return_pc: return_pc,
        layout,
        chunks,
        ..Jvm::default()
    }
}

fn at(index: u64) -> u64 {
    CHUNK + u64::from(STACK) + index * 8
}

/// A chunk whose frames begin at a word, and of which that much is left.
fn chunk(sp: u64, left: u64) -> Words {
    let fields = [
        (u64::from(KLASS_AT), KLASS),
        (u64::from(SIZE), WORDS | sp << 32),
        (u64::from(BOTTOM), WORDS | left << 32),
    ];
    let mut words: BTreeMap<u64, u64> = (0..WORDS).map(|index| (at(index), 0)).collect();
    words.extend(fields.map(|(offset, word)| (CHUNK + offset, word)));
    Words(words)
}

/// A frame that a compiled method calls begins at this word.
fn compiled(words: &mut Words, sp: u64) {
    words.0.insert(at(sp - 1), COMPILED + sp);
    words.0.insert(at(sp - 2), 0xf000 + sp);
}

fn arrive(words: &mut Words, jvm: &Jvm, room: u64) -> (Result<Cursor, Stop>, FrozenWalk) {
    let mut frozen = FrozenWalk { entry: StackAddress(ENTRY), thaw_words: room, ..FrozenWalk::default() };
    let mut cursor = Cursor::default();
    let arrived = frozen_frames::enter_chunk(
        &mut cursor,
        words,
        jvm,
        &mut frozen,
        Avma(CHUNK),
        &mut EncodedFrame::default(),
    );
    (arrived.map(|_| cursor), frozen)
}

#[test]
fn what_is_not_being_brought_back_begins_where_the_chunk_says() {
    for (room, left) in [(0, 0), (40 + EXTRA, 40), (40 + EXTRA, 39)] {
        let mut words = chunk(60, left);
        compiled(&mut words, 60);
        let (cursor, frozen) = arrive(&mut words, &jvm(RETURN, true), room);
        let expected = caller(COMPILED + 60, at(60), 0xf000 + 60);
        assert_eq!(cursor, Ok(expected), "room {room}, left {left}");
        assert_eq!((frozen.chunk.0, frozen.end.0, frozen.thawed_until.0), (CHUNK, at(WORDS), 0));
    }
}

/// The chunk counts more than its words: interpreted frames may be aligned once they are on a
/// stack.
#[test]
fn a_chunk_that_counts_more_than_its_words_has_lost_none() {
    let mut words = chunk(60, 46);
    compiled(&mut words, 60);
    let (cursor, frozen) = arrive(&mut words, &jvm(RETURN, true), 46 + EXTRA);
    assert_eq!(cursor.map(|cursor| cursor.sp.0), Ok(at(60)));
    assert_eq!(frozen.thawed_until.0, 0);
}

#[test]
fn compiled_frames_that_were_taken_off_lie_before_the_others() {
    for (says_left, left) in [(true, 30), (false, 0)] {
        let mut words = chunk(70, left);
        compiled(&mut words, 60);
        let (cursor, frozen) = arrive(&mut words, &jvm(RETURN, says_left), 40 + EXTRA);
        assert_eq!(cursor.map(|cursor| (cursor.pc.0, cursor.sp.0)), Ok((COMPILED + 60, at(60))));
        assert_eq!((frozen.thawed_until.0, frozen.end.0), (at(70), at(WORDS)));
    }
}

/// Distances in an interpreted frame count from its frame pointer.
fn interpreted(words: &mut Words, fp: u64, last_sp: u64, sender_sp: u64, callee_locals: u64) {
    words.0.insert(at(fp - 1), sender_sp);
    words.0.insert(at(fp - 2), last_sp.wrapping_sub(fp));
    let sp = last_sp - callee_locals;
    words.0.insert(at(sp - 1), INTERPRETED);
    words.0.insert(at(sp - 2), fp - (sp - 2));
}

#[test]
fn an_interpreted_frame_that_was_taken_off_is_found_by_what_it_says_of_itself() {
    // From word 50 to word 72: 22 words, and those before are its callee's locals.
    for (left, callee_locals) in [(30, 0), (30, 3), (29, 3)] {
        let mut words = chunk(70, left);
        interpreted(&mut words, 68, 50, 4, callee_locals);
        let (cursor, frozen) = arrive(&mut words, &jvm(RETURN, true), 52 + EXTRA);
        let expected = caller(INTERPRETED, at(50 - callee_locals), at(68));
        assert_eq!(cursor, Ok(expected), "left {left}, {callee_locals} locals");
        assert_eq!((frozen.chunk.0, frozen.end.0, frozen.thawed_until.0), (CHUNK, at(WORDS), 0));
    }
}

#[test]
fn an_interpreted_frame_of_another_length_is_not_believed() {
    let mut words = chunk(70, 30);
    interpreted(&mut words, 68, 46, 4, 0);
    let (cursor, _) = arrive(&mut words, &jvm(RETURN, true), 52 + EXTRA);
    assert_eq!(cursor, Err(Stop::Frozen));
}

#[test]
fn counts_that_cannot_be_end_the_stack() {
    // More left than there was, more taken off than there is room for.
    for (sp, left, room) in [(60, 60, 40 + EXTRA), (20, 10, 80 + EXTRA), (60, 40, 2)] {
        let (cursor, _) = arrive(&mut chunk(sp, left), &jvm(RETURN, true), room);
        assert_eq!(cursor, Err(Stop::Frozen), "{sp} {left} {room}");
    }
}

#[test]
fn behind_the_last_chunk_is_the_entry_or_its_caller_where_its_code_is_not_known_yet() {
    let above = ENTRY + u64::from(ENTRY_BYTES);
    let mut words = Words(BTreeMap::from([(above, 0x7f00_0000_9000), (above + 8, COMPILED)]));
    let leave = |words: &mut Words, return_pc: u64| {
        let mut frozen = FrozenWalk { entry: StackAddress(ENTRY), ..FrozenWalk::default() };
        let (mut cursor, mut frame) = (Cursor::default(), EncodedFrame::default());
        let jvm = jvm(return_pc, true);
        let has_left = frozen_frames::enter_chunk(&mut cursor, words, &jvm, &mut frozen, Avma(0), &mut frame);
        assert_eq!(frozen.entry.0, 0);
        (has_left, cursor, frame.words[0], frame.count)
    };
    let (has_left, cursor, ..) = leave(&mut words, RETURN);
    assert_eq!(has_left, Ok(false));
    assert_eq!(cursor, caller(RETURN, ENTRY, above));
    let (has_left, cursor, first, count) = leave(&mut words, 0);
    assert_eq!((has_left, first, count), (Ok(true), FrameWord::ENTER_SPECIAL.0, 2));
    assert_eq!(cursor, caller(COMPILED, above + 16, 0x7f00_0000_9000));
    words.0.remove(&(above + 8));
    assert_eq!(leave(&mut words, 0).0, Err(Stop::Frozen));
}

const CONTINUATION: u64 = 0x7_1000_0000;
const TAIL: u16 = 16;
const STUB: u64 = 0x7f11_0030_0000;

/// A thread whose entry leads to a chunk, in the stubs, of which these bytes are so far behind the
/// pc.
fn in_stubs(code: u64, behind: u64) -> (Words, Jvm) {
    let mut words = chunk(60, 40);
    let above = ENTRY + u64::from(ENTRY_BYTES);
    words.0.extend((0..32).map(|index| (ENTRY - 64 + index * 8, 0)));
    words.0.extend([(ENTRY + 8, CONTINUATION), (CONTINUATION + u64::from(TAIL), CHUNK)]);
    words.0.extend([(CONTINUATION + u64::from(KLASS_AT), KLASS + 8), (above + 8, COMPILED)]);
    // As unaligned as it is.
    words.0.extend((0..32).map(|back| (STUB - back, 0x9090_9090_9090_9090)));
    words.0.insert(STUB - behind, code);
    let jvm = jvm(RETURN, true);
    (words, Jvm { chunks: StackChunkLayout { cont_tail: TAIL, ..jvm.chunks }, ..jvm })
}

const MOV_RSP_ENTRY: u64 = 0xa7_8b49;
const POP_RCX_MOV_RDI_R15: u64 = 0xff8b_4959;

#[test]
fn a_barrier_that_was_interrupted_early_leads_to_the_chunk() {
    // How far behind its first instruction, and what it keeps on the stack there.
    for (behind, kept) in [(0, 0), (7, 0), (8, 8), (12, 24), (17, 24)] {
        let (mut words, jvm) = in_stubs(MOV_RSP_ENTRY, behind);
        let mut frozen = FrozenWalk { thaw_words: 7, thawed_until: StackAddress(7), ..FrozenWalk::default() };
        let cursor = Cursor::interrupted(STUB, ENTRY - kept, 0);
        assert_eq!(
            frozen_frames::enter(&cursor, &mut words, &jvm, &mut frozen),
            Ok(Avma(CHUNK)),
            "{behind} bytes"
        );
        assert_eq!((frozen.entry.0, frozen.thaw_words, frozen.thawed_until.0), (ENTRY, 0, 0));
    }
}

#[test]
fn a_thread_that_continues_has_its_carriers_stack_until_its_frames_are_there() {
    let (mut words, jvm) = in_stubs(POP_RCX_MOV_RDI_R15, 1);
    let mut frozen = FrozenWalk::default();
    let cursor = Cursor::interrupted(STUB, ENTRY, 0);
    assert_eq!(frozen_frames::enter(&cursor, &mut words, &jvm, &mut frozen), Ok(Avma(0)));
    assert_eq!(frozen.entry.0, ENTRY);
}

/// Puts code there, so that a word can be read at each byte.
fn write_code(words: &mut Words, begin: u64, code: &[u8]) {
    let padded: Vec<u8> = code.iter().copied().chain([0x90; 8]).collect();
    for (offset, bytes) in padded.windows(8).enumerate() {
        let word = u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
        words.0.insert(begin + offset as u64, word);
    }
}

const MOV_RBX_RAX: [u8; 3] = [0x48, 0x8b, 0xd8];
/// `movsd xmm0, [rsp]; add rsp, 16; pop rax`
const TAKE_BACK: [u8; 10] = [0xf2, 0x0f, 0x10, 0x04, 0x24, 0x48, 0x83, 0xc4, 0x10, 0x58];
/// `test rbx, rbx; jne; jmp; sub rsp, rbx; and rsp, -16`
const ALLOCATE: [u8; 17] =
    [0x48, 0x85, 0xdb, 0x75, 5, 0xe9, 1, 2, 3, 4, 0x48, 0x2b, 0xe3, 0x48, 0x83, 0xe4, 0xf0];

#[test]
fn only_a_thread_that_continues_has_no_frames_while_its_stack_pointer_is_at_the_entry() {
    let continues = [&MOV_RBX_RAX[..], &ALLOCATE].concat();
    // The barrier's stack pointer is there, too: its callers are in the chunk.
    let barrier = [&MOV_RBX_RAX[..], &TAKE_BACK, &ALLOCATE].concat();
    for (code, offsets, expected) in
        [(continues, &[0, 3, 6, 13][..], Ok(Avma(0))), (barrier, &[13, 16, 23][..], Err(Stop::Frozen))]
    {
        for offset in offsets {
            let (mut words, jvm) = in_stubs(0, 8);
            write_code(&mut words, STUB, &code);
            let cursor = Cursor::interrupted(STUB + offset, ENTRY, 0);
            let chunk = frozen_frames::enter(&cursor, &mut words, &jvm, &mut FrozenWalk::default());
            assert_eq!(chunk, expected, "{offset} bytes");
        }
    }
}

const DO_YIELD: u64 = 0x7f11_0040_0000;
/// Where a call of `doYield` returns to.
const YIELDED: u64 = 0x7f11_0050_0010;

/// Frames that `doYield` froze begin at word 60. The chunk says that its own begin at `sp`.
/// `from_entry`: where `doYield` loads its stack pointer.
fn yielded(sp: u64, left: u64, from_entry: u64) -> (Words, Jvm) {
    let (mut words, jvm) = in_stubs(0, 8);
    let fields = [(SIZE, WORDS | sp << 32), (BOTTOM, WORDS | left << 32)];
    words.0.extend(fields.map(|(field, word)| (CHUNK + u64::from(field), word)));
    // `call rel32`
    let distance = u64::from(DO_YIELD.wrapping_sub(YIELDED) as u32);
    words.0.extend([(YIELDED - 8, 0xe8 << 24 | distance << 32), (DO_YIELD + from_entry, MOV_RSP_ENTRY)]);
    words.0.extend([(at(59), YIELDED), (at(sp - 1), 2)]);
    words.0.insert(ENTRY + u64::from(ENTRY_BYTES) + 8, 0x7f11_0000_2000);
    (words, jvm)
}

fn ends_at_entry(words: &mut Words, jvm: &Jvm, room: u64, last: u64) -> bool {
    let begin = ENTRY - room * 8;
    words.0.extend([(begin - 8, 1), (ENTRY - 8, last)]);
    thawing::may_end_at_entry(words, jvm, StackAddress(begin), StackAddress(ENTRY))
}

/// The fast path empties the chunk, or takes a frame off it, before it copies.
#[test]
fn the_end_of_a_room_is_known_by_what_do_yield_froze() {
    // All of a chunk, with `vzeroupper` and without it; one frame of ten words.
    for (sp, left, from_entry) in [(WORDS, 0, 130), (WORDS, 0, 124), (70, 30, 130)] {
        let (mut words, jvm) = yielded(sp, left, from_entry);
        for (room, last, expected) in [
            (40 + EXTRA, 2, true),
            (40 + EXTRA, 3, false),
            (40 + EXTRA, COMPILED, false),
            (42 + EXTRA, 2, false),
            (38 + EXTRA, 2, false),
        ] {
            let ends = ends_at_entry(&mut words, &jvm, room, last);
            assert_eq!(ends, expected, "from {sp}, {from_entry}: {room} words, {last:#x}");
        }
    }
}

#[test]
fn what_another_method_left_in_a_chunk_is_no_end() {
    // Nothing there loads its stack pointer.
    let (mut words, jvm) = yielded(WORDS, 0, 126);
    assert!(!ends_at_entry(&mut words, &jvm, 40 + EXTRA, 2));
    // No direct call; no generated code.
    let (mut words, jvm) = yielded(WORDS, 0, 130);
    words.0.insert(YIELDED - 8, 0);
    assert!(!ends_at_entry(&mut words, &jvm, 40 + EXTRA, 2));
    words.0.insert(at(59), 0x1234_5678);
    assert!(!ends_at_entry(&mut words, &jvm, 40 + EXTRA, 2));
}

/// What was thawed refers to its continuation, too, and returns to generated code: it may look like
/// an entry.
#[test]
fn a_barrier_that_was_interrupted_elsewhere_has_no_entry() {
    for (code, behind) in [(MOV_RSP_ENTRY, 1), (0xc35d_10ec_8348_e38b, 1), (POP_RCX_MOV_RDI_R15 & 0xff, 1)] {
        let (mut words, jvm) = in_stubs(code, behind);
        let cursor = Cursor::interrupted(STUB, ENTRY, 0);
        assert_eq!(
            frozen_frames::enter(&cursor, &mut words, &jvm, &mut FrozenWalk::default()),
            Err(Stop::Frozen)
        );
    }
    let (mut words, jvm) = in_stubs(MOV_RSP_ENTRY, 7);
    let cursor = Cursor::interrupted(STUB, ENTRY - 64, 0);
    assert_eq!(
        frozen_frames::enter(&cursor, &mut words, &jvm, &mut FrozenWalk::default()),
        Err(Stop::Frozen)
    );
}

#[test]
fn the_last_instructions_of_the_stubs_go_to_what_was_thawed() {
    // `sub rsp, 16`, `pop rbp`, `ret`: where the stack pointer is at each.
    for (code, sp) in [(0xc35d_10ec_8348, 0x1010), (0xc35d, 0x1000), (0xaaaa_aac3, 0x1008)] {
        let mut words = Words(BTreeMap::from([(STUB, code), (0x1000, 0x2000), (0x1008, COMPILED)]));
        let mut cursor = Cursor::interrupted(STUB, sp, 0x2000);
        assert_eq!(return_barrier::step_thawed(&mut cursor, &mut words), Ok(()));
        assert_eq!(cursor, caller(COMPILED, 0x1010, 0x2000));
    }
    let mut words = Words(BTreeMap::from([(STUB, 0x50)]));
    let mut cursor = Cursor::interrupted(STUB, 0x1000, 0x2000);
    assert_eq!(return_barrier::step_thawed(&mut cursor, &mut words), Err(Stop::Frozen));
}

/// The room is searched for its entry: what looks like one before is of another age, and its counts
/// don't fit.
#[test]
fn the_end_of_a_room_is_told_by_the_counts_where_its_last_word_does_not() {
    let (mut words, jvm) = in_stubs(0, 8);
    words.0.insert(ENTRY + u64::from(ENTRY_BYTES) + 8, 0x7f11_0000_2000);
    for (room, expected) in [(40 + EXTRA, true), (42 + EXTRA, false), (38 + EXTRA, false)] {
        let begin = ENTRY - room * 8;
        words.0.extend([(begin - 8, 1), (ENTRY - 8, 2)]);
        assert_eq!(
            thawing::may_end_at_entry(&mut words, &jvm, StackAddress(begin), StackAddress(ENTRY)),
            expected,
            "{room} words"
        );
    }
}

/// The end of a stub at [`STUB`], with what it has brought at 0x1010, in a register.
struct End {
    code: Vec<u8>,
    register: Register,
}

impl Memory for End {
    fn read_u64(&mut self, StackAddress(address): StackAddress) -> Option<u64> {
        match address {
            0x1000 => return Some(0x2000),
            0x1008 => return Some(COMPILED),
            _ => {}
        }
        let from = usize::try_from(address.checked_sub(STUB)?).ok()?;
        let bytes: Vec<u8> = self.code.get(from..)?.iter().copied().chain([0x90; 8]).take(8).collect();
        Some(u64::from_le_bytes(bytes.try_into().ok()?))
    }

    fn register(&self, register: Register) -> Option<u64> {
        Some(if register == self.register { 0x1010 } else { 7 })
    }
}

target_over_memory!(End);

#[test]
fn what_was_thawed_is_in_a_register_until_the_stack_pointer_gets_it() {
    // mov rbx, rax; of the barrier: vmovsd xmm0, [rsp]; add rsp, 16; pop rax
    const FIRST: &[u8] = &[0x48, 0x8b, 0xd8];
    const KEPT: [&[u8]; 3] = [&[0xc5, 0xfb, 0x10, 0x04, 0x24], &[0x48, 0x83, 0xc4, 0x10], &[0x58]];
    const MOVE: &[u8] = &[0x48, 0x8b, 0xe3];
    const REST: &[u8] = &[0x48, 0x83, 0xec, 0x10, 0x5d, 0xc3];
    // test rbx, rbx: what follows the barrier's first call, which brings nothing.
    const OTHER: &[u8] = &[0x48, 0x85, 0xdb];
    let barrier = [&[FIRST][..], &KEPT, &[MOVE, REST]].concat();
    let check = |instructions: &[&[u8]], expected: bool| {
        let code = instructions.concat();
        let mut pc = 0;
        for (index, instruction) in instructions.iter().enumerate().take(instructions.len() - 1) {
            let register = if index == 0 { Register::RAX } else { Register::RBX };
            let mut cursor = Cursor::interrupted(STUB + pc as u64, 0x5000, 3);
            let stepped = return_barrier::step_thawed(&mut cursor, &mut End { code: code.clone(), register });
            let found = (stepped == Ok(())).then_some(cursor);
            let thawed = caller(COMPILED, 0x1010, 0x2000);
            assert_eq!(found, expected.then_some(thawed), "at {instruction:02x?} of {instructions:02x?}");
            pc += instruction.len();
        }
    };
    check(&barrier, true);
    check(&[FIRST, MOVE, REST], true);
    check(&[&[FIRST][..], &KEPT, &[OTHER, REST]].concat(), false);
}
