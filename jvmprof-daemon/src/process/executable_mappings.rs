//! The executable mappings of one process.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use crate::types::{Avma, BuildId, FileOffset};

/// Origin of a mapping's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Backing {
    /// A file with a path, or a program in a memory file.
    File,
    /// The kernel's `[vdso]`.
    Vdso,
    /// Memory that a runtime writes code to: anonymous, memfd, shared memory.
    Anonymous,
}

/// An executable mapping.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MappedCode {
    pub start: Avma,
    /// First address after it.
    pub end: Avma,
    /// Offset of `start` in the file.
    pub offset: FileOffset,
    /// Path as the process sees it, or a name in brackets.
    pub path: Arc<str>,
    /// Build id in the kernel's event of the mapping; `None` without an event or a build id.
    pub build_id: Option<BuildId>,
    pub backing: Backing,
}

impl MappedCode {
    pub fn contains(&self, address: Avma) -> bool {
        self.start <= address && address < self.end
    }

    /// Returns the file offset of an address of this mapping.
    pub fn file_offset(&self, address: Avma) -> FileOffset {
        FileOffset(self.offset.0.wrapping_add(address.0.wrapping_sub(self.start.0)))
    }
}

impl Backing {
    /// Returns the origin by the path that `/proc/PID/maps` and perf records have. `is_program`
    /// returns true if a memory file holds a program or library.
    pub fn of_path(path: &str, is_program: impl FnOnce() -> bool) -> Self {
        // Memory that a runtime writes code to, such as the JVM's huge pages.
        const ANONYMOUS: [&str; 4] = ["//anon", "/dev/zero", "/anon_hugepage", "/SYSV"];
        // Memory files: V8, the JVM and .NET map generated code from one, others run programs from
        // them.
        const IN_MEMORY: [&str; 2] = ["/memfd:", "/dev/shm/"];
        let begins_with = |prefix: &&str| path.starts_with(*prefix);
        if path == "[vdso]" {
            return Self::Vdso;
        }
        // A jitdump holds no code: it is mapped as a marker for profilers.
        let is_anonymous = !path.starts_with('/')
            || is_jitdump(path)
            || ANONYMOUS.iter().any(begins_with)
            || IN_MEMORY.iter().any(begins_with) && !is_program();
        if is_anonymous { Self::Anonymous } else { Self::File }
    }
}

/// Returns true for a jitdump, which is called `jit-PID.dump`.
pub fn is_jitdump(path: &str) -> bool {
    let name = path.rsplit_once('/').map_or(path, |(_, name)| name);
    let name = name.strip_suffix(" (deleted)").unwrap_or(name);
    let pid = name.strip_prefix("jit-").and_then(|rest| rest.strip_suffix(".dump"));
    pid.is_some_and(|pid| !pid.is_empty() && pid.bytes().all(|byte| byte.is_ascii_digit()))
}

/// Returns true for the mapping of HotSpot's library.
pub fn is_hotspot(mapping: &MappedCode) -> bool {
    let name = Path::new(&*mapping.path).file_name();
    mapping.backing == Backing::File && name.is_some_and(|name| name == "libjvm.so")
}

/// All executable mappings of a process, by address, without overlaps. A clone is cheap until one
/// of the two changes: children begin with what their parent has.
#[derive(Clone, Debug, Default)]
pub struct Mappings {
    by_start: Arc<Vec<Arc<MappedCode>>>,
    bytes: usize,
    is_cut: bool,
}

/// Memory of a mapping without its path: itself, its reference counts, its pointer in the list.
const ENTRY_BYTES: usize = size_of::<MappedCode>() + 5 * size_of::<usize>();

/// Returns an upper bound of a mapping's memory: paths are shared if possible.
fn entry_bytes(mapping: &MappedCode) -> usize {
    ENTRY_BYTES + mapping.path.len()
}

impl Mappings {
    /// Returns the mapping that contains this address.
    pub fn find(&self, address: Avma) -> Option<&Arc<MappedCode>> {
        let after = self.by_start.partition_point(|mapping| mapping.start <= address);
        let mapping = &self.by_start[after.checked_sub(1)?];
        mapping.contains(address).then_some(mapping)
    }

    /// Returns true if any address lies in no mapping. An address of a stack mostly lies in the
    /// mapping of the one before.
    pub fn misses_any(&self, mut addresses: impl Iterator<Item = Avma>) -> bool {
        // Stacks alternate between few mappings: those of the code heaps of a JVM, libjvm, libc.
        let mut recent: [Range<Avma>; 4] = std::array::from_fn(|_| Avma(0)..Avma(0));
        let mut oldest = 0;
        addresses.any(|address| {
            if recent.iter().any(|mapping| mapping.contains(&address)) {
                return false;
            }
            let Some(mapping) = self.find(address) else { return true };
            recent[oldest] = mapping.start..mapping.end;
            oldest = (oldest + 1) % recent.len();
            false
        })
    }

    /// Inserts a mapping, and cuts or removes those that it overlaps. Returns true if there were
    /// any.
    pub fn insert(&mut self, new: MappedCode) -> bool {
        if new.start >= new.end {
            return false;
        }
        let first = self.by_start.partition_point(|mapping| mapping.end <= new.start);
        let last = self.by_start.partition_point(|mapping| mapping.start < new.end);
        if first < last && *self.by_start[first] == new && last - first == 1 {
            return false;
        }
        let mut replacement = Vec::with_capacity(3);
        if let Some(left) = self.by_start[first..last].first()
            && left.start < new.start
        {
            replacement.push(Arc::new(MappedCode { end: new.start, ..(**left).clone() }));
        }
        let right = self.by_start[first..last].last().filter(|right| right.end > new.end).map(|right| {
            let offset = right.file_offset(new.end);
            Arc::new(MappedCode { start: new.end, offset, ..(**right).clone() })
        });
        replacement.push(Arc::new(new));
        replacement.extend(right);
        self.bytes += replacement.iter().map(|it| entry_bytes(it)).sum::<usize>();
        let replaced = Arc::make_mut(&mut self.by_start).splice(first..last, replacement);
        self.bytes -= replaced.map(|it| entry_bytes(&it)).sum::<usize>();
        first < last
    }

    pub fn iter(&self) -> impl Iterator<Item = &Arc<MappedCode>> {
        self.by_start.iter()
    }

    pub fn len(&self) -> usize {
        self.by_start.len()
    }

    /// Returns an upper bound of the memory, in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns true if mappings were left out.
    pub fn is_cut(&self) -> bool {
        self.is_cut
    }

    pub(super) fn cut(&mut self) {
        self.is_cut = true;
    }

    /// Returns the address of the list, which clones share until one changes.
    pub(super) fn identity(&self) -> usize {
        Arc::as_ptr(&self.by_start).addr()
    }

    pub fn is_empty(&self) -> bool {
        self.by_start.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mapping(start: u64, end: u64, offset: u64, path: &str) -> MappedCode {
        MappedCode {
            start: Avma(start),
            end: Avma(end),
            offset: FileOffset(offset),
            path: path.into(),
            build_id: None,
            backing: Backing::of_path(path, || false),
        }
    }

    fn shape(mappings: &Mappings) -> Vec<(u64, u64, u64, &str)> {
        mappings.iter().map(|it| (it.start.0, it.end.0, it.offset.0, &*it.path)).collect()
    }

    #[test]
    fn a_mapping_over_others_splits_and_replaces_them() {
        let mut mappings = Mappings::default();
        assert!(!mappings.insert(mapping(0x1000, 0x5000, 0, "/a")));
        assert!(!mappings.insert(mapping(0x6000, 0x8000, 0x100, "/b")));
        assert!(mappings.insert(mapping(0x2000, 0x3000, 0, "/c")));
        assert_eq!(
            shape(&mappings),
            [
                (0x1000, 0x2000, 0, "/a"),
                (0x2000, 0x3000, 0, "/c"),
                (0x3000, 0x5000, 0x2000, "/a"),
                (0x6000, 0x8000, 0x100, "/b")
            ]
        );
        assert!(mappings.insert(mapping(0x2800, 0x7000, 0, "/d")));
        assert_eq!(
            shape(&mappings),
            [
                (0x1000, 0x2000, 0, "/a"),
                (0x2000, 0x2800, 0, "/c"),
                (0x2800, 0x7000, 0, "/d"),
                (0x7000, 0x8000, 0x1100, "/b")
            ]
        );
    }

    #[test]
    fn addresses_are_found_and_holes_are_not() {
        let mut mappings = Mappings::default();
        mappings.insert(mapping(0x1000, 0x2000, 0x400, "/a"));
        mappings.insert(mapping(0x3000, 0x4000, 0, "/b"));
        let found = mappings.find(Avma(0x1fff)).expect("the last byte belongs to the mapping");
        assert_eq!(found.file_offset(Avma(0x1fff)), FileOffset(0x13ff));
        for hole in [0, 0xfff, 0x2000, 0x2fff, 0x4000, u64::MAX] {
            assert!(mappings.find(Avma(hole)).is_none(), "{hole:#x}");
        }
    }

    #[test]
    fn the_same_mapping_again_changes_nothing() {
        let mut mappings = Mappings::default();
        mappings.insert(mapping(0x1000, 0x2000, 0, "/a"));
        assert!(!mappings.insert(mapping(0x1000, 0x2000, 0, "/a")));
        assert!(!mappings.insert(mapping(0x2000, 0x2000, 0, "/empty")));
        assert_eq!(mappings.len(), 1);
    }

    #[test]
    fn memory_is_counted_and_shared_until_something_changes() {
        let mut mappings = Mappings::default();
        mappings.insert(mapping(0x1000, 0x5000, 0, "/a"));
        mappings.insert(mapping(0x2000, 0x3000, 0, "/bcd"));
        let mut child = mappings.clone();
        assert_eq!(child.identity(), mappings.identity());
        child.insert(mapping(0x2000, 0x6000, 0, "/efghi"));
        assert_ne!(child.identity(), mappings.identity());
        for list in [&mappings, &child] {
            assert_eq!(list.bytes(), list.iter().map(|it| entry_bytes(it)).sum::<usize>());
        }
        assert_eq!((mappings.len(), child.len()), (3, 2));
    }

    #[test]
    fn code_of_runtimes_is_distinguished_from_code_of_files() {
        let of_path = |path| Backing::of_path(path, || false);
        assert_eq!(of_path("/usr/lib/libc.so.6"), Backing::File);
        assert_eq!(of_path("/tmp/x (deleted)"), Backing::File);
        assert_eq!(of_path("[vdso]"), Backing::Vdso);
        assert_eq!(of_path("/tmp/jit-7.dump (deleted)"), Backing::Anonymous);
        assert_eq!(of_path("/tmp/jit-.dump"), Backing::File);
        for path in ["//anon", "", "[heap]", "[anon:v8]", "/memfd:jit (deleted)", "/anon_hugepage (deleted)"]
        {
            assert_eq!(of_path(path), Backing::Anonymous, "{path}");
        }
        for path in ["/memfd:program (deleted)", "/dev/shm/library.so"] {
            assert_eq!(Backing::of_path(path, || true), Backing::File, "{path}");
        }
        assert_eq!(Backing::of_path("//anon", || true), Backing::Anonymous);
    }
}
