//! `.gopclntab`: the functions of a Go program, which every one of them carries, stripped or not.
//!
//! For each function it has the address, the name and, for each instruction, how far the stack
//! pointer has moved: the runtime itself walks stacks by it. Layouts of Go 1.2 to 1.26: go
//! src/internal/abi/symtab.go, src/debug/gosym/pclntab.go, src/runtime/symtab.go (`moduledata`,
//! `_func`), and these files' history.

use std::ops::Range;

/// Largest table that is read, in bytes. Kubernetes' kubelet 1.35 has 24 MB.
pub(crate) const MAX_TABLE: u64 = 256 << 20;
/// Functions, at most: kubelet 1.35 has 90,000.
const MAX_FUNCTIONS: u64 = 4 << 20;

/// Where a file may have its table.
pub(crate) const SECTIONS: [&str; 2] = [".gopclntab", ".data.rel.ro.gopclntab"];

/// Which layout a table has, by its first four bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Layout {
    /// Go 1.2 to 1.15: everything counts from the table's begin.
    Go12,
    /// Go 1.16 and 1.17: parts have offsets of their own.
    Go116,
    /// Go 1.18 and 1.19: addresses count from the begin of the code.
    Go118,
    /// Go 1.20 on: functions tell their first line.
    Go120,
}

impl Layout {
    fn of(magic: u32) -> Option<Self> {
        Some(match magic {
            0xffff_fffb => Self::Go12,
            0xffff_fffa => Self::Go116,
            0xffff_fff0 => Self::Go118,
            0xffff_fff1 => Self::Go120,
            _ => return None,
        })
    }

    fn has_offsets(self) -> bool {
        matches!(self, Self::Go118 | Self::Go120)
    }
}

/// A parsed table.
#[derive(Debug)]
pub struct GoTable<'a> {
    bytes: &'a [u8],
    layout: Layout,
    functions: usize,
    /// Offsets in the table: of names, of the stack pointer's steps, of the functions.
    names: usize,
    steps: usize,
    index: usize,
    /// What the header says that addresses count from; zero for absolute ones, and where it isn't
    /// told.
    stated_text: u64,
}

/// A function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GoFunction<'a> {
    /// From the begin of the code, or absolute: see [`GoTable::is_relative`].
    pub start: u64,
    /// Where the next function begins, behind padding.
    pub limit: u64,
    /// Offset in the table.
    pub name_at: usize,
    /// The name and what follows it: a zero byte ends it.
    name: &'a [u8],
    /// It writes the stack pointer in ways that its steps don't tell (Go 1.17 on).
    pub writes_sp: bool,
    steps: &'a [u8],
}

impl<'a> GoTable<'a> {
    /// `None` if it isn't such a table, or one of a version that isn't known.
    pub fn parse(bytes: &'a [u8]) -> Option<Self> {
        let layout = Layout::of(word(bytes, 0)?)?;
        // Padding, the least instruction's length, a pointer's size.
        if bytes.get(4..8)? != [0, 0, 1, 8] {
            return None;
        }
        let field = |index: usize| usize::try_from(long(bytes, 8 + 8 * index)?).ok();
        let functions = field(0).filter(|count| *count as u64 <= MAX_FUNCTIONS)?;
        let (stated_text, names, steps, index) = match layout {
            Layout::Go12 => (0, 0, 0, 16),
            Layout::Go116 => (0, field(2)?, field(5)?, field(6)?),
            Layout::Go118 | Layout::Go120 => (long(bytes, 8 + 8 * 2)?, field(3)?, field(6)?, field(7)?),
        };
        let table = Self { bytes, layout, functions, names, steps, index, stated_text };
        let end = index.checked_add(functions.checked_mul(table.entry_size())?)?;
        (end <= bytes.len() && names <= bytes.len() && steps <= bytes.len()).then_some(table)
    }

    /// Whether addresses count from the begin of the code.
    pub fn is_relative(&self) -> bool {
        self.layout.has_offsets()
    }

    /// Where that is, if the table tells. A position-independent program is relocated, so that the
    /// file may say nothing.
    pub fn stated_text(&self) -> Option<u64> {
        (self.stated_text != 0).then_some(self.stated_text)
    }

    /// Where names are, in the table.
    pub fn names(&self) -> Range<usize> {
        self.names..self.bytes.len()
    }

    /// All that are well-formed, in order of their addresses. What overlaps an earlier one isn't.
    pub fn functions(&self) -> impl Iterator<Item = GoFunction<'a>> {
        let mut end = 0;
        (0..self.functions).filter_map(|number| self.function(number)).filter(move |function| {
            let is_behind = function.start >= end;
            end = if is_behind { function.limit } else { end };
            is_behind
        })
    }

    /// The functions of this name: a second one may be a wrapper.
    pub fn named(&self, name: &str) -> impl Iterator<Item = GoFunction<'a>> {
        self.functions().filter(move |function| function.is(name))
    }

    fn entry_size(&self) -> usize {
        if self.layout.has_offsets() { 8 } else { 16 }
    }

    fn entry(&self, number: usize) -> Option<u64> {
        let at = self.index.checked_add(number * self.entry_size())?;
        if self.layout.has_offsets() { Some(word(self.bytes, at)?.into()) } else { long(self.bytes, at) }
    }

    fn function(&self, number: usize) -> Option<GoFunction<'a>> {
        let (start, limit) = (self.entry(number)?, self.entry(number + 1)?);
        let at = self.index + number * self.entry_size() + self.entry_size() / 2;
        let record = match self.layout.has_offsets() {
            true => self.index.checked_add(word(self.bytes, at)? as usize)?,
            // Of Go 1.2 from the table's begin, of Go 1.16 from the functions'.
            false => {
                let base = if self.layout == Layout::Go12 { 0 } else { self.index };
                base.checked_add(usize::try_from(long(self.bytes, at)?).ok()?)?
            }
        };
        let record = self.bytes.get(record..)?;
        // `entry` has four or eight bytes.
        let (own_start, fields) = match self.layout.has_offsets() {
            true => (word(record, 0)?.into(), record.get(4..)?),
            false => (long(record, 0)?, record.get(8..)?),
        };
        if own_start != start || limit <= start {
            return None;
        }
        let name_at = self.names.checked_add(word(fields, 0)? as usize)?;
        let name = self.bytes.get(name_at..)?;
        let steps = self.bytes.get(self.steps.checked_add(word(fields, 12)? as usize)?..)?;
        let flag = match self.layout {
            Layout::Go12 => None,
            // funcID stands behind deferreturn, pcsp, pcfile, pcln, npcdata and cuOffset, and
            // startLine.
            Layout::Go116 | Layout::Go118 => fields.get(33),
            Layout::Go120 => fields.get(37),
        };
        let writes_sp = flag.is_some_and(|flag| flag & SP_WRITE != 0);
        Some(GoFunction { start, limit, name_at, name, writes_sp, steps })
    }
}

/// `FuncFlagSPWrite` of go src/internal/abi/symtab.go.
const SP_WRITE: u8 = 2;

impl GoFunction<'_> {
    pub fn is(&self, name: &str) -> bool {
        self.name.strip_prefix(name.as_bytes()).is_some_and(|rest| rest.first() == Some(&0))
    }

    /// How many bytes the stack holds above the return address, by the address up to which it does:
    /// what is pushed or reserved there; negative where the return address itself has been popped.
    /// Ends where the function's code does, before padding, or where the table makes no sense.
    pub fn steps(&self) -> impl Iterator<Item = (u64, i32)> {
        let (mut rest, mut at, mut value, limit) = (self.steps, self.start, -1i32, self.limit);
        let mut is_first = true;
        std::iter::from_fn(move || {
            let change = number(&mut rest)?;
            if change == 0 && !is_first {
                return None;
            }
            let change = if change & 1 != 0 { !(change >> 1) } else { change >> 1 };
            value = value.wrapping_add(change.cast_signed());
            let length = number(&mut rest)?;
            // What doesn't get on would never end.
            if length == 0 && !is_first {
                return None;
            }
            is_first = false;
            at = at.checked_add(length.into())?;
            (at <= limit && (-8..1 << 30).contains(&value)).then_some((at, value))
        })
    }

    /// Where its code ends.
    pub fn end(&self) -> u64 {
        self.steps().last().map_or(self.start, |(end, _)| end)
    }
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|chunk| u32::from_le_bytes(*chunk))
}

fn long(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..)?.first_chunk().map(|chunk| u64::from_le_bytes(*chunk))
}

/// A varint of 32 bits (go src/runtime/symtab.go, `readvarint`).
fn number(rest: &mut &[u8]) -> Option<u32> {
    let mut value = 0u32;
    for shift in (0..32).step_by(7) {
        let (byte, behind) = rest.split_first()?;
        *rest = behind;
        value |= u32::from(byte & 0x7f).wrapping_shl(shift);
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As Go 1.20 writes it, with functions that begin at these addresses and the last one's end.
    fn table(addresses: &[u32]) -> Vec<u8> {
        let count = addresses.len() as u64 - 1;
        let index = 8 + 8 * 8;
        let records = 8 * count + 4;
        let fields = [count, 0, 0, index, 0, 0, index, index];
        let mut bytes = [&0xffff_fff1_u32.to_le_bytes()[..], &[0, 0, 1, 8]].concat();
        bytes.extend(fields.map(u64::to_le_bytes).concat());
        for (number, address) in addresses.iter().enumerate() {
            bytes.extend(address.to_le_bytes());
            if (number as u64) < count {
                bytes.extend((records as u32 + 44 * number as u32).to_le_bytes());
            }
        }
        for address in &addresses[..count as usize] {
            bytes.extend(address.to_le_bytes());
            bytes.extend([0; 40]);
        }
        bytes
    }

    #[test]
    fn functions_that_overlap_others_are_left_out() {
        let starts = |addresses: &[u32]| {
            let bytes = table(addresses);
            let table = GoTable::parse(&bytes).expect("a table");
            table.functions().map(|function| (function.start, function.limit)).collect::<Vec<_>>()
        };
        assert_eq!(starts(&[0, 16, 48, 64]), [(0, 16), (16, 48), (48, 64)]);
        // Each would be all of the code.
        assert_eq!(starts(&[0, 64, 0, 64, 0, 64, 80]), [(0, 64), (64, 80)]);
    }
}
