//! A short name of a node: a hash of the functions from the root to it.
//!
//! The page computes the same (`assets/tree/subtrees.js`), keeps the hash of the frame that it
//! zoomed to in its address, and asks with it for what a tree of bounded size has no room for.
//! Names of two nodes are equal by chance once in 2^64: that would show stacks of both.

use std::fmt;
use std::str::FromStr;

use super::NodeKind;

/// Two hashes of 32 bits, which JavaScript can multiply exactly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathHash([u32; 2]);

/// A text that is no hash of a path.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("{0:?} isn't the hash of a path: 16 hexadecimal digits")]
pub struct InvalidPathHash(String);

/// FNV's prime for 32 bits.
const PRIME: u32 = 0x0100_0193;
/// 2^32 divided by the golden ratio, which spreads bits.
const SPREAD: u32 = 0x9e37_79b1;

impl PathHash {
    /// The node above all stacks.
    pub const ROOT: Self = Self([0x811c_9dc5, 0x0123_4567]);

    /// Returns the hash of a function as part of a path.
    pub(crate) fn of_function(kind: NodeKind, name: &str, file: &str, module: &str) -> Self {
        let texts = [name, "\0", file, "\0", module].into_iter().flat_map(str::encode_utf16);
        let units = std::iter::once(kind as u16).chain(texts);
        let mut lanes = Self::ROOT.0;
        for unit in units {
            lanes = lanes.map(|lane| (lane ^ u32::from(unit)).wrapping_mul(PRIME));
        }
        Self(lanes)
    }

    /// Returns the hash of a node's child.
    pub(crate) fn child(self, function: Self) -> Self {
        let lane = |at: usize| (self.0[at].rotate_left(5) ^ function.0[at]).wrapping_mul(SPREAD);
        Self([lane(0), lane(1)])
    }
}

impl fmt::Display for PathHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:08x}{:08x}", self.0[0], self.0[1])
    }
}

impl FromStr for PathHash {
    type Err = InvalidPathHash;

    fn from_str(text: &str) -> Result<Self, InvalidPathHash> {
        let is_hash = text.len() == 16 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        let hash = u64::from_str_radix(text, 16).ok().filter(|_| is_hash);
        let hash = hash.ok_or_else(|| InvalidPathHash(text.to_owned()))?;
        Ok(Self([(hash >> 32) as u32, hash as u32]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `tests/page/scripts/subtrees.test.mjs` asks the page's own for the same.
    #[test]
    fn the_hash_of_a_path_is_the_one_that_the_page_computes() {
        let run = PathHash::of_function(NodeKind::Java, "java.lang.Thread.run", "Thread.java", "jvm");
        let total = PathHash::of_function(NodeKind::Java, "acme.Größe.total😀", "", "jvm");
        let path = PathHash::ROOT.child(run).child(total);
        assert_eq!(path.to_string(), "8249cb6c9e044f9f");
        assert_eq!(path.to_string().parse(), Ok(path));
        assert_ne!(PathHash::ROOT.child(total).child(run), path);
    }

    #[test]
    fn other_texts_are_no_hashes() {
        for text in ["", "0", "+123456789abcdef", "0123456789abcdef0", "0123456789abcdeg"] {
            assert_eq!(text.parse::<PathHash>(), Err(InvalidPathHash(text.to_owned())));
        }
    }
}
