//! Unwind rows in the form that the kernel program searches: see [`jvmprof_common::tables`].

use std::collections::HashMap;

use jvmprof_common::rows::Row;
use jvmprof_common::tables::{MAX_RULES, NO_RULE, PAGE_SHIFT, PackedRule, Page, pack_row};

/// Rules by number. Number 0 is no rule.
#[derive(Debug, Default)]
pub(super) struct Rules {
    numbers: HashMap<PackedRule, u16>,
    /// Rules that the kernel's table hasn't got yet.
    pub(super) new: Vec<(u32, PackedRule)>,
    /// Rows that found no room.
    pub(super) refused: u64,
}

/// The rows of one file or JVM, with rules of their own: made without a look at the kernel's tables.
#[derive(Debug, Default)]
pub struct FileRows {
    pub(super) rows: PackedRows,
    rules: Rules,
}

impl FileRows {
    /// `rows` hands rows on in order of their addresses, each by its first address and the first one behind it.
    pub fn new(rows: impl FnOnce(&mut dyn FnMut(u64, u64, Row))) -> Self {
        let mut file = Self::default();
        rows(&mut |start, end, row| file.rows.push(start, end, &row, &mut file.rules));
        file.rows.finish();
        file
    }

    /// How many rows there are.
    pub fn len(&self) -> usize {
        self.rows.rows.len()
    }

    pub fn is_empty(&self) -> bool {
        self.rows.rows.is_empty()
    }

    /// Bytes that they take in the kernel's tables, with their pages and the rules that no other file has.
    pub fn size_bytes(&self) -> usize {
        let pages = self.rows.pages.len() * size_of::<Page>();
        self.rows.rows.len() * size_of::<u32>() + pages + self.rules.len() * size_of::<PackedRule>()
    }

    /// With the rules' numbers in the kernel's table.
    pub(super) fn renumbered(mut self, rules: &mut Rules) -> PackedRows {
        rules.refused += self.rules.refused;
        let mut numbers = vec![NO_RULE; self.rules.new.len() + 1];
        for (own, rule) in &self.rules.new {
            numbers[*own as usize] = rules.number(*rule);
        }
        for row in &mut self.rows.rows {
            let own = (*row & 0xffff) as usize;
            rules.refused += u64::from(own != usize::from(NO_RULE) && numbers[own] == NO_RULE);
            *row = *row & !0xffff | u32::from(numbers[own]);
        }
        self.rows
    }
}

impl Rules {
    /// [`NO_RULE`] if there is no room for it.
    fn number(&mut self, rule: PackedRule) -> u16 {
        if let Some(number) = self.numbers.get(&rule) {
            return *number;
        }
        let next = self.numbers.len() as u32 + 1;
        let Some(number) = u16::try_from(next).ok().filter(|_| next < MAX_RULES) else {
            return NO_RULE;
        };
        self.numbers.insert(rule, number);
        self.new.push((next, rule));
        number
    }

    pub(super) fn len(&self) -> usize {
        self.numbers.len()
    }
}

/// The rows of one file or JVM.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct PackedRows {
    /// Number of the first page.
    pub(super) first_page: u64,
    /// Index of each page's first row.
    pub(super) pages: Vec<u32>,
    pub(super) rows: Vec<u32>,
    /// Where the rows end, and the rule in force there.
    end: u64,
    last: u16,
}

/// Pages from a file's first row on, at most.
const MAX_PAGES: u64 = 1 << 19;

impl PackedRows {
    /// Appends a row that holds from `start` to `end`, in order of addresses. What overlaps an earlier one is left out;
    /// between rows there is no rule.
    pub(super) fn push(&mut self, start: u64, end: u64, row: &Row, rules: &mut Rules) {
        let start = if self.pages.is_empty() { start } else { start.max(self.end) };
        if start >= end {
            return;
        }
        if self.pages.is_empty() {
            self.first_page = start >> PAGE_SHIFT;
            self.end = self.first_page << PAGE_SHIFT;
        }
        if (end >> PAGE_SHIFT) - self.first_page >= MAX_PAGES {
            rules.refused += 1;
            return;
        }
        let rule = rules.number(PackedRule::pack(row));
        rules.refused += u64::from(rule == NO_RULE);
        if start > self.end {
            self.hold(self.end, start, NO_RULE);
        }
        self.hold(start, end, rule);
    }

    /// To the end of the last page there is nothing more.
    pub(super) fn finish(&mut self) {
        let mask = (1 << PAGE_SHIFT) - 1;
        if self.end & mask != 0 {
            self.hold(self.end, (self.end | mask) + 1, NO_RULE);
        }
    }

    /// A rule from `start`, where the rows end so far, to `end`.
    fn hold(&mut self, start: u64, end: u64, rule: u16) {
        let mut at = start;
        while at < end {
            let page = (at >> PAGE_SHIFT) - self.first_page;
            if page >= self.pages.len() as u64 {
                self.pages.push(self.rows.len() as u32);
                self.rows.push(pack_row(at, rule));
            } else if rule != self.last {
                self.rows.push(pack_row(at, rule));
            }
            self.last = rule;
            at = ((at >> PAGE_SHIFT) + 1) << PAGE_SHIFT;
        }
        self.end = end;
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::path::Path;

    use jvmprof_common::rows::CfaRule;
    use jvmprof_common::tables::find_rule;

    use super::*;
    use crate::native::elf::ElfFile;
    use crate::native::rows::UnwindRows;
    use crate::native::source::RegularFile;
    use crate::types::Svma;

    fn row(offset: i32) -> Row {
        Row { cfa: CfaRule::Rsp(offset), ..Row::AT_CALL }
    }

    fn look_up(packed: &PackedRows, rules: &Rules, address: u64) -> Option<Row> {
        let number = number_at(packed, address)?;
        rules.new.iter().find(|(it, _)| *it == u32::from(number)).map(|(_, rule)| rule.unpack())
    }

    fn number_at(packed: &PackedRows, address: u64) -> Option<u16> {
        let page = (address >> PAGE_SHIFT).checked_sub(packed.first_page)? as usize;
        let first = *packed.pages.get(page)? as usize;
        let end = packed.pages.get(page + 1).map_or(packed.rows.len(), |next| *next as usize);
        let rows = &packed.rows[first..end];
        find_rule(address, 0, rows.len() as u32, |at| Some(rows.get(at as usize).copied().unwrap_or(0)))
    }

    #[test]
    fn every_address_has_the_row_that_was_packed_for_it() {
        let spans = [
            (0x1_fff0, 0x2_0010, row(8)),
            (0x2_0010, 0x2_0020, row(16)),
            (0x2_0018, 0x2_0030, row(99)),
            (0x5_0000, 0x7_8000, row(8)),
            (0x7_8000, 0x7_8001, row(24)),
        ];
        let mut rules = Rules::default();
        let mut packed = PackedRows::default();
        for (start, end, row) in &spans {
            packed.push(*start, *end, row, &mut rules);
        }
        packed.finish();
        let expected = |address: u64| {
            spans.iter().find(|(start, end, _)| (*start..*end).contains(&address)).map(|(_, _, row)| *row)
        };
        for address in (0x1_0000..0x9_0000).step_by(8).chain([0x7_8001]) {
            assert_eq!(look_up(&packed, &rules, address), expected(address), "{address:#x}");
        }
        assert_eq!(packed.pages.len(), 0x79 - 0x1f);
        assert!(packed.rows.len() <= packed.pages.len() + 6, "{} rows", packed.rows.len());
    }

    /// Of whole files, at each row's first and last address.
    #[test]
    fn packed_rows_of_real_files_are_the_files_rows() {
        let own = std::env::current_exe().expect("a test has a program");
        for path in [own.as_path(), Path::new("/lib/x86_64-linux-gnu/libc.so.6")] {
            let file = File::open(path).expect("the file is readable");
            let elf = ElfFile::parse(RegularFile::new(&file).expect("a regular file")).expect("an ELF file");
            let rows = UnwindRows::load(&elf).expect("unwind rows");
            let (mut rules, mut spans) = (Rules::default(), Vec::new());
            let file = FileRows::new(|handle| {
                rows.for_each(&mut |start, end, row| {
                    handle(start, end, row);
                    spans.push((start, end, row));
                });
            });
            rules.number(PackedRule::pack(&row(12_345)));
            let packed = file.renumbered(&mut rules);
            assert!(spans.len() > 10_000, "{} rows", spans.len());
            assert_eq!(rules.refused, 0);
            let by_number: HashMap<u32, Row> =
                rules.new.iter().map(|(number, rule)| (*number, rule.unpack())).collect();
            for (start, end, row) in spans {
                for address in [start, end - 1] {
                    let expected = rows.row(Svma(address)).expect("a row");
                    let number = number_at(&packed, address).expect("a packed row");
                    let found = by_number[&u32::from(number)];
                    assert_eq!(found, PackedRule::pack(&expected).unpack(), "{address:#x} {row:?}");
                }
            }
        }
    }

    #[test]
    fn nothing_packs_to_nothing() {
        let mut packed = PackedRows::default();
        packed.finish();
        assert_eq!(packed, PackedRows::default());
    }
}
