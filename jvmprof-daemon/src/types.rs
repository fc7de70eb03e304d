//! Value types that all modules share: addresses that can't be confused, build ids, process
//! identity.

use std::fmt;

pub use jvmprof_common::address::Avma;

/// Hasher of maps that are looked up several times a sample. It is seeded, but not safe against
/// keys that are chosen to collide: for keys of which each process has maps of its own, or few.
pub type FastHasher = foldhash::fast::RandomState;

/// A stated virtual address: the one in an ELF file's own program headers and symbols (`p_vaddr`,
/// `st_value`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Svma(pub u64);

/// The distance by which a process has a file's addresses elsewhere than the file states them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LoadBias(pub u64);

impl LoadBias {
    /// Returns the bias of a file that has at `avma` what it states to be at `svma`.
    pub const fn between(avma: Avma, svma: Svma) -> Self {
        Self(avma.0.wrapping_sub(svma.0))
    }

    /// Returns where a process has what the file states to be at this address.
    pub const fn avma(self, svma: Svma) -> Avma {
        Avma(self.0.wrapping_add(svma.0))
    }
}

/// An offset in bytes from the start of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileOffset(pub u64);

impl fmt::Display for Svma {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

/// A GNU build id (`NT_GNU_BUILD_ID`): 1 to 20 bytes, shown in lower-case hex.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BuildId {
    len: u8,
    bytes: [u8; 20],
}

impl BuildId {
    /// Returns the build id with these bytes; `None` if there are none or more than the 20 that the
    /// kernel and linkers use.
    pub fn new(id: &[u8]) -> Option<Self> {
        let mut bytes = [0; 20];
        if id.is_empty() || id.len() > bytes.len() {
            return None;
        }
        bytes[..id.len()].copy_from_slice(id);
        Some(Self { len: id.len() as u8, bytes })
    }

    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

impl fmt::Display for BuildId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex(self.as_bytes()))
    }
}

/// Returns bytes as hexadecimal digits, two a byte.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

impl fmt::Debug for BuildId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BuildId({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn build_ids_are_shown_in_hex_and_bounded() {
        let id = BuildId::new(&[0x93, 0xac, 0x00, 0x0f]).expect("four bytes are a build id");
        assert_eq!(id.to_string(), "93ac000f");
        assert_eq!(BuildId::new(&[]), None);
        assert_eq!(BuildId::new(&[1; 21]), None);
    }
}
