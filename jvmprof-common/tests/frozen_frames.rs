//! Begins of the frames of a chunk while the JVM is bringing them back, over memory as it leaves
//! it.
#![allow(clippy::expect_used, reason = "a test ends by its first surprise")]

#[macro_use]
#[path = "support/mod.rs"]
mod support;

use std::collections::BTreeMap;

use jvmprof_common::abi::Stop;
use jvmprof_common::address::{Avma, StackAddress};
use jvmprof_common::frame::FrameWord;
use jvmprof_common::jvm::{Jvm, JvmLayout, StackChunkLayout, ThawStub};
use jvmprof_common::rows::Register;
use jvmprof_common::unwind::hotspot::EncodedFrame;
use jvmprof_common::unwind::hotspot::continuation::stack_chunk::FrozenWalk;
use jvmprof_common::unwind::hotspot::continuation::{frozen_frames, thaw_stubs, thawing};
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
/// Where the stubs begin.
const STUBS: u64 = 0x7f11_0030_0000;
const CONTINUES: ThawStub = ThawStub { begin: 0, allocation: 55, thawed: 103, restore: 109 };
const BARRIER: ThawStub = ThawStub { begin: 118, allocation: 199, thawed: 257, restore: 270 };
const EXCEPTIONS: ThawStub = ThawStub { begin: 279, allocation: 360, thawed: 418, restore: 431 };

/// A thread whose entry leads to a chunk, and the registers of the interrupted frame.
struct Thread {
    words: Words,
    registers: Vec<(Register, u64)>,
}

impl Memory for Thread {
    fn read_u64(&mut self, address: StackAddress) -> Option<u64> {
        self.words.read_u64(address)
    }

    fn register(&self, register: Register) -> Option<u64> {
        self.registers.iter().find(|(known, _)| *known == register).map(|(_, value)| *value)
    }
}

target_over_memory!(Thread);

fn thread() -> (Thread, Jvm) {
    let mut words = chunk(60, 40);
    let above = ENTRY + u64::from(ENTRY_BYTES);
    words.0.extend((0..32).map(|index| (ENTRY - 64 + index * 8, 0)));
    words.0.extend([(ENTRY + 8, CONTINUATION), (CONTINUATION + u64::from(TAIL), CHUNK)]);
    words.0.extend([(CONTINUATION + u64::from(KLASS_AT), KLASS + 8), (above + 8, COMPILED)]);
    let jvm = jvm(RETURN, true);
    let jvm = Jvm {
        chunks: StackChunkLayout { cont_tail: TAIL, ..jvm.chunks },
        return_barrier_start: STUBS,
        return_barrier_end: STUBS + 500,
        thaw_stubs: [CONTINUES, BARRIER, EXCEPTIONS],
        ..jvm
    };
    (Thread { words, registers: Vec::new() }, jvm)
}

/// Enters the frames of a thread that was interrupted so many bytes behind [`STUBS`].
fn enter(thread: &mut Thread, jvm: &Jvm, offset: u16, sp: u64) -> (Result<Avma, Stop>, FrozenWalk) {
    let mut walk = FrozenWalk { thaw_words: 7, thawed_until: StackAddress(7), ..FrozenWalk::default() };
    let cursor = Cursor::interrupted(STUBS + u64::from(offset), sp, 0);
    let chunk = frozen_frames::enter(&cursor, thread, jvm, &mut walk);
    (chunk, walk)
}

#[test]
fn a_barrier_that_has_not_allocated_yet_leads_to_the_chunk() {
    // How far behind its first instruction, and what it keeps on the stack there.
    for (behind, kept) in [(0, 0), (7, 0), (8, 8), (12, 24), (17, 24), (52, 24), (71, 8), (72, 0), (81, 0)] {
        for stub in [BARRIER, EXCEPTIONS] {
            let (mut thread, jvm) = thread();
            let (entered, walk) = enter(&mut thread, &jvm, stub.begin + behind, ENTRY - kept);
            assert_eq!(entered, Ok(Avma(CHUNK)), "{behind} bytes");
            assert_eq!((walk.entry.0, walk.thaw_words, walk.thawed_until.0), (ENTRY, 0, 0));
        }
    }
}

#[test]
fn a_thread_that_continues_has_its_carriers_stack_until_its_frames_are_there() {
    // Its return address is on the stack until it is popped.
    for (offset, sp) in [(0, ENTRY - 8), (1, ENTRY), (9, ENTRY), (38, ENTRY), (41, ENTRY), (55, ENTRY)] {
        let (mut thread, jvm) = thread();
        let (entered, walk) = enter(&mut thread, &jvm, offset, sp);
        assert_eq!((entered, walk.entry.0), (Ok(Avma(0)), ENTRY), "{offset}");
    }
}

/// How much was allocated is in rbx, where the stack pointer may be aligned for it.
#[test]
fn the_entry_is_above_what_was_allocated_until_frames_are_copied() {
    const SUB: u16 = 3;
    const ALIGNED: u16 = 7;
    let barrier = [(SUB, None), (ALIGNED, Some(0)), (8, Some(8)), (12, Some(24)), (17, Some(24))];
    let calls = [(39, Some(32)), (53, Some(24))];
    let continues = [(SUB, None), (ALIGNED, Some(0)), (15, Some(0)), (43, Some(0))];
    let barriers = barrier.iter().chain(&calls).map(|place| (BARRIER, *place, CHUNK));
    for (stub, (behind, pushed), chunk) in
        barriers.chain(continues.iter().map(|place| (CONTINUES, *place, 0)))
    {
        for bytes in [96, 104] {
            let (mut thread, jvm) = thread();
            thread.registers.push((Register::RBX, bytes));
            let sp = pushed.map_or(ENTRY - bytes, |pushed| (ENTRY - bytes) / 16 * 16 - pushed);
            let (entered, walk) = enter(&mut thread, &jvm, stub.allocation + behind, sp);
            assert_eq!((entered, walk.entry.0), (Ok(Avma(chunk)), ENTRY), "{behind} bytes, {bytes}");
            assert_eq!(walk.thaw_words, 0);
        }
    }
}

/// What was thawed refers to its continuation, too, and returns to generated code: it may look like
/// an entry.
#[test]
fn once_frames_are_copied_the_entry_is_not_looked_for() {
    for stub in [CONTINUES, BARRIER, EXCEPTIONS] {
        for offset in [stub.thawed - 14, stub.thawed - 10, stub.thawed, stub.restore, stub.restore + 8] {
            let (mut thread, jvm) = thread();
            thread.registers.push((Register::RBX, 96));
            for sp in [ENTRY, ENTRY - 96] {
                assert_eq!(enter(&mut thread, &jvm, offset, sp).0, Err(Stop::Frozen), "{offset}");
            }
        }
    }
    let (mut thread, jvm) = thread();
    assert_eq!(enter(&mut thread, &jvm, BARRIER.begin + 7, ENTRY - 64).0, Err(Stop::Frozen));
    let unknown = Jvm { thaw_stubs: Default::default(), ..jvm };
    assert_eq!(enter(&mut thread, &unknown, BARRIER.begin + 7, ENTRY).0, Err(Stop::Frozen));
}

/// The JVM has frozen the frames of a thread that waits for a monitor: they are above its stack
/// pointer, too, and the lowest one returns to where it was entered.
#[test]
fn a_thread_that_was_preempted_at_a_monitor_has_its_frames_in_the_chunk() {
    for below in [64, 56, 16] {
        let (mut thread, jvm) = thread();
        let entered_from = ENTRY + u64::from(ENTRY_BYTES) + 8;
        thread.words.0.extend([(entered_from, 0x7f11_0000_2000), (ENTRY - 8, RETURN)]);
        let mut walk = FrozenWalk { thaw_words: 7, thawed_until: StackAddress(7), ..FrozenWalk::default() };
        let stub = STUBS + u64::from(EXCEPTIONS.restore) + 33;
        let entered = frozen_frames::enter(&caller(stub, ENTRY - below, 0), &mut thread, &jvm, &mut walk);
        assert_eq!((entered, walk.entry.0, walk.thaw_words), (Ok(Avma(CHUNK)), ENTRY, 0), "{below}");
        thread.words.0.insert(ENTRY - 8, COMPILED);
        let entered = frozen_frames::enter(&caller(stub, ENTRY - below, 0), &mut thread, &jvm, &mut walk);
        assert_eq!(entered, Err(Stop::Frozen), "{below}: the lowest frame returns elsewhere");
    }
}

/// The stack pointer of the frames that were thawed.
const THAWED: u64 = 0x7f00_0000_1010;

/// Leaves a stub whose last instructions are these.
fn leave(offset: u16, sp: u64, fp: u64, end: u64) -> Result<Cursor, Stop> {
    let (mut thread, jvm) = thread();
    thread.words.0.extend([(THAWED - 16, 0x2000), (THAWED - 8, COMPILED)]);
    thread
        .words
        .0
        .extend([CONTINUES, BARRIER, EXCEPTIONS].map(|stub| (STUBS + u64::from(stub.restore) + 3, end)));
    let in_rax = [CONTINUES, BARRIER, EXCEPTIONS]
        .iter()
        .any(|stub| offset <= stub.thawed && offset + 14 >= stub.thawed);
    thread.registers = vec![(if in_rax { Register::RAX } else { Register::RBX }, THAWED)];
    let mut cursor = Cursor::interrupted(STUBS + u64::from(offset), sp, fp);
    thaw_stubs::step_thawed(&mut cursor, &mut thread, &jvm).map(|()| cursor)
}

const SUB_POP_RET: u64 = 0xc35d_10ec_8348;
/// `sub rsp, 16; mov rdi, r15`.
const SUB_MOV: u64 = 0x8b49_10ec_8348;

#[test]
fn what_was_thawed_is_in_a_register_until_the_stack_pointer_gets_it() {
    let expected = Ok(caller(COMPILED, THAWED, 0x2000));
    for stub in [CONTINUES, BARRIER, EXCEPTIONS] {
        let places = [stub.thawed - 14, stub.thawed - 10, stub.thawed, stub.thawed + 3, stub.restore];
        for offset in places {
            assert_eq!(leave(offset, ENTRY - 96, 3, 0), expected, "{offset}");
        }
        assert_eq!(leave(stub.restore + 3, THAWED, 3, 0), expected);
        for offset in [stub.begin, stub.allocation, stub.allocation + 7, stub.thawed - 19, stub.thawed - 5] {
            assert_eq!(leave(offset, ENTRY - 96, 3, 0), Err(Stop::Frozen), "{offset}");
        }
    }
}

#[test]
fn the_last_instructions_of_the_stubs_go_to_what_was_thawed() {
    let expected = Ok(caller(COMPILED, THAWED, 0x2000));
    for stub in [CONTINUES, BARRIER] {
        assert_eq!(leave(stub.restore + 7, THAWED - 16, 3, SUB_POP_RET), expected);
        assert_eq!(leave(stub.restore + 8, THAWED - 8, 0x2000, SUB_POP_RET), expected);
    }
    // The barrier for exceptions calls for their handler there.
    assert_eq!(leave(EXCEPTIONS.restore + 7, THAWED - 16, 3, SUB_MOV), Err(Stop::Frozen));
    assert_eq!(leave(EXCEPTIONS.restore + 8, THAWED - 8, 0x2000, SUB_MOV), Err(Stop::Frozen));
}

/// `mov rsp, [r15 + disp32]`.
const MOV_RSP_ENTRY: u64 = 0xa7_8b49;
const DO_YIELD: u64 = 0x7f11_0040_0000;
/// Where a call of `doYield` returns to.
const YIELDED: u64 = 0x7f11_0050_0010;

/// Frames that `doYield` froze begin at word 60. The chunk says that its own begin at `sp`.
/// `from_entry`: where `doYield` loads its stack pointer.
fn yielded(sp: u64, left: u64, from_entry: u64) -> (Words, Jvm) {
    let (Thread { mut words, .. }, jvm) = thread();
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

/// The room is searched for its entry: what looks like one before is of another age, and its counts
/// don't fit.
#[test]
fn the_end_of_a_room_is_told_by_the_counts_where_its_last_word_does_not() {
    let (Thread { mut words, .. }, jvm) = thread();
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
