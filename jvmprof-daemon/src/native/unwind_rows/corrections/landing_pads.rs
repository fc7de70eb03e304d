//! Rows for landing pads that stand before their function's frame information.
//!
//! A function that is called through a pointer begins with `endbr64`. Intel's compiler lets frame
//! information begin behind it, and so do all functions of libjsvml, which compute with the JVM's
//! vectors (openjdk jdk-25 src/jdk.incubator.vector/linux/native/libjsvml). A thread that is
//! sampled at the first instruction of such a function has no row of its own there.

use jvmprof_common::rows::Row;

use crate::native::byte_source::ByteSource;
use crate::native::elf::{ElfFile, Section};
use crate::native::unwind_rows::cfi::CallFrames;
use crate::native::unwind_rows::row_table::RowRange;
use crate::types::Svma;

/// `endbr64`.
const LANDING_PAD: [u8; 4] = [0xf3, 0x0f, 0x1e, 0xfa];
const PAD_BYTES: u64 = LANDING_PAD.len() as u64;
/// What the addresses of functions are multiples of.
const ALIGNMENT: u64 = 16;
/// Most places of a file that are read for it; libjsvml has 306.
const MAX_PLACES: usize = 16 << 10;

/// Returns a row for each such landing pad that neither `frames` nor `others` cover, in order of
/// their addresses: it changes nothing, so that the row is the one behind it.
pub(crate) fn rows<S: ByteSource>(
    frames: &CallFrames,
    others: &CallFrames,
    file: &ElfFile<S>,
) -> Vec<RowRange> {
    let sections = file.code();
    let is_free = |pc: u64| frames.index.find(Svma(pc)).is_none() && others.index.find(Svma(pc)).is_none();
    let places = frames.index.ranges().filter_map(|(start, _)| {
        let pad = start.0.checked_sub(PAD_BYTES)?;
        (pad.is_multiple_of(ALIGNMENT) && is_free(pad) && is_free(start.0 - 1)).then_some((pad, start))
    });
    let found = places.take(MAX_PLACES).filter_map(|(pad, start)| {
        let is_begin = is_landing_pad(file, &sections, pad) && frames.row(start) == Some(Row::AT_CALL);
        is_begin.then_some((pad, start.0, Row::AT_CALL))
    });
    found.collect()
}

fn is_landing_pad<S: ByteSource>(file: &ElfFile<S>, sections: &[Section], at: u64) -> bool {
    let holds = |section: &&Section| at.checked_sub(section.address.0).is_some_and(|at| at < section.size);
    let Some(section) = sections.iter().find(holds) else { return false };
    let piece = file.read_piece(section, at - section.address.0, PAD_BYTES);
    piece.is_ok_and(|bytes| bytes == LANDING_PAD)
}
