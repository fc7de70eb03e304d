//! The CPU budget: lowers the sampling frequency while profiling costs more than it may.

use std::time::{Duration, Instant};

use crate::app::args::BudgetArgs;
use crate::own_process::cpu_time;
use crate::pipeline::Pipeline;
use crate::telemetry::CpuBudgetStatus;
use jvmprof_common::abi::Counter;

/// Default limit, percent of one core for each CPU of the host: a safety net, not a target.
const DEFAULT_PERCENT_PER_CPU: f64 = 5.0;
/// Length of a measurement. In a shorter one, reading the symbols of a program that starts would
/// look like the cost of sampling it.
const MEASUREMENT: Duration = Duration::from_secs(30);
/// Lowest frequency.
const MIN_HZ: u32 = 1;
/// Share of the limit that a new frequency aims at.
const TARGET_SHARE: f64 = 0.8;
/// Share of the limit below which the frequency is raised.
const RAISE_BELOW_SHARE: f64 = 0.6;
/// Largest factor by which the frequency changes in one step.
const MAX_STEP: f64 = 4.0;
/// Generous time of the kernel program per sample, where the kernel doesn't measure it
/// (`docs/measurements/`).
const ASSUMED_NS_PER_SAMPLE: u64 = 20_000;

/// Computes the sampling frequency from the CPU used.
#[derive(Debug)]
pub(super) struct FrequencyController {
    limit_percent: Option<f64>,
    wanted_hz: u32,
    current_hz: u32,
    used_percent: f64,
    lowered: u64,
    raised: u64,
}

impl FrequencyController {
    fn new(limit_percent: Option<f64>, wanted_hz: u32) -> Self {
        Self { limit_percent, wanted_hz, current_hz: wanted_hz, used_percent: 0.0, lowered: 0, raised: 0 }
    }

    /// Evaluates a measurement: `cpu` was used in `elapsed`. Returns the new frequency if it
    /// changes.
    ///
    /// Not all of the CPU depends on the frequency, so a step rarely hits its target: the next
    /// measurement corrects it.
    fn evaluate(&mut self, cpu: Duration, elapsed: Duration) -> Option<u32> {
        self.used_percent = cpu.as_secs_f64() / elapsed.as_secs_f64().max(1e-3) * 100.0;
        let limit = self.limit_percent?;
        let share = self.used_percent / limit;
        if share <= 1.0 && (share >= RAISE_BELOW_SHARE || self.current_hz >= self.wanted_hz) {
            return None;
        }
        let factor = (TARGET_SHARE / share.max(1e-6)).clamp(1.0 / MAX_STEP, MAX_STEP);
        let aimed = (f64::from(self.current_hz) * factor).round() as u32;
        // A step up is one of 1 Hz at least.
        let least = if share > 1.0 { MIN_HZ } else { self.current_hz + 1 };
        let next = aimed.max(least).clamp(MIN_HZ.min(self.wanted_hz), self.wanted_hz);
        if next == self.current_hz {
            return None;
        }
        if next < self.current_hz {
            self.lowered += 1;
        } else {
            self.raised += 1;
        }
        self.current_hz = next;
        Some(next)
    }

    /// Replaces the limit and the configured frequency. A frequency that the budget has lowered
    /// stays low as long as there is a limit. Returns the new frequency if it changes.
    fn configure(&mut self, limit_percent: Option<f64>, wanted_hz: u32) -> Option<u32> {
        let is_lowered = self.current_hz < self.wanted_hz;
        let next =
            if is_lowered && limit_percent.is_some() { self.current_hz.min(wanted_hz) } else { wanted_hz };
        let before = std::mem::replace(&mut self.current_hz, next);
        (self.limit_percent, self.wanted_hz) = (limit_percent, wanted_hz);
        (next != before).then_some(next)
    }

    fn state(&self) -> CpuBudgetStatus {
        CpuBudgetStatus {
            limit_percent: self.limit_percent,
            used_percent: self.used_percent,
            wanted_hz: self.wanted_hz,
            current_hz: self.current_hz,
            lowered: self.lowered,
            raised: self.raised,
        }
    }
}

/// Measures the CPU that profiling takes, and applies the controller's frequency.
#[derive(Debug)]
pub(super) struct CpuBudget {
    controller: FrequencyController,
    since: Instant,
    cpu: Duration,
}

impl CpuBudget {
    /// Makes the budget of these settings. `wanted_hz`: the current frequency.
    pub(super) fn new(args: &BudgetArgs, wanted_hz: u32) -> Self {
        let controller = FrequencyController::new(limit_percent(args), wanted_hz);
        // The cost of the start isn't that of sampling.
        Self { controller, since: Instant::now(), cpu: Duration::MAX }
    }

    /// Applies new settings. Returns true if the frequency was changed, as [`Self::evaluate`] does.
    pub(super) fn configure(&mut self, args: &BudgetArgs, wanted_hz: u32, pipeline: &mut Pipeline) -> bool {
        // A measurement has one frequency.
        self.begin(pipeline);
        let Some(frequency) = self.controller.configure(limit_percent(args), wanted_hz) else { return false };
        pipeline.set_frequency(frequency);
        true
    }

    /// Evaluates a measurement when it is over. Returns true if the frequency was changed: the
    /// window should end soon, see [`Pipeline::set_frequency`].
    pub(super) fn evaluate(&mut self, pipeline: &mut Pipeline) -> bool {
        if self.cpu == Duration::MAX {
            self.begin(pipeline);
        }
        let elapsed = self.since.elapsed();
        if elapsed < MEASUREMENT {
            return false;
        }
        let before = self.cpu;
        self.begin(pipeline);
        let used = self.cpu.saturating_sub(before);
        let Some(frequency) = self.controller.evaluate(used, elapsed) else { return false };
        let budget = self.state();
        tracing::warn!(
            used_percent = format!("{:.1}", budget.used_percent),
            max_cpu_percent = budget.limit_percent,
            frequency,
            wanted = budget.wanted_hz,
            "the CPU budget changes the sampling frequency"
        );
        pipeline.set_frequency(frequency);
        true
    }

    pub(super) fn state(&self) -> CpuBudgetStatus {
        self.controller.state()
    }

    fn begin(&mut self, pipeline: &mut Pipeline) {
        self.since = Instant::now();
        self.cpu = cost(pipeline);
    }
}

/// Returns the limit in percent of one core; `None` for no limit.
fn limit_percent(args: &BudgetArgs) -> Option<f64> {
    let cpus = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let percent = args.max_cpu.unwrap_or(DEFAULT_PERCENT_PER_CPU * cpus as f64);
    (percent > 0.0).then_some(percent)
}

/// Returns the CPU time of this process and of the kernel program since the start.
fn cost(pipeline: &mut Pipeline) -> Duration {
    let kernel_ns = match pipeline.run_times().clock {
        Some(clock) => clock.run_time_ns,
        None => pipeline.sampler_counts().get(Counter::Taken) * ASSUMED_NS_PER_SAMPLE,
    };
    cpu_time() + Duration::from_nanos(kernel_ns)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Evaluates a measurement of 10 s with this use, in percent of a core.
    fn measured(controller: &mut FrequencyController, percent: f64) -> Option<u32> {
        controller.evaluate(Duration::from_secs_f64(percent / 10.0), Duration::from_secs(10))
    }

    #[test]
    fn within_the_budget_nothing_changes() {
        let mut controller = FrequencyController::new(Some(5.0), 99);
        for percent in [0.0, 2.0, 4.9, 5.0] {
            assert_eq!(measured(&mut controller, percent), None, "{percent} %");
        }
        assert_eq!(measured(&mut FrequencyController::new(None, 99), 300.0), None, "no budget, no limit");
    }

    #[test]
    fn a_load_finds_the_frequency_that_it_can_afford() {
        // 2 % whatever the frequency is, and 0.2 % for each Hz: 5 % is 15 Hz.
        let cost = |hz: u32| 2.0 + 0.2 * f64::from(hz);
        let mut controller = FrequencyController::new(Some(5.0), 99);
        for _ in 0..20 {
            let percent = cost(controller.current_hz);
            measured(&mut controller, percent);
        }
        let settled = controller.current_hz;
        assert!((5..=15).contains(&settled), "{settled} Hz");
        assert_eq!(measured(&mut controller, cost(settled)), None, "it doesn't swing");
        // The load has gone.
        for _ in 0..6 {
            let percent = 0.01 * f64::from(controller.current_hz);
            measured(&mut controller, percent);
        }
        assert_eq!(controller.current_hz, 99);
        assert!(controller.lowered > 0 && controller.raised > 0);
    }

    #[test]
    fn a_host_that_always_costs_too_much_is_still_sampled() {
        let mut controller = FrequencyController::new(Some(0.1), 99);
        for _ in 0..20 {
            measured(&mut controller, 50.0);
        }
        assert_eq!(controller.current_hz, 1);
        assert_eq!(measured(&mut controller, 50.0), None);
        assert_eq!(measured(&mut controller, 0.0), Some(4));
    }

    #[test]
    fn other_settings_leave_a_lowered_frequency_low() {
        let mut controller = FrequencyController::new(Some(5.0), 99);
        assert_eq!(controller.configure(Some(5.0), 199), Some(199));
        assert_eq!(controller.configure(Some(1.0), 199), None);
        let lowered = measured(&mut controller, 2.0).expect("it is too much");
        assert_eq!(controller.configure(Some(1.0), 400), None, "there was no room for {lowered} Hz more");
        assert_eq!(controller.configure(Some(1.0), 9), Some(9));
        assert_eq!(controller.configure(Some(1.0), 19), Some(19), "9 Hz was a wish");
        measured(&mut controller, 2.0);
        assert_eq!(controller.configure(None, 19), Some(19), "without a limit nothing would raise it");
    }
}
