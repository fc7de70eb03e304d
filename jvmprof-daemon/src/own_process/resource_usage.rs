//! Resource usage of this process, and load of its host.

use std::fs;
use std::time::Duration;

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;
use nix::time::{ClockId, clock_gettime};
use procfs::{CurrentSI, KernelStats};

/// CPU time, memory and other resources of this process.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct SelfUsage {
    /// User and system time of all threads.
    pub cpu: Duration,
    /// Peak resident memory of this program; 0 if `/proc` can't be read. `getrusage` has the peak
    /// of the program before the exec, too.
    pub peak_rss_bytes: u64,
    /// Resident memory now; 0 if `/proc` can't be read.
    pub rss_bytes: u64,
    pub threads: u64,
    pub open_files: u64,
    pub max_open_files: u64,
    /// Start time in seconds of Unix time.
    pub started: f64,
}

impl SelfUsage {
    /// Returns the usage now. Values that can't be read from `/proc` are zero.
    pub fn now() -> Self {
        let mut usage = Self { cpu: cpu_time(), ..Self::default() };
        let Ok(myself) = procfs::process::Process::myself() else { return usage };
        if let Ok(status) = myself.status() {
            usage.peak_rss_bytes = status.vmhwm.unwrap_or(0) * 1024;
        }
        if let Ok(stat) = myself.stat() {
            usage.rss_bytes = stat.rss * procfs::page_size();
            usage.threads = u64::try_from(stat.num_threads).unwrap_or(0);
            usage.started = started(stat.starttime);
        }
        let limit = nix::sys::resource::getrlimit(nix::sys::resource::Resource::RLIMIT_NOFILE);
        usage.max_open_files = limit.map_or(0, |(soft, _)| soft);
        usage.open_files = fs::read_dir("/proc/self/fd").map_or(0, |list| list.count() as u64);
        usage
    }
}

/// Returns user and system time of all threads of this process, by one system call.
pub fn cpu_time() -> Duration {
    getrusage(UsageWho::RUSAGE_SELF).map_or(Duration::ZERO, |usage| {
        let micros = usage.user_time().num_microseconds() + usage.system_time().num_microseconds();
        Duration::from_micros(u64::try_from(micros).unwrap_or(0))
    })
}

/// Returns the Unix time of a start `ticks` after boot. It is computed back from now, so that it
/// fits the clock as it is set now.
fn started(ticks: u64) -> f64 {
    let after_boot = ticks as f64 / procfs::ticks_per_second() as f64;
    let seconds =
        |clock| clock_gettime(clock).map_or(0.0, |time| time.tv_sec() as f64 + time.tv_nsec() as f64 / 1e9);
    seconds(ClockId::CLOCK_REALTIME) - seconds(ClockId::CLOCK_BOOTTIME) + after_boot
}

/// CPU time of all CPUs since boot, in ticks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HostCpu {
    busy: u64,
    all: u64,
}

impl HostCpu {
    /// Reads `/proc/stat`; `None` if it can't be read.
    pub fn now() -> Option<Self> {
        let total = KernelStats::current().ok()?.total;
        let idle = total.idle + total.iowait.unwrap_or(0);
        // Guests' time is part of user time.
        let busy =
            total.user + total.nice + total.system + total.irq.unwrap_or(0) + total.softirq.unwrap_or(0);
        Some(Self { busy, all: busy + idle })
    }

    /// Returns the share of CPU time that wasn't idle since an earlier reading, in 0..=1.
    pub fn busy_since(self, earlier: Self) -> f64 {
        let all = self.all.saturating_sub(earlier.all);
        if all == 0 { 0.0 } else { self.busy.saturating_sub(earlier.busy) as f64 / all as f64 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usage_of_this_process_is_read() {
        let usage = SelfUsage::now();
        assert!(
            usage.rss_bytes > 1 << 20 && usage.rss_bytes <= usage.peak_rss_bytes + (64 << 20),
            "{usage:?}"
        );
        assert!(usage.threads >= 1 && usage.open_files >= 3 && usage.max_open_files >= usage.open_files);
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("after 1970");
        let age = now.as_secs_f64() - usage.started;
        assert!((-1.0..86_400.0).contains(&age), "started {age} s ago");
    }

    #[test]
    fn busy_is_a_share_of_all_cpu_time() {
        let share = |busy: u64, all: u64| {
            HostCpu { busy: 100 + busy, all: 1000 + all }.busy_since(HostCpu { busy: 100, all: 1000 })
        };
        assert!((share(5, 100) - 0.05).abs() < 1e-9);
        assert!(share(0, 0).abs() < 1e-9);
        assert!(HostCpu::now().is_some());
    }
}
