//! Targets: processes whose samples are wanted, and the labels of their series.
//!
//! A process's labels come from its properties; rules change them or drop it. Rules are applied
//! once for each process and event (and thread or CPU, if those are labels), and again when
//! something they may depend on has changed. Beside these, each sample of a JVM has the kind of its
//! thread as a label of its own.

mod container_labels;
#[cfg(test)]
mod hostile_tests;
mod label_options;
mod process_labels;
mod relabel_drops;
#[cfg(test)]
mod tests;
pub(super) mod thread_kinds;
mod thread_names;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Instant;

pub use label_options::{LabelOptions, ThreadLabel};
pub(super) use process_labels::Labels;
pub use process_labels::label_name;
pub use process_labels::labels_of;

use crate::config::relabel::{relabel, retain_public};
use crate::event_type::{EventType, SamplesByEvent};
use crate::process::container::{ContainerCounts, ContainersError, ContainersOptions};
use crate::process::process_context::ProcessContext;
use crate::process::procfs::ProcessInfo;
use crate::process::resource_attributes::ResourceAttributes;
use crate::process::{Process, ProcessKey};
use crate::profile::aggregate::LabelDecision;
use crate::profile::model::LabelSet;
use crate::sampler::{DroppedProcesses, StackSample};
use crate::symbolize::JvmLabels;
use container_labels::{ContainerLookup, ProcessContainer};
use relabel_drops::RelabelDrops;
use thread_names::ThreadNames;

/// Counts of the decisions on samples: whether they are wanted, and under which labels.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TargetCounts {
    pub containers: ContainerCounts,
    /// Samples that went out without the metadata of their container's runtime.
    pub without_container_metadata: u64,
    /// Samples that arrived and that rules dropped. Those that the kernel didn't take any more
    /// aren't among them.
    pub dropped: SamplesByEvent,
    /// How often a dropped process could not be published to the kernel, which sampled it on.
    pub kernel_drops_refused: u64,
    /// Samples whose thread is called `[other]`, since too many names of threads were there
    /// already.
    pub other_threads: u64,
    /// Values of labels that were too long and were cut, in each label set that was made.
    pub cut_labels: u64,
}

/// The key that the labels of a sample depend on: all samples with one key have the same labels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct LabelKey {
    pub(super) process: ProcessKey,
    /// Thread and CPU are 0 unless they are labels.
    thread_name: u32,
    tid: u32,
    cpu: u32,
    /// Generation of the [`LabelOptions`] in force when it was taken.
    generation: u32,
    event: EventType,
}

/// Processes by the decision of the rules, with the options in force.
#[derive(Debug)]
pub(super) struct Targets {
    options: LabelOptions,
    /// The events that samples are taken of.
    events: Vec<EventType>,
    /// Number of rules that [`LabelOptions::process_rules`] returns.
    process_rules: usize,
    generation: u32,
    /// Earlier options, by generation: a sample that waits is labelled by the options of its own
    /// time.
    earlier: BTreeMap<u32, LabelOptions>,
    known: HashMap<ProcessKey, Target>,
    names: ThreadNames,
    containers: ContainerLookup,
    kernel: RelabelDrops,
    dropped: SamplesByEvent,
    /// Value of [`TargetCounts::cut_labels`].
    cut_labels: u64,
}

/// A process, and the decisions on its samples.
#[derive(Debug)]
struct Target {
    comm: Arc<str>,
    jvm: Option<Arc<JvmLabels>>,
    context: Option<Arc<ProcessContext>>,
    info: Option<Arc<ProcessInfo>>,
    /// Attributes of the resource that it says it is.
    resource: ResourceAttributes,
    container: ProcessContainer,
    /// Labels of the process itself, meta labels included if there are rules.
    own: Labels,
    has_meta: bool,
    /// By event: true if the rules drop all of its samples; `None`: not evaluated yet.
    dropped: [Option<bool>; EventType::ALL.len()],
    /// Labels by key; `None`: dropped.
    decided: HashMap<LabelKey, Option<Arc<LabelSet>>>,
}

/// Maximum number of keys of one process whose labels are cached. Threads come and go.
const MAX_DECIDED: usize = 4096;

impl Targets {
    /// Makes an empty list.
    ///
    /// # Errors
    /// See [`ContainersError`].
    pub(super) fn start(
        options: LabelOptions,
        events: Vec<EventType>,
        containers: Option<ContainersOptions>,
    ) -> Result<Self, ContainersError> {
        Ok(Self::new(options, events, ContainerLookup::start(containers)?))
    }

    fn new(options: LabelOptions, events: Vec<EventType>, containers: ContainerLookup) -> Self {
        Self {
            process_rules: options.process_rules(),
            options,
            events,
            generation: 0,
            earlier: BTreeMap::new(),
            known: HashMap::new(),
            names: ThreadNames::default(),
            containers,
            kernel: RelabelDrops::default(),
            dropped: SamplesByEvent::NONE,
            cut_labels: 0,
        }
    }

    /// Puts dropped processes into this kernel table from now on.
    pub(super) fn use_table(&mut self, table: DroppedProcesses) {
        self.kernel.use_table(table);
    }

    /// Sets other options. Samples that were taken before keep theirs.
    pub(super) fn set_options(&mut self, options: LabelOptions) {
        self.process_rules = options.process_rules();
        let before = std::mem::replace(&mut self.options, options);
        self.earlier.insert(self.generation, before);
        self.generation += 1;
        self.known.values_mut().for_each(Target::reconsider);
        self.kernel.clear();
    }

    /// Returns the key of a sample.
    pub(super) fn label_key(&mut self, process: ProcessKey, sample: &StackSample) -> LabelKey {
        let mut label_key = self.process_label_key(process, sample.event.event_type());
        for label in &self.options.sample_labels {
            match label {
                ThreadLabel::ThreadName => {
                    label_key.thread_name = self.names.number(&self.options.thread_name(&sample.comm()));
                }
                ThreadLabel::ThreadId => label_key.tid = sample.header.tid,
                ThreadLabel::Cpu => label_key.cpu = sample.header.cpu,
            }
        }
        label_key
    }

    /// Returns the key of a process's samples without a thread.
    pub(super) fn process_label_key(&self, process: ProcessKey, event: EventType) -> LabelKey {
        LabelKey { process, thread_name: 0, tid: 0, cpu: 0, generation: self.generation, event }
    }

    /// Returns true if the process was seen before.
    pub(super) fn contains(&self, key: ProcessKey) -> bool {
        self.known.contains_key(&key)
    }

    /// Decides on a sample that just arrived. `start_ns` is the start of its process, as recorded
    /// with the sample.
    pub(super) fn evaluate_rules(
        &mut self,
        process: &Process,
        jvm: Option<&Arc<JvmLabels>>,
        label_key: LabelKey,
        start_ns: u64,
    ) -> LabelDecision {
        let event = label_key.event;
        let needs_meta = self.needs_meta();
        let target = self.known.entry(process.key).or_insert_with(|| Target::of(process, &self.containers));
        target.update(process, jvm, needs_meta);
        if self.containers.refresh(&mut target.container) {
            target.reconsider();
        }
        if target.container.is_awaited() {
            return LabelDecision::Awaited;
        }
        if target.is_dropped(&self.options, self.process_rules, event) {
            if target.has_no_event(&self.options, self.process_rules, &self.events) {
                self.kernel.drop(process.pid, start_ns, Instant::now());
            }
            self.dropped += SamplesByEvent::of(event, 1);
            return LabelDecision::Dropped;
        }
        self.kernel.remove(process.pid);
        self.decide(label_key, SamplesByEvent::of(event, 1))
    }

    /// Returns true if rules may ask for meta labels.
    fn needs_meta(&self) -> bool {
        let has_rules = |options: &LabelOptions| !options.rules.is_empty();
        has_rules(&self.options) || self.earlier.values().any(has_rules)
    }

    /// Updates what is known of a process, without a sample of it.
    pub(super) fn update_jvm(&mut self, process: &Process, jvm: Option<&Arc<JvmLabels>>) {
        let needs_meta = self.needs_meta();
        let target = self.known.entry(process.key).or_insert_with(|| Target::of(process, &self.containers));
        target.update(process, jvm, needs_meta);
        if self.containers.refresh(&mut target.container) {
            target.reconsider();
        }
    }

    /// Drops a sample that just arrived if rules drop all of its process's samples by what is known
    /// before its code is read. Returns true if so: it is counted, and the kernel samples the
    /// process no longer if rules drop its samples of every event.
    ///
    /// The rules aren't evaluated for a JVM yet, since its main class is read from its memory.
    pub(super) fn drop_before_symbolizing(
        &mut self,
        process: &Process,
        start_ns: u64,
        event: EventType,
    ) -> bool {
        if self.process_rules == 0 || process.is_jvm() {
            return false;
        }
        let target = self.known.entry(process.key).or_insert_with(|| Target::of(process, &self.containers));
        target.update(process, None, true);
        if self.containers.refresh(&mut target.container) {
            target.reconsider();
        }
        if target.container.is_awaited() || !target.is_dropped(&self.options, self.process_rules, event) {
            return false;
        }
        if target.has_no_event(&self.options, self.process_rules, &self.events) {
            self.kernel.drop(process.pid, start_ns, Instant::now());
        }
        self.dropped += SamplesByEvent::of(event, 1);
        true
    }

    /// Returns true if the rules, as far as they depend on the process alone, keep its samples of
    /// an event. A process that hasn't been sampled, or whose container isn't known yet, isn't
    /// wanted yet.
    pub(super) fn is_wanted(&mut self, process: ProcessKey, event: EventType) -> bool {
        let Some(target) = self.known.get_mut(&process) else { return false };
        !target.container.is_awaited() && !target.is_dropped(&self.options, self.process_rules, event)
    }

    /// Decides on samples that waited for their labels. `release`: they don't wait any longer.
    pub(super) fn finalize_labels(
        &mut self,
        label_key: LabelKey,
        samples: SamplesByEvent,
        release: bool,
    ) -> LabelDecision {
        // Kept while anything is held for it.
        let Some(target) = self.known.get_mut(&label_key.process) else {
            let options = self.earlier.get(&label_key.generation).unwrap_or(&self.options);
            let mut labels = Labels::default();
            labels.put("node", &options.node);
            return LabelDecision::Labels(Arc::new(labels.set));
        };
        if self.containers.refresh(&mut target.container) {
            target.reconsider();
        }
        if target.container.is_awaited() && !release {
            return LabelDecision::Awaited;
        }
        self.decide(label_key, samples)
    }

    fn decide(&mut self, label_key: LabelKey, samples: SamplesByEvent) -> LabelDecision {
        let Some(target) = self.known.get_mut(&label_key.process) else { return LabelDecision::Awaited };
        let options = self.earlier.get(&label_key.generation).unwrap_or(&self.options);
        match target.decide(label_key, options, &self.names, &mut self.cut_labels) {
            Some(labels) => {
                self.containers.count_unlabelled(&target.container, samples.total());
                LabelDecision::Labels(labels)
            }
            None => {
                self.dropped += samples;
                LabelDecision::Dropped
            }
        }
    }

    /// Records that a process's name or mappings have changed.
    pub(super) fn changed(&mut self, pid: u32) {
        self.kernel.changed(pid, Instant::now());
    }

    /// Records that a process has ended or replaced its program.
    pub(super) fn ended(&mut self, pid: u32) {
        self.kernel.remove(pid);
    }

    /// Lets dropped processes be sampled again for which the decision may differ by now. To be
    /// called some times a second.
    pub(super) fn refresh(&mut self) {
        self.kernel.refresh(Instant::now());
    }

    /// Returns the time of the next evaluation.
    pub(super) fn due(&self) -> Option<Instant> {
        self.kernel.due()
    }

    /// Removes all other processes than those in `live` and those of the keys in `held`.
    pub(super) fn retain(&mut self, live: &HashSet<ProcessKey>, held: &HashSet<LabelKey>) {
        let of_held: HashSet<ProcessKey> = held.iter().map(|label_key| label_key.process).collect();
        self.known.retain(|key, _| live.contains(key) || of_held.contains(key));
        self.earlier.retain(|generation, _| held.iter().any(|label_key| label_key.generation == *generation));
        self.containers.retain(self.known.values().map(|target| &target.container));
    }

    pub(super) fn counts(&self) -> TargetCounts {
        TargetCounts {
            containers: self.containers.counts(),
            without_container_metadata: self.containers.unlabelled(),
            dropped: self.dropped,
            kernel_drops_refused: self.kernel.refused(),
            other_threads: self.names.others,
            cut_labels: self.cut_labels,
        }
    }
}

impl Target {
    fn of(process: &Process, containers: &ContainerLookup) -> Self {
        Self {
            comm: "".into(),
            jvm: None,
            context: None,
            info: None,
            resource: ResourceAttributes::default(),
            container: containers.find(process.cgroup()),
            own: Labels::default(),
            has_meta: false,
            dropped: [None; EventType::ALL.len()],
            decided: HashMap::new(),
        }
    }

    /// Updates the labels to the process's present properties.
    fn update(&mut self, process: &Process, jvm: Option<&Arc<JvmLabels>>, needs_meta: bool) {
        let is_current = !self.own.set.is_empty()
            && is_same(self.jvm.as_ref(), jvm)
            && is_same(self.context.as_ref(), process.context())
            && is_same(self.info.as_ref(), process.info())
            && self.comm == process.comm;
        if is_current && self.has_meta == needs_meta {
            return;
        }
        self.comm = Arc::clone(&process.comm);
        self.jvm = jvm.cloned();
        self.context = process.context().cloned();
        self.info = process.info().cloned();
        self.resource = process_labels::service(process, jvm.map(AsRef::as_ref)).attributes;
        self.own = process_labels::own_labels(process, jvm.map(AsRef::as_ref));
        self.has_meta = needs_meta;
        if needs_meta {
            process_labels::add_meta(&mut self.own, process, jvm.map(AsRef::as_ref));
        }
        self.reconsider();
    }

    fn reconsider(&mut self) {
        self.dropped = [None; EventType::ALL.len()];
        self.decided.clear();
    }

    /// Returns all labels before rules.
    fn labels(&self, options: &LabelOptions, event: EventType) -> Labels {
        let mut labels = self.own.clone();
        self.container.label(&mut labels);
        if self.has_meta {
            self.container.label_meta(&mut labels);
            labels.put("__meta_node", &options.node);
            labels.put("__name__", event.descriptor().series);
        }
        labels.put("node", &options.node);
        for name in &options.resource_labels {
            let (label, value) = (process_labels::label_name(name), self.resource.get(name));
            if !labels.set.contains_key(&label) {
                labels.put(&label, value.unwrap_or_default());
            }
        }
        for (name, value) in &options.external {
            labels.set.entry(name.clone()).or_insert_with(|| value.clone());
        }
        labels
    }

    fn is_dropped(&mut self, options: &LabelOptions, rules: usize, event: EventType) -> bool {
        if let Some(dropped) = self.dropped[event.index()] {
            return dropped;
        }
        let rules = options.rules.get(..rules).unwrap_or_default();
        let dropped = !rules.is_empty() && !relabel(rules, &mut self.labels(options, event).set);
        self.dropped[event.index()] = Some(dropped);
        dropped
    }

    /// Returns true if the rules drop its samples of all these events.
    fn has_no_event(&mut self, options: &LabelOptions, rules: usize, events: &[EventType]) -> bool {
        events.iter().all(|event| self.is_dropped(options, rules, *event))
    }

    /// Returns the labels of a key's samples; `None`: they are dropped. `cut` counts values that
    /// were too long for them.
    fn decide(
        &mut self,
        label_key: LabelKey,
        options: &LabelOptions,
        names: &ThreadNames,
        cut: &mut u64,
    ) -> Option<Arc<LabelSet>> {
        if let Some(decided) = self.decided.get(&label_key) {
            return decided.clone();
        }
        let mut labels = self.labels(options, label_key.event);
        for label in &options.sample_labels {
            let value = match label {
                ThreadLabel::ThreadName => names.name(label_key.thread_name).to_owned(),
                ThreadLabel::ThreadId => label_key.tid.to_string(),
                ThreadLabel::Cpu => label_key.cpu.to_string(),
            };
            labels.put(label.name(), &value);
        }
        *cut += labels.cut;
        let mut labels = labels.set;
        let kept = relabel(&options.rules, &mut labels);
        let decided = kept.then(|| {
            retain_public(&mut labels);
            Arc::new(labels)
        });
        if self.decided.len() >= MAX_DECIDED {
            self.decided.clear();
        }
        self.decided.insert(label_key, decided.clone());
        decided
    }
}

/// Returns true if both are the same object, or neither is there.
fn is_same<T>(one: Option<&Arc<T>>, other: Option<&Arc<T>>) -> bool {
    one.map(Arc::as_ptr) == other.map(Arc::as_ptr)
}
