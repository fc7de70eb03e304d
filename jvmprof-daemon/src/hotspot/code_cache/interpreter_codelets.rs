//! The template interpreter's code: a queue of codelets, each the code of one bytecode or of one
//! service routine.
//!
//! Layouts: openjdk src/hotspot/share/code/stubs.hpp (`StubQueue`),
//! share/interpreter/interpreter.hpp (`InterpreterCodelet`).

use std::ops::Range;
use std::sync::Arc;

use crate::hotspot::error::HotspotError;
use crate::hotspot::process_memory::{ProcessMemory, field};
use crate::hotspot::vmstructs::field_offsets::FieldLookup;
use crate::types::Avma;

/// The interpreter has about 270 codelets.
const MAX_CODELETS: usize = 4096;
/// Its code takes 150 to 400 KiB.
const MAX_CODE: u64 = 16 << 20;
/// Codelets begin at multiples of this: `CodeEntryAlignment` of x86.
const CODE_ALIGNMENT: u64 = 32;
const MAX_DESCRIPTION: usize = 128;

/// One piece of the interpreter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InterpreterCodelet {
    /// HotSpot's name of it: "iadd", "return entry points", "method entry point (kind =
    /// zerolocals)".
    pub description: Arc<str>,
    /// `Bytecodes::Code`: the bytecode whose template it is; `None` for service routines.
    pub bytecode: Option<u8>,
    pub code: Range<Avma>,
}

/// Addresses and offsets of the interpreter's queue of codelets.
#[derive(Clone, Debug)]
pub(crate) struct InterpreterFields {
    /// Address of the pointer to the `StubQueue`.
    queue: Avma,
    buffer: u16,
    limit: u16,
    queue_end: u16,
    stubs: u16,
    codelet: CodeletFields,
    /// The queue is cut to its size once it is whole: since JDK 9,
    /// share/interpreter/templateInterpreter.cpp.
    trimmed: bool,
}

/// `InterpreterCodelet`.
#[derive(Clone, Copy, Debug)]
struct CodeletFields {
    size: u16,
    description: u16,
    bytecode: u16,
    bytes: u16,
}

impl InterpreterFields {
    pub(crate) fn new(lookup: FieldLookup<'_>) -> Result<Self, HotspotError> {
        Ok(Self {
            queue: lookup.address("AbstractInterpreter::_code")?,
            buffer: lookup.offset_of("StubQueue::_stub_buffer")?,
            limit: lookup.offset_of("StubQueue::_buffer_limit")?,
            queue_end: lookup.offset_of("StubQueue::_queue_end")?,
            stubs: lookup.offset_of("StubQueue::_number_of_stubs")?,
            codelet: CodeletFields::new(lookup)?,
            trimmed: lookup.optional_address("CodeCache::_heaps").is_some(),
        })
    }

    /// The interpreter's code: from the first codelet on.
    pub(crate) fn range(&self, memory: &impl ProcessMemory) -> Result<Range<Avma>, HotspotError> {
        let what = "the interpreter's queue of codelets";
        let read = |at: u64| {
            memory.read_u64(Avma(at)).ok_or(HotspotError::Read { what, address: Avma(at), bytes: 8 })
        };
        let queue = read(self.queue.0)?;
        if queue == 0 {
            return Err(HotspotError::NotReady("there is no interpreter"));
        }
        let start = read(queue.wrapping_add(self.buffer.into()))?;
        let limit = read(queue.wrapping_add(self.limit.into()))? & 0xffff_ffff;
        let used = read(queue.wrapping_add(self.queue_end.into()))? & 0xffff_ffff;
        let stubs = read(queue.wrapping_add(self.stubs.into()))? & 0xffff_ffff;
        if stubs == 0 || used == 0 || self.trimmed && used < limit {
            return Err(HotspotError::NotReady("the interpreter is being made"));
        }
        if used > limit || limit > MAX_CODE || start == 0 || start.checked_add(limit).is_none() {
            return Err(HotspotError::Implausible { what, value: limit });
        }
        Ok(Avma(start)..Avma(start + used))
    }

    /// All codelets in the order of their addresses, and the interpreter's bytes from the start of
    /// `range` on.
    pub(crate) fn codelets(
        &self,
        range: &Range<Avma>,
        memory: &impl ProcessMemory,
    ) -> Result<(Vec<InterpreterCodelet>, Vec<u8>), HotspotError> {
        let len = (range.end.0 - range.start.0) as usize;
        let what = "the interpreter";
        let bytes = memory.read_bytes(range.start, len);
        let bytes = bytes.ok_or(HotspotError::Read { what, address: range.start, bytes: len })?;
        let (mut codelets, mut descriptions) = (Vec::new(), Vec::new());
        let mut at = 0;
        while at < len && codelets.len() < MAX_CODELETS {
            let header = &bytes[at..];
            let CodeletFields { size, description, bytecode, bytes: header_bytes } = self.codelet;
            let size = field::u32(header, size.into()).unwrap_or_default() as usize;
            let end = at.checked_add(size).filter(|end| size > usize::from(header_bytes) && *end <= len);
            let Some(end) = end else {
                return Err(HotspotError::Implausible { what: "a codelet's size", value: size as u64 });
            };
            let description = field::u64(header, description.into()).unwrap_or_default();
            let bytecode = field::i32(header, bytecode.into()).unwrap_or(-1);
            let start =
                (range.start.0 + at as u64 + u64::from(header_bytes)).next_multiple_of(CODE_ALIGNMENT);
            descriptions.push(Avma(description));
            codelets.push(InterpreterCodelet {
                description: "".into(),
                bytecode: u8::try_from(bytecode).ok(),
                code: Avma(start)..Avma(range.start.0 + end as u64),
            });
            at = end;
        }
        let texts = memory.read_c_strings(&descriptions, MAX_DESCRIPTION);
        for (codelet, text) in codelets.iter_mut().zip(texts) {
            codelet.description = text.unwrap_or_default().into();
        }
        Ok((codelets, bytes))
    }
}

impl CodeletFields {
    fn new(lookup: FieldLookup<'_>) -> Result<Self, HotspotError> {
        let exported = lookup.find_offset(&["InterpreterCodelet::_size"])?;
        let bytes = lookup.size_of("InterpreterCodelet")?;
        match (exported, bytes) {
            (Some(size), _) => Ok(Self {
                size,
                description: lookup.offset_of("InterpreterCodelet::_description")?,
                bytecode: lookup.offset_of("InterpreterCodelet::_bytecode")?,
                bytes,
            }),
            // share/interpreter/interpreter.hpp since JDK 17: description, size, bytecode.
            (None, 16) => Ok(Self { description: 0, size: 8, bytecode: 12, bytes }),
            (None, bytes) => {
                Err(HotspotError::Implausible { what: "sizeof(InterpreterCodelet)", value: bytes.into() })
            }
        }
    }
}
