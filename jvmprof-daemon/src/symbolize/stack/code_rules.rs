//! Unwind rules of native and generated code, while one stack is completed.

use std::time::{Duration, Instant};

use jvmprof_common::unwind::UnwindRule;

use crate::jit::cpython_trampolines::TrampolineArenas;
use crate::native::file_cache::FileCache;
use crate::process::Process;
use crate::symbolize::counts::SymbolCounts;
use crate::symbolize::jit::JitNames;
use crate::symbolize::native::mapped_files::{self, Modules};
use crate::symbolize::native::single_row_lookup::SingleRowLookup;
use crate::symbolize::publish_to_kernel::Publisher;
use crate::types::Avma;

/// The rules of a process's native code: from its files' rows, those in the kernel's tables first.
pub(super) struct NativeRules<'a> {
    pub(super) process: &'a Process,
    pub(super) modules: &'a mut Modules,
    pub(super) files: &'a FileCache,
    pub(super) publisher: Option<&'a Publisher>,
    pub(super) single_row_lookup: &'a mut SingleRowLookup,
    pub(super) counts: &'a mut SymbolCounts,
    /// True if unwind rows that the loader is reading are read here too, if they are few.
    pub(super) reads_rows: bool,
    /// True if a rule was needed whose rows the loader has still to read.
    pub(super) is_missing: bool,
    /// Time that reading unwind rows took.
    pub(super) reading: Duration,
}

impl NativeRules<'_> {
    /// Returns the rule of the code at an address.
    pub(super) fn at(&mut self, address: Avma) -> UnwindRule {
        let is_loading = self.publisher.is_some_and(|publisher| {
            mapped_files::is_missing(self.process, self.modules, &publisher.loader, address)
        });
        if !is_loading {
            return self.loaded_rule(address);
        }
        let began = Instant::now();
        let rule = self.loading_rule(address);
        self.reading += began.elapsed();
        rule
    }

    fn loaded_rule(&mut self, address: Avma) -> UnwindRule {
        let tables = self.publisher.map(|publisher| &publisher.tables);
        mapped_files::rule(self.process, self.modules, (self.files, tables), self.counts, address)
    }

    /// Returns the rule of code whose rows the loader is reading, if a single one can be found or
    /// all of them are few.
    fn loading_rule(&mut self, address: Avma) -> UnwindRule {
        let sources = (self.files, &mut *self.single_row_lookup);
        if let Some(row) = mapped_files::fde_row(self.process, self.modules, sources, address) {
            return UnwindRule::Row(row);
        }
        if self.reads_rows && mapped_files::is_small_enough_to_read(self.process, self.modules, address) {
            return self.loaded_rule(address);
        }
        self.is_missing = true;
        UnwindRule::Unknown
    }
}

/// The rules of code that other runtimes than HotSpot have generated, as it was at one time.
pub(super) struct GeneratedCodeRules<'a> {
    pub(super) process: &'a Process,
    pub(super) jit: &'a JitNames,
    pub(super) arenas: &'a TrampolineArenas,
    pub(super) at_ns: u64,
    /// True if a rule was needed for code in whose place other code may have been.
    pub(super) is_ambiguous: bool,
}

impl GeneratedCodeRules<'_> {
    /// Returns the rule of the code at an address; `None` where no runtime has described it.
    pub(super) fn at(&mut self, address: Avma) -> Option<UnwindRule> {
        if let Some((row, is_certain)) = self.jit.row(address, self.at_ns) {
            self.is_ambiguous |= !is_certain;
            return Some(UnwindRule::Row(row));
        }
        let code = self.process.mappings.find(address)?;
        let trampolines = self.arenas.at(code.start, code.end)?;
        let offset = u32::try_from(address.0 - code.start.0).ok()?;
        trampolines.row(offset).map(UnwindRule::Row)
    }
}
