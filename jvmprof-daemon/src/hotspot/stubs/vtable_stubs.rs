//! vtable and itable stubs: code that finds the method of a virtual or interface call.
//!
//! Layout: openjdk src/hotspot/share/code/vtableStubs.hpp, JDK 8 to 28: `VtableStubs::_table` has
//! 256 lists of `VtableStub`, a header of 16 bytes that the code follows.

use iced_x86::{Decoder, DecoderOptions, FlowControl, OpKind};

use super::named_stub::NamedStub;
use crate::hotspot::process_memory::{ProcessMemory, field};
use crate::types::Avma;

/// The blobs that these stubs lie in.
pub(super) const BLOB: &str = "vtable chunks";
/// `sizeof(VtableStub)`.
pub(super) const HEADER_BYTES: usize = 16;
/// `VtableStubs::N`.
const LISTS: usize = 256;
/// `VtableStub::_is_vtable_stub`, and since JDK 23 `_type`.
const TYPE_AT: usize = 14;
const VTABLE: u8 = 1;
const ITABLE: u8 = 0;
/// Bytes of one stub's code, at most; itable stubs have 110 to 260.
const MAX_CODE: usize = 512;

/// Reads the first elements of all lists.
pub(super) fn heads(table: Avma, memory: &impl ProcessMemory) -> Option<Vec<u64>> {
    let bytes = memory.read_bytes(table, LISTS * 8)?;
    Some(bytes.chunks_exact(8).filter_map(|word| field::u64(word, 0)).collect())
}

/// Names the stubs that have these headers. One whose code isn't that of its kind is left out.
pub(super) fn stubs(headers: &[(u64, Vec<u8>)], memory: &impl ProcessMemory) -> Vec<NamedStub> {
    let starts = headers.iter().filter_map(|(at, bytes)| Some((at.checked_add(16)?, *bytes.get(TYPE_AT)?)));
    let starts: Vec<(u64, u8)> = starts.collect();
    let places: Vec<(Avma, usize)> = starts.iter().map(|(start, _)| (Avma(*start), MAX_CODE)).collect();
    let stub = |((start, kind), code): (&(u64, u8), Option<Vec<u8>>)| {
        let (len, loops) = extent(&code?, *start)?;
        let name = match (*kind, loops) {
            (VTABLE, false) => "vtable stub",
            (ITABLE, true) => "itable stub",
            _ => return None,
        };
        Some(NamedStub { code: Avma(*start)..Avma(start.checked_add(len)?), name: name.into() })
    };
    starts.iter().zip(memory.read_ranges(&places)).filter_map(stub).collect()
}

/// Returns the bytes of the code up to the instruction that ends it, and whether it has a loop, as
/// the search of an itable stub is one. `None` if it doesn't end.
fn extent(code: &[u8], start: u64) -> Option<(u64, bool)> {
    let mut decoder = Decoder::with_ip(64, code, start, DecoderOptions::NONE);
    let (mut needed, mut loops) = (start, false);
    while decoder.can_decode() {
        let instruction = decoder.decode();
        if instruction.is_invalid() {
            return None;
        }
        let next = instruction.next_ip();
        if instruction.op0_kind() == OpKind::NearBranch64 {
            let target = instruction.near_branch_target();
            if (start..next).contains(&target) {
                loops = true;
            } else if target.checked_sub(start).is_some_and(|offset| offset < code.len() as u64) {
                needed = needed.max(target);
            }
        }
        let ends = matches!(
            instruction.flow_control(),
            FlowControl::UnconditionalBranch | FlowControl::IndirectBranch | FlowControl::Return
        );
        if ends && next > needed {
            return Some((next - start, loops));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hotspot::process_memory::RecordedMemory;

    /// mov eax, [rsi + 8]; mov rbx, [rax + 528]; jmp [rbx + 64], as JDK 17 has it.
    const OF_VTABLE: [u8; 13] = [0x8b, 0x46, 8, 0x48, 0x8b, 0x98, 0x10, 2, 0, 0, 0xff, 0x63, 0x40];
    /// add rax, 16; cmp rbx, [rax]; je +2; jmp back; jmp [rbx + 64]
    const OF_ITABLE: [u8; 14] =
        [0x48, 0x83, 0xc0, 16, 0x48, 0x3b, 0x18, 0x74, 2, 0xeb, 0xf5, 0xff, 0x63, 0x40];

    #[test]
    fn code_ends_with_the_jump_that_nothing_leads_over() {
        let behind = |code: &[u8]| [code, &[0x90; 64]].concat();
        assert_eq!(extent(&behind(&OF_VTABLE), 0x1000), Some((13, false)));
        assert_eq!(extent(&behind(&OF_ITABLE), 0x1000), Some((14, true)));
        assert_eq!(extent(&OF_VTABLE[..10], 0x1000), None, "no end");
        assert_eq!(extent(&[0x06; 32], 0x1000), None, "no code");
    }

    #[test]
    fn only_code_of_its_kind_has_the_kinds_name() {
        let mut memory = RecordedMemory::default();
        let mut headers = Vec::new();
        for (index, (code, kind)) in
            [(&OF_VTABLE[..], VTABLE), (&OF_ITABLE, ITABLE), (&OF_ITABLE, VTABLE), (&OF_VTABLE, ITABLE)]
                .into_iter()
                .enumerate()
        {
            let at = 0x10_0000 + index as u64 * 0x1000;
            let mut header = vec![0; HEADER_BYTES];
            header[TYPE_AT] = kind;
            memory.insert(Avma(at + 16), [code, &[0x90; MAX_CODE]].concat());
            headers.push((at, header));
        }
        headers.push((0x90_0000, vec![0; HEADER_BYTES]));
        headers.push((u64::MAX - 4, vec![0; HEADER_BYTES]));
        let found = stubs(&headers, &memory);
        let shown: Vec<(u64, &str)> = found.iter().map(|stub| (stub.code.start.0, &*stub.name)).collect();
        assert_eq!(shown, [(0x10_0010, "vtable stub"), (0x10_1010, "itable stub")]);
    }
}
