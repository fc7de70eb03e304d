//! Call frame information of DWARF: `.eh_frame` and `.debug_frame`.

pub(super) mod dwarf_rules;
pub(super) mod fde_index;
pub(super) mod frame_bytes;
pub(super) mod stripped_section_headers;

use std::cell::RefCell;
use std::ops::Range;
use std::thread::LocalKey;

use gimli::{BaseAddresses, DebugFrame, EhFrame, Reader, UnwindContext, UnwindSection};
use jvmprof_common::rows::Row;

use self::fde_index::{FdeIndex, RecentCies};
use self::frame_bytes::{FileReader, FrameBytes, MemoryReader};
use crate::native::byte_source::ByteSource;
use crate::native::elf::{ElfError, ElfFile, Section};
use crate::types::Svma;

thread_local! {
    /// State of the evaluation of a row. It takes some 20 KB, so it is kept for the next lookup.
    static CONTEXT: RefCell<UnwindContext<usize>> = RefCell::new(UnwindContext::new());
    /// State of the evaluation of rows of `.debug_frame` between those of `.eh_frame`, while
    /// [`CONTEXT`] is in use.
    static DEBUG_FRAME_CONTEXT: RefCell<UnwindContext<usize>> = RefCell::new(UnwindContext::new());
}

/// The format of a section of call frame information.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum FrameSectionKind {
    #[default]
    EhFrame,
    DebugFrame,
}

/// One section of call frame information, with an index of the functions that it describes.
#[derive(Debug, Default)]
pub(super) struct CallFrames {
    kind: FrameSectionKind,
    pub(super) bases: BaseAddresses,
    pub(super) bytes: FrameBytes,
    pub(super) index: FdeIndex,
}

/// Evaluates an expression with the section as gimli reads it from `$frames`.
macro_rules! with_section {
    ($frames:expr, |$section:ident| $body:expr) => {
        match (&$frames.bytes, $frames.kind) {
            (FrameBytes::Memory(bytes), FrameSectionKind::EhFrame) => {
                let $section = eh_frame(MemoryReader::new(bytes, gimli::LittleEndian));
                $body
            }
            (FrameBytes::Memory(bytes), FrameSectionKind::DebugFrame) => {
                let $section = debug_frame(MemoryReader::new(bytes, gimli::LittleEndian));
                $body
            }
            (FrameBytes::File(pages), FrameSectionKind::EhFrame) => {
                let $section = eh_frame(FileReader::new(pages));
                $body
            }
            (FrameBytes::File(pages), FrameSectionKind::DebugFrame) => {
                let $section = debug_frame(FileReader::new(pages));
                $body
            }
        }
    };
}

fn eh_frame<R: Reader>(bytes: R) -> EhFrame<R> {
    let mut section = EhFrame::from(bytes);
    section.set_address_size(8);
    section
}

fn debug_frame<R: Reader>(bytes: R) -> DebugFrame<R> {
    let mut section = DebugFrame::from(bytes);
    section.set_address_size(8);
    section
}

impl CallFrames {
    /// Reads and indexes a section, whose bytes stay in the file if there are more than
    /// `max_in_memory`.
    ///
    /// # Errors
    /// [`ElfError`] where it can't be read or is too large.
    pub(super) fn of_section<S: ByteSource>(
        kind: FrameSectionKind,
        file: &ElfFile<S>,
        section: &Section,
        max_in_memory: u64,
    ) -> Result<Self, ElfError> {
        let bytes = FrameBytes::load(file, section, max_in_memory)?;
        let frames = Self::indexed(kind, bases_of(file, section), bytes, &code_of(file));
        frames.bytes.check()?;
        Ok(frames)
    }

    /// Makes an `.eh_frame` whose entries are found by another table than the index.
    pub(super) fn unindexed(bases: BaseAddresses, bytes: FrameBytes) -> Self {
        Self { bases, bytes, ..Self::default() }
    }

    /// Indexes the functions in `bytes` that start in `code`.
    pub(super) fn indexed(
        kind: FrameSectionKind,
        bases: BaseAddresses,
        bytes: FrameBytes,
        code: &[Range<u64>],
    ) -> Self {
        let mut frames = Self { kind, bases, bytes, index: FdeIndex::default() };
        frames.index = with_section!(frames, |section| {
            let bytes = gimli::Section::reader(&section);
            fde_index::build((&section, bytes), kind, &frames.bases, code)
        });
        frames
    }

    /// Returns the row for code at `pc` in the entry of its function; `None` if that is malformed.
    pub(super) fn evaluate(&self, fde_offset: usize, pc: Svma) -> Option<Row> {
        with_section!(self, |section| evaluate(&section, &self.bases, fde_offset.into(), pc))
    }

    /// Returns the row for code at `pc`; `None` where the section has none, or where it is
    /// malformed.
    pub(super) fn row(&self, pc: Svma) -> Option<Row> {
        self.evaluate(self.index.find(pc)?, pc)
    }

    /// Passes on the rows of some entries, in order: first address, first one after it, row.
    pub(super) fn each_row(
        &self,
        entries: impl Iterator<Item = usize>,
        handle: &mut dyn FnMut(usize, u64, u64, Row),
    ) {
        with_section!(self, |section| {
            let mut cies = RecentCies::default();
            let context = match self.kind {
                FrameSectionKind::EhFrame => &CONTEXT,
                FrameSectionKind::DebugFrame => &DEBUG_FRAME_CONTEXT,
            };
            for entry in entries {
                let entry_at = (&section, &self.bases, entry.into());
                each_row(context, entry_at, &mut cies, &mut |start, end, row| {
                    handle(entry, start, end, row);
                });
            }
        });
    }

    /// Returns the offset from the CFA at which a function saves a register, once it has.
    pub(super) fn offset_of_saved(&self, function: Svma, register: gimli::Register) -> Option<i32> {
        let entry = self.index.find(function)?;
        with_section!(self, |section| offset_of_saved(&section, &self.bases, entry.into(), register))
    }

    /// Returns the length of an entry, without the length field, if it describes `pc` and isn't too
    /// long to be indexed.
    pub(super) fn length_of_entry_for(&self, entry: usize, pc: Svma) -> Option<usize> {
        with_section!(self, |section| {
            let fde =
                section.fde_from_offset(&self.bases, entry.into(), UnwindSection::cie_from_offset).ok()?;
            let is_usual =
                fde.entry_len() <= fde_index::MAX_ENTRY && fde.cie().entry_len() <= fde_index::MAX_CIE;
            (is_usual && fde.contains(pc.0)).then(|| fde.entry_len())
        })
    }

    pub(super) fn is_eh_frame(&self) -> bool {
        self.kind == FrameSectionKind::EhFrame
    }

    /// Bytes of memory held beside the value itself.
    pub(super) fn size_bytes(&self) -> usize {
        self.bytes.size_bytes() + self.index.size_bytes()
    }
}

fn evaluate<R: Reader<Offset = usize>, S: UnwindSection<R>>(
    section: &S,
    bases: &BaseAddresses,
    entry: S::Offset,
    pc: Svma,
) -> Option<Row> {
    let fde = section.fde_from_offset(bases, entry, S::cie_from_offset).ok()?;
    CONTEXT.with(|context| {
        // A lookup doesn't call another one, so that the context is always free.
        let mut context = context.try_borrow_mut().ok()?;
        let row = fde.unwind_info_for_address(section, bases, &mut context, pc.0).ok()?;
        Some(dwarf_rules::row(row, fde.cie(), section))
    })
}

fn each_row<R: Reader<Offset = usize>, S: UnwindSection<R>>(
    context: &'static LocalKey<RefCell<UnwindContext<usize>>>,
    (section, bases, entry): (&S, &BaseAddresses, S::Offset),
    cies: &mut RecentCies<R>,
    handle: &mut impl FnMut(u64, u64, Row),
) {
    context.with(|context| {
        let Ok(mut context) = context.try_borrow_mut() else { return };
        let fde = section.fde_from_offset(bases, entry, |s: &S, b, at| cies.get(s, b, at));
        let Ok(fde) = fde else { return };
        let Ok(mut table) = fde.rows(section, bases, &mut context) else { return };
        while let Ok(Some(row)) = table.next_row() {
            handle(row.start_address(), row.end_address(), dwarf_rules::row(row, fde.cie(), section));
        }
    });
}

fn offset_of_saved<R: Reader<Offset = usize>, S: UnwindSection<R>>(
    section: &S,
    bases: &BaseAddresses,
    entry: S::Offset,
    register: gimli::Register,
) -> Option<i32> {
    let fde = section.fde_from_offset(bases, entry, S::cie_from_offset).ok()?;
    CONTEXT.with(|context| {
        let mut context = context.try_borrow_mut().ok()?;
        let mut table = fde.rows(section, bases, &mut context).ok()?;
        while let Ok(Some(row)) = table.next_row() {
            if let Some(gimli::RegisterRule::Offset(offset)) = row.register(register) {
                return i32::try_from(offset).ok();
            }
        }
        None
    })
}

/// Returns the addresses that pointers in a section of call frame information count from.
pub(super) fn bases_of<S: ByteSource>(file: &ElfFile<S>, section: &Section) -> BaseAddresses {
    let address = |name| file.sections().iter().find(|s| s.name == name).map(|s| s.address.0);
    let mut bases = BaseAddresses::default().set_eh_frame(section.address.0);
    bases = address(".text").map_or(bases.clone(), |text| bases.set_text(text));
    address(".got").map_or(bases.clone(), |got| bases.set_got(got))
}

/// Returns the addresses of a file's code.
pub(super) fn code_of<S: ByteSource>(file: &ElfFile<S>) -> Vec<Range<u64>> {
    let code = file.header().segments.iter().filter(|segment| segment.executable);
    code.map(|s| s.address.0..s.address.0.saturating_add(s.memory_size)).collect()
}
