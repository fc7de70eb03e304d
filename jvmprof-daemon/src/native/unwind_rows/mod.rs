//! Unwind rows of a file, from its `.eh_frame`, and from `.debug_frame` for functions that lack
//! there.
//!
//! Loading indexes the functions that have call frame information; a lookup evaluates the one entry
//! that it needs. `.eh_frame_hdr` isn't used for that: it is missing in static files, and doesn't
//! have the ends of functions. It serves while there is no index: [`EhFrameHdrRows`].

mod cfi;
mod code_without_cfi;
mod corrections;
mod eh_frame_hdr_lookup;
mod go_rows;
mod row_table;
mod signal_return;

use std::iter::Peekable;
use std::ops::Range;

use gimli::BaseAddresses;
use jvmprof_common::rows::Row;

use self::cfi::frame_bytes::FrameBytes;
use self::cfi::{CallFrames, FrameSectionKind, code_of, stripped_section_headers};
pub use self::code_without_cfi::AnalyzeCode;
use self::corrections::row_overrides::RowOverrides;
use self::corrections::{
    after_sigreturn, clone_return, dl_runtime_resolve, landing_pads, libgcc_eh_return, missing_epilogues,
};
pub use self::eh_frame_hdr_lookup::EhFrameHdrRows;
use self::row_table::CompactRowTable;
use crate::native::byte_source::ByteSource;
use crate::native::elf::{ElfError, ElfFile};
use crate::native::go::program::GoProgram;
use crate::types::Svma;

/// Largest section of call frame information that is read as a whole where it may stay in the file,
/// in bytes. rustc's has 6 MB.
const MAX_IN_MEMORY: u64 = 8 << 20;

/// The unwind rows of one file.
#[derive(Debug, Default)]
pub struct UnwindRows {
    /// The entries of `.eh_frame`.
    frames: CallFrames,
    /// The entries of `.debug_frame`, for functions that have none there.
    debug_frames: CallFrames,
    /// Rows of code without call frame information.
    table: CompactRowTable,
    /// Rows that replace some of `.eh_frame`.
    overrides: RowOverrides,
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

    /// Reads the call frame information of [`Self::load`], and adds the rows that `analyze` finds
    /// for code without it.
    ///
    /// # Errors
    /// Those of [`Self::load`].
    pub fn load_with<S: ByteSource>(
        file: &ElfFile<S>,
        analyze: Option<AnalyzeCode>,
    ) -> Result<Self, ElfError> {
        Self::load_within(file, analyze, u64::MAX)
    }

    /// Reads the rows of [`Self::load_with`] for a caller that is done with them before the file
    /// changes: large sections stay in the file, and [`Self::check`] returns their errors in the
    /// end.
    ///
    /// # Errors
    /// Those of [`Self::load`].
    pub fn load_from_file<S: ByteSource>(
        file: &ElfFile<S>,
        analyze: Option<AnalyzeCode>,
    ) -> Result<Self, ElfError> {
        Self::load_within(file, analyze, MAX_IN_MEMORY)
    }

    /// Reads the rows of [`Self::load_with`]; sections of more than `max_in_memory` bytes stay in
    /// the file.
    ///
    /// # Errors
    /// Those of [`Self::load`].
    pub(crate) fn load_within<S: ByteSource>(
        file: &ElfFile<S>,
        analyze: Option<AnalyzeCode>,
        max_in_memory: u64,
    ) -> Result<Self, ElfError> {
        let program = match GoProgram::open(file) {
            // What is too large to be understood is walked as it was before there was this table.
            Err(ElfError::TooLarge { .. } | ElfError::Malformed { .. }) => None,
            program => program?,
        };
        let go =
            program.map_or_else(|| Ok(CompactRowTable::default()), |program| go_rows::table(&program))?;
        let is_go = !go.is_empty();
        // `.debug_frame` of a Go program has less than its own table.
        let mut rows = Self::of_frame_information(file, !is_go, max_in_memory)?;
        rows.table = go;
        let mut overrides = dl_runtime_resolve::rows_at_calls(&rows.frames, file);
        overrides.extend(libgcc_eh_return::rows(&rows.frames, file));
        if !is_go {
            overrides.extend(missing_epilogues::rows(&rows.frames, file));
        }
        rows.overrides = RowOverrides::new(overrides);
        if let Some(analyze) = analyze.filter(|_| !is_go) {
            rows.table = code_without_cfi::table(file, rows.function_ranges(), analyze);
        }
        rows.table.add(clone_return::rows(&rows.frames, file));
        rows.table.add(after_sigreturn::rows(&rows.frames, file));
        rows.table.add(landing_pads::rows(&rows.frames, &rows.debug_frames, file));
        rows.check()?;
        Ok(rows)
    }

    fn of_frame_information<S: ByteSource>(
        file: &ElfFile<S>,
        also_debug: bool,
        max_in_memory: u64,
    ) -> Result<Self, ElfError> {
        let frames = match file.section(".eh_frame") {
            Some(section) => CallFrames::of_section(FrameSectionKind::EhFrame, file, section, max_in_memory)?,
            None => match stripped_section_headers::eh_frame(file)? {
                Some((address, bytes)) => {
                    let bases = BaseAddresses::default().set_eh_frame(address.0);
                    let bytes = FrameBytes::Memory(bytes.into());
                    CallFrames::indexed(FrameSectionKind::EhFrame, bases, bytes, &code_of(file))
                }
                None => CallFrames::default(),
            },
        };
        let mut rows = Self { frames, ..Self::default() };
        // Start-up code of the compiler gives each program an `.eh_frame`, though its own functions
        // may have none.
        if let Some(section) = file.section(".debug_frame").filter(|_| also_debug) {
            match CallFrames::of_section(FrameSectionKind::DebugFrame, file, section, max_in_memory) {
                Ok(mut debug) => {
                    debug.index.remove(&rows.frames.index);
                    rows.debug_frames = if debug.index.len() > 0 { debug } else { CallFrames::default() };
                }
                Err(error) if rows.functions() == 0 => return Err(error),
                Err(error) => tracing::debug!(%error, "rows of .debug_frame are left out"),
            }
        }
        Ok(rows)
    }

    /// Reads the rows in the bytes of an `.eh_frame` that is loaded at `address`, for functions
    /// that start in `code`.
    pub fn from_eh_frame(bytes: Box<[u8]>, address: Svma, code: Range<Svma>) -> Self {
        let bases = BaseAddresses::default().set_eh_frame(address.0);
        let (code, bytes) = (code.start.0..code.end.0, FrameBytes::Memory(bytes));
        let code = std::slice::from_ref(&code);
        Self { frames: CallFrames::indexed(FrameSectionKind::EhFrame, bases, bytes, code), ..Self::default() }
    }

    /// Returns the row for code at `pc`; `None` where the file has none, or where it is malformed.
    ///
    /// For a return address look up address - 1.
    pub fn row(&self, pc: Svma) -> Option<Row> {
        if let Some(row) = self.overrides.find(pc) {
            return Some(row);
        }
        match self.frames.index.find(pc) {
            Some(entry) => self.frames.evaluate(entry, pc),
            None => self.debug_frames.row(pc).or_else(|| self.table.find(pc)),
        }
    }

    /// Passes on all rows, in order of their functions' addresses: first address, first one after
    /// it, row. Malformed entries are left out.
    pub fn for_each(&self, handle: &mut dyn FnMut(u64, u64, Row)) {
        let mut others = OtherRows {
            table: self.table.iter().peekable(),
            debug_frames: &self.debug_frames,
            debug_functions: self.debug_frames.index.functions().peekable(),
        };
        let mut last = None;
        self.frames.each_row(self.frames.index.entries(), &mut |entry, start, end, row| {
            if last.replace(entry) != Some(entry) {
                others.emit_before(start, handle);
            }
            self.overrides.apply(start, end, row, handle);
        });
        others.emit_before(u64::MAX, handle);
    }

    /// Returns whether all reads succeeded.
    ///
    /// # Errors
    /// The first read that failed: rows may be missing.
    pub fn check(&self) -> Result<(), ElfError> {
        self.frames.bytes.check().and_then(|()| self.debug_frames.bytes.check())
    }

    /// Returns true if the frame at `pc` is the root of its thread's stack: its return address is
    /// undefined.
    pub fn is_root(&self, pc: Svma) -> bool {
        self.row(pc).is_some_and(|row| row.is_root())
    }

    /// Returns the number of functions that have rows.
    pub fn functions(&self) -> usize {
        self.frames.index.len() + self.debug_frames.index.len()
    }

    /// Returns the functions that have rows, each by its first address and the first one after it,
    /// sorted.
    pub fn function_ranges(&self) -> impl Iterator<Item = (Svma, Svma)> {
        let mut own = self.frames.index.ranges().peekable();
        let mut debug = self.debug_frames.index.ranges().peekable();
        std::iter::from_fn(move || {
            let first = own.peek().map(|(start, _)| *start);
            let earlier = debug.next_if(|(start, _)| first.is_none_or(|first| *start < first));
            earlier.or_else(|| own.next())
        })
    }

    /// Returns the number of malformed entries of the sections.
    pub fn malformed(&self) -> u64 {
        self.frames.index.malformed() + self.debug_frames.index.malformed()
    }

    /// Returns the number of functions that were left out because the entries before them take too
    /// long to evaluate.
    pub fn over_budget(&self) -> u64 {
        self.frames.index.over_budget()
    }

    /// Returns the bytes of entries that [`Self::for_each`] evaluates: no more than four times the
    /// section.
    pub fn work(&self) -> usize {
        self.frames.index.work()
    }

    /// Bytes of memory held.
    pub fn size_bytes(&self) -> usize {
        size_of::<Self>()
            + self.frames.size_bytes()
            + self.debug_frames.size_bytes()
            + self.table.size_bytes()
            + self.overrides.size_bytes()
    }
}

/// The rows that aren't in `.eh_frame`, in order of their addresses.
struct OtherRows<'r, T: Iterator, D: Iterator> {
    table: Peekable<T>,
    debug_frames: &'r CallFrames,
    debug_functions: Peekable<D>,
}

impl<T, D> OtherRows<'_, T, D>
where
    T: Iterator<Item = (u64, u64, Row)>,
    D: Iterator<Item = (Svma, usize)>,
{
    /// Passes on those that begin before `address`.
    fn emit_before(&mut self, address: u64, handle: &mut dyn FnMut(u64, u64, Row)) {
        while let Some((function, entry)) = self.debug_functions.next_if(|(start, _)| start.0 < address) {
            self.emit_table_before(function.0, handle);
            self.debug_frames
                .each_row(std::iter::once(entry), &mut |_, start, end, row| handle(start, end, row));
        }
        self.emit_table_before(address, handle);
    }

    fn emit_table_before(&mut self, address: u64, handle: &mut dyn FnMut(u64, u64, Row)) {
        while let Some((start, end, row)) = self.table.next_if(|(start, ..)| *start < address) {
            handle(start, end, row);
        }
    }
}
