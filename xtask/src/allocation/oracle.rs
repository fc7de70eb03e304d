//! The allocations that the oracle program says that it has made.

use std::collections::BTreeMap;

use anyhow::Context as _;

/// Objects of one class that one method allocates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct OracleObjects {
    pub(super) class: String,
    pub(super) path: String,
    pub(super) objects: u64,
    pub(super) bytes: u64,
}

/// All that the program allocates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct OracleAllocations {
    pub(super) kinds: Vec<OracleObjects>,
    /// What the JVM says of its threads (`ThreadMXBean.getThreadAllocatedBytes`).
    pub(super) jvm_bytes: u64,
}

/// Bytes of the headers of objects and arrays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct HeaderBytes {
    object: u32,
    array: u32,
}

impl HeaderBytes {
    /// The headers of a JVM that says these to be its flags (`-XX:+PrintFlagsFinal`):
    /// share/oops/arrayOop.hpp, `header_size_in_bytes`.
    pub(super) fn of(feature: u32, flags: &str) -> Self {
        let is = |name: &str, value: &str| {
            flags.lines().any(|line| {
                let mut words = line.split_whitespace().skip(1);
                words.next() == Some(name) && words.nth(1) == Some(value)
            })
        };
        if is("UseCompactObjectHeaders", "true") {
            return Self { object: 8, array: 12 };
        }
        if is("UseCompressedClassPointers", "false") {
            // Elements begin right behind the length since JDK 23.
            return Self { object: 16, array: if feature < 23 { 24 } else { 20 } };
        }
        Self { object: 12, array: 16 }
    }

    pub(super) fn properties(self) -> [String; 2] {
        [format!("-Dheader={}", self.object), format!("-DarrayHeader={}", self.array)]
    }
}

impl OracleAllocations {
    /// # Errors
    /// A line can't be understood.
    pub(super) fn parse(text: &str) -> anyhow::Result<Self> {
        let (mut kinds, mut jvm_bytes) = (Vec::new(), None);
        for line in text.lines() {
            let words: Vec<&str> = line.split('\t').collect();
            let number = |text: &str| text.parse::<u64>().with_context(|| format!("reading {line:?}"));
            match words[..] {
                [class, path, objects, bytes] => kinds.push(OracleObjects {
                    class: class.to_owned(),
                    path: path.to_owned(),
                    objects: number(objects)?,
                    bytes: number(bytes)?,
                }),
                ["all", bytes] => jvm_bytes = Some(number(bytes)?),
                _ => {}
            }
        }
        Ok(Self { kinds, jvm_bytes: jvm_bytes.context("the program doesn't say what the JVM counted")? })
    }

    /// Classes with their bytes and objects.
    pub(super) fn classes(&self) -> Vec<(String, u64, u64)> {
        let mut classes: BTreeMap<&str, (u64, u64)> = BTreeMap::new();
        for kind in &self.kinds {
            let (bytes, objects) = classes.entry(&kind.class).or_default();
            *bytes += kind.bytes;
            *objects += kind.objects;
        }
        let mut all: Vec<_> =
            classes.into_iter().map(|(class, (bytes, objects))| (class.to_owned(), bytes, objects)).collect();
        all.sort_by_key(|(_, bytes, _)| std::cmp::Reverse(*bytes));
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_those_of_the_flags() {
        let flags = "     bool UseCompactObjectHeaders     = true      {lp64_product} {default}\n";
        assert_eq!(HeaderBytes::of(28, flags), HeaderBytes { object: 8, array: 12 });
        let flags = "     bool UseCompressedClassPointers  = false     {lp64_product} {command line}\n";
        assert_eq!(HeaderBytes::of(17, flags), HeaderBytes { object: 16, array: 24 });
        assert_eq!(HeaderBytes::of(17, ""), HeaderBytes { object: 12, array: 16 });
    }

    #[test]
    fn lines_are_read_and_classes_summed() {
        let text = "A\tone\t2\t48\nA\ttwo\t1\t24\nbyte[]\tthree\t1\t100\nall\t200\n";
        let allocated = OracleAllocations::parse(text).unwrap();
        let classes = [("byte[]".to_owned(), 100, 1), ("A".to_owned(), 72, 3)];
        assert_eq!((allocated.classes(), allocated.jvm_bytes), (classes.to_vec(), 200));
        assert!(OracleAllocations::parse("A\tone\tx\t48\nall\t1\n").is_err());
        assert!(OracleAllocations::parse("A\tone\t2\t48\n").is_err());
    }
}
