//! Targets of references of moving collectors, over memory as these collectors leave it.
#![allow(clippy::expect_used, reason = "a test ends by its first surprise")]

#[macro_use]
#[path = "support/mod.rs"]
mod support;

use std::collections::BTreeMap;

use jvmprof_common::address::{Avma, StackAddress};
use jvmprof_common::jvm::{GarbageCollector, Jvm, StackChunkLayout};
use jvmprof_common::unwind::Memory;
use jvmprof_common::unwind::hotspot::continuation::load_barriers::{
    UNRESOLVED, load_reference, may_have_moved,
};

/// Words by address.
struct Words(BTreeMap<u64, u64>);

impl Memory for Words {
    fn read_u64(&mut self, address: StackAddress) -> Option<u64> {
        self.0.get(&address.0).copied()
    }
}

target_over_memory!(Words);

const UNKNOWN: u64 = UNRESOLVED.0;

fn follow(words: &mut Words, jvm: &Jvm, slot: u64, is_root: bool) -> u64 {
    load_reference(words, jvm, Avma(slot), is_root).0
}

const BASE: u64 = 1 << 42;
const MASK_AT: u64 = 0x1000;
const YOUNG: u64 = 0x10_0000;
const OLD: u64 = 0x20_0000;
const SLOT: u64 = 0x5000;
const FORWARDING: u64 = 0x30_0000;
/// In the third granule, the 6th word of its page.
const OBJECT: u64 = BASE | (2 << 21) | 0x30;
const MOVED: u64 = BASE | (7 << 21) | 0x100;

fn jvm(kind: u16) -> Jvm {
    let collector = GarbageCollector {
        kind,
        forwarding_start: 0,
        forwarding_alignment: 16,
        forwarding_length: 24,
        forwarding_bytes: 184,
        granule_shift: 21,
        mask_at: MASK_AT,
        offset_mask: BASE - 1,
        base: BASE,
        young: YOUNG,
        old: OLD,
        ..GarbageCollector::default()
    };
    Jvm { chunks: StackChunkLayout { collector, ..StackChunkLayout::default() }, ..Jvm::default() }
}

/// Tables in which no object moves, and the mask.
fn quiet(mask: u64) -> Words {
    let tables =
        [YOUNG, OLD].into_iter().flat_map(|table| (0..8).map(move |granule| (table + granule * 8, 0)));
    Words(tables.chain([(MASK_AT, mask)]).collect())
}

/// What is known of the object's page in a table: it moves, and these of its words begin objects
/// that have moved.
fn moving(words: &mut Words, table: u64, moved: &[(u64, u64)]) {
    words.0.insert(table + 2 * 8, FORWARDING);
    words.0.extend([(FORWARDING, 2 << 21), (FORWARDING + 16, 3), (FORWARDING + 24, 8)]);
    words.0.extend((0..8).map(|slot| (FORWARDING + 184 + slot * 8, 0)));
    for (index, to) in moved {
        // Any place does that is found by walking on from the hash: all others are taken.
        for slot in 0..8 {
            let entry = FORWARDING + 184 + slot * 8;
            words.0.insert(entry, (*index << 46) | ((to & (BASE - 1)) << 1) | 1);
        }
    }
}

fn colored(object: u64, remapped: u32, remembered: u64) -> u64 {
    (object << (13 + remapped)) | (1 << (12 + remapped)) | 0x900 | remembered
}

fn z(words: &mut Words, reference: u64) -> u64 {
    words.0.insert(SLOT, reference);
    follow(words, &jvm(GarbageCollector::Z), SLOT, false)
}

#[test]
fn a_good_color_is_believed_whatever_the_tables_say() {
    for good in 0..4 {
        let mut words = quiet(1 << (12 + good));
        moving(&mut words, YOUNG, &[(6, MOVED)]);
        assert_eq!(z(&mut words, colored(OBJECT, good, 0x10)), OBJECT);
    }
}

#[test]
fn null_has_any_color() {
    let mut words = quiet(0x2000);
    for null in [0, 0x1510, 0x4910, 0x2a30] {
        assert_eq!(z(&mut words, null), 0);
    }
}

/// What the numbers of colors stand for: bit 0 is the young collection's phase, bit 1 the old
/// one's.
#[test]
fn an_old_color_is_looked_up_where_its_generation_moves_objects() {
    for (good, is, table) in [(0, 1, YOUNG), (3, 2, YOUNG), (0, 2, OLD), (1, 3, OLD)] {
        let other = if table == YOUNG { OLD } else { YOUNG };
        let mut words = quiet(1 << (12 + good));
        assert_eq!(z(&mut words, colored(OBJECT, is, 0x10)), OBJECT, "its page doesn't move");
        moving(&mut words, other, &[(6, MOVED)]);
        assert_eq!(z(&mut words, colored(OBJECT, is, 0x10)), OBJECT, "another page of that address moved");
        let mut words = quiet(1 << (12 + good));
        moving(&mut words, table, &[(6, MOVED)]);
        assert_eq!(z(&mut words, colored(OBJECT, is, 0x10)), MOVED);
        moving(&mut words, table, &[]);
        assert_eq!(z(&mut words, colored(OBJECT, is, 0x10)), UNKNOWN, "it is to move");
    }
}

#[test]
fn where_both_phases_have_passed_the_young_ones_page_or_old_to_old_decides() {
    let both_old = |remembered| colored(OBJECT, 3, remembered);
    let mut words = quiet(0x1000);
    moving(&mut words, YOUNG, &[(6, MOVED)]);
    assert_eq!(z(&mut words, both_old(0x10)), MOVED);
    assert_eq!(z(&mut words, both_old(0x30)), OBJECT, "from old to old: not a young object");
    let mut words = quiet(0x1000);
    moving(&mut words, OLD, &[(6, MOVED)]);
    assert_eq!(z(&mut words, both_old(0x10)), MOVED);
    assert_eq!(z(&mut words, both_old(0x30)), MOVED);
}

#[test]
fn what_is_no_reference_is_not_followed() {
    let mut words = quiet(0x1000);
    for garbage in [0x7f00_0000_1234, colored(OBJECT, 0, 0x10) | 0x2000, colored(OBJECT & (BASE - 1), 0, 0)] {
        assert_eq!(z(&mut words, garbage), UNKNOWN, "{garbage:#x}");
    }
    assert_eq!(follow(&mut words, &jvm(GarbageCollector::Z), 0x9000, false), UNKNOWN, "unreadable");
    words.0.insert(SLOT, 0x7f00_0000_1230);
    assert_eq!(follow(&mut words, &jvm(GarbageCollector::Z), SLOT, true), 0, "no root");
}

#[test]
fn a_root_is_an_address_until_an_object_is_seen_to_have_left_it() {
    let mut words = quiet(0x1000);
    words.0.insert(SLOT, OBJECT);
    let jvm = jvm(GarbageCollector::Z);
    assert_eq!(follow(&mut words, &jvm, SLOT, true), OBJECT);
    assert!(!may_have_moved(&mut words, &jvm, Avma(OBJECT)));
    moving(&mut words, OLD, &[]);
    assert!(!may_have_moved(&mut words, &jvm, Avma(OBJECT)), "still there");
    moving(&mut words, OLD, &[(6, MOVED)]);
    assert!(may_have_moved(&mut words, &jvm, Avma(OBJECT)));
    words.0.remove(&(YOUNG + 2 * 8));
    assert!(may_have_moved(&mut words, &jvm, Avma(OBJECT)), "can't be told");
}

#[test]
fn without_generations_the_mask_tells_bad_colors_and_any_view_that_can_be_read_does() {
    let jvm = jvm(GarbageCollector::X);
    // Colors from the lowest bit: marked 0, marked 1, remapped. Remapped is good, as is what
    // marking found in this cycle.
    let mut words = quiet(BASE << 1);
    let offset = OBJECT & (BASE - 1);
    let view = |color: u32, offset: u64| (BASE << color) | offset;
    words.0.insert(view(2, offset), 1);
    words.0.insert(SLOT, view(0, offset));
    assert_eq!(follow(&mut words, &jvm, SLOT, false), view(2, offset));
    words.0.insert(view(0, offset), 1);
    assert_eq!(follow(&mut words, &jvm, SLOT, false), view(0, offset));
    moving(&mut words, YOUNG, &[(6, MOVED)]);
    assert_eq!(follow(&mut words, &jvm, SLOT, true), view(0, offset), "good");
    words.0.insert(SLOT, view(1, offset));
    words.0.insert(MOVED, 1);
    assert_eq!(follow(&mut words, &jvm, SLOT, false), MOVED);
    assert_eq!(follow(&mut words, &jvm, SLOT, true), MOVED);
    words.0.insert(SLOT, 0x7f00_0000_1230);
    assert_eq!(follow(&mut words, &jvm, SLOT, true), 0, "no root");
    words.0.insert(SLOT, 0);
    assert_eq!(follow(&mut words, &jvm, SLOT, false), 0);
}

#[test]
fn shenandoahs_old_copy_leads_to_the_new_one() {
    let mut jvm = jvm(GarbageCollector::SHENANDOAH);
    (jvm.chunks.oops_are_narrow, jvm.chunks.oop_shift) = (1, 3);
    let mut words = Words(BTreeMap::from([(SLOT, 0x100), (0x800, 0x9000 | 3), (SLOT + 8, 0x800)]));
    assert_eq!(follow(&mut words, &jvm, SLOT, false), 0x9000);
    assert_eq!(follow(&mut words, &jvm, SLOT + 8, true), 0x9000, "roots are wide");
    // Unlocked, a mark of others, and an object that stays though its region is emptied (JDK 24 and
    // later).
    for mark in [1, 3, 5, 7] {
        words.0.insert(0x800, mark);
        assert_eq!(follow(&mut words, &jvm, SLOT, false), 0x800, "{mark}");
    }
    words.0.insert(SLOT, 0);
    assert_eq!(follow(&mut words, &jvm, SLOT, false), 0);
}
