//! Unwind rows of a file, from its `.eh_frame`, and from `.debug_frame` for functions that lack
//! there.
//!
//! Loading makes an index of the functions that have call frame information; a lookup evaluates the
//! one entry that it needs. `.eh_frame_hdr` isn't used for that: it is missing in static files, and
//! says nothing of where functions end. It serves while there is no index: [`EhFrameHdrRows`].

mod cfi;
mod code_without_cfi;
mod corrections;
mod eh_frame_hdr_lookup;
mod go_rows;
mod row_table;
mod signal_return;

use std::cell::RefCell;
use std::ops::Range;

use gimli::{BaseAddresses, DebugFrame, EhFrame, LittleEndian, UnwindContext, UnwindSection};
use jvmprof_common::rows::Row;

use self::cfi::dwarf_rules;
use self::cfi::fde_index::{self, Index, RecentCies};
use self::cfi::stripped_section_headers;
pub use self::code_without_cfi::Analyze;
use self::corrections::row_overrides::Patches;
use self::corrections::{clone_return, dl_runtime_resolve, libgcc_eh_return};
pub use self::eh_frame_hdr_lookup::EhFrameHdrRows;
use self::row_table::Spans;
use crate::native::byte_source::ByteSource;
use crate::native::elf::{ElfError, ElfFile, Section};
use crate::native::go::program::GoProgram;
use crate::types::Svma;

/// Largest section of call frame information that is read, in bytes. JDK 17's libjvm has 1.5 MB,
/// node 20 has 2.8 MB.
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
    /// Those of `.debug_frame`, of functions that have none here.
    debug: Option<Box<UnwindRows>>,
    /// Of code that has none of that.
    spans: Spans,
    /// In place of some of the section's rows.
    patches: Patches,
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
    /// [`ElfError`] where a section can't be read or is too large. A file without call frame
    /// information has no rows, which is no error. Malformed entries are left out and counted:
    /// [`Self::malformed`].
    pub fn load<S: ByteSource>(file: &ElfFile<S>) -> Result<Self, ElfError> {
        Self::load_with(file, None)
    }

    /// As [`Self::load`], with the rows of code that has no frame information as far as they can be
    /// found by `analyze`.
    ///
    /// # Errors
    /// As [`Self::load`].
    pub fn load_with<S: ByteSource>(file: &ElfFile<S>, analyze: Option<Analyze>) -> Result<Self, ElfError> {
        let program = match GoProgram::load(file) {
            // What is too large to be understood is walked as it was before there was this table.
            Err(ElfError::TooLarge { .. } | ElfError::Malformed { .. }) => None,
            program => program?,
        };
        let go = program.map(|program| go_rows::spans(&program)).unwrap_or_default();
        let is_go = !go.is_empty();
        let mut rows = Self::of_frame_information(file, !is_go)?;
        rows.spans = go;
        let mut patches = dl_runtime_resolve::rows_at_calls(&rows, file);
        patches.extend(libgcc_eh_return::rows(&rows, file));
        rows.patches = Patches::new(patches);
        if let Some(analyze) = analyze.filter(|_| !is_go) {
            let known: Vec<_> = rows.function_ranges().collect();
            rows.spans = code_without_cfi::spans(file, &known, analyze);
        }
        rows.spans.add(clone_return::rows(&rows, file));
        Ok(rows)
    }

    /// `.debug_frame` of a Go program says less than its own table.
    fn of_frame_information<S: ByteSource>(file: &ElfFile<S>, also_debug: bool) -> Result<Self, ElfError> {
        let mut rows = match file.section(".eh_frame") {
            Some(section) => Self::of_section(Kind::EhFrame, file, section)?,
            None => match stripped_section_headers::eh_frame(file)? {
                Some((address, bytes)) => {
                    let bases = BaseAddresses::default().set_eh_frame(address.0);
                    Self::indexed(Kind::EhFrame, bases, bytes.into(), &code_of(file))
                }
                None => Self::default(),
            },
        };
        // Start-up code of the compiler gives each program an `.eh_frame`, though its own functions
        // may have none.
        if let Some(section) = file.section(".debug_frame").filter(|_| also_debug) {
            match Self::of_section(Kind::DebugFrame, file, section) {
                Ok(debug) => rows.add_debug(debug),
                Err(error) if rows.functions() == 0 => return Err(error),
                Err(error) => tracing::debug!(%error, "rows of .debug_frame are left out"),
            }
        }
        Ok(rows)
    }

    fn of_section<S: ByteSource>(kind: Kind, file: &ElfFile<S>, section: &Section) -> Result<Self, ElfError> {
        let bytes = file.read(section, MAX_SECTION)?;
        Ok(Self::indexed(kind, bases_of(file, section), bytes.into(), &code_of(file)))
    }

    fn add_debug(&mut self, mut debug: Self) {
        debug.index.remove(&self.index);
        self.debug = (debug.index.len() > 0).then(|| Box::new(debug));
    }

    /// The rows in the bytes of an `.eh_frame` that is loaded at `address`, for functions that
    /// start in `code`.
    pub fn from_eh_frame(bytes: Box<[u8]>, address: Svma, code: Range<Svma>) -> Self {
        let bases = BaseAddresses::default().set_eh_frame(address.0);
        let code = code.start.0..code.end.0;
        Self::indexed(Kind::EhFrame, bases, bytes, std::slice::from_ref(&code))
    }

    fn indexed(kind: Kind, bases: BaseAddresses, bytes: Box<[u8]>, code: &[Range<u64>]) -> Self {
        let mut rows = Self { kind, bases, section: bytes, index: Index::default(), ..Self::default() };
        let section = (&*rows.section, kind);
        rows.index = match kind {
            Kind::EhFrame => fde_index::build(&rows.eh_frame(), section, &rows.bases, code),
            Kind::DebugFrame => fde_index::build(&rows.debug_frame(), section, &rows.bases, code),
        };
        rows
    }

    /// The row for code at `pc`; `None` where the file has none, or where it is malformed.
    ///
    /// For a return address ask at address - 1.
    pub fn row(&self, pc: Svma) -> Option<Row> {
        if let Some(row) = self.patches.find(pc) {
            return Some(row);
        }
        let Some(entry) = self.index.find(pc) else {
            let debug = self.debug.as_ref().and_then(|debug| debug.row(pc));
            return debug.or_else(|| self.spans.find(pc));
        };
        match self.kind {
            Kind::EhFrame => self.evaluate(&self.eh_frame(), gimli::EhFrameOffset(entry), pc),
            Kind::DebugFrame => self.evaluate(&self.debug_frame(), gimli::DebugFrameOffset(entry), pc),
        }
    }

    /// Hands on all rows, in order of their functions' addresses: first address, first one behind
    /// it, row. Malformed entries are left out.
    pub fn for_each(&self, handle: &mut dyn FnMut(u64, u64, Row)) {
        let mut spans = self.spans.iter().peekable();
        let (mut cies, mut debug_cies) = (RecentCies::default(), RecentCies::default());
        for (rows, (start, _), entry) in self.in_order() {
            let cies = if std::ptr::eq(rows, self) { &mut cies } else { &mut debug_cies };
            while let Some((start, end, row)) = spans.next_if(|(first, ..)| *first < start.0) {
                handle(start, end, row);
            }
            match rows.kind {
                Kind::EhFrame => rows.each_row(&rows.eh_frame(), gimli::EhFrameOffset(entry), cies, handle),
                Kind::DebugFrame => {
                    rows.each_row(&rows.debug_frame(), gimli::DebugFrameOffset(entry), cies, handle);
                }
            }
        }
        spans.for_each(|(start, end, row)| handle(start, end, row));
    }

    /// The functions of both sections, in order of their addresses: whose, where, and the entry.
    fn in_order(&self) -> impl Iterator<Item = (&Self, (Svma, Svma), usize)> {
        let mut own = self.of_section_in_order().peekable();
        let mut debug = self.debug.iter().flat_map(|debug| debug.of_section_in_order()).peekable();
        std::iter::from_fn(move || {
            let first = own.peek().map(|(_, (start, _), _)| *start);
            let earlier = debug.next_if(|(_, (start, _), _)| first.is_none_or(|first| *start < first));
            earlier.or_else(|| own.next())
        })
    }

    fn of_section_in_order(&self) -> impl Iterator<Item = (&Self, (Svma, Svma), usize)> {
        self.index.ranges().zip(self.index.entries()).map(move |(range, entry)| (self, range, entry))
    }

    /// Whether the frame at `pc` is the root of its thread's stack: its return address is
    /// undefined.
    pub fn is_root(&self, pc: Svma) -> bool {
        self.row(pc).is_some_and(|row| row.is_root())
    }

    /// How many functions have rows.
    pub fn functions(&self) -> usize {
        self.index.len() + self.debug.as_ref().map_or(0, |debug| debug.functions())
    }

    /// The functions that have rows, each by its first address and the first one behind it, sorted.
    pub fn function_ranges(&self) -> impl Iterator<Item = (Svma, Svma)> {
        self.in_order().map(|(_, range, _)| range)
    }

    /// How many entries of the sections couldn't be understood.
    pub fn malformed(&self) -> u64 {
        self.index.malformed() + self.debug.as_ref().map_or(0, |debug| debug.malformed())
    }

    /// How many functions were left out because the entries before them take too long to evaluate.
    pub fn over_budget(&self) -> u64 {
        self.index.over_budget()
    }

    /// Bytes of entries that [`Self::for_each`] evaluates: no more than four times the section.
    pub fn work(&self) -> usize {
        self.index.work()
    }

    /// Bytes of memory held.
    pub fn size_bytes(&self) -> usize {
        let debug = self.debug.as_ref().map_or(0, |debug| debug.size_bytes());
        size_of::<Self>()
            + self.section.len()
            + self.index.size_bytes()
            + self.spans.size_bytes()
            + self.patches.size_bytes()
            + debug
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

    fn each_row<'a, S: UnwindSection<Reader<'a>>>(
        &'a self,
        section: &S,
        offset: S::Offset,
        cies: &mut RecentCies<'a>,
        handle: &mut dyn FnMut(u64, u64, Row),
    ) {
        CONTEXT.with(|context| {
            let Ok(mut context) = context.try_borrow_mut() else { return };
            let fde = section.fde_from_offset(&self.bases, offset, |s: &S, b, at| cies.get(s, b, at));
            let Ok(fde) = fde else { return };
            let Ok(mut table) = fde.rows(section, &self.bases, &mut context) else { return };
            while let Ok(Some(row)) = table.next_row() {
                let compiled = dwarf_rules::row(row, fde.cie(), section);
                self.patches.apply(row.start_address(), row.end_address(), compiled, handle);
            }
        });
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
            Some(dwarf_rules::row(row, fde.cie(), section))
        })
    }
}

/// What addresses in a section of call frame information count from.
fn bases_of<S: ByteSource>(file: &ElfFile<S>, section: &Section) -> BaseAddresses {
    let address = |name| file.sections().iter().find(|s| s.name == name).map(|s| s.address.0);
    let mut bases = BaseAddresses::default().set_eh_frame(section.address.0);
    bases = address(".text").map_or(bases.clone(), |text| bases.set_text(text));
    address(".got").map_or(bases.clone(), |got| bases.set_got(got))
}

/// The addresses of a file's code.
fn code_of<S: ByteSource>(file: &ElfFile<S>) -> Vec<Range<u64>> {
    let code = file.header().segments.iter().filter(|segment| segment.executable);
    code.map(|s| s.address.0..s.address.0.saturating_add(s.memory_size)).collect()
}

type Reader<'a> = gimli::EndianSlice<'a, LittleEndian>;
