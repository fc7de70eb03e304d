//! Limits of the table's memory under hostile processes.

use super::*;

/// A pid that can't exist: above the kernel's PID_MAX_LIMIT of 4,194,304.
const A: u32 = 5_000_000;

fn mapping_at(index: u64) -> MappedCode {
    mapped_code(7, Avma(0x1000 * 2 * (index + 1)), 0x1000, FileOffset(0), "/opt/a/library.so", None)
}

#[test]
fn a_process_that_maps_for_ever_takes_no_more_than_its_share() {
    let mut table = ProcessTable::default();
    table.exec(A, "hostile", 0);
    for index in 0..100_000 {
        table.insert_mapping(A, 1, mapping_at(index));
        assert!(table.mapping_bytes() <= MAX_MAPPING_BYTES);
    }
    assert!(table.get(A).is_some_and(|process| !process.mappings.is_empty()), "the newest are known");
}

#[test]
fn a_storm_of_forks_shares_its_parents_mappings() {
    let mut table = ProcessTable::default();
    table.exec(A, "parent", 0);
    for index in 0..10_000 {
        table.insert_mapping(A, 1, mapping_at(index));
    }
    let before = table.mapping_bytes();
    for child in 1..20_000 {
        table.fork(A + child, A);
    }
    assert_eq!(table.mapping_bytes(), before);
    assert_eq!(table.counts().resets, 0);
}

#[test]
fn all_processes_together_have_a_limit() {
    let mut table = ProcessTable::default();
    for process in 0..100 {
        table.exec(A + process, "many", 0);
        for index in 0..10_000 {
            table.insert_mapping(A + process, 1, mapping_at(index));
        }
        assert!(table.mapping_bytes() <= MAX_BYTES);
    }
    assert!(table.counts().resets > 0);
}
