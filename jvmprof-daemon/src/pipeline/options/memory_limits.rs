//! The memory budget: limits of each cache and each queue.

use crate::symbolize::SymbolMemoryLimits;

/// Limits in bytes. Each is a default, or less if the budget's share is less.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryLimits {
    pub symbols: SymbolMemoryLimits,
    /// Code that processes have mapped.
    pub mappings: usize,
    /// Samples that wait for the event loop.
    pub queued_samples: usize,
    /// Process events that wait for the event loop.
    pub queued_events: usize,
    /// Samples that wait for unwind rows.
    pub waiting_samples: usize,
    /// Stacks of one window.
    pub window_stacks: usize,
    /// Requests that wait for the backends, of all of them together.
    pub outbox: usize,
}

/// Number of parts of the budget, in which shares are counted.
const PARTS: u64 = 64;
const MIB: u64 = 1 << 20;
/// Least budget, whatever the host allows: nothing would work with less.
const LEAST_BUDGET: u64 = 32 * MIB;

impl MemoryLimits {
    /// Returns the budget of a daemon with this memory limit: the rest is the program's own, and
    /// what the kernel charges it for.
    pub fn budget_within(limit_bytes: u64) -> u64 {
        (limit_bytes / 4 * 3).max(LEAST_BUDGET)
    }

    /// Makes limits. `symbol_cache_bytes` is the configured limit of files' symbols, `budget_bytes`
    /// that of the sum, if there is one.
    pub fn new(symbol_cache_bytes: u64, budget_bytes: Option<u64>) -> Self {
        let share = |default: u64, parts: u64| {
            budget_bytes.map_or(default, |budget| default.min(budget / PARTS * parts))
        };
        let small = |default: u64, parts: u64| usize::try_from(share(default, parts)).unwrap_or(usize::MAX);
        let defaults = SymbolMemoryLimits::of_files(symbol_cache_bytes);
        Self {
            symbols: SymbolMemoryLimits {
                files: share(defaults.files, 8),
                names: share(defaults.names, 2),
                java: share(defaults.java, 4),
                lines: share(defaults.lines, 5),
                frames: small(defaults.frames as u64, 5),
                jit: small(defaults.jit as u64, 5),
            },
            mappings: small(128 * MIB, 4),
            queued_samples: small(16 * MIB, 3),
            queued_events: small(4 * MIB, 1),
            waiting_samples: small(16 * MIB, 3),
            // Of 64, 21 are for windows.
            window_stacks: small(64 * MIB, 3),
            outbox: small(32 * MIB, 3),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Maximum number of windows at once: the open one, and those that wait to be encoded.
    const WINDOWS: u64 = 7;

    impl MemoryLimits {
        /// Returns the sum of all limits.
        fn bytes(&self) -> u64 {
            let SymbolMemoryLimits { files, names, java, lines, frames, jit } = self.symbols;
            let queues = self.queued_samples + self.queued_events + self.waiting_samples + self.outbox;
            let sizes = frames + jit + self.mappings + queues;
            files + names + java + lines + sizes as u64 + WINDOWS * self.window_stacks as u64
        }
    }

    #[test]
    fn a_budget_is_kept_by_the_sum_of_all_limits_and_raises_none() {
        let default = MemoryLimits::new(24 * MIB, None);
        for budget in [32, 64, 100, 128, 512, 4096, 1 << 20].map(|mib| mib * MIB) {
            let limits = MemoryLimits::new(24 * MIB, Some(budget));
            assert!(limits.bytes() <= budget, "{budget}: {limits:?}");
            assert!(limits.bytes() <= default.bytes());
            assert!(limits.bytes() >= budget.min(default.bytes()) / 4, "much of it can be used: {limits:?}");
        }
        assert_eq!(MemoryLimits::new(24 * MIB, Some(1 << 40)), default, "a large budget changes nothing");
        assert_eq!(MemoryLimits::new(2 * MIB, Some(1 << 40)).symbols.files, 2 * MIB);
    }

    #[test]
    fn the_deployed_limits_leave_memory_for_the_program() {
        let unit = include_str!("../../../../deploy/jvmprof.service");
        let pod = include_str!("../../../../deploy/kubernetes/daemonset.yaml");
        assert!(unit.contains("MemoryMax=1G") && pod.contains("memory: 512Mi"));
        for limit in [1024 * MIB, 512 * MIB] {
            let limits = MemoryLimits::new(24 * MIB, Some(MemoryLimits::budget_within(limit)));
            assert!(limits.bytes() + 64 * MIB <= limit, "{limits:?}");
        }
        assert_eq!(MemoryLimits::budget_within(16 * MIB), LEAST_BUDGET);
    }

    #[test]
    fn the_documented_limits_are_the_programs() {
        let document = include_str!("../../../../docs/metrics.md");
        let table = |limits: &MemoryLimits| {
            let symbols = &limits.symbols;
            [
                ("`file_headers`, `file_symbols_and_rows`", symbols.files),
                ("`function_names`", symbols.names),
                ("`java`", symbols.java),
                ("`frames`, `stacks`", symbols.frames as u64),
                ("`jit_maps`", symbols.jit as u64),
                ("`file_lines`", symbols.lines),
                ("`mappings`", limits.mappings as u64),
                ("`queued_samples`", limits.queued_samples as u64),
                ("`queued_events`", limits.queued_events as u64),
                ("`waiting_samples`", limits.waiting_samples as u64),
                ("`window_stacks`", limits.window_stacks as u64),
                ("requests that wait for the backends", limits.outbox as u64),
            ]
            .map(|(name, bytes)| (name, bytes / MIB))
        };
        // With a budget of 64 MiB a part is a MiB.
        let parts = table(&MemoryLimits::new(64 * MIB, Some(64 * MIB)));
        for ((name, limit), (_, parts)) in table(&MemoryLimits::new(24 * MIB, None)).iter().zip(parts) {
            let row = format!("| {name} | {limit} MiB | {parts} |");
            assert!(document.contains(&row), "docs/metrics.md has no row {row:?}");
        }
    }
}
