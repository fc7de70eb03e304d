//! Continuation entries of virtual threads, on JDKs that don't say where they are.
//!
//! `JavaThread::_cont_entry` and `ContinuationEntry::_return_pc` are exported since JDK 27 and by
//! updates of 25 and 26. Before, the code of `Continuation.enterSpecial` has them, which HotSpot
//! generates: openjdk src/hotspot/cpu/x86/sharedRuntime_x86_64.cpp, `continuation_enter_setup` and
//! `gen_continuation_enter`.

use std::ops::Range;

use crate::types::Avma;

/// Offsets and addresses that the code of `enterSpecial` shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EnterSpecial {
    /// The address that thawed frames return to.
    pub(crate) return_pc: Avma,
    /// Offset of `JavaThread::_cont_entry`.
    pub(crate) cont_entry: u16,
    /// Bytes that a `ContinuationEntry` takes on the stack.
    pub(crate) entry_bytes: u16,
}

/// The same of JDK 21 to 26, of which that code is made with the first virtual thread:
/// share/runtime/continuationEntry.hpp, `size()`. Whatever is taken for an entry must lead to a
/// `StackChunk`.
pub(crate) const ENTRY_BYTES: u16 = 64;
/// The first JDK whose entries have that size.
pub(crate) const ENTRY_BYTES_SINCE: u32 = 21;

/// `mov [r15 + disp32], rsp`: the thread's new entry is here.
const STORE_ENTRY: [u8; 3] = [0x49, 0x89, 0xa7];
/// `mov rbp, rsp; sub rsp, imm8`: the entry is made.
const MAKE_ENTRY: [u8; 6] = [0x48, 0x89, 0xe5, 0x48, 0x83, 0xec];
const MAKE_ENTRY_AS_GNU: [u8; 6] = [0x48, 0x8b, 0xec, 0x48, 0x83, 0xec];
/// A thread's fields.
const MAX_OFFSET: u32 = 8192;

/// Reads the code of a native wrapper; `None` if it isn't `enterSpecial`. `stubs` is the code of
/// the continuation stubs.
pub(crate) fn parse(code: &[u8], start: Avma, stubs: &Range<Avma>) -> Option<EnterSpecial> {
    let made = |window: &[u8]| *window == MAKE_ENTRY || *window == MAKE_ENTRY_AS_GNU;
    let make = code.windows(6).position(made)?;
    let entry_bytes = u16::from(*code.get(make + 6)?);
    // Between making the entry and storing it its parent is saved.
    let near = code.get(make..make + 64)?;
    let store = make + near.windows(3).position(|window| *window == STORE_ENTRY)?;
    let cont_entry = u32::from_le_bytes(code.get(store + 3..store + 7)?.try_into().ok()?);
    let thaw = (store..code.len()).find_map(|at| thaw_call(code, at, start, stubs))?;
    let plausible = entry_bytes.is_multiple_of(16) && entry_bytes != 0 && cont_entry < MAX_OFFSET;
    plausible.then(|| EnterSpecial {
        return_pc: Avma(start.0 + thaw as u64),
        cont_entry: cont_entry as u16,
        entry_bytes,
    })
}

/// The offset behind a call of the continuation stubs that begins at `at`: direct, or through rbx
/// (JDK 19).
fn thaw_call(code: &[u8], at: usize, start: Avma, stubs: &Range<Avma>) -> Option<usize> {
    let (target, end) = match code.get(at..)? {
        [0xe8, a, b, c, d, ..] => {
            let distance = i64::from(i32::from_le_bytes([*a, *b, *c, *d]));
            (start.0.wrapping_add(at as u64 + 5).wrapping_add_signed(distance), at + 5)
        }
        [0x48, 0xbb, rest @ ..] => {
            let target = u64::from_le_bytes(rest.get(..8)?.try_into().ok()?);
            (rest.get(8..10)? == [0xff, 0xd3]).then_some((target, at + 12))?
        }
        _ => return None,
    };
    stubs.contains(&Avma(target)).then_some(end)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The parts of JDK 21's `enterSpecial` that matter, at 0x1000; its stubs are at 0x9000.
    fn code(call: &[u8]) -> Vec<u8> {
        let mut code = vec![0x55, 0x48, 0x8b, 0xec, 0x48, 0x83, 0xec, 0x40];
        code.extend([0x49, 0x8b, 0x87, 0x30, 0x05, 0, 0, 0x48, 0x89, 0x44, 0x24, 0x08]);
        code.extend([0x49, 0x89, 0xa7, 0x30, 0x05, 0, 0]);
        code.resize(0x60, 0x90);
        code.extend(call);
        code.extend([0x0f, 0x1f, 0x84, 0, 0, 0, 0, 0]);
        code
    }

    #[test]
    fn the_code_tells_the_entry_and_where_thawed_frames_return_to() {
        let stubs = Avma(0x9000)..Avma(0x9100);
        let direct = code(&[0xe8, 0x9b, 0x7f, 0, 0]);
        let expected =
            |end: u64| EnterSpecial { return_pc: Avma(0x1060 + end), cont_entry: 0x530, entry_bytes: 64 };
        assert_eq!(parse(&direct, Avma(0x1000), &stubs), Some(expected(5)));
        let through_rbx = code(&[0x48, 0xbb, 0x10, 0x90, 0, 0, 0, 0, 0, 0, 0xff, 0xd3]);
        assert_eq!(parse(&through_rbx, Avma(0x1000), &stubs), Some(expected(12)));
    }

    #[test]
    fn other_wrappers_are_not_taken_for_it() {
        let stubs = Avma(0x9000)..Avma(0x9100);
        assert_eq!(parse(&code(&[0xe8, 0, 0, 0, 0]), Avma(0x1000), &stubs), None, "calls something else");
        assert_eq!(parse(&[0x55; 200], Avma(0x1000), &stubs), None);
        assert_eq!(parse(&[], Avma(0x1000), &stubs), None);
    }
}
