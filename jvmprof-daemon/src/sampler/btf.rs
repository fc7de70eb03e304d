//! Field offsets of kernel structures, from the kernel's own type information.
//!
//! rustc can't emit CO-RE relocations, so the daemon reads `/sys/kernel/btf/vmlinux` and passes
//! offsets to the kernel programs as globals. Format: Linux Documentation/bpf/btf.rst,
//! include/uapi/linux/btf.h.

use std::io;
use std::path::{Path, PathBuf};

use memchr::memmem;

/// Path of the kernel's type information.
pub const VMLINUX: &str = "/sys/kernel/btf/vmlinux";

const MAGIC: u16 = 0xeb9f;
const KIND_STRUCT: u32 = 4;
const KIND_UNION: u32 = 5;
const KIND_FWD: u32 = 7;
const KIND_TYPEDEF: u32 = 8;
const KIND_FUNC: u32 = 12;
/// Anonymous structures inside structures are searched this deep.
const MAX_NESTING: u32 = 8;

#[derive(Debug, thiserror::Error)]
pub enum BtfError {
    #[error("{path}: {source}; the kernel must be built with CONFIG_DEBUG_INFO_BTF=y")]
    Read { path: PathBuf, source: io::Error },
    #[error("{path} is no BTF: {what}")]
    Malformed { path: PathBuf, what: &'static str },
    #[error("this kernel's {structure} has no field {field}")]
    NoField { structure: &'static str, field: &'static str },
    #[error("this kernel has no function {function} that a program can be attached to")]
    NoFunction { function: &'static str },
    #[error("this kernel has no tracepoint {tracepoint} that a program can be attached to")]
    NoTracepoint { tracepoint: &'static str },
}

/// Parsed type information.
#[derive(Debug)]
pub struct Btf {
    bytes: Vec<u8>,
    strings: usize,
    strings_end: usize,
    /// Offset of each type's record; type ids begin at 1.
    types: Vec<u32>,
}

impl Btf {
    /// Reads the type information of the running kernel.
    ///
    /// # Errors
    /// Returns an error if the file can't be read or isn't little-endian BTF.
    pub fn of_running_kernel() -> Result<Self, BtfError> {
        Self::read(Path::new(VMLINUX))
    }

    /// Reads a file.
    ///
    /// # Errors
    /// Returns an error if the file can't be read or isn't little-endian BTF.
    pub fn read(path: &Path) -> Result<Self, BtfError> {
        let bytes = std::fs::read(path).map_err(|source| BtfError::Read { path: path.to_owned(), source })?;
        Self::parse(bytes).map_err(|what| BtfError::Malformed { path: path.to_owned(), what })
    }

    /// Parses the contents of such a file.
    ///
    /// # Errors
    /// Returns the defect.
    pub fn parse(bytes: Vec<u8>) -> Result<Self, &'static str> {
        let header = |at| u32_at(&bytes, at).map(|value| value as usize).ok_or("header cut short");
        if bytes.get(..2) != Some(&MAGIC.to_le_bytes()) {
            return Err("wrong magic");
        }
        let header_length = header(4)?;
        let section = |offset: usize, length: usize| {
            let begin = header_length.checked_add(offset)?;
            let end = begin.checked_add(length)?;
            (end <= bytes.len()).then_some((begin, end))
        };
        let (types_begin, types_end) = section(header(8)?, header(12)?).ok_or("types beyond the end")?;
        let (strings, strings_end) = section(header(16)?, header(20)?).ok_or("strings beyond the end")?;
        let mut types = Vec::new();
        let mut at = types_begin;
        while at < types_end {
            types.push(at as u32);
            let info = u32_at(&bytes, at + 4).ok_or("type cut short")?;
            at += 12 + trailing_bytes(info).ok_or("unknown kind of type")?;
        }
        Ok(Self { strings, strings_end, types, bytes })
    }

    /// Returns the offset in bytes of a structure's field; fields of anonymous members count as its
    /// own.
    ///
    /// # Errors
    /// Returns an error if there is no such structure or field, or it is a bit field.
    pub fn offset_of(&self, structure: &'static str, field: &'static str) -> Result<u32, BtfError> {
        self.named(structure)
            .filter(|(_, at)| self.is_aggregate(*at))
            .find_map(|(_, at)| self.find_field(at, field, 0))
            .ok_or(BtfError::NoField { structure, field })
    }

    /// Returns type information that only has this function: see [`Self::alone`].
    ///
    /// # Errors
    /// Returns an error if there is no such function.
    pub fn of_function(&self, function: &'static str) -> Result<Vec<u8>, BtfError> {
        self.alone(KIND_FUNC, function).ok_or(BtfError::NoFunction { function })
    }

    /// Returns type information that only has this tracepoint: see [`Self::alone`].
    ///
    /// # Errors
    /// Returns an error if there is no such tracepoint.
    pub fn of_tracepoint(&self, tracepoint: &'static str) -> Result<Vec<u8>, BtfError> {
        let name = format!("btf_trace_{tracepoint}");
        self.alone(KIND_TYPEDEF, &name).ok_or(BtfError::NoTracepoint { tracepoint })
    }

    /// Returns type information that only has this type, under its own id. Attaching to it requires
    /// no more, and all types take five megabytes of memory.
    fn alone(&self, kind: u32, name: &str) -> Option<Vec<u8>> {
        let (before, _) = self.named(name).find(|(_, at)| self.is_kind(*at, kind))?;
        let record = |name: u32, kind: u32| [name, kind << 24, 0];
        let types = std::iter::repeat_n(record(0, KIND_FWD), before).chain([record(1, kind)]);
        let names = [b"\0", name.as_bytes(), b"\0"].concat();
        let (types_length, names_length) = (12 * (before as u32 + 1), names.len() as u32);
        // Magic, version 1, no flags; the header's length; offset and length of types and strings.
        let header = [u32::from(MAGIC) | 1 << 16, 24, 0, types_length, types_length, names_length];
        let words = header.into_iter().chain(types.flatten());
        Some(words.flat_map(u32::to_le_bytes).chain(names).collect())
    }

    /// Returns the types of this name: index and offset of the record.
    fn named(&self, name: &str) -> impl Iterator<Item = (usize, u32)> {
        // Comparing a hundred thousand numbers is quicker than as many names. A longer name that
        // ends in this one may share its bytes.
        let strings = self.bytes.get(self.strings..self.strings_end).unwrap_or_default();
        let ended = [name.as_bytes(), b"\0"].concat();
        let offsets: Vec<u32> = memmem::find_iter(strings, &ended).map(|at| at as u32).collect();
        let has_name = move |at: u32| self.word(at).is_some_and(|name| offsets.contains(&name));
        self.types.iter().copied().enumerate().filter(move |(_, at)| has_name(*at))
    }

    fn find_field(&self, at: u32, field: &str, nesting: u32) -> Option<u32> {
        let info = self.word(at + 4)?;
        let has_bit_fields = info >> 31 == 1;
        for member in 0..info & 0xffff {
            let at = at + 12 + member * 12;
            let raw = self.word(at + 8)?;
            let (bits, is_bit_field) =
                if has_bit_fields { (raw & 0xff_ffff, raw >> 24 != 0) } else { (raw, false) };
            if self.name(at) == Some(field.as_bytes()) && !is_bit_field {
                return Some(bits / 8);
            }
            let inner = self.types.get((self.word(at + 4)? as usize).checked_sub(1)?).copied();
            if let Some(inner) = inner
                && self.name(at) == Some(b"")
                && self.is_aggregate(inner)
                && nesting < MAX_NESTING
                && let Some(offset) = self.find_field(inner, field, nesting + 1)
            {
                return Some(bits / 8 + offset);
            }
        }
        None
    }

    fn is_aggregate(&self, at: u32) -> bool {
        self.is_kind(at, KIND_STRUCT) || self.is_kind(at, KIND_UNION)
    }

    fn is_kind(&self, at: u32, kind: u32) -> bool {
        self.word(at + 4).is_some_and(|info| info >> 24 & 0x1f == kind)
    }

    /// Returns the name of a type or member record.
    fn name(&self, at: u32) -> Option<&[u8]> {
        let begin = self.strings.checked_add(self.word(at)? as usize)?;
        let rest = self.bytes.get(begin..self.strings_end)?;
        rest.split(|byte| *byte == 0).next()
    }

    fn word(&self, at: u32) -> Option<u32> {
        u32_at(&self.bytes, at as usize)
    }
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|chunk| u32::from_le_bytes(*chunk))
}

/// Returns the bytes that follow a type's 12-byte record, by its kind and number of elements.
fn trailing_bytes(info: u32) -> Option<usize> {
    let elements = (info & 0xffff) as usize;
    Some(match info >> 24 & 0x1f {
        // PTR, FWD, TYPEDEF, VOLATILE, CONST, RESTRICT, FUNC, FLOAT, TYPE_TAG
        2 | KIND_FWD..=KIND_FUNC | 16 | 18 => 0,
        // INT, VAR, DECL_TAG
        1 | 14 | 17 => 4,
        // ARRAY
        3 => 12,
        KIND_STRUCT | KIND_UNION => 12 * elements,
        // ENUM, FUNC_PROTO
        6 | 13 => 8 * elements,
        // DATASEC, ENUM64
        15 | 19 => 12 * elements,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_running_kernels_fields_are_found() {
        let btf = Btf::of_running_kernel().expect("the tests need a kernel with BTF");
        assert_eq!(btf.offset_of("pt_regs", "ip").expect("pt_regs is ABI"), 128);
        assert_eq!(btf.offset_of("pt_regs", "sp").expect("pt_regs is ABI"), 152);
        let group_leader = btf.offset_of("task_struct", "group_leader").expect("every kernel has it");
        assert!(group_leader > 0 && group_leader.is_multiple_of(8));
        assert!(matches!(btf.offset_of("task_struct", "no_such_field"), Err(BtfError::NoField { .. })));
    }

    #[test]
    fn a_type_alone_keeps_the_id_that_it_has_among_all_types() {
        let btf = Btf::of_running_kernel().expect("the tests need a kernel with BTF");
        let id = |btf: &Btf, kind, name: &str| {
            let is_it = |at: &u32| btf.is_kind(*at, kind) && btf.name(*at) == Some(name.as_bytes());
            btf.types.iter().position(is_it)
        };
        let function = btf.of_function("perf_event_mmap").expect("the kernel has it");
        let tracepoint = btf.of_tracepoint("sched_switch").expect("the kernel has it");
        for (alone, kind, name) in
            [(function, KIND_FUNC, "perf_event_mmap"), (tracepoint, KIND_TYPEDEF, "btf_trace_sched_switch")]
        {
            let alone = Btf::parse(alone).expect("what was written can be read");
            assert!(id(&alone, kind, name).is_some());
            assert_eq!(id(&btf, kind, name), id(&alone, kind, name));
        }
        assert!(matches!(btf.of_function("no_such_function"), Err(BtfError::NoFunction { .. })));
        assert!(matches!(btf.of_tracepoint("no_such_event"), Err(BtfError::NoTracepoint { .. })));
    }

    #[test]
    fn cut_and_corrupted_type_information_is_refused_without_harm() {
        let whole = std::fs::read(VMLINUX).expect("the tests need a kernel with BTF");
        for length in [0, 1, 2, 8, 23, 24, 100, whole.len() / 2, whole.len() - 1] {
            assert!(Btf::parse(whole[..length].to_vec()).is_err(), "{length} bytes");
        }
        // Any byte of the start may be anything.
        for at in 0..200 {
            let mut changed = whole[..4096.min(whole.len())].to_vec();
            changed[at] ^= 0xff;
            if let Ok(btf) = Btf::parse(changed) {
                let _ = btf.offset_of("task_struct", "flags");
            }
        }
    }
}
