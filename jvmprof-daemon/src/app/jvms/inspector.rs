//! Reports on a JVM, for `inspect` and `doctor`.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

use crate::hotspot::stubs::StubRows;
use crate::hotspot::{
    CodeAtPc, CodeBlobDesc, CompiledMethod, FlagOrigin, Hotspot, HotspotError, JavaCache, JavaFrame,
    JvmVersion, LiveMemory, VmFlag, images,
};
use crate::own_process::one_line;
use crate::symbolize::JvmLabels;
use crate::types::Avma;

/// Flags that the JVM sets by itself and that decide how its code looks.
const CODE_FLAGS: [&str; 7] = [
    "TieredCompilation",
    "TieredStopAtLevel",
    "SegmentedCodeCache",
    "ReservedCodeCacheSize",
    "PreserveFramePointer",
    "UseCompressedOops",
    "UseCompressedClassPointers",
];

/// An attached JVM, with its stubs' unwind rows.
#[derive(Debug)]
pub(in crate::app) struct JvmInspector {
    hotspot: Hotspot<LiveMemory>,
    rows: StubRows,
    blobs: Vec<CodeBlobDesc>,
    pub(in crate::app) labels: JvmLabels,
}

/// The reason why a JVM can't be read.
#[derive(Debug, Serialize)]
pub(in crate::app) struct JvmProblem {
    /// A short word: [`HotspotError::reason`].
    pub(in crate::app) reason: &'static str,
    pub(in crate::app) text: String,
}

impl From<HotspotError> for JvmProblem {
    fn from(error: HotspotError) -> Self {
        Self { reason: error.reason(), text: error.to_string() }
    }
}

/// The state of a JVM.
#[derive(Debug, Serialize)]
pub(in crate::app) struct JvmReport {
    version: String,
    /// As the JVM words it.
    vm_release: String,
    main_class: Option<String>,
    /// Flags that somebody set, and those that decide how code looks, the collector among them.
    flags: Vec<VmFlag>,
    code_heaps: Vec<HeapReport>,
    /// Compiled methods that are alive, by tier; `native` are wrappers of native methods.
    nmethods: BTreeMap<&'static str, u64>,
    /// Java threads by what they do.
    threads: BTreeMap<&'static str, u64>,
    /// Code of stubs, interpreter and adapters, bytes, and how much of it has unwind rows.
    stub_bytes: u64,
    stub_bytes_with_rows: u64,
}

#[derive(Debug, Serialize)]
struct HeapReport {
    start: u64,
    end: u64,
    used_bytes: u64,
    blobs: usize,
}

/// The code at an address of the code cache.
#[derive(Debug, Default, Serialize)]
pub(in crate::app) struct CodeReport {
    /// As HotSpot calls it.
    blob: String,
    start: u64,
    end: u64,
    /// The stub's own name, where a blob has many.
    stub: Option<String>,
    /// The interpreter's codelet.
    codelet: Option<String>,
    compile_id: Option<u32>,
    tier: Option<&'static str>,
    osr: bool,
    /// The methods that run there, innermost first.
    methods: Vec<MethodReport>,
    /// The reason why they are unknown.
    problem: Option<&'static str>,
    /// The unwind row, in code without debug information.
    row: Option<String>,
}

#[derive(Debug, Serialize)]
struct MethodReport {
    name: String,
    file: Option<String>,
    line: Option<u32>,
    bci: i32,
}

impl JvmInspector {
    /// Attaches to the JVM in a process.
    ///
    /// # Errors
    /// There is none, or it can't be read.
    pub(in crate::app) fn new(pid: u32) -> Result<Self, HotspotError> {
        let mut hotspot = Hotspot::attach(&images(pid)?, LiveMemory::new(pid))?;
        hotspot.locate_stub_names(pid, &JavaCache::default());
        let blobs = hotspot.blobs()?;
        let mut rows = StubRows::default();
        let (codelets, bytes) = hotspot.codelets()?;
        let start = Avma(hotspot.jvm().interpreter_start);
        rows.update(&hotspot.stub_blobs()?, &codelets, start, &bytes);
        let (labels, _) = JvmLabels::read(&hotspot, pid);
        Ok(Self { hotspot, rows, blobs, labels })
    }

    pub(in crate::app) fn image_start(&self) -> Avma {
        self.hotspot.image().0
    }

    pub(in crate::app) fn version(&self) -> &JvmVersion {
        self.hotspot.version()
    }

    pub(in crate::app) fn names_compiled_code(&self) -> bool {
        self.hotspot.names_compiled_code()
    }

    /// Returns the share of the stubs' code that has unwind rows, in percent.
    pub(in crate::app) fn stub_share(&self) -> f64 {
        let coverage = self.rows.coverage();
        percent(coverage.covered_bytes, coverage.code_bytes)
    }

    /// Reads the state of the JVM.
    ///
    /// # Errors
    /// The code cache can't be read.
    pub(in crate::app) fn report(&mut self) -> Result<JvmReport, HotspotError> {
        let mut threads = BTreeMap::new();
        for thread in self.hotspot.threads() {
            *threads.entry(thread.state).or_default() += 1;
        }
        let mut nmethods = BTreeMap::new();
        for compiled in self.hotspot.compiled()? {
            *nmethods.entry(tier(&compiled)).or_default() += 1;
        }
        let coverage = self.rows.coverage();
        Ok(JvmReport {
            version: self.labels.version.clone(),
            vm_release: self.version().vm_release.clone(),
            main_class: self.labels.main_class.clone(),
            flags: self.hotspot.flags().into_iter().filter(is_reported).collect(),
            code_heaps: self.heaps(),
            nmethods,
            threads,
            stub_bytes: coverage.code_bytes,
            stub_bytes_with_rows: coverage.covered_bytes,
        })
    }

    fn heaps(&self) -> Vec<HeapReport> {
        let heaps = self.hotspot.jvm().heaps.iter().filter(|heap| heap.start != 0);
        let report = |heap: &jvmprof_common::jvm::CodeHeap| {
            let range = heap.start..heap.end;
            let blobs = self.blobs.iter().filter(|blob| range.contains(&blob.address.0));
            let (used_bytes, blobs) = blobs.fold((0, 0), |(bytes, n), blob| (bytes + blob.bytes, n + 1));
            HeapReport { start: heap.start, end: heap.end, used_bytes, blobs }
        };
        heaps.map(report).collect()
    }

    /// Describes the code at an address. Returns `None` outside the code cache and in its gaps.
    ///
    /// # Errors
    /// The code cache can't be read.
    pub(in crate::app) fn explain(&mut self, pc: Avma) -> Result<Option<CodeReport>, HotspotError> {
        let Some(CodeAtPc { blob, codelet, compiled }) = self.hotspot.explain(pc)? else {
            return Ok(None);
        };
        let stub =
            self.hotspot.stub_name(&self.rows, pc).filter(|name| codelet.is_none() && *name != blob.name);
        let mut report = CodeReport {
            blob: blob.name.to_string(),
            start: blob.code.start.0,
            end: blob.code.end.0,
            stub: stub.map(|name| name.to_string()),
            codelet: codelet.map(|codelet| codelet.description.to_string()),
            row: self.rows.row(pc).map(|row| format!("{row:?}")),
            ..CodeReport::default()
        };
        if let Some((compiled, frames)) = compiled {
            report.compile_id = Some(compiled.compile_id);
            report.tier = Some(tier(&compiled));
            report.osr = compiled.osr;
            match frames {
                Ok(frames) => report.methods = frames.iter().map(MethodReport::of).collect(),
                Err(unnamed) => report.problem = Some(unnamed.reason()),
            }
        }
        Ok(Some(report))
    }
}

/// Returns a `CompLevel` in words: openjdk src/hotspot/share/compiler/compilerDefinitions.hpp.
fn tier(compiled: &CompiledMethod) -> &'static str {
    match compiled.level {
        0 => "native",
        1 => "C1 tier 1",
        2 => "C1 tier 2",
        3 => "C1 tier 3",
        4 => "C2",
        _ => "unknown",
    }
}

fn is_reported(flag: &VmFlag) -> bool {
    flag.is_set_by_user() || flag.is_collector() || CODE_FLAGS.contains(&&*flag.name)
}

fn percent(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 * 100.0 / whole as f64 }
}

impl MethodReport {
    fn of(frame: &JavaFrame) -> Self {
        Self {
            name: frame.system_name.to_string(),
            file: frame.file.as_ref().map(ToString::to_string),
            line: (frame.line != 0).then_some(frame.line),
            bci: frame.bci,
        }
    }
}

impl fmt::Display for JvmReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "  JVM")?;
        let [version, vm_release] = [&self.version, &self.vm_release].map(|it| one_line(it));
        writeln!(f, "    version             {version} ({vm_release})")?;
        let main_class = one_line(self.main_class.as_deref().unwrap_or("unknown"));
        writeln!(f, "    main class          {main_class}")?;
        writeln!(f, "    threads             {}", counted(&self.threads))?;
        writeln!(f, "    compiled methods    {}", counted(&self.nmethods))?;
        let share = percent(self.stub_bytes_with_rows, self.stub_bytes);
        writeln!(f, "    stubs               {} KiB, {share:.1} % with unwind rows", self.stub_bytes / 1024)?;
        for HeapReport { start, end, used_bytes, blobs } in &self.code_heaps {
            let (size, used) = ((end - start) / 1024, used_bytes / 1024);
            writeln!(
                f,
                "    code heap           {start:#x}-{end:#x}, {used} of {size} KiB used by {blobs} blobs"
            )?;
        }
        for VmFlag { name, value, origin } in &self.flags {
            let (name, value) = (one_line(name), one_line(value));
            writeln!(f, "    flag                {name} = {value}{}", by(*origin))?;
        }
        Ok(())
    }
}

/// Describes who set a flag, unless it was the JVM itself.
fn by(origin: FlagOrigin) -> &'static str {
    match origin {
        FlagOrigin::CommandLine => " (command line)",
        FlagOrigin::Environment => " (environment)",
        FlagOrigin::ConfigFile => " (file)",
        FlagOrigin::Management => " (set while it ran)",
        FlagOrigin::Ergonomic | FlagOrigin::Other => "",
    }
}

/// Returns counts as text: `12: 7 blocked, 5 in_native`.
fn counted(counts: &BTreeMap<&'static str, u64>) -> String {
    let parts: Vec<String> = counts.iter().map(|(name, count)| format!("{count} {name}")).collect();
    format!("{}: {}", counts.values().sum::<u64>(), parts.join(", "))
}

impl fmt::Display for CodeReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "    {:#x}-{:#x} {}", self.start, self.end, one_line(&self.blob))?;
        if let Some(stub) = &self.stub {
            writeln!(f, "    stub                {}", one_line(stub))?;
        }
        if let Some(codelet) = &self.codelet {
            writeln!(f, "    codelet             {}", one_line(codelet))?;
        }
        if let (Some(id), Some(tier)) = (self.compile_id, self.tier) {
            let osr = if self.osr { ", on-stack replacement" } else { "" };
            writeln!(f, "    compiled            {tier}, compile id {id}{osr}")?;
        }
        for MethodReport { name, file, line, bci } in &self.methods {
            let place = match (file, line) {
                (Some(file), Some(line)) => format!(" ({}:{line})", one_line(file)),
                _ => String::new(),
            };
            writeln!(f, "    method              {}{place} @ bci {bci}", one_line(name))?;
        }
        if let Some(problem) = self.problem {
            writeln!(f, "    method              unknown: {problem}")?;
        }
        match &self.row {
            Some(row) => writeln!(f, "    unwind row          {row}"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_code_stay_on_their_lines() {
        let hostile = "x\u{1b}[2J\ny".to_owned();
        let (name, file) = (hostile.clone(), Some(hostile.clone()));
        let code = CodeReport {
            blob: hostile.clone(),
            stub: Some(hostile.clone()),
            codelet: Some(hostile),
            methods: vec![MethodReport { name, file, line: Some(7), bci: 0 }],
            ..CodeReport::default()
        };
        let text = code.to_string();
        assert!(!text.contains('\u{1b}'), "{text:?}");
        assert_eq!((text.matches("x\\u{1b}[2J\\ny").count(), text.lines().count()), (5, 4), "{text}");
    }

    #[test]
    fn flags_that_somebody_set_or_that_shape_code_are_told() {
        let flag =
            |name: &str, value: &str, origin| VmFlag { name: name.into(), value: value.into(), origin };
        for (flag, told) in [
            (flag("MaxHeapSize", "1", FlagOrigin::Ergonomic), false),
            (flag("MaxHeapSize", "1", FlagOrigin::CommandLine), true),
            (flag("UseG1GC", "true", FlagOrigin::Ergonomic), true),
            (flag("UseSerialGC", "false", FlagOrigin::Ergonomic), false),
            (flag("SegmentedCodeCache", "true", FlagOrigin::Ergonomic), true),
        ] {
            assert_eq!(is_reported(&flag), told, "{flag:?}");
        }
    }
}
