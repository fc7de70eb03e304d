//! The CPU budget: where sampling costs more than it may, it is done less often.

use std::time::{Duration, Instant};

use crate::app::args::BudgetArgs;
use crate::own_process::cpu_time;
use crate::pipeline::Pipeline;
use crate::telemetry::Budget;
use jvmprof_common::abi::Counter;

/// By default, percent of one core for each CPU: a net below, not a target.
const PERCENT_A_CPU: f64 = 5.0;
/// How much time is judged at once. Shorter, and reading the symbols of a program that starts would
/// look like the cost of sampling it.
const STRETCH: Duration = Duration::from_secs(30);
/// The frequency doesn't fall below this.
const MIN_HZ: u32 = 1;
/// Where the frequency is lowered to: so much of the budget.
const AIM: f64 = 0.8;
/// Below so much of the budget it is raised.
const ROOM: f64 = 0.6;
/// In one step it changes by this factor at most.
const MAX_STEP: f64 = 4.0;
/// The kernel program's time a sample where the kernel doesn't measure it, generously (README,
/// "What it costs").
const ASSUMED_NS_A_SAMPLE: u64 = 20_000;

/// Decides how often to sample.
#[derive(Debug)]
pub(super) struct Controller {
    limit_percent: Option<f64>,
    wanted_hz: u32,
    current_hz: u32,
    used_percent: f64,
    lowered: u64,
    raised: u64,
}

impl Controller {
    fn new(limit_percent: Option<f64>, wanted_hz: u32) -> Self {
        Self { limit_percent, wanted_hz, current_hz: wanted_hz, used_percent: 0.0, lowered: 0, raised: 0 }
    }

    /// Takes in that `cpu` was used in `elapsed`. Gives the frequency to go on with if it is
    /// another one.
    ///
    /// Not all of the CPU depends on the frequency, so a step rarely hits its aim: the next stretch
    /// corrects it.
    fn measured(&mut self, cpu: Duration, elapsed: Duration) -> Option<u32> {
        self.used_percent = cpu.as_secs_f64() / elapsed.as_secs_f64().max(1e-3) * 100.0;
        let limit = self.limit_percent?;
        let share = self.used_percent / limit;
        if share <= 1.0 && (share >= ROOM || self.current_hz >= self.wanted_hz) {
            return None;
        }
        let factor = (AIM / share.max(1e-6)).clamp(1.0 / MAX_STEP, MAX_STEP);
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

    /// Another limit or another wish from now on. Where the budget had lowered the frequency, it
    /// stays low as long as there is a limit. Gives the frequency to go on with if it is another
    /// one.
    fn change(&mut self, limit_percent: Option<f64>, wanted_hz: u32) -> Option<u32> {
        let is_lowered = self.current_hz < self.wanted_hz;
        let next =
            if is_lowered && limit_percent.is_some() { self.current_hz.min(wanted_hz) } else { wanted_hz };
        let before = std::mem::replace(&mut self.current_hz, next);
        (self.limit_percent, self.wanted_hz) = (limit_percent, wanted_hz);
        (next != before).then_some(next)
    }

    fn told(&self) -> Budget {
        Budget {
            limit_percent: self.limit_percent,
            used_percent: self.used_percent,
            wanted_hz: self.wanted_hz,
            current_hz: self.current_hz,
            lowered: self.lowered,
            raised: self.raised,
        }
    }
}

/// Measures, and carries out what the controller decides.
#[derive(Debug)]
pub(super) struct CpuBudget {
    controller: Controller,
    since: Instant,
    cpu: Duration,
}

impl CpuBudget {
    /// `wanted_hz`: the frequency that is sampled with now.
    pub(super) fn new(args: &BudgetArgs, wanted_hz: u32) -> Self {
        let controller = Controller::new(limit_percent(args), wanted_hz);
        // What the start costs isn't what sampling costs.
        Self { controller, since: Instant::now(), cpu: Duration::MAX }
    }

    /// Other settings from now on. True if the frequency was changed, as [`Self::look`] has it.
    pub(super) fn change(&mut self, args: &BudgetArgs, wanted_hz: u32, pipeline: &mut Pipeline) -> bool {
        // A stretch has one frequency.
        self.begin(pipeline);
        let Some(frequency) = self.controller.change(limit_percent(args), wanted_hz) else { return false };
        pipeline.set_frequency(frequency);
        true
    }

    /// Looks at the cost of a stretch when it is over. True if the frequency was changed: the
    /// window should end soon, see [`Pipeline::set_frequency`].
    pub(super) fn look(&mut self, pipeline: &mut Pipeline) -> bool {
        if self.cpu == Duration::MAX {
            self.begin(pipeline);
        }
        let elapsed = self.since.elapsed();
        if elapsed < STRETCH {
            return false;
        }
        let before = self.cpu;
        self.begin(pipeline);
        let used = self.cpu.saturating_sub(before);
        let Some(frequency) = self.controller.measured(used, elapsed) else { return false };
        let budget = self.told();
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

    pub(super) fn told(&self) -> Budget {
        self.controller.told()
    }

    fn begin(&mut self, pipeline: &mut Pipeline) {
        self.since = Instant::now();
        self.cpu = cost(pipeline);
    }
}

/// Percent of one core; `None`: no limit.
fn limit_percent(args: &BudgetArgs) -> Option<f64> {
    let cpus = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let percent = args.max_cpu.unwrap_or(PERCENT_A_CPU * cpus as f64);
    (percent > 0.0).then_some(percent)
}

/// CPU time of this process and of the kernel program since the start.
fn cost(pipeline: &mut Pipeline) -> Duration {
    let kernel_ns = match pipeline.kernel_run_time() {
        Some((nanoseconds, _)) => nanoseconds,
        None => pipeline.sampler_counts().get(Counter::Taken) * ASSUMED_NS_A_SAMPLE,
    };
    cpu_time() + Duration::from_nanos(kernel_ns)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a stretch of 10 s with this use, in percent of a core, leads to.
    fn measured(controller: &mut Controller, percent: f64) -> Option<u32> {
        controller.measured(Duration::from_secs_f64(percent / 10.0), Duration::from_secs(10))
    }

    #[test]
    fn within_the_budget_nothing_changes() {
        let mut controller = Controller::new(Some(5.0), 99);
        for percent in [0.0, 2.0, 4.9, 5.0] {
            assert_eq!(measured(&mut controller, percent), None, "{percent} %");
        }
        assert_eq!(measured(&mut Controller::new(None, 99), 300.0), None, "no budget, no limit");
    }

    #[test]
    fn a_load_finds_the_frequency_that_it_can_afford() {
        // 2 % whatever the frequency is, and 0.2 % for each Hz: 5 % is 15 Hz.
        let cost = |hz: u32| 2.0 + 0.2 * f64::from(hz);
        let mut controller = Controller::new(Some(5.0), 99);
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
        let mut controller = Controller::new(Some(0.1), 99);
        for _ in 0..20 {
            measured(&mut controller, 50.0);
        }
        assert_eq!(controller.current_hz, 1);
        assert_eq!(measured(&mut controller, 50.0), None);
        assert_eq!(measured(&mut controller, 0.0), Some(4));
    }

    #[test]
    fn other_settings_leave_a_lowered_frequency_low() {
        let mut controller = Controller::new(Some(5.0), 99);
        assert_eq!(controller.change(Some(5.0), 199), Some(199));
        assert_eq!(controller.change(Some(1.0), 199), None);
        let lowered = measured(&mut controller, 2.0).expect("it is too much");
        assert_eq!(controller.change(Some(1.0), 400), None, "there was no room for {lowered} Hz more");
        assert_eq!(controller.change(Some(1.0), 9), Some(9));
        assert_eq!(controller.change(Some(1.0), 19), Some(19), "9 Hz was a wish");
        measured(&mut controller, 2.0);
        assert_eq!(controller.change(None, 19), Some(19), "without a limit nothing would raise it");
    }
}
