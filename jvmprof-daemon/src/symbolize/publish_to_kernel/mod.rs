//! Publishing a process's code to the kernel programs: its regions, the unwind rows of its files,
//! its JVM.
//!
//! Rows of files are read by a thread of their own ([`row_loader`]). A process is published without
//! them at first, and again once they have arrived.

pub(super) mod row_loader;

use std::collections::HashSet;
use std::io;
use std::sync::Arc;
use std::time::Instant;

use jvmprof_common::jvm::Jvm;

use super::counts::SymbolCounts;
use super::jit::JitContext;
use super::{ProcessSymbols, Symbolizer};
use crate::clock::monotonic_ns;
use crate::hotspot::LiveMemory;
use crate::jit::cpython_trampolines::Trampolines;
use crate::kernel_tables::{CodeRegion, CodeTables, FileRows, RegionCode, RowsKey, RowsOnDisk, TableCounts};
use crate::native::file_cache::FileCache;
use crate::native::file_identity::FileKey;
use crate::own_process::UrgentCpu;
use crate::process::{Backing, MappedCode, Process, ProcessKey};
use crate::sampler::BpfMaps;
use crate::types::{Avma, LoadBias, Svma};
use row_loader::RowsLoader;

/// The part of a process's state that the publisher owns.
#[derive(Debug, Default)]
pub(super) struct Publication {
    /// Version of the mappings that was published; 0 if they are to be published anew.
    version: u64,
    /// True if the kernel programs leave its generated code to the daemon.
    has_jit_rows: bool,
    /// Files whose rows are being read.
    pub(super) awaited: Vec<FileKey>,
}

impl Publication {
    /// Schedules the process's publication at its next sample.
    pub(super) fn invalidate(&mut self) {
        self.version = 0;
    }
}

/// Fills the tables of the kernel programs.
#[derive(Debug)]
pub(super) struct Publisher {
    pub(super) tables: CodeTables,
    pub(super) loader: RowsLoader,
}

/// The caches of the symbolizer that publishing needs.
pub(super) struct PublishContext<'a> {
    pub(super) files: &'a FileCache,
    pub(super) jit: &'a JitContext,
    pub(super) counts: &'a mut SymbolCounts,
}

impl Publisher {
    /// Starts the publisher and its thread.
    ///
    /// # Errors
    /// The thread can't be started.
    pub(super) fn start(
        tables: BpfMaps,
        files: Arc<FileCache>,
        on_disk: Option<Arc<RowsOnDisk>>,
        urgent_cpu: UrgentCpu,
    ) -> io::Result<Self> {
        let loader = RowsLoader::start(files, on_disk, urgent_cpu)?;
        Ok(Self { tables: CodeTables::new(tables), loader })
    }

    /// Publishes the layout and the stubs of a process's JVM, which have changed.
    pub(super) fn publish_jvm(&mut self, key: ProcessKey, symbols: &mut ProcessSymbols) {
        let Some(java) = symbols.java.attached_jvm() else { return };
        let jvm = java.jvm();
        let rows = FileRows::new(|handle| java.stubs().for_each(jvm.code_start, handle));
        self.tables.add_jvm(key, jvm, rows);
        symbols.published.invalidate();
    }

    /// Updates the kernel's tables to the mappings of a sampled process.
    pub(super) fn refresh(
        &mut self,
        process: &Process,
        symbols: &mut ProcessSymbols,
        context: PublishContext<'_>,
    ) {
        if self.tables.touch(process.key) {
            symbols.published.invalidate();
        }
        let published = &symbols.published;
        if published.version != process.version || published.has_jit_rows != symbols.jit.has_rows() {
            self.publish(process, symbols, context);
        }
    }

    fn publish(&mut self, process: &Process, symbols: &mut ProcessSymbols, mut context: PublishContext<'_>) {
        let Some(start_ns) = process.start_ns() else { return };
        symbols.published.version = process.version;
        symbols.published.awaited.clear();
        symbols.published.has_jit_rows =
            symbols.jit.may_have_rows(process, context.jit, &mut context.counts.perf_maps);
        if !process.is_jvm() {
            symbols.arenas.discover(process, &LiveMemory::new(process.pid));
        }
        let mut regions: Vec<CodeRegion> = Vec::with_capacity(process.mappings.len() + 1);
        for mapping in process.mappings.iter() {
            let code = self.region_code(process, symbols, mapping, &mut context);
            regions.push(CodeRegion { start: mapping.start, end: mapping.end, code });
        }
        if let Some(java) = symbols.java.attached_jvm() {
            insert_code_cache(&mut regions, java.jvm());
        }
        self.tables.publish(process.key, process.pid, start_ns, &regions);
        symbols.remapped.published(monotonic_ns());
        if symbols.java.attached_jvm().is_some() && symbols.published.awaited.is_empty() {
            tracing::debug!(pid = process.pid, "the kernel program can walk a JVM's stacks");
        }
    }

    fn region_code(
        &mut self,
        process: &Process,
        symbols: &mut ProcessSymbols,
        mapping: &Arc<MappedCode>,
        context: &mut PublishContext<'_>,
    ) -> RegionCode {
        if mapping.backing == Backing::Anonymous {
            if let Some(trampolines) = symbols.arenas.at(mapping.start, mapping.end) {
                return self.trampolines_code(mapping, trampolines);
            }
            return if symbols.java.is_awaited(process) || symbols.published.has_jit_rows {
                RegionCode::Deferred
            } else {
                RegionCode::Generated
            };
        }
        let module = symbols.modules.get(process, mapping, context.files, context.counts);
        // A few jumps, so rare that the daemon walks over them; or what will be published in
        // a moment.
        if module.is_class_data() || module.is_replaced() {
            return RegionCode::Deferred;
        }
        let Some((file, bias)) = module.file_and_bias() else { return RegionCode::FramePointer };
        // Code without rows is mostly written by hand or by compilers that keep frame pointers,
        // such as Go's.
        if !self.tables.has_or_refuses_rows(&RowsKey::File(file)) {
            if !module.request_rows(process, context.files, &mut self.loader) {
                return RegionCode::Deferred;
            }
            symbols.published.awaited.push(file);
        }
        RegionCode::File { file: RowsKey::File(file), bias }
    }

    fn trampolines_code(&mut self, mapping: &MappedCode, trampolines: &Trampolines) -> RegionCode {
        let key = RowsKey::Trampolines(trampolines.identity());
        if !self.tables.has_or_refuses_rows(&key) {
            self.tables.add_file(key, FileRows::new(|handle| trampolines.for_each(handle)));
        }
        RegionCode::File { file: key, bias: LoadBias::between(mapping.start, Svma(0)) }
    }

    /// Takes over rows that have been read: all that have arrived, or, with `until`, all that were
    /// requested, waiting for them until then.
    fn take_loaded(&mut self, until: Option<Instant>) -> HashSet<FileKey> {
        let mut arrived = HashSet::new();
        loop {
            let next = match until {
                Some(end) => self.loader.wait(end),
                None => self.loader.next(),
            };
            let Some((file, rows)) = next else { return arrived };
            if let Some(rows) = rows {
                self.tables.add_file(RowsKey::File(file), rows);
            }
            arrived.insert(file);
        }
    }

    pub(super) fn counts(&self) -> TableCounts {
        self.tables.counts()
    }
}

impl Symbolizer {
    /// Takes over unwind rows that have been read, and publishes the processes that await them.
    /// Returns true if there were any. `until`: waits until then for those that are being read.
    pub fn take_rows<'a>(
        &mut self,
        find: impl Fn(ProcessKey) -> Option<&'a Process>,
        until: Option<Instant>,
    ) -> bool {
        let Some(publisher) = &mut self.publisher else { return false };
        let arrived = publisher.take_loaded(until);
        arrived.iter().for_each(|file| self.completer.single_row_lookup.remove(file));
        for (key, symbols) in &mut self.processes {
            if symbols.published.awaited.iter().any(|file| arrived.contains(file))
                && let Some(process) = find(*key)
            {
                let (files, jit, counts) = (&self.files, &self.jit, &mut self.counts);
                publisher.publish(process, symbols, PublishContext { files, jit, counts });
            }
        }
        !arrived.is_empty()
    }

    /// Returns true if unwind rows are being read, or wait for [`Self::take_rows`].
    pub fn is_loading(&self) -> bool {
        self.publisher.as_ref().is_some_and(|publisher| publisher.loader.is_busy())
    }

    /// Returns true if rows that this process needs are being read.
    pub fn awaits_rows(&self, key: ProcessKey) -> bool {
        self.processes.get(&key).is_some_and(|symbols| !symbols.published.awaited.is_empty())
    }
}

/// The code cache's whole reserved memory is HotSpot's, however much of it is committed by now.
fn insert_code_cache(regions: &mut Vec<CodeRegion>, jvm: &Jvm) {
    let (start, end) = (Avma(jvm.code_start), Avma(jvm.code_end));
    regions.retain_mut(|region| {
        if region.start < start && region.end > start {
            region.end = start;
        } else if region.start >= start && region.start < end {
            region.start = end;
        }
        region.start < region.end
    });
    let at = regions.partition_point(|region| region.start < start);
    regions.insert(at, CodeRegion { start, end, code: RegionCode::Hotspot });
}
