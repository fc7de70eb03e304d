//! A thread that stands between two instructions, as the kernel program sees an interrupted one.

use jvmprof_common::abi::Stop;
use jvmprof_common::address::StackAddress;
use jvmprof_common::jvm::Jvm;
use jvmprof_common::rows::{Register, Row};
use jvmprof_common::unwind::hotspot::code_blobs::{HEADER_BYTES, HEADER_WORDS, SHORT_HEADER_BYTES};
use jvmprof_common::unwind::hotspot::compiled::instructions::{CODE_BYTES, CODE_WORDS, LoadedCode};
use jvmprof_common::unwind::hotspot::{EncodedFrame, HotspotTarget, step_leaf};
use jvmprof_common::unwind::{Cursor, Memory};
use jvmprof_daemon::hotspot::stubs::StubRows;
use jvmprof_daemon::hotspot::{LiveMemory, ProcessMemory};
use jvmprof_daemon::types::Avma;

use super::stepper::Registers;

pub(crate) struct Interrupted<'w> {
    memory: &'w LiveMemory,
    registers: &'w Registers,
    rows: &'w StubRows,
    header: [u64; HEADER_WORDS],
    code: [u64; CODE_WORDS],
}

impl<'w> Interrupted<'w> {
    pub(crate) fn new(memory: &'w LiveMemory, registers: &'w Registers, rows: &'w StubRows) -> Self {
        Self { memory, registers, rows, header: [0; HEADER_WORDS], code: [0; CODE_WORDS] }
    }

    /// The caller by the kernel program's own stepper.
    pub(crate) fn caller(&mut self, jvm: &Jvm) -> Result<Cursor, Stop> {
        let now = self.registers;
        let mut cursor = Cursor::interrupted(now.rip, now.rsp, now.rbp);
        step_leaf(&mut cursor, self, jvm, &mut EncodedFrame::default()).map(|()| cursor)
    }

    /// Size of the frame whose header was loaded last, in bytes.
    pub(crate) fn frame_bytes(&self, jvm: &Jvm) -> u64 {
        let at = usize::from(jvm.layout.blob_frame_size);
        (self.header[at / 8] >> (at % 8 * 8) & 0xffff_ffff) * 8
    }

    fn words<const N: usize>(&self, address: Avma, bytes: usize) -> Option<[u64; N]> {
        let read = self.memory.read_bytes(address, bytes)?;
        let mut words = [0; N];
        for (word, bytes) in words.iter_mut().zip(read.chunks_exact(8)) {
            *word = u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
        }
        Some(words)
    }
}

impl Memory for Interrupted<'_> {
    fn read_u64(&mut self, address: StackAddress) -> Option<u64> {
        ProcessMemory::read_u64(self.memory, address.avma())
    }

    fn register(&self, register: Register) -> Option<u64> {
        let r = self.registers;
        let all = [
            r.rax, r.rcx, r.rdx, r.rbx, r.rsp, r.rbp, r.rsi, r.rdi, r.r8, r.r9, r.r10, r.r11, r.r12, r.r13,
            r.r14, r.r15,
        ];
        all.get(usize::from(register.0)).copied()
    }
}

impl HotspotTarget for Interrupted<'_> {
    type Row = Row;

    fn read_u8(&mut self, address: Avma) -> Option<u8> {
        self.memory.read_bytes(address, 1)?.first().copied()
    }

    fn load_header(&mut self, address: Avma) -> bool {
        let header = self.words(address, HEADER_BYTES).or_else(|| self.words(address, SHORT_HEADER_BYTES));
        self.header = header.unwrap_or([0; HEADER_WORDS]);
        header.is_some()
    }

    fn header_word(&self, index: usize) -> u64 {
        self.header[index % HEADER_WORDS]
    }

    fn load_code(&mut self, address: Avma) -> bool {
        let code = self.words(address, CODE_BYTES);
        self.code = code.unwrap_or([0; CODE_WORDS]);
        code.is_some()
    }

    fn code(&self) -> &LoadedCode {
        &self.code
    }

    fn stub_row(&mut self, _: u32, address: Avma) -> Option<Row> {
        self.rows.row(address)
    }
}
