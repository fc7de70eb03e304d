//! A tracer and the thread that it executes in steps, on one CPU.

use std::sync::atomic::{AtomicUsize, Ordering};

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

thread_local! {
    /// The number of this tracer among those of the test binary, which share the CPUs evenly.
    static NUMBER: usize = {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        NEXT.fetch_add(1, Ordering::Relaxed)
    };
}

/// Keeps the calling thread and its tracee on one CPU until it is dropped. Each step is two
/// wake-ups, and one across CPUs takes several times as long as the step.
pub(crate) struct OneCpu {
    affinities: [(Pid, CpuSet); 2],
}

impl OneCpu {
    /// # Panics
    /// The affinity of one of the two can't be read or set.
    pub(crate) fn with(tracee: Pid) -> Self {
        let affinities = [Pid::from_raw(0), tracee]
            .map(|thread| (thread, sched_getaffinity(thread).expect("the thread is there")));
        let allowed = affinities[0].1;
        let cpus: Vec<_> = (0..CpuSet::count()).filter(|&cpu| allowed.is_set(cpu) == Ok(true)).collect();
        let mut one = CpuSet::new();
        one.set(cpus[NUMBER.with(|number| *number) % cpus.len()]).expect("within the set");
        for (thread, _) in affinities {
            sched_setaffinity(thread, &one).expect("root may choose CPUs");
        }
        Self { affinities }
    }
}

impl Drop for OneCpu {
    fn drop(&mut self) {
        for (thread, affinity) in &self.affinities {
            // The tracee may have ended.
            let _ = sched_setaffinity(*thread, affinity);
        }
    }
}
