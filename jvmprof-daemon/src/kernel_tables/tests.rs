//! Tests with the kernel's own tables, of which little is used. Needs root, as loading the kernel
//! programs does.

use std::fs::File;

use jvmprof_common::rows::{CfaRule, Row};

use super::*;
use crate::native::byte_source::RegularFile;
use crate::native::elf::ElfFile;
use crate::native::unwind_rows::UnwindRows;
use crate::sampler::{Sampler, SamplerOptions};
use crate::types::Svma;

/// Size of the table: rows of two chunks fill it.
const CHUNKS: u32 = 2;

struct Small {
    /// The sampler, which keeps the programs loaded.
    _sampler: Sampler,
    tables: CodeTables,
}

fn small() -> Small {
    let pids = Some(vec![std::process::id()]);
    let options = SamplerOptions { pids, ring_bytes: 1 << 16, ..SamplerOptions::of_cpu_time(1) };
    let mut kernel = None;
    let sampler =
        Sampler::start(&options, |tables| kernel = Some(tables)).expect("the kernel lets root sample");
    let kernel = kernel.expect("it has tables");
    let sizes = MapSizes { rows: CHUNKS * CHUNK_ROWS as u32, ..kernel.sizes() };
    Small { _sampler: sampler, tables: CodeTables::with_limits(kernel, sizes) }
}

impl Small {
    fn publish(&mut self, process: u64, file: RowsKey) -> ProcessKey {
        let (key, code) = (ProcessKey::numbered(process), RegionCode::File { file, bias: LoadBias(0) });
        self.tables.publish(key, pid(process), 1, &[CodeRegion { start: Avma(0), end: Avma(1 << 20), code }]);
        key
    }

    /// Returns what the kernel has of a process.
    fn entry(&self, process: u64) -> Option<ProcessEntry> {
        self.tables.kernel.process(pid(process))
    }

    fn processes_lacking_rows(&self) -> Vec<ProcessKey> {
        self.tables.processes_lacking_rows().collect()
    }
}

/// Returns a pid that no process can have.
fn pid(process: u64) -> u32 {
    5_000_000 + process as u32
}

/// Waits longer than the kernel program may read replaced entries.
fn wait_for_grace() {
    std::thread::sleep(GRACE + GRACE / 10);
}

/// Makes rows that fill the table.
fn rows() -> FileRows {
    let offsets = (0..CHUNKS * CHUNK_ROWS as u32).map(|n| if n % 2 == 0 { 8 } else { 16 });
    with_offsets(offsets)
}

/// Makes one row to a page, each of another offset than the one before.
fn with_offsets(offsets: impl Iterator<Item = i32>) -> FileRows {
    FileRows::new(|handle| {
        for (at, offset) in (0..).step_by(4096).zip(offsets) {
            handle(at, at + 4096, Row { cfa: CfaRule::Rsp(offset), ..Row::AT_CALL });
        }
    })
}

const FIRST: RowsKey = RowsKey::Trampolines(1);
const SECOND: RowsKey = RowsKey::Trampolines(2);

#[test]
fn refused_rows_are_tried_again_and_take_the_space_that_others_left() {
    let mut small = small();
    small.tables.add_file(FIRST, rows());
    let first = small.publish(1, FIRST);
    small.tables.add_file(SECOND, rows());
    let second = small.publish(2, SECOND);
    assert_eq!((small.tables.counts().tables, small.tables.counts().no_room), (1, 1));
    assert!(small.tables.has_or_refuses_rows(&SECOND), "not at once");
    assert_eq!(small.processes_lacking_rows(), []);
    small.tables.retry_after = Duration::ZERO;
    small.tables.add_file(SECOND, rows());
    assert_eq!(
        (small.tables.has_or_refuses_rows(&SECOND), small.tables.counts().no_room),
        (false, 1),
        "counted once"
    );
    assert_eq!(small.processes_lacking_rows(), [second]);
    small.tables.retain(|key| key != first);
    wait_for_grace();
    small.tables.add_file(SECOND, rows());
    let counts = small.tables.counts();
    assert_eq!((small.tables.has_or_refuses_rows(&SECOND), counts.tables, counts.evicted), (true, 1, 1));
    assert_eq!(small.processes_lacking_rows(), [second], "it isn't reported yet");
    small.publish(2, SECOND);
    assert_eq!(small.processes_lacking_rows(), []);
}

#[test]
fn a_process_that_is_not_sampled_is_evicted_and_published_again() {
    let mut small = small();
    small.tables.add_file(FIRST, rows());
    let first = small.publish(1, FIRST);
    small.tables.add_file(SECOND, rows());
    assert!(!small.tables.touch(first), "sampled a moment ago");
    small.tables.idle_after = Duration::ZERO;
    small.tables.add_file(SECOND, rows());
    wait_for_grace();
    small.tables.add_file(SECOND, rows());
    assert_eq!((small.tables.counts().tables, small.tables.counts().evicted), (1, 1));
    assert!(small.tables.has_or_refuses_rows(&SECOND) && !small.tables.has_or_refuses_rows(&FIRST));
    assert!(small.tables.touch(first));
    assert!(!small.tables.touch(first), "once");
}

#[test]
fn a_file_with_too_many_rules_takes_no_space_and_others_rules_leave_with_them() {
    let mut small = small();
    small.tables.add_file(FIRST, with_offsets((0..3000).map(|n| 8 * n)));
    assert_eq!((small.tables.counts().rules, small.tables.counts().no_room), (0, 1));
    assert!(small.tables.has_or_refuses_rows(&FIRST));
    for turn in 0..3 {
        let (file, rules) = (RowsKey::Trampolines(10 + turn), CHUNKS * CHUNK_ROWS as u32);
        small.tables.add_file(file, with_offsets((0..rules).map(|n| 8 * (n + rules * turn as u32) as i32)));
        assert_eq!((small.tables.counts().rules, small.tables.counts().tables), (rules.into(), 1), "{turn}");
        wait_for_grace();
    }
}

#[test]
fn rows_of_a_real_file_are_read_back_as_they_were_published() {
    let own = std::env::current_exe().expect("a test has a program");
    let file = File::open(own).expect("the file is readable");
    let elf = ElfFile::parse(RegularFile::new(&file).expect("a regular file")).expect("an ELF file");
    let rows = UnwindRows::load(&elf).expect("unwind rows");
    let mut spans = Vec::new();
    let packed = FileRows::new(|handle| {
        rows.for_each(&mut |start, end, row| {
            handle(start, end, row);
            spans.push((start, end, row));
        });
    });
    let mut small = small();
    let sizes = small.tables.kernel.sizes();
    small.tables.chunks = FreeExtents::new(0..sizes.rows / CHUNK_ROWS as u32);
    // Not at the begin of the tables.
    small.tables.add_file(FIRST, with_offsets((0..300).map(|n| 8 * n)));
    small.tables.add_file(SECOND, packed);
    assert!(spans.len() > 10_000, "{} rows", spans.len());
    let step = spans.len() / 2_000;
    for (start, end, row) in spans.iter().step_by(step) {
        let expected = PackedRule::pack(row).unpack();
        for address in [*start, end - 1] {
            assert_eq!(small.tables.row(&SECOND, Svma(address)), Some(Some(expected)), "{address:#x}");
        }
    }
    let (first, last) = (spans[0].0, spans[spans.len() - 1].1);
    for outside in [0, first - 1, last, last + (1 << 20), u64::MAX] {
        assert_eq!(small.tables.row(&SECOND, Svma(outside)), Some(None), "{outside:#x}");
    }
    assert_eq!(small.tables.row(&RowsKey::Trampolines(3), Svma(first)), None);
    let of_first = small.tables.row(&FIRST, Svma(17 * 4096 + 1)).flatten();
    assert_eq!(of_first.map(|row| row.cfa), Some(CfaRule::Rsp(8 * 17)));
}

#[test]
fn a_process_has_the_variable_of_its_contexts_whenever_it_is_published() {
    let mut small = small();
    let key = small.publish(1, FIRST);
    let variable = ThreadLocalVariable { offset: 8_u64.wrapping_neg(), ..ThreadLocalVariable::default() };
    let published = |small: &Small| small.entry(1).expect("published").context_variable();
    assert_eq!(published(&small), None);
    small.tables.set_context_variable(key, Some(variable));
    assert_eq!(published(&small), Some(variable));
    small.publish(1, FIRST);
    assert_eq!(published(&small), Some(variable));
    // As the kernel program does, which knows better than the daemon for a moment.
    small.tables.kernel.remove_process(pid(1));
    small.tables.set_context_variable(key, None);
    assert_eq!(small.entry(1), None);
    small.publish(1, FIRST);
    assert_eq!(published(&small), None);
}
