//! The flags that a JVM runs with: openjdk src/hotspot/share/runtime/globals.hpp (JDK 8, `Flag`),
//! share/runtime/flags/jvmFlag.hpp (`JVMFlag`).

use serde::Serialize;

use crate::hotspot::error::HotspotError;
use crate::hotspot::process_memory::{ProcessMemory, field};
use crate::hotspot::vmstructs::field_offsets::FieldLookup;
use crate::types::Avma;

/// Flags of one JVM, at most; JDK 8 has 870 of them, later ones 500 to 700.
const MAX_FLAGS: u64 = 8192;
/// Bytes of a flag's name and of its text.
const MAX_TEXT: usize = 1024;
/// `VALUE_ORIGIN_MASK`: the low bits of `_flags` say who set the value; 0 is nobody.
const ORIGIN: u32 = 15;

/// A flag that doesn't have its default value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct VmFlag {
    pub name: String,
    /// As `-XX:+PrintFlagsFinal` prints it.
    pub value: String,
    /// Who set it.
    pub origin: FlagOrigin,
}

impl VmFlag {
    /// Returns true if somebody set it, and not the JVM itself.
    pub fn is_set_by_user(&self) -> bool {
        !matches!(self.origin, FlagOrigin::Ergonomic | FlagOrigin::Other)
    }

    /// Returns true if it names the collector that is used.
    pub fn is_collector(&self) -> bool {
        self.name.starts_with("Use") && self.name.ends_with("GC") && self.value == "true"
    }
}

/// The origin of a flag's value (`JVMFlagOrigin`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FlagOrigin {
    CommandLine,
    /// `JAVA_TOOL_OPTIONS` and the like.
    Environment,
    ConfigFile,
    /// While the JVM ran.
    Management,
    /// The JVM, by what the machine has.
    Ergonomic,
    Other,
}

impl FlagOrigin {
    fn of(flags: u32) -> Option<Self> {
        Some(match flags & ORIGIN {
            0 => return None,
            1 => Self::CommandLine,
            2 => Self::Environment,
            3 => Self::ConfigFile,
            4 => Self::Management,
            5 => Self::Ergonomic,
            _ => Self::Other,
        })
    }
}

/// Address of the table of flags, and offsets in it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FlagFields {
    table: Avma,
    count: Avma,
    bytes: usize,
    name: usize,
    address: usize,
    flags: usize,
    kind: usize,
    /// The type is a number (JDK 16 and later), not a name.
    numbered: bool,
}

/// Types by number: jvmFlag.hpp, `JVM_FLAG_ALL_TYPES_DO`.
const TYPES: [&str; 10] =
    ["bool", "int", "uint", "intx", "uintx", "uint64_t", "size_t", "double", "ccstr", "ccstrlist"];

impl FlagFields {
    pub(crate) fn new(lookup: FieldLookup<'_>) -> Result<Self, HotspotError> {
        let new = lookup.optional_address("JVMFlag::flags").is_some();
        let name = |new_name, old_name| if new { new_name } else { old_name };
        let kind = name("JVMFlag::_type", "VmFlag::_type");
        Ok(Self {
            table: lookup.address(name("JVMFlag::flags", "VmFlag::flags"))?,
            count: lookup.address(name("JVMFlag::numFlags", "VmFlag::numFlags"))?,
            bytes: lookup.size_of(name("JVMFlag", "VmFlag"))?.into(),
            name: lookup.offset_of(name("JVMFlag::_name", "VmFlag::_name"))?.into(),
            address: lookup.offset_of(name("JVMFlag::_addr", "VmFlag::_addr"))?.into(),
            flags: lookup.offset_of(name("JVMFlag::_flags", "VmFlag::_flags"))?.into(),
            kind: lookup.offset_of(kind)?.into(),
            numbered: lookup.0.field(kind).is_some_and(|field| &*field.type_name == "int"),
        })
    }

    /// The flags that somebody set.
    pub(crate) fn set(&self, memory: &impl ProcessMemory) -> Option<Vec<VmFlag>> {
        let (table, count) = (memory.read_u64(self.table)?, memory.read_u64(self.count)?);
        let count = count.min(MAX_FLAGS) as usize;
        let bytes = memory.read_bytes(Avma(table), count * self.bytes)?;
        let set = |flag: &[u8]| {
            let origin = FlagOrigin::of(field::u32(flag, self.flags)?)?;
            // The table ends with an entry without a name.
            let name = field::u64(flag, self.name).filter(|name| *name != 0)?;
            let name = memory.read_c_string(Avma(name), MAX_TEXT)?;
            Some(VmFlag { value: self.value(flag, memory)?, name, origin })
        };
        Some(bytes.chunks_exact(self.bytes).filter_map(set).collect())
    }

    /// The value of a flag, whoever set it.
    pub(crate) fn value_of(&self, wanted: &str, memory: &impl ProcessMemory) -> Option<String> {
        let (table, count) = (memory.read_u64(self.table)?, memory.read_u64(self.count)?);
        let count = count.min(MAX_FLAGS) as usize;
        let bytes = memory.read_bytes(Avma(table), count * self.bytes)?;
        let flags = || bytes.chunks_exact(self.bytes);
        let place = |flag| (Avma(field::u64(flag, self.name).unwrap_or_default()), wanted.len() + 1);
        let names = memory.read_ranges(&flags().map(place).collect::<Vec<_>>());
        let is_wanted = |name: &Option<Vec<u8>>| {
            name.as_ref().and_then(|name| name.split_last()) == Some((&0, wanted.as_bytes()))
        };
        let index = names.iter().position(is_wanted)?;
        self.value(flags().nth(index)?, memory)
    }

    fn value(&self, flag: &[u8], memory: &impl ProcessMemory) -> Option<String> {
        let kind = if self.numbered {
            (*TYPES.get(field::u32(flag, self.kind)? as usize)?).to_owned()
        } else {
            memory.read_c_string(Avma(field::u64(flag, self.kind)?), MAX_TEXT)?
        };
        let at = Avma(field::u64(flag, self.address)?);
        let bytes = |len| memory.read_bytes(at, len);
        Some(match kind.as_str() {
            "bool" => (bytes(1)? != [0]).to_string(),
            "int" => field::i32(&bytes(4)?, 0)?.to_string(),
            "uint" => field::u32(&bytes(4)?, 0)?.to_string(),
            "intx" => memory.read_u64(at)?.cast_signed().to_string(),
            "uintx" | "uint64_t" | "size_t" => memory.read_u64(at)?.to_string(),
            "double" => f64::from_bits(memory.read_u64(at)?).to_string(),
            "ccstr" | "ccstrlist" => match memory.read_u64(at)? {
                0 => String::new(),
                text => memory.read_c_string(Avma(text), MAX_TEXT)?,
            },
            _ => return None,
        })
    }
}
