//! Names of the stacks of virtual threads that wait and aren't mounted.

use std::sync::Arc;

use crate::clock::monotonic_ns;
use crate::hotspot::{CensusTimes, ReadTimes, VirtualThreads, VirtualThreadsError};
use crate::process::Process;
use crate::symbolize::Symbolizer;

/// The virtual threads of a JVM, and the names of their stacks.
#[derive(Clone, Debug)]
pub struct NamedVirtualThreads {
    /// Its stacks are in `stacks`.
    pub threads: VirtualThreads,
    pub stacks: Vec<NamedWaitingStack>,
}

/// A stack with which virtual threads wait.
#[derive(Clone, Debug, PartialEq)]
pub struct NamedWaitingStack {
    /// How many threads it stands for.
    pub threads: f64,
    /// As `java.lang.VirtualThread` calls their state.
    pub state: &'static str,
    /// The class of what they were parked with.
    pub blocker: Option<Arc<str>>,
    /// The methods, innermost first; `None` for one that has no valid name.
    pub methods: Vec<Option<Arc<str>>>,
    pub is_whole: bool,
}

/// The method by which a virtual thread that parks leaves its carrier, or how its name begins.
const YIELD: &str = "jdk.internal.vm.Continuation.yield";

impl NamedWaitingStack {
    /// Returns false if this can't be the stack of a thread in that state: it has gone on.
    fn may_be_waiting(&self) -> bool {
        let is_parked = matches!(self.state, "PARKED" | "TIMED_PARKED");
        let leaf = self.methods.first().and_then(Option::as_deref);
        !is_parked || leaf.is_none_or(|leaf| leaf.starts_with(YIELD))
    }
}

impl Symbolizer {
    /// Counts the virtual threads of a process and names where they wait; `None` if it is no JVM
    /// that has some and says where.
    ///
    /// # Errors
    /// Returns why they could not be counted.
    pub fn virtual_threads(
        &mut self,
        process: &Process,
        times: CensusTimes,
    ) -> Option<Result<NamedVirtualThreads, VirtualThreadsError>> {
        self.refresh(process, monotonic_ns(), false);
        let attached = self.processes.get(&process.key)?.java.attached_jvm()?;
        let mut threads = match attached.hotspot.virtual_threads(times)? {
            Ok(threads) => threads,
            Err(error) => return Some(Err(error)),
        };
        // What the stacks name was there until the census had ended, which takes long.
        let sampled_ns = monotonic_ns();
        let stacks = std::mem::take(&mut threads.stacks).into_iter().map(|stack| {
            let times = ReadTimes { sampled_ns, now_ns: monotonic_ns() };
            let named = attached.resolve(&self.java, &stack.frames, times);
            let methods = named.into_iter().flat_map(|frame| match frame {
                Ok(frames) => frames.iter().map(|frame| Some(Arc::clone(&frame.name))).collect(),
                Err(_) => vec![None],
            });
            NamedWaitingStack {
                threads: stack.threads,
                state: stack.state,
                blocker: stack.blocker,
                methods: methods.collect(),
                is_whole: stack.is_whole,
            }
        });
        let mut stacks: Vec<NamedWaitingStack> = stacks.collect();
        let taken: f64 = stacks.iter().map(|stack| stack.threads).sum();
        stacks.retain(NamedWaitingStack::may_be_waiting);
        let left: f64 = stacks.iter().map(|stack| stack.threads).sum();
        stacks.iter_mut().for_each(|stack| stack.threads *= taken / left);
        Some(Ok(NamedVirtualThreads { stacks, threads }))
    }
}
