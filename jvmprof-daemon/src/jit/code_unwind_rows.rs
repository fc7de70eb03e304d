//! Unwind rows of generated code, compiled from the `.eh_frame` that a jitdump records for each
//! piece of code (`CODE_UNWINDING_INFO`).

use jvmprof_common::rows::{CfaRule, RbpRule, Row};
use jvmprof_common::unwind_tables::PackedRule;

use crate::native::unwind_rows::UnwindRows;
use crate::types::Svma;

/// Longest `.eh_frame` of one piece of code that is read, in bytes. V8's have some hundred.
pub const MAX_EH_FRAME: usize = 64 << 10;
/// Most rows of one piece of code; later ones are left out.
const MAX_ROWS: usize = 4096;
/// Distance from the code within which functions of the `.eh_frame` are accepted, in bytes: the
/// address of the section isn't recorded.
const REACH: u64 = 1 << 30;

/// Unwind rows of one piece of code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CodeUnwindRows {
    /// Rules by the offset in the code from which on they hold, in bytes. The default rule stands
    /// for no row.
    rows: Box<[(u32, PackedRule)]>,
}

impl CodeUnwindRows {
    /// Compiles the rows for the `size` bytes of code at `code`. Returns `None` if there are none.
    ///
    /// The section is written as if it were loaded after the code, at the next multiple of eight
    /// (Linux `tools/perf/util/genelf.c`, `jit_write_elf`). V8 adds the size of its tables to that
    /// of the code, so that a section with only one function is moved to where it describes this
    /// code.
    pub fn compile(eh_frame: &[u8], code: u64, size: u32) -> Option<Self> {
        let end = code.checked_add(u64::from(size))?;
        let near = Svma(code.saturating_sub(REACH))..Svma(code.saturating_add(REACH));
        let mut eh_frame = eh_frame.to_vec();
        drop_empty_lsda_encoding(&mut eh_frame);
        let load = |address: u64| UnwindRows::from_eh_frame((&*eh_frame).into(), Svma(address), near.clone());
        let address = end.checked_next_multiple_of(8)?;
        let mut section = load(address);
        let starts = |section: &UnwindRows| section.function_ranges().map(|(start, _)| start.0).next();
        if section.functions() == 1 && starts(&section)? != code {
            section = load(address.wrapping_add(code).wrapping_sub(starts(&section)?));
            if starts(&section)? != code {
                return None;
            }
        }
        let mut rows = Vec::new();
        let mut next = code;
        section.for_each(&mut |first, last, row| {
            let (first, last) = (first.max(next), last.min(end));
            if first >= last || rows.len() + 2 > MAX_ROWS {
                return;
            }
            if first > next {
                rows.push(((next - code) as u32, PackedRule::default()));
            }
            rows.push(((first - code) as u32, PackedRule::pack(&with_popped_rbp(row))));
            next = last;
        });
        if rows.is_empty() {
            return None;
        }
        rows.push(((next - code) as u32, PackedRule::default()));
        Some(Self { rows: rows.into() })
    }

    /// Returns the row for the code at this offset.
    pub fn at(&self, offset: u32) -> Option<Row> {
        let after = self.rows.partition_point(|(from, _)| *from <= offset);
        let (_, rule) = self.rows.get(after.checked_sub(1)?)?;
        (*rule != PackedRule::default()).then(|| rule.unpack())
    }

    /// Returns the bytes of memory in use, with those of an `Arc` around it.
    pub(super) fn size_bytes(&self) -> usize {
        size_of::<Self>() + 16 + size_of_val(&*self.rows)
    }
}

/// Returns the row with rbp as restored if it was saved below the stack pointer: it has been popped
/// since, which V8 doesn't record.
fn with_popped_rbp(row: Row) -> Row {
    match (row.cfa, row.rbp) {
        (CfaRule::Rsp(to_cfa), RbpRule::AtCfa(saved)) if to_cfa.saturating_add(saved) < 0 => {
            Row { rbp: RbpRule::Same, ..row }
        }
        _ => row,
    }
}

/// Removes V8's statement that there is no language specific data: an encoding (`L` with
/// `DW_EH_PE_omit`, V8 src/diagnostics/eh-frame.cc, `WriteCie`) that gimli doesn't accept. The byte
/// of `L` becomes a second `R`, of which the last one counts.
fn drop_empty_lsda_encoding(eh_frame: &mut [u8]) {
    // Length, id 0, version, "zLR\0", two alignment factors, return address register, size of the
    // data, data.
    const OMIT: u8 = 0xff;
    let Some(cie) = eh_frame.first_chunk_mut::<19>() else { return };
    let is_short = cie[13..17].iter().all(|byte| *byte & 0x80 == 0);
    if cie[4..8] == [0; 4] && cie[9..13] == *b"zLR\0" && is_short && cie[17] == OMIT {
        cie[10] = b'R';
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    /// Returns a section with one function of `size` bytes that pushes a word at once and pops it
    /// before its last byte. The section describes code that begins `distance` bytes before it.
    fn section(size: u32, distance: i32) -> Vec<u8> {
        // Version 1, "zR", code alignment 1, data alignment -8, return address 16, pcrel sdata4;
        // CFA rsp + 8, ra at -8.
        let mut cie = vec![0, 0, 0, 0, 1, b'z', b'R', 0, 1, 0x78, 16, 1, 0x1b, 0x0c, 7, 8, 0x90, 1];
        cie.resize(cie.len().next_multiple_of(8) - 4, 0);
        let mut bytes = [&(cie.len() as u32).to_le_bytes()[..], &cie].concat();
        let mut fde = (bytes.len() as u32 + 4).to_le_bytes().to_vec();
        fde.extend((-distance - (bytes.len() as i32 + 8)).to_le_bytes());
        fde.extend(size.to_le_bytes());
        // CFA rsp + 16 from the second byte on, rsp + 8 at the last.
        fde.extend([0, 0x41, 0x0e, 16, 0x02, size as u8 - 2, 0x0e, 8]);
        fde.resize(fde.len().next_multiple_of(8) - 4, 0);
        bytes.extend((fde.len() as u32).to_le_bytes());
        bytes.extend(fde);
        bytes.extend([0; 4]);
        bytes
    }

    fn cfa(rows: &CodeUnwindRows, offset: u32) -> Option<i32> {
        let row = rows.at(offset)?;
        assert_eq!(row.rbp, RbpRule::Same);
        match row.cfa {
            CfaRule::Rsp(offset) => Some(offset),
            _ => None,
        }
    }

    #[test]
    fn each_address_of_the_code_has_its_row_wherever_the_writer_thought_the_section_to_be() {
        for distance in [48, 64, 1024] {
            let rows = CodeUnwindRows::compile(&section(45, distance), 0x7000_1000, 45).expect("rows");
            let found: Vec<_> = [0, 1, 43, 44, 45, 1000].map(|offset| cfa(&rows, offset)).to_vec();
            assert_eq!(found, [Some(8), Some(16), Some(16), Some(8), None, None], "{distance}");
        }
    }

    #[test]
    fn code_after_the_functions_of_the_section_has_no_row() {
        let rows = CodeUnwindRows::compile(&section(20, 48), 0x7000_1000, 45).expect("rows");
        assert_eq!((cfa(&rows, 19), cfa(&rows, 20), cfa(&rows, 44)), (Some(8), None, None));
    }

    /// A section of node 20: 457 bytes that set up rbp at byte 18 and restore it 52 bytes later.
    #[test]
    fn v8s_section_is_compiled() {
        let section: Vec<u8> = [
            "1800000000000000037a4c520001781002ff1b0c0708900100000000",
            "20000000200000000cfeffffc9010000004f0e108602430d06740d07410e08520c06100000",
        ]
        .concat()
        .as_bytes()
        .chunks(2)
        .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).expect("digits"), 16).expect("hex"))
        .collect();
        let rows = CodeUnwindRows::compile(&section, 0x7fe5_b67c_63c0, 460).expect("rows");
        let cfa: Vec<_> = [14, 15, 17, 18, 69, 70, 71, 89].map(|at| rows.at(at).map(|row| row.cfa)).into();
        let (rsp, rbp) = (|offset| Some(CfaRule::Rsp(offset)), Some(CfaRule::Rbp(16)));
        assert_eq!(cfa, [rsp(8), rsp(16), rsp(16), rbp, rbp, rsp(16), rsp(8), rbp]);
        let saved = |at| rows.at(at).map(|row| row.rbp);
        assert_eq!((saved(70), saved(71)), (Some(RbpRule::AtCfa(-16)), Some(RbpRule::Same)));
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 2048, ..ProptestConfig::default() })]

        #[test]
        fn whatever_a_section_has_become_its_rows_are_within_the_code(
            changes in vec((0..100usize, any::<u8>()), 0..6),
            size in 1..100u32,
            code in prop_oneof![Just(0x7000_1000), any::<u64>()],
        ) {
            let mut section = section(45, 48);
            for (at, byte) in changes {
                let at = at % section.len();
                section[at] = byte;
            }
            if let Some(rows) = CodeUnwindRows::compile(&section, code, size) {
                prop_assert!((size..size + 64).chain([u32::MAX]).all(|offset| rows.at(offset).is_none()));
                prop_assert!(rows.rows.is_sorted_by_key(|(from, _)| *from) && rows.rows.len() <= MAX_ROWS);
            }
        }
    }

    #[test]
    fn bytes_that_are_no_section_give_no_rows() {
        for bytes in [&[][..], &[0; 20], &[0xff; 64], &section(45, 48)[..30]] {
            assert_eq!(CodeUnwindRows::compile(bytes, 0x1000, 45), None, "{bytes:x?}");
        }
        assert_eq!(CodeUnwindRows::compile(&section(45, 48), u64::MAX - 4, 45), None);
    }
}
