//! The unwinder on recorded stacks of real threads (see `snapshots/record.py`).
#![allow(clippy::expect_used, reason = "a test may panic")]

use std::io::Read;
use std::path::Path;

use jvmprof_common::abi::{MAX_USER_FRAMES, Stop};
use jvmprof_common::address::StackAddress;
use jvmprof_common::unwind::memory::WINDOW_WORDS;
use jvmprof_common::unwind::{Cursor, Memory, StackWindow, UnwindRule, WindowSource, step};

/// A thread's registers and stack, and its callers by gdb's own unwinder.
struct Snapshot {
    cursor: Cursor,
    callers: Vec<u64>,
    stack: Stack,
}

struct Stack {
    start: u64,
    bytes: Vec<u8>,
}

impl WindowSource for Stack {
    fn copy(&mut self, address: StackAddress, into: &mut [u64; WINDOW_WORDS], bytes: usize) -> bool {
        let Some(offset) = address.0.checked_sub(self.start).and_then(|it| usize::try_from(it).ok()) else {
            return false;
        };
        let Some(copied) = self.bytes.get(offset..offset + bytes) else {
            return false;
        };
        for (word, chunk) in into.iter_mut().zip(copied.as_chunks::<8>().0) {
            *word = u64::from_le_bytes(*chunk);
        }
        true
    }
}

/// The kernel program's way of reading: through a window.
struct Windowed {
    stack: Stack,
    window: StackWindow,
}

impl Memory for Windowed {
    fn read_u64(&mut self, address: StackAddress) -> Option<u64> {
        self.window.read_u64(&mut self.stack, address)
    }
}

impl Snapshot {
    fn load(name: &str) -> Self {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/snapshots").join(name);
        let file = std::fs::File::open(&path).expect("the snapshot is committed");
        let mut bytes = Vec::new();
        flate2::read::GzDecoder::new(file).read_to_end(&mut bytes).expect("the snapshot is gzip");
        let mut rest = bytes.strip_prefix(b"JPSNAP1\0").expect("the snapshot has its magic");
        let mut next = || {
            let (word, behind) = rest.split_first_chunk::<8>().expect("the snapshot is whole");
            rest = behind;
            u64::from_le_bytes(*word)
        };
        let (pc, sp, fp, count) = (next(), next(), next(), next());
        let callers = (0..count).map(|_| next()).collect();
        let length = next();
        assert_eq!(rest.len() as u64, length);
        let stack = Stack { start: sp, bytes: rest.to_vec() };
        Self { cursor: Cursor::interrupted(pc, sp, fp), callers, stack }
    }

    /// Return addresses as the unwinder finds them, leaf's caller first, and why it ended.
    fn walk(self) -> (Vec<u64>, Stop) {
        let (mut cursor, mut found) = (self.cursor, Vec::new());
        let mut memory = Windowed { stack: self.stack, window: StackWindow::default() };
        while found.len() < MAX_USER_FRAMES {
            if let Err(stop) = step(&mut cursor, &mut memory, &UnwindRule::FramePointer) {
                return (found, stop);
            }
            found.push(cursor.pc.0);
        }
        (found, Stop::DepthReached)
    }
}

#[test]
fn recursion_1000_deep_is_walked_as_gdb_walks_it() {
    let snapshot = Snapshot::load("recursion-1000.snap.gz");
    let mut expected = snapshot.callers.clone();
    assert!(expected.len() >= 1_000);
    let (found, stop) = snapshot.walk();
    // libc keeps no frame pointers: the chain ends in main's caller, and gdb goes on by unwind
    // rows.
    let in_libc = expected.iter().position(|pc| *pc >> 40 == 0x7f).expect("main's caller is libc");
    expected.truncate(in_libc + 1);
    assert_eq!(found.len(), expected.len());
    assert!(found == expected, "the same number of callers, but others");
    assert_ne!(stop, Stop::DepthReached);
}

#[test]
fn interpreted_java_1000_deep_is_walked_to_the_libc_below_it() {
    let (found, stop) = Snapshot::load("java-17-int-1000.snap.gz").walk();
    // Every recursive call returns to the same place of the interpreter.
    let most_frequent = found.iter().map(|pc| found.iter().filter(|it| *it == pc).count()).max();
    assert!(most_frequent.is_some_and(|count| count >= 1_000), "{most_frequent:?} frames");
    assert!(found.len() >= 1_008, "Java, its call stub and the JVM's own frames: {}", found.len());
    assert_ne!(stop, Stop::DepthReached);
}
