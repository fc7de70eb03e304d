//! From kernel events to batches: the one loop that `record` and `daemon` share.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use jvmprof_common::abi::{Counter, Stop};

use crate::process::table::{TableCounts, mapped_code};
use crate::process::{Process, ProcessKey, ProcessTable};
use crate::profile::aggregate::Aggregator;
use crate::profile::model::{Batch, LabelSet};
use crate::sampler::{
    BackgroundSampler, Clock, Event, EventKind, Sample, SamplerCounts, SamplerError, SamplerOptions, now_ns,
};
use crate::symbolize::{Outcome, SymbolCounts, Symbolizer};
use crate::types::Avma;

/// What to sample, and what the way may cost.
#[derive(Clone, Debug)]
pub struct PipelineOptions {
    pub sampler: SamplerOptions,
    /// Memory for symbols and unwind rows of files, bytes.
    pub file_cache_bytes: u64,
    /// The `node` label.
    pub node: String,
}

/// Runs the sampler and keeps what its events mean.
#[derive(Debug)]
pub struct Pipeline {
    sampler: BackgroundSampler,
    state: State,
    window: Instant,
    period_ns: u64,
}

#[derive(Debug)]
struct State {
    table: ProcessTable,
    symbolizer: Symbolizer,
    aggregator: Aggregator<ProcessKey>,
    labels: HashMap<ProcessKey, KnownLabels>,
    node: String,
    outcomes: BTreeMap<Outcome, u64>,
    first_sample: Option<Instant>,
}

#[derive(Debug)]
struct KnownLabels {
    comm: Arc<str>,
    labels: Arc<LabelSet>,
}

/// Everything that was counted since the start.
#[derive(Clone, Debug)]
pub struct Counts {
    pub sampler: SamplerCounts,
    pub table: TableCounts,
    pub symbols: SymbolCounts,
    /// Samples that reached the aggregator, by the outcome of their stack.
    pub outcomes: BTreeMap<Outcome, u64>,
    /// (nanoseconds, runs) of the kernel programs, where the kernel measures them.
    pub kernel_run_time: Option<(u64, u64)>,
}

impl Counts {
    /// Samples that arrived.
    pub fn samples(&self) -> u64 {
        self.outcomes.values().sum()
    }

    pub fn whole(&self) -> u64 {
        self.outcomes.get(&Outcome::Whole).copied().unwrap_or(0)
    }

    /// Everything that is missing or incomplete, by name; zeros left out.
    pub fn losses(&self) -> BTreeMap<String, u64> {
        let sampler = &self.sampler;
        let mut losses = BTreeMap::from([
            ("ring_buffer_full".to_owned(), sampler.get(Counter::RingBufferFull)),
            ("unwinder_unavailable".to_owned(), sampler.get(Counter::UnwinderUnavailable)),
            ("kernel_stack_unreadable".to_owned(), sampler.get(Counter::KernelStackUnreadable)),
            ("filter_full".to_owned(), sampler.get(Counter::FilterFull)),
            ("shed".to_owned(), sampler.shed),
            ("malformed_records".to_owned(), sampler.malformed),
            ("process_events_lost".to_owned(), sampler.records_lost),
            ("late_events".to_owned(), sampler.late),
            ("unreadable_processes".to_owned(), self.table.unreadable),
            ("refused_perf_map_lines".to_owned(), self.symbols.perf_maps.refused_lines),
            ("unusable_perf_maps".to_owned(), self.symbols.perf_maps.unusable),
        ]);
        for (outcome, count) in &self.outcomes {
            if let Outcome::Truncated(reason) = outcome {
                losses.insert(format!("truncated: {reason}"), *count);
            }
        }
        for (reason, count) in &self.symbols.unusable_files {
            losses.insert(format!("unusable_files: {reason}"), *count);
        }
        losses.retain(|_, count| *count > 0);
        losses
    }

    /// How the kernel program's own walks ended.
    pub fn stops(&self) -> impl Iterator<Item = (Stop, u64)> + '_ {
        Stop::ALL.into_iter().zip(self.sampler.stops)
    }
}

/// How often the rings are emptied: code is looked at this soon after it was sampled.
const RING_INTERVAL: Duration = Duration::from_millis(50);
/// Memory for samples that wait while symbols are read: some seconds of a busy host.
const MAX_QUEUED_BYTES: usize = 16 << 20;

impl Pipeline {
    /// Starts sampling.
    ///
    /// # Errors
    /// What the kernel refused.
    pub fn start(options: &PipelineOptions) -> Result<Self, SamplerError> {
        let sampler = BackgroundSampler::start(&options.sampler, RING_INTERVAL, MAX_QUEUED_BYTES)?;
        let now = Instant::now();
        Ok(Self {
            sampler,
            state: State {
                table: ProcessTable::default(),
                symbolizer: Symbolizer::new(options.file_cache_bytes),
                aggregator: Aggregator::new(SystemTime::now()),
                labels: HashMap::new(),
                node: options.node.clone(),
                outcomes: BTreeMap::new(),
                first_sample: None,
            },
            window: now,
            period_ns: 1_000_000_000 / u64::from(options.sampler.frequency.max(1)),
        })
    }

    pub fn clock(&self) -> Clock {
        self.sampler.clock()
    }

    /// Takes in what happened since the last call, for about `limit` at most. To be called some ten times a second.
    pub fn poll(&mut self, limit: Duration) {
        let end = Instant::now() + limit;
        while let Some(event) = self.sampler.next() {
            self.state.handle(event);
            if Instant::now() >= end {
                return;
            }
        }
    }

    /// Stops sampling and takes in the rest.
    pub fn stop(&mut self) {
        self.sampler.stop();
        while let Some(event) = self.sampler.next() {
            self.state.handle(event);
        }
    }

    /// The window's profile; the next window begins.
    pub fn flush(&mut self) -> Batch {
        let state = &mut self.state;
        let by_key: HashMap<ProcessKey, &Process> =
            state.table.iter().map(|process| (process.key, process)).collect();
        state.symbolizer.refresh_perf_maps(|key| by_key.get(&key).copied(), now_ns());
        drop(by_key);
        let duration = self.window.elapsed();
        self.window = Instant::now();
        let symbolizer = &mut state.symbolizer;
        let batch = state.aggregator.flush(SystemTime::now(), duration, self.period_ns, |key, frames| {
            symbolizer.retry(key, frames);
        });
        state.table.remove_exited();
        let live: HashSet<ProcessKey> = state.table.iter().map(|process| process.key).collect();
        state.symbolizer.retain(|key| live.contains(&key));
        state.labels.retain(|key, _| live.contains(key));
        batch
    }

    pub fn counts(&mut self) -> Counts {
        Counts {
            sampler: self.sampler.counts(),
            table: self.state.table.counts(),
            symbols: self.state.symbolizer.counts(),
            outcomes: self.state.outcomes.clone(),
            kernel_run_time: self.sampler.run_time(),
        }
    }

    pub fn samples(&self) -> u64 {
        self.state.outcomes.values().sum()
    }

    /// When the first sample had its names.
    pub fn first_sample(&self) -> Option<Instant> {
        self.state.first_sample
    }

    /// Why the kernel's frames have no names, if they have none.
    pub fn kernel_error(&self) -> Option<String> {
        self.state.symbolizer.kernel_error()
    }
}

impl State {
    fn handle(&mut self, event: Event) {
        match event.kind {
            EventKind::Sample(sample) => self.sample(&sample),
            EventKind::Exec { pid, comm } => self.table.exec(pid, &comm),
            EventKind::ThreadName { pid, tid, comm } => self.table.thread_name(pid, tid, &comm),
            EventKind::Fork { pid, parent } => self.table.fork(pid, parent),
            EventKind::Exit { pid, tid } => self.table.exit(pid, tid),
            EventKind::Map { pid, mapping } => {
                let code = mapped_code(
                    mapping.start,
                    mapping.length,
                    mapping.offset,
                    &mapping.path,
                    mapping.build_id,
                );
                self.table.map(pid, event.time_ns, code);
            }
            EventKind::EventsLost => self.table.events_lost(),
        }
    }

    fn sample(&mut self, sample: &Sample) {
        let header = &sample.header;
        let now = now_ns();
        let addresses = sample.user().map(|word| Avma(word.lookup_address()));
        let process = self.table.sampled(header.pid, header.start_ns, &sample.comm(), now, addresses);
        let resolved = self.symbolizer.resolve(process, sample, now);
        *self.outcomes.entry(resolved.outcome).or_default() += 1;
        let known = self.labels.entry(process.key).or_insert_with(|| KnownLabels::of(process, &self.node));
        if known.comm != process.comm {
            *known = KnownLabels::of(process, &self.node);
        }
        self.aggregator.add(&known.labels, process.key, resolved.frames, resolved.pending);
        self.first_sample.get_or_insert_with(Instant::now);
    }
}

impl KnownLabels {
    fn of(process: &Process, node: &str) -> Self {
        let labels = labels_of(process, node);
        Self { comm: Arc::clone(&process.comm), labels: Arc::new(labels) }
    }
}

/// The labels of a process's series.
pub fn labels_of(process: &Process, node: &str) -> LabelSet {
    let mut labels = LabelSet::from([
        ("node".to_owned(), node.to_owned()),
        ("pid".to_owned(), process.pid.to_string()),
        ("comm".to_owned(), process.comm.to_string()),
        ("runtime".to_owned(), if process.is_jvm() { "jvm" } else { "native" }.to_owned()),
    ]);
    if let Some(executable) = process.executable() {
        labels.insert("executable".to_owned(), executable.to_string_lossy().into_owned());
    }
    labels
}
