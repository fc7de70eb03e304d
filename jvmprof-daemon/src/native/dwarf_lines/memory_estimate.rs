//! Estimate of the memory that addr2line takes for DWARF, before it takes it.
//!
//! addr2line trusts its input: it recurses once for each level of inlined functions, and builds a
//! row of 24 bytes from one byte of a line program. A file may also refer to the same bytes from
//! everywhere. So its units are walked here in the same order, without keeping anything, and the
//! bytes that addr2line would keep of each are counted. It allocates them once a unit's code is
//! looked up.

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;

use gimli::read::AbbreviationsCacheStrategy;
use gimli::{AttributeValue, Dwarf, IncompleteLineProgram, Reader as _, Section as _, Unit, UnitType};

use super::DwarfReader;
use crate::native::elf::ElfError;

/// Deepest entry that is accepted: each level is a recursion of addr2line's. Heavily inlined Rust
/// has some hundred.
const MAX_DEPTH: usize = 512;
/// Attributes, ranges, and bytes of line programs and of their files' names that are read, for each
/// byte of the sections: there are more only if the same ones are read again and again.
const WORK_PER_BYTE: u64 = 8;
/// Work that is always allowed.
const SOME_WORK: u64 = 1 << 16;

/// Bytes that addr2line and gimli keep of each, or a little more.
const UNIT_BYTES: u64 = 1024;
const ABBREVIATION_BYTES: u64 = 160;
const ATTRIBUTE_BYTES: u64 = 24;
const FUNCTION_BYTES: u64 = 96;
const RANGE_BYTES: u64 = 32;
const ROW_BYTES: u64 = 24;
const FILE_BYTES: u64 = 160;

/// Units of a file.
pub(super) struct DwarfUnits {
    /// Ranges of code with their unit; some code is in two.
    ranges: Vec<(Range<u64>, u32)>,
    /// Bytes that each unit takes when it is first used; 0 from then on.
    made: Vec<u64>,
    /// Bytes that all units take at once.
    pub(super) first_bytes: u64,
    used_bytes: u64,
}

impl DwarfUnits {
    /// Walks the units of `dwarf` and of the file that it shares with others. `limit` is that of
    /// the bytes that they take at once.
    ///
    /// # Errors
    /// [`ElfError::TooDeep`], and [`ElfError::TooLarge`] above `limit`, or where the walk takes too
    /// long. A malformed part ends its unit, as it does in addr2line.
    pub(super) fn check(dwarf: &mut Dwarf<DwarfReader>, limit: u64) -> Result<Self, ElfError> {
        let bytes = |dwarf: &Dwarf<DwarfReader>| {
            let info = dwarf.debug_info.reader().len() + dwarf.debug_abbrev.reader().len();
            (info + dwarf.debug_line.reader().len()) as u64
        };
        let bytes = bytes(dwarf) + dwarf.sup().map_or(0, bytes);
        let work = bytes.saturating_mul(WORK_PER_BYTE).saturating_add(SOME_WORK);
        let mut check = Check {
            bytes: Count::new("what is made of DWARF", limit),
            work: Count::new("DWARF, with what is read again and again,", work),
            units: Self { ranges: Vec::new(), made: Vec::new(), first_bytes: 0, used_bytes: 0 },
        };
        // Nobody else has it yet.
        if let Some(shared) = dwarf.sup.as_mut().and_then(Arc::get_mut) {
            check.abbreviations(shared)?;
            check.all(shared, false)?;
        }
        check.abbreviations(dwarf)?;
        check.all(dwarf, true)?;
        check.units.first_bytes = check.bytes.used;
        Ok(check.units)
    }

    /// Returns the bytes that all units take in the end, without [`Self::first_bytes`].
    pub(super) fn all_bytes(&self) -> u64 {
        self.made.iter().fold(0, |sum, made| sum.saturating_add(*made))
    }

    /// Marks the units with code at `address` as used.
    ///
    /// # Errors
    /// [`ElfError::TooLarge`] if all used units would take more than `limit` bytes.
    pub(super) fn start_use(&mut self, address: u64, limit: u64) -> Result<(), ElfError> {
        for (range, unit) in &self.ranges {
            if !range.contains(&address) {
                continue;
            }
            let Some(made) = self.made.get_mut(*unit as usize) else { continue };
            let used = self.used_bytes.saturating_add(*made);
            if used > limit {
                return Err(ElfError::TooLarge {
                    what: "what is made of DWARF".to_owned(),
                    size: used,
                    limit,
                });
            }
            (self.used_bytes, *made) = (used, 0);
        }
        Ok(())
    }
}

struct Check {
    /// Bytes that are allocated at once.
    bytes: Count,
    work: Count,
    units: DwarfUnits,
}

struct Count {
    what: &'static str,
    used: u64,
    limit: u64,
}

impl Count {
    fn new(what: &'static str, limit: u64) -> Self {
        Self { what, used: 0, limit }
    }

    fn add(&mut self, amount: u64) -> Result<(), ElfError> {
        self.used = self.used.saturating_add(amount);
        if self.used <= self.limit {
            return Ok(());
        }
        Err(ElfError::TooLarge { what: self.what.to_owned(), size: self.used, limit: self.limit })
    }
}

impl Check {
    /// Counts the tables of abbreviations and has them parsed, each once for all units that share
    /// it.
    fn abbreviations(&mut self, dwarf: &mut Dwarf<DwarfReader>) -> Result<(), ElfError> {
        let mut known = HashSet::new();
        let mut units = dwarf.units();
        while let Ok(Some(header)) = units.next() {
            self.bytes.add(UNIT_BYTES)?;
            let offset = header.debug_abbrev_offset().0;
            let mut table = dwarf.debug_abbrev.reader().clone();
            if known.insert(offset) && table.skip(offset).is_ok() {
                let mut before = table.len();
                while let Some(attributes) = abbreviation(&mut table) {
                    self.bytes.add(ABBREVIATION_BYTES + attributes * ATTRIBUTE_BYTES)?;
                    self.work.add((before - table.len()) as u64)?;
                    before = table.len();
                }
            }
        }
        dwarf.populate_abbreviations_cache(AbbreviationsCacheStrategy::All);
        Ok(())
    }

    /// Walks all units. `has_code`: addr2line searches them for functions and lines.
    fn all(&mut self, dwarf: &Dwarf<DwarfReader>, has_code: bool) -> Result<(), ElfError> {
        let mut numbers = HashMap::new();
        let mut headers = dwarf.units();
        while let Ok(Some(header)) = headers.next() {
            let kind = header.type_();
            if matches!(kind, UnitType::Type { .. } | UnitType::SplitType { .. }) {
                continue;
            }
            let Ok(unit) = dwarf.unit(header) else { continue };
            if let Some(program) = &unit.line_program {
                let header = program.header();
                let entries = header.file_names().len() + header.include_directories().len();
                self.bytes.add(entries as u64 * FILE_BYTES)?;
            }
            // Others refer to these, and find only names in them.
            if !has_code || kind == UnitType::Partial {
                continue;
            }
            let number = self.units.made.len() as u32;
            numbers.extend(unit.header.debug_info_offset().map(|offset| (offset, number)));
            let mut made = self.entries(dwarf, &unit)?;
            let lines = match unit.line_program.clone() {
                Some(program) => self.lines(dwarf, &unit, program)?,
                None => Lines::default(),
            };
            let mut ranges = self.unit_ranges(dwarf, &unit)?;
            if ranges.is_empty() {
                // addr2line reads the lines for them.
                self.bytes.add(lines.made)?;
                ranges = lines.sequences;
            } else {
                made += lines.made;
            }
            self.units.made.push(made);
            ranges.into_iter().try_for_each(|range| self.add_range(range, number))?;
        }
        // Other sections may give units more code.
        let mut sets = dwarf.debug_aranges.headers();
        while let Ok(Some(set)) = sets.next() {
            let Some(number) = numbers.get(&set.debug_info_offset()).filter(|_| has_code) else { continue };
            let mut entries = set.entries();
            while let Some(entry) = entries.next().transpose() {
                let Ok(entry) = entry else { continue };
                let range = entry.range();
                self.add_range(range.begin..range.end, *number)?;
            }
        }
        Ok(())
    }

    /// Adds a range of a unit's code.
    fn add_range(&mut self, range: Range<u64>, unit: u32) -> Result<(), ElfError> {
        // Here, and in addr2line.
        self.bytes.add(2 * RANGE_BYTES)?;
        self.units.ranges.push((range, unit));
        Ok(())
    }

    /// Returns the ranges of a unit's code; everything if they can't be read.
    fn unit_ranges(
        &mut self,
        dwarf: &Dwarf<DwarfReader>,
        unit: &Unit<DwarfReader>,
    ) -> Result<Vec<Range<u64>>, ElfError> {
        let everywhere = 0..u64::MAX;
        let Ok(mut found) = dwarf.unit_ranges(unit) else { return Ok(vec![everywhere]) };
        let mut ranges = Vec::new();
        loop {
            self.work.add(1)?;
            match found.next() {
                Ok(Some(range)) if range.begin < range.end => ranges.push(range.begin..range.end),
                Ok(Some(_)) => {}
                Ok(None) => return Ok(ranges),
                Err(_) => return Ok(vec![everywhere]),
            }
        }
    }

    /// Returns the bytes that a unit's functions take.
    fn entries(&mut self, dwarf: &Dwarf<DwarfReader>, unit: &Unit<DwarfReader>) -> Result<u64, ElfError> {
        let mut made = 0;
        let Ok(mut entries) = unit.entries_raw(None) else { return Ok(made) };
        while !entries.is_empty() {
            if entries.next_depth() > MAX_DEPTH as isize {
                return Err(ElfError::TooDeep { limit: MAX_DEPTH });
            }
            let abbreviation = match entries.read_abbreviation() {
                Ok(Some(abbreviation)) => abbreviation,
                Ok(None) => continue,
                Err(_) => break,
            };
            self.work.add(1 + abbreviation.attributes().len() as u64)?;
            let tag = abbreviation.tag();
            if tag != gimli::DW_TAG_subprogram && tag != gimli::DW_TAG_inlined_subroutine {
                if entries.skip_attributes(abbreviation.attributes()).is_err() {
                    break;
                }
                continue;
            }
            made += FUNCTION_BYTES + RANGE_BYTES;
            for attribute in abbreviation.attributes() {
                let Ok(attribute) = entries.read_attribute(*attribute) else { return Ok(made) };
                if attribute.name() == gimli::DW_AT_ranges {
                    made += self.count_ranges(dwarf, unit, attribute.value())? * RANGE_BYTES;
                }
            }
        }
        Ok(made)
    }

    fn count_ranges(
        &mut self,
        dwarf: &Dwarf<DwarfReader>,
        unit: &Unit<DwarfReader>,
        list: AttributeValue<DwarfReader>,
    ) -> Result<u64, ElfError> {
        let mut count = 0;
        let Ok(Some(offset)) = dwarf.attr_ranges_offset(unit, list) else { return Ok(count) };
        let Ok(mut ranges) = dwarf.ranges(unit, offset) else { return Ok(count) };
        while let Ok(Some(_)) = ranges.next() {
            self.work.add(1)?;
            count += 1;
        }
        Ok(count)
    }

    fn lines(
        &mut self,
        dwarf: &Dwarf<DwarfReader>,
        unit: &Unit<DwarfReader>,
        program: IncompleteLineProgram<DwarfReader>,
    ) -> Result<Lines, ElfError> {
        let mut lines = Lines::default();
        let header = program.header();
        self.work.add(header.raw_program_buf().len() as u64)?;
        // Each file gets a path of its own, with its directory and the unit's.
        let length = |text| dwarf.attr_string(unit, text).map_or(0, |text| text.len() as u64);
        let unit_directory = unit.comp_dir.as_ref().map_or(0, |directory| directory.len() as u64);
        for file in header.file_names() {
            let path = file.directory(header).map_or(0, length) + length(file.path_name());
            self.work.add(path)?;
            lines.made += unit_directory + path;
        }
        let (mut rows, mut first) = (program.rows(), None);
        while let Ok(Some((_, row))) = rows.next_row() {
            lines.made += ROW_BYTES;
            let start = *first.get_or_insert(row.address());
            if row.end_sequence() {
                first = None;
                if start < row.address() {
                    lines.made += RANGE_BYTES;
                    lines.sequences.push(start..row.address());
                }
            }
        }
        Ok(lines)
    }
}

/// A unit's lines: bytes that they take, and their ranges.
#[derive(Default)]
struct Lines {
    made: u64,
    sequences: Vec<Range<u64>>,
}

/// Skips one abbreviation and returns its number of attributes; `None` at the end of its table
/// (DWARF 5, 7.5.3), and where that is malformed.
fn abbreviation(table: &mut DwarfReader) -> Option<u64> {
    let code = table.read_uleb128().ok().filter(|code| *code != 0);
    code.and_then(|_| table.skip_leb128().and_then(|()| table.read_u8()).ok())?;
    let mut attributes = 0;
    loop {
        let (name, form) = (table.read_uleb128().ok()?, table.read_uleb128().ok()?);
        if form == u64::from(gimli::DW_FORM_implicit_const.0) {
            table.skip_leb128().ok()?;
        }
        if (name, form) == (0, 0) {
            return Some(attributes);
        }
        attributes += 1;
    }
}
