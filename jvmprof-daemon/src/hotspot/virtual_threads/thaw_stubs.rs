//! Landmarks in the stubs by which frames of a virtual thread come back from the heap.
//!
//! Layout: openjdk src/hotspot/cpu/x86/stubGenerator_x86_64.cpp, `generate_cont_thaw`; the stubs of
//! a blob are one after the other, what continues a thread first.

use jvmprof_common::jvm::{THAW_STUBS, ThawStub};

/// `pop rcx`, by which the first stub begins, and `mov rsp, [r15 + disp32]` of the others.
const POP_RCX: &[u8] = &[0x59];
const MOV_RSP_ENTRY: &[u8] = &[0x49, 0x8b, 0xa7];
/// `sub rsp, rbx; and rsp, -16`, which allocate stack.
const ALLOCATE: &[u8] = &[0x48, 0x2b, 0xe3, 0x48, 0x83, 0xe4, 0xf0];
/// `add rsp, 8; jmp` over the five bytes of the other `call`, that one and `mov rbx, rax`.
const SKIP_CALL: &[u8] = &[0x48, 0x83, 0xc4, 0x08, 0xe9, 5, 0, 0, 0, 0xe8];
const CALL_TAIL: usize = 4;
const MOV_RBX_RAX: &[u8] = &[0x48, 0x8b, 0xd8];
/// `mov rsp, rbx; sub rsp, 16`.
const RESTORE: &[u8] = &[0x48, 0x8b, 0xe3, 0x48, 0x83, 0xec, 0x10];
/// Bytes from a stub's begin to the allocation, from there to the end of the call, and from there
/// to the stack pointer's move, at most: 81, 51 and 13 on JDK 25.
const MAX_TO_ALLOCATION: usize = 160;
const MAX_TO_THAWED: usize = 100;
const MAX_TO_RESTORE: usize = 40;

/// Finds the stubs' landmarks in their blob's code; `None` if they aren't as expected.
pub(crate) fn parse(code: &[u8]) -> Option<[ThawStub; THAW_STUBS]> {
    let mut stubs = [ThawStub::default(); THAW_STUBS];
    let mut end = 0;
    for (index, stub) in stubs.iter_mut().enumerate() {
        let allocation = end + find(code.get(end..)?, ALLOCATE, usize::MAX)?;
        let before = code.get(end.max(allocation.saturating_sub(MAX_TO_ALLOCATION))..allocation)?;
        let begin = if index == 0 { POP_RCX } else { MOV_RSP_ENTRY };
        let begin = allocation - before.len() + find(before, begin, usize::MAX)?;
        let skip = allocation + find(code.get(allocation..)?, SKIP_CALL, MAX_TO_THAWED)?;
        let thawed = skip + SKIP_CALL.len() + CALL_TAIL;
        let restore = thawed + find(code.get(thawed..)?, RESTORE, MAX_TO_RESTORE)?;
        if !code.get(thawed..)?.starts_with(MOV_RBX_RAX) {
            return None;
        }
        end = restore + RESTORE.len();
        let offset = |at: usize| u16::try_from(at).ok();
        *stub = ThawStub {
            begin: offset(begin)?,
            allocation: offset(allocation)?,
            thawed: offset(thawed)?,
            restore: offset(restore)?,
        };
    }
    // What isn't a stub's begin may look like one: each is behind the one before, with little but
    // its last instructions and the filling between them.
    let is_dense = stubs.windows(2).all(|pair| pair[1].begin - pair[0].restore <= MAX_TO_BEGIN);
    (stubs[0].begin == 0 && is_dense).then_some(stubs)
}

/// Bytes from [`ThawStub::restore`] to the next stub's begin, at most: 9 and the filling.
const MAX_TO_BEGIN: u16 = 64;

fn find(code: &[u8], bytes: &[u8], limit: usize) -> Option<usize> {
    code.windows(bytes.len()).take(limit).position(|window| window == bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `mov rdi, r15; mov esi, 1`, a call by `call_VM_leaf`, `mov rbx, rax`.
    fn call() -> Vec<u8> {
        let mut code = vec![0x49, 0x8b, 0xff, 0xbe, 1, 0, 0, 0, 0x40, 0xf6, 0xc4, 0x0f];
        code.extend([0x0f, 0x84, 0x12, 0, 0, 0, 0x48, 0x83, 0xec, 0x08, 0xe8, 1, 2, 3, 4]);
        code.extend([SKIP_CALL, &[1, 2, 3, 4], MOV_RBX_RAX].concat());
        code
    }

    const PUSH: [u8; 10] = [0x50, 0x48, 0x83, 0xec, 0x10, 0xc5, 0xfb, 0x11, 0x04, 0x24];
    const POP: [u8; 10] = [0xc5, 0xfb, 0x10, 0x04, 0x24, 0x48, 0x83, 0xc4, 0x10, 0x58];
    const TEST: [u8; 10] = [0x48, 0x85, 0xdb, 0x75, 5, 0xe9, 9, 9, 9, 9];
    const POP_RET: [u8; 2] = [0x5d, 0xc3];
    const XOR: [u8; 3] = [0x48, 0x33, 0xc0];

    /// The three stubs as JDK 25 makes them.
    fn stubs() -> Vec<u8> {
        let continues = [POP_RCX, &call(), &TEST, ALLOCATE, &call(), &XOR, RESTORE, &POP_RET].concat();
        let load = [MOV_RSP_ENTRY, &[0x18, 6, 0, 0]].concat();
        let halves = [&PUSH[..], &call(), &POP].concat();
        let barrier = [&load, &halves, &TEST[..], ALLOCATE, &halves, RESTORE, &POP_RET].concat();
        [&continues[..], &barrier, &barrier].concat()
    }

    #[test]
    fn each_stub_has_its_landmarks() {
        let stubs = parse(&stubs()).expect("stubs");
        let expected = |begin, allocation, thawed, restore| ThawStub { begin, allocation, thawed, restore };
        assert_eq!(stubs[0], expected(0, 55, 103, 109));
        assert_eq!(stubs[1], expected(118, 199, 257, 270));
        assert_eq!(stubs[2], expected(279, 360, 418, 431));
    }

    #[test]
    fn code_that_is_anything_else_has_none() {
        let code = stubs();
        for cut in 0..code.len() - POP_RET.len() {
            assert_eq!(parse(&code[..cut]), None, "{cut} bytes");
        }
        let filled = [&[0x90], &code[..]].concat();
        assert_eq!(parse(&filled), None, "begins with another stub");
        let mut changed = code;
        changed[103] = 0x49;
        assert_eq!(parse(&changed), None, "the result of the call goes elsewhere");
    }
}
