//! Unwind rows of a file, from its `.eh_frame` (else `.debug_frame`).
//!
//! Loading makes an index of the functions that have call frame information; a lookup evaluates the one entry that it
//! needs. `.eh_frame_hdr` isn't used: it is missing in static files, and says nothing of where functions end.

mod compile;
mod index;

use std::cell::RefCell;
use std::ops::Range;

use gimli::{BaseAddresses, DebugFrame, EhFrame, LittleEndian, UnwindContext, UnwindSection};
use jvmprof_common::rows::Row;

use crate::native::elf::{ElfError, ElfFile};
use crate::native::rows::index::Index;
use crate::native::source::ByteSource;
use crate::types::Svma;

/// Largest section of call frame information that is read, in bytes. JDK 17's libjvm has 1.5 MB, node 20 has 2.8 MB.
const MAX_SECTION: u64 = 64 << 20;

thread_local! {
    /// The evaluation's state takes some 20 KB: it is kept for the next lookup.
    static CONTEXT: RefCell<UnwindContext<usize>> = RefCell::new(UnwindContext::new());
}

/// The unwind rows of one file.
#[derive(Debug, Default)]
pub struct UnwindRows {
    kind: Kind,
    bases: BaseAddresses,
    section: Box<[u8]>,
    index: Index,
}

/// Which of the two similar formats the section has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Kind {
    #[default]
    EhFrame,
    DebugFrame,
}

impl UnwindRows {
    /// Reads the call frame information of `file` and indexes its functions.
    ///
    /// # Errors
    /// [`ElfError`] where a section can't be read or is too large. A file without call frame information has no rows,
    /// which is no error. Malformed entries are left out and counted: [`Self::malformed`].
    pub fn load<S: ByteSource>(file: &ElfFile<S>) -> Result<Self, ElfError> {
        let found = file.section(".eh_frame").map(|section| (Kind::EhFrame, section));
        let found = found.or_else(|| file.section(".debug_frame").map(|section| (Kind::DebugFrame, section)));
        let Some((kind, section)) = found else { return Ok(Self::default()) };
        let bytes = file.read(section, MAX_SECTION)?;
        let address = |name| file.sections().iter().find(|s| s.name == name).map(|s| s.address.0);
        let mut bases = BaseAddresses::default().set_eh_frame(section.address.0);
        bases = address(".text").map_or(bases.clone(), |text| bases.set_text(text));
        bases = address(".got").map_or(bases.clone(), |got| bases.set_got(got));
        let code = file.header().segments.iter().filter(|segment| segment.executable);
        let code: Vec<_> = code.map(|s| s.address.0..s.address.0.saturating_add(s.memory_size)).collect();
        Ok(Self::indexed(kind, bases, bytes.into(), &code))
    }

    /// The rows in the bytes of an `.eh_frame` that is loaded at `address`, for functions that start in `code`.
    pub fn from_eh_frame(bytes: Box<[u8]>, address: Svma, code: Range<Svma>) -> Self {
        let bases = BaseAddresses::default().set_eh_frame(address.0);
        let code = code.start.0..code.end.0;
        Self::indexed(Kind::EhFrame, bases, bytes, std::slice::from_ref(&code))
    }

    fn indexed(kind: Kind, bases: BaseAddresses, bytes: Box<[u8]>, code: &[Range<u64>]) -> Self {
        let mut rows = Self { kind, bases, section: bytes, index: Index::default() };
        let section = (&*rows.section, kind);
        rows.index = match kind {
            Kind::EhFrame => index::build(&rows.eh_frame(), section, &rows.bases, code),
            Kind::DebugFrame => index::build(&rows.debug_frame(), section, &rows.bases, code),
        };
        rows
    }

    /// The row for code at `pc`; `None` where the file has none, or where it is malformed.
    ///
    /// For a return address ask at address - 1.
    pub fn row(&self, pc: Svma) -> Option<Row> {
        let entry = self.index.find(pc)?;
        match self.kind {
            Kind::EhFrame => self.evaluate(&self.eh_frame(), gimli::EhFrameOffset(entry), pc),
            Kind::DebugFrame => self.evaluate(&self.debug_frame(), gimli::DebugFrameOffset(entry), pc),
        }
    }

    /// Whether the frame at `pc` is the root of its thread's stack: its return address is undefined.
    pub fn is_root(&self, pc: Svma) -> bool {
        self.row(pc).is_some_and(|row| row.is_root())
    }

    /// How many functions have rows.
    pub fn functions(&self) -> usize {
        self.index.len()
    }

    /// The functions that have rows, each by its first address and the first one behind it, sorted.
    pub fn function_ranges(&self) -> impl Iterator<Item = (Svma, Svma)> {
        self.index.ranges()
    }

    /// How many entries of the section couldn't be understood.
    pub fn malformed(&self) -> u64 {
        self.index.malformed()
    }

    /// Bytes of memory held.
    pub fn size_bytes(&self) -> usize {
        size_of::<Self>() + self.section.len() + self.index.size_bytes()
    }

    fn eh_frame(&self) -> EhFrame<Reader<'_>> {
        let mut section = EhFrame::new(&self.section, LittleEndian);
        section.set_address_size(8);
        section
    }

    fn debug_frame(&self) -> DebugFrame<Reader<'_>> {
        let mut section = DebugFrame::new(&self.section, LittleEndian);
        section.set_address_size(8);
        section
    }

    fn evaluate<'a, S: UnwindSection<Reader<'a>>>(
        &'a self,
        section: &S,
        offset: S::Offset,
        pc: Svma,
    ) -> Option<Row> {
        let fde = section.fde_from_offset(&self.bases, offset, S::cie_from_offset).ok()?;
        CONTEXT.with(|context| {
            // A lookup doesn't call another one, so that the context is always free.
            let mut context = context.try_borrow_mut().ok()?;
            let row = fde.unwind_info_for_address(section, &self.bases, &mut context, pc.0).ok()?;
            Some(compile::row(row, fde.cie(), section))
        })
    }
}

type Reader<'a> = gimli::EndianSlice<'a, LittleEndian>;
