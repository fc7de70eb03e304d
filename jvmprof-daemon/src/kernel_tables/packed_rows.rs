//! Unwind rows in the form that the kernel program searches: see [`jvmprof_common::unwind_tables`].

use std::collections::HashMap;
use std::ops::Range;

use jvmprof_common::rows::Row;
use jvmprof_common::unwind_tables::{NO_RULE, PAGE_SHIFT, PackedRule, RowPage, pack_row};

use super::free_extents::FreeExtents;
use crate::types::FastHasher;

/// Maximum number of different rules of one file: eight such files fill the kernel's table. rustc's
/// library has 700.
pub(super) const MAX_FILE_RULES: usize = 2048;

/// Allocation of the kernel's table of rules, with the number of tables that use each. Number 0 is
/// no rule.
#[derive(Debug)]
pub(super) struct RuleTable {
    numbers: HashMap<PackedRule, SharedRule>,
    free: FreeExtents,
    /// Rules that aren't in the kernel's table yet.
    pub(super) new: Vec<(u32, PackedRule)>,
}

/// A rule in the kernel's table.
#[derive(Clone, Copy, Debug)]
struct SharedRule {
    number: u16,
    tables: u32,
}

impl RuleTable {
    /// Makes an empty table. `numbers` are those of the kernel's table, without [`NO_RULE`].
    pub(super) fn new(numbers: Range<u32>) -> Self {
        Self { numbers: HashMap::new(), free: FreeExtents::new(numbers), new: Vec::new() }
    }

    /// Adds the different rules of a table, all or none; returns false if there is no space for
    /// them.
    pub(super) fn take(&mut self, rules: &[PackedRule]) -> bool {
        for (index, rule) in rules.iter().enumerate() {
            if let Some(known) = self.numbers.get_mut(rule) {
                known.tables += 1;
                continue;
            }
            let free = self.free.take(1).map(|free| free.start);
            let Some((free, number)) = free.and_then(|free| Some((free, u16::try_from(free).ok()?))) else {
                self.release(&rules[..index]);
                return false;
            };
            self.numbers.insert(*rule, SharedRule { number, tables: 1 });
            self.new.push((free, *rule));
        }
        true
    }

    /// Releases the rules of a table that was removed.
    pub(super) fn release(&mut self, rules: &[PackedRule]) {
        for rule in rules {
            let Some(known) = self.numbers.get_mut(rule) else { continue };
            known.tables -= 1;
            if known.tables == 0 {
                let number = u32::from(known.number);
                self.numbers.remove(rule);
                self.new.retain(|(new, _)| *new != number);
                self.free.release(number..number + 1);
            }
        }
    }

    /// Returns a rule's number; [`NO_RULE`] for one that isn't there.
    fn number(&self, rule: &PackedRule) -> u16 {
        self.numbers.get(rule).map_or(NO_RULE, |known| known.number)
    }

    pub(super) fn len(&self) -> usize {
        self.numbers.len()
    }
}

/// The different rules of one file, numbered from 1 on.
#[derive(Debug, Default)]
pub(super) struct FileRules {
    pub(super) list: Vec<PackedRule>,
    numbers: HashMap<PackedRule, u16, FastHasher>,
    are_too_many: bool,
}

impl FileRules {
    /// Returns a rule's number; [`NO_RULE`] beyond [`MAX_FILE_RULES`].
    fn number(&mut self, rule: PackedRule) -> u16 {
        if let Some(number) = self.numbers.get(&rule) {
            return *number;
        }
        if self.list.len() == MAX_FILE_RULES {
            self.are_too_many = true;
            return NO_RULE;
        }
        self.list.push(rule);
        let number = self.list.len() as u16;
        self.numbers.insert(rule, number);
        number
    }
}

/// The rows of one file or JVM, with rules of their own, independent of the kernel's tables.
#[derive(Debug, Default)]
pub struct FileRows {
    pub(super) rows: PackedRows,
    pub(super) rules: FileRules,
    refused: u64,
}

impl FileRows {
    /// Packs rows. `rows` passes them on in order of their addresses, each by its first address and
    /// the first one after it.
    pub fn new(rows: impl FnOnce(&mut dyn FnMut(u64, u64, Row))) -> Self {
        let mut file = Self::default();
        rows(&mut |start, end, row| {
            if !file.rules.are_too_many {
                file.refused += u64::from(!file.rows.push(start, end, &row, &mut file.rules));
            }
        });
        if file.rules.are_too_many {
            // Some of its rows would be as if they weren't there, and its stacks wrong.
            file.rows = PackedRows::default();
        }
        file.rows.finish();
        file.rules.numbers = HashMap::default();
        file
    }

    /// Returns rows that were packed before, with their rules and the index of each page's first
    /// row.
    pub(super) fn from_parts(
        first_page: u64,
        pages: Vec<u32>,
        rows: Vec<u32>,
        rules: Vec<PackedRule>,
    ) -> Self {
        let rows = PackedRows { first_page, pages, rows, ..PackedRows::default() };
        Self { rows, rules: FileRules { list: rules, ..FileRules::default() }, refused: 0 }
    }

    /// Sets the number of rows, or functions with theirs, that were left out before.
    #[must_use]
    pub fn without(mut self, refused: u64) -> Self {
        self.refused += refused;
        self
    }

    /// Returns the number of rows.
    pub fn len(&self) -> usize {
        self.rows.rows.len()
    }

    pub fn is_empty(&self) -> bool {
        self.rows.rows.is_empty()
    }

    /// Returns whether it has more different rules than one file may have; there are no rows then.
    pub fn has_too_many_rules(&self) -> bool {
        self.rules.are_too_many
    }

    /// Returns the different rules.
    pub(super) fn rules(&self) -> &[PackedRule] {
        &self.rules.list
    }

    /// Returns the number of rows that were left out.
    pub(super) fn refused(&self) -> u64 {
        self.refused
    }

    /// Returns the bytes in the kernel's tables, with pages and the rules that no other file has.
    pub fn size_bytes(&self) -> usize {
        let pages = self.rows.pages.len() * size_of::<RowPage>();
        self.rows.rows.len() * size_of::<u32>() + pages + self.rules.list.len() * size_of::<PackedRule>()
    }

    /// Converts rules to the kernel's numbers, after [`RuleTable::take`].
    pub(super) fn renumbered(mut self, rules: &RuleTable) -> PackedRows {
        let own = std::iter::once(NO_RULE).chain(self.rules.list.iter().map(|rule| rules.number(rule)));
        let numbers: Vec<u16> = own.collect();
        for row in &mut self.rows.rows {
            *row = *row & !0xffff | u32::from(numbers[(*row & 0xffff) as usize]);
        }
        self.rows
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
    /// End of the rows, and the rule in force there.
    end: u64,
    last: u16,
}

/// Maximum number of pages, from a file's first row on.
const MAX_PAGES: u64 = 1 << 19;

impl PackedRows {
    /// Appends a row that holds from `start` to `end`, in order of addresses. A part that overlaps
    /// an earlier one is left out; between rows there is no rule. Returns false if it lies too far
    /// from the first.
    fn push(&mut self, start: u64, end: u64, row: &Row, rules: &mut FileRules) -> bool {
        let start = if self.pages.is_empty() { start } else { start.max(self.end) };
        if start >= end {
            return true;
        }
        if self.pages.is_empty() {
            self.first_page = start >> PAGE_SHIFT;
            self.end = self.first_page << PAGE_SHIFT;
        }
        if (end >> PAGE_SHIFT) - self.first_page >= MAX_PAGES {
            return false;
        }
        let rule = rules.number(PackedRule::pack(row));
        if start > self.end {
            self.append_rule(self.end, start, NO_RULE);
        }
        self.append_rule(start, end, rule);
        true
    }

    /// Fills the last page with no rule.
    fn finish(&mut self) {
        let mask = (1 << PAGE_SHIFT) - 1;
        if self.end & mask != 0 {
            self.append_rule(self.end, (self.end | mask) + 1, NO_RULE);
        }
    }

    /// Appends a rule from `start`, where the rows end so far, to `end`.
    fn append_rule(&mut self, start: u64, end: u64, rule: u16) {
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
    use jvmprof_common::unwind_tables::{MAX_RULES, find_rule};

    use super::*;
    use crate::native::byte_source::RegularFile;
    use crate::native::elf::ElfFile;
    use crate::native::unwind_rows::UnwindRows;
    use crate::types::Svma;

    fn row(offset: i32) -> Row {
        Row { cfa: CfaRule::Rsp(offset), ..Row::AT_CALL }
    }

    fn look_up(packed: &PackedRows, rules: &FileRules, address: u64) -> Option<Row> {
        let number = number_at(packed, address)?;
        Some(rules.list.get(usize::from(number).checked_sub(1)?)?.unpack())
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
        let mut rules = FileRules::default();
        let mut packed = PackedRows::default();
        for (start, end, row) in &spans {
            assert!(packed.push(*start, *end, row, &mut rules));
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

    /// Compares whole files, at each row's first and last address.
    #[test]
    fn packed_rows_of_real_files_are_the_files_rows() {
        let own = std::env::current_exe().expect("a test has a program");
        for path in [own.as_path(), Path::new("/lib/x86_64-linux-gnu/libc.so.6")] {
            let file = File::open(path).expect("the file is readable");
            let elf = ElfFile::parse(RegularFile::new(&file).expect("a regular file")).expect("an ELF file");
            let rows = UnwindRows::load(&elf).expect("unwind rows");
            let (mut rules, mut spans) = (RuleTable::new(1..MAX_RULES), Vec::new());
            let file = FileRows::new(|handle| {
                rows.for_each(&mut |start, end, row| {
                    handle(start, end, row);
                    spans.push((start, end, row));
                });
            });
            assert_eq!((file.refused(), file.has_too_many_rules()), (0, false));
            assert!(rules.take(&[PackedRule::pack(&row(12_345))]) && rules.take(file.rules()));
            let packed = file.renumbered(&rules);
            assert!(spans.len() > 10_000, "{} rows", spans.len());
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
    fn a_file_with_too_many_rules_takes_none_of_the_others_space() {
        let with = |rules: u64| {
            FileRows::new(|handle| {
                (0..rules).for_each(|n| handle(n * 16, n * 16 + 16, row(8 * n as i32)));
            })
        };
        let most = with(MAX_FILE_RULES as u64);
        assert_eq!((most.has_too_many_rules(), most.rules().len()), (false, MAX_FILE_RULES));
        let more = with(MAX_FILE_RULES as u64 + 1);
        assert!(more.has_too_many_rules() && more.is_empty());
    }

    #[test]
    fn rules_leave_with_the_last_table_that_has_them() {
        let rule = |offset| PackedRule::pack(&row(offset));
        let mut rules = RuleTable::new(1..4);
        assert!(rules.take(&[rule(8), rule(16)]) && rules.take(&[rule(16), rule(24)]));
        let numbers = [8, 16, 24].map(|offset| rules.number(&rule(offset)));
        assert_eq!((numbers, rules.new.len()), ([1, 2, 3], 3));
        assert!(!rules.take(&[rule(8), rule(32)]), "no space");
        assert_eq!((rules.len(), rules.number(&rule(32))), (3, NO_RULE), "nothing is left of it");
        rules.release(&[rule(8), rule(16)]);
        assert_eq!((rules.number(&rule(8)), rules.number(&rule(16))), (NO_RULE, 2), "one has another table");
        rules.new.clear();
        assert!(rules.take(&[rule(32)]));
        assert_eq!((rules.number(&rule(32)), &*rules.new), (1, &[(1, rule(32))][..]));
    }

    #[test]
    fn nothing_packs_to_nothing() {
        let mut packed = PackedRows::default();
        packed.finish();
        assert_eq!(packed, PackedRows::default());
    }
}
