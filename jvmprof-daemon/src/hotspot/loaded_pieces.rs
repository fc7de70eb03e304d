//! The pieces of a JVM's memory that the unwinder's steppers load, read from outside.

use jvmprof_common::unwind::hotspot::code_blobs::{HEADER_BYTES, HEADER_WORDS, SHORT_HEADER_BYTES};
use jvmprof_common::unwind::hotspot::compiled::instructions::{CODE_BYTES, CODE_WORDS, LoadedCode};

use super::process_memory::ProcessMemory;
use crate::types::Avma;

/// The header of a blob, and a piece of code: see
/// [`HotspotTarget`](jvmprof_common::unwind::hotspot::HotspotTarget).
#[derive(Debug)]
pub(crate) struct LoadedPieces {
    header: [u64; HEADER_WORDS],
    code: LoadedCode,
}

impl LoadedPieces {
    pub(crate) const NONE: Self = Self { header: [0; HEADER_WORDS], code: [0; CODE_WORDS] };

    pub(crate) fn load_header(&mut self, memory: &impl ProcessMemory, address: Avma) -> bool {
        let whole = read_words(memory, address, HEADER_BYTES);
        let read = whole.or_else(|| read_words(memory, address, SHORT_HEADER_BYTES));
        self.header = read.unwrap_or(self.header);
        read.is_some()
    }

    pub(crate) const fn header_word(&self, index: usize) -> u64 {
        self.header[index % HEADER_WORDS]
    }

    pub(crate) fn load_code(&mut self, memory: &impl ProcessMemory, address: Avma) -> bool {
        let read = read_words(memory, address, CODE_BYTES);
        self.code = read.unwrap_or(self.code);
        read.is_some()
    }

    pub(crate) const fn code(&self) -> &LoadedCode {
        &self.code
    }
}

/// Reads so many bytes as words, with zeros after them.
fn read_words<const N: usize>(memory: &impl ProcessMemory, address: Avma, bytes: usize) -> Option<[u64; N]> {
    let buffer = memory.read_bytes(address, bytes)?;
    let mut words = [0; N];
    for (word, chunk) in words.iter_mut().zip(buffer.as_chunks::<8>().0) {
        *word = u64::from_le_bytes(*chunk);
    }
    Some(words)
}
