//! The bound of the CPU time that the profiler takes at a raised priority.
//!
//! What reads sampled processes shouldn't wait for a CPU, since they may be gone soon. But on busy
//! CPUs it displaces what is profiled. So it has a share of one CPU at a raised priority, of which
//! some seconds can be taken at once: that is what the start of a JVM needs. Beyond it these
//! threads have the default priority, and take turns with all others.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nix::time::{ClockId, clock_gettime};

use super::thread_priority::{default_priority, raise_priority};

/// Default share of one CPU, in percent.
pub const DEFAULT_URGENT_PERCENT: f64 = 25.0;
/// The time whose share can be taken at once.
const BURST: Duration = Duration::from_secs(4);
/// Part of a burst that must be left again before a priority is raised.
const RAISE_FROM: f64 = 0.25;

/// A share of one CPU, for all threads of the profiler that are urgent.
#[derive(Clone, Debug)]
pub struct UrgentCpu(Arc<Mutex<Balance>>);

/// Counters of an [`UrgentCpu`] since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UrgentCpuCounts {
    /// CPU time at a raised priority.
    pub used: Duration,
    /// Times that the share was used up.
    pub exhausted: u64,
}

#[derive(Debug)]
struct Balance {
    /// Share of one CPU: 0.25 is a quarter.
    share: f64,
    /// Seconds of CPU time that are left; less than none if more was taken.
    left: f64,
    is_exhausted: bool,
    updated: Instant,
    counts: UrgentCpuCounts,
}

impl UrgentCpu {
    /// Makes a share of `percent` of one CPU.
    pub fn new(percent: f64) -> Self {
        Self(Arc::new(Mutex::new(Balance::new(percent / 100.0, Instant::now()))))
    }

    pub fn counts(&self) -> UrgentCpuCounts {
        self.balance().counts
    }

    fn balance(&self) -> MutexGuard<'_, Balance> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Balance {
    fn new(share: f64, now: Instant) -> Self {
        let left = share * BURST.as_secs_f64();
        let counts = UrgentCpuCounts::default();
        Self { share, left, is_exhausted: share <= 0.0, updated: now, counts }
    }

    /// Subtracts what a thread `used` at a raised priority. Returns true if it may go on so.
    fn update(&mut self, used: Duration, now: Instant) -> bool {
        let burst = self.share * BURST.as_secs_f64();
        let elapsed = now.saturating_duration_since(self.updated).as_secs_f64();
        self.updated = now;
        self.left = (self.left + elapsed * self.share).min(burst) - used.as_secs_f64();
        self.counts.used += used;
        if self.is_exhausted {
            self.is_exhausted = self.share <= 0.0 || self.left < burst * RAISE_FROM;
        } else if self.left < 0.0 {
            self.is_exhausted = true;
            self.counts.exhausted += 1;
        }
        !self.is_exhausted
    }
}

/// The priority of one urgent thread, which alone calls its methods.
#[derive(Debug)]
pub struct UrgentThread {
    cpu: UrgentCpu,
    /// CPU time of the thread when it was measured last.
    measured: Duration,
    is_raised: bool,
    /// False once the kernel has refused a raised priority.
    is_permitted: bool,
}

impl UrgentThread {
    /// Raises the priority of the calling thread, if the share allows that.
    pub fn start(cpu: UrgentCpu) -> Self {
        let mut thread = Self { cpu, measured: thread_cpu_time(), is_raised: false, is_permitted: true };
        thread.update();
        thread
    }

    /// Accounts for the thread's CPU time since the last call, and raises or lowers its priority.
    pub fn update(&mut self) {
        let now = thread_cpu_time();
        let used = now.saturating_sub(std::mem::replace(&mut self.measured, now));
        let used = if self.is_raised { used } else { Duration::ZERO };
        let may_be_raised = self.cpu.balance().update(used, Instant::now());
        if may_be_raised && !self.is_raised && self.is_permitted {
            self.is_permitted = raise_priority();
            self.is_raised = self.is_permitted;
        } else if !may_be_raised && self.is_raised {
            default_priority();
            self.is_raised = false;
        }
    }
}

/// Returns the CPU time of the calling thread.
fn thread_cpu_time() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map_or(Duration::ZERO, Duration::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn a_burst_is_allowed_and_then_the_share() {
        let mut now = Instant::now();
        let mut balance = Balance::new(0.25, now);
        assert!(balance.update(999 * MS, now), "a quarter of four seconds");
        assert!(!balance.update(2 * MS, now));
        now += Duration::from_millis(900);
        assert!(!balance.update(Duration::ZERO, now), "too little is left again");
        now += Duration::from_millis(200);
        assert!(balance.update(Duration::ZERO, now));
        assert_eq!(balance.counts, UrgentCpuCounts { used: 1001 * MS, exhausted: 1 });

        // A thread that always runs gets its share, and not more.
        let mut urgent = Duration::ZERO;
        let mut is_raised = true;
        for _ in 0..100_000 {
            now += MS;
            let used = if is_raised { MS } else { Duration::ZERO };
            urgent += used;
            is_raised = balance.update(used, now);
        }
        let share = urgent.as_secs_f64() / 100.0;
        assert!((0.24..0.27).contains(&share), "{share}");
        now += Duration::from_secs(1000);
        assert!(balance.update(Duration::ZERO, now));
        assert!(balance.update(999 * MS, now));
        assert!(!balance.update(2 * MS, now), "what isn't used doesn't add up");
    }

    #[test]
    fn a_share_of_nothing_is_never_urgent() {
        let now = Instant::now();
        let mut balance = Balance::new(0.0, now);
        assert!(!balance.update(Duration::ZERO, now));
        assert!(!balance.update(Duration::ZERO, now + Duration::from_secs(100)));
    }

    #[test]
    fn a_threads_priority_falls_when_the_share_is_used_up() {
        let niceness = || rustix::process::getpriority_process(None).expect("one's own");
        let cpu = UrgentCpu::new(0.5);
        let of_thread = cpu.clone();
        let thread = std::thread::spawn(move || {
            let mut thread = UrgentThread::start(of_thread);
            let raised = niceness();
            // Half a percent of four seconds are 20 ms.
            let began = thread_cpu_time();
            while thread_cpu_time() - began < 100 * MS {
                std::hint::black_box(began);
            }
            thread.update();
            (raised, niceness())
        });
        let (raised, lowered) = thread.join().expect("no panic");
        assert_eq!(lowered, 0);
        let counts = cpu.counts();
        if raised == 0 {
            assert_eq!(counts, UrgentCpuCounts::default(), "without CAP_SYS_NICE it can't be raised");
            return;
        }
        assert_eq!(raised, -10);
        assert!(counts.used >= 100 * MS, "{counts:?}");
        assert_eq!(counts.exhausted, 1);
    }
}
