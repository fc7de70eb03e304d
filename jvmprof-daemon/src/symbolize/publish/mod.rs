//! Telling the kernel program of a process's code.

pub(super) mod row_loader;

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Instant;

use jvmprof_common::jvm::Jvm;

use crate::clock::monotonic_ns;
use crate::hotspot::LiveMemory;
use crate::jit::cpython_trampolines::Trampolines;
use crate::kernel_tables::{CodeRegion, FileRows, RegionCode, RowsKey};
use crate::process::{Backing, MappedCode, Process, ProcessKey};
use crate::symbolize::{ProcessSymbols, Symbolizer};

impl Symbolizer {
    /// A process has mapped code over other code that the kernel program may have been told of.
    pub fn replaced(&mut self, key: ProcessKey, code: &MappedCode, mapped_ns: u64) {
        if let Some(symbols) = self.processes.get_mut(&key) {
            symbols.replaced.add(code.start..code.end, mapped_ns);
        }
    }

    /// Brings the kernel's tables up to what the process has mapped.
    pub(in crate::symbolize) fn tell(&mut self, process: &Process) {
        let Some(start_ns) = process.start_ns() else { return };
        if self.kernel_side.is_none() {
            return;
        }
        let mut symbols = self.processes.remove(&process.key).unwrap_or_default();
        symbols.told_version = process.version;
        symbols.awaited.clear();
        symbols.told_jit_rows = symbols.jit.may_have_rows(process, &self.jit, &mut self.counts.perf_maps);
        if !process.is_jvm() {
            symbols.arenas.discover(process, &LiveMemory::new(process.pid));
        }
        let mut regions: Vec<CodeRegion> = Vec::with_capacity(process.mappings.len() + 1);
        for mapping in process.mappings.iter() {
            let code = self.region_code(process, &mut symbols, mapping);
            regions.push(CodeRegion { start: mapping.start.0, end: mapping.end.0, code });
        }
        if let Some(java) = symbols.java.attached() {
            insert_code_cache(&mut regions, java.jvm());
        }
        if let Some(kernel) = &mut self.kernel_side {
            kernel.tables.tell(process.key, process.pid, start_ns, &regions);
            symbols.replaced.told(monotonic_ns());
        }
        self.processes.insert(process.key, symbols);
    }

    fn region_code(
        &mut self,
        process: &Process,
        symbols: &mut ProcessSymbols,
        mapping: &Arc<MappedCode>,
    ) -> RegionCode {
        if mapping.backing == Backing::Anonymous {
            if let Some(trampolines) = symbols.arenas.at(mapping.start, mapping.end) {
                return self.trampolines_code(mapping, &Arc::clone(trampolines));
            }
            return if symbols.java.is_awaited(process) || symbols.told_jit_rows {
                RegionCode::Later
            } else {
                RegionCode::Generated
            };
        }
        let module = symbols.modules.get(process, mapping, &self.files, &mut self.counts);
        // A few jumps, met so seldom that the daemon walks over them; or what will be told of in a
        // moment.
        if module.is_class_data() || module.is_replaced() {
            return RegionCode::Later;
        }
        let Some((file, bias)) = module.file_and_bias() else { return RegionCode::FramePointer };
        let Some(kernel) = &mut self.kernel_side else { return RegionCode::FramePointer };
        // Code without rows is mostly written by hand or by compilers that keep frame pointers,
        // such as Go's.
        if !kernel.tables.knows(&RowsKey::File(file)) {
            if !module.request_rows(process, &self.files, &mut kernel.loader) {
                return RegionCode::Later;
            }
            symbols.awaited.push(file);
        }
        RegionCode::File { file: RowsKey::File(file), bias }
    }

    fn trampolines_code(&mut self, mapping: &MappedCode, trampolines: &Trampolines) -> RegionCode {
        let Some(kernel) = &mut self.kernel_side else { return RegionCode::FramePointer };
        let key = RowsKey::Trampolines(trampolines.identity());
        if !kernel.tables.knows(&key) {
            kernel.tables.add_file(key, FileRows::new(|handle| trampolines.for_each(handle)));
        }
        RegionCode::File { file: key, bias: mapping.start.0 }
    }

    /// Looks whether what was told of trampolines still holds: memory may be used for something
    /// else without a sign.
    pub(in crate::symbolize) fn verify_trampolines(&mut self, process: &Process) {
        if let Some(symbols) = self.processes.get_mut(&process.key)
            && !symbols.arenas.is_empty()
            && symbols.arenas.verify(&LiveMemory::new(process.pid))
        {
            symbols.told_version = 0;
        }
    }

    /// Takes in unwind rows that have been read, and tells of the processes that they were awaited
    /// for. True if there were any. `wait`: until all are there.
    pub fn take_rows<'a>(
        &mut self,
        find: impl Fn(ProcessKey) -> Option<&'a Process>,
        until: Option<Instant>,
    ) -> bool {
        let mut arrived = HashSet::new();
        while let Some(kernel) = &mut self.kernel_side {
            let next = match until {
                Some(end) => kernel.loader.wait(end),
                None => kernel.loader.next(),
            };
            let Some((file, rows)) = next else { break };
            if let Some(rows) = rows {
                kernel.tables.add_file(RowsKey::File(file), rows);
            }
            self.sought.forget(&file);
            arrived.insert(file);
        }
        if arrived.is_empty() {
            return false;
        }
        let is_awaited = |symbols: &ProcessSymbols| symbols.awaited.iter().any(|file| arrived.contains(file));
        let keys: Vec<ProcessKey> =
            self.processes.iter().filter(|(_, symbols)| is_awaited(symbols)).map(|(key, _)| *key).collect();
        for process in keys.into_iter().filter_map(find) {
            self.tell(process);
        }
        true
    }

    /// Stacks of this process that were sampled up to this time can be walked: unwind rows are
    /// there, and it is known what its runtime generated by then. Reads on if that isn't `at_ns`.
    pub fn walkable_until(&mut self, key: ProcessKey, at_ns: u64) -> u64 {
        match self.processes.get_mut(&key) {
            Some(symbols) if symbols.awaited.is_empty() => {
                symbols.jit.walkable_until(at_ns, &mut self.counts.perf_maps)
            }
            Some(_) => 0,
            None => u64::MAX,
        }
    }

    /// Reads what the process's runtime has written of its code to the end. What it writes later
    /// comes too late for the samples of the window.
    pub fn finish_dump(&mut self, process: &Process, now_ns: u64) {
        if let Some(symbols) = self.processes.get_mut(&process.key) {
            symbols.jit.finish_dump(process, now_ns, &mut self.counts.perf_maps);
        }
    }

    /// Whether rows that this process needs are being read.
    pub fn awaits_rows(&self, key: ProcessKey) -> bool {
        self.processes.get(&key).is_some_and(|symbols| !symbols.awaited.is_empty())
    }
}

/// The code cache's whole reserved memory is HotSpot's, however much of it is committed by now.
fn insert_code_cache(regions: &mut Vec<CodeRegion>, jvm: &Jvm) {
    let (start, end) = (jvm.code_start, jvm.code_end);
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
