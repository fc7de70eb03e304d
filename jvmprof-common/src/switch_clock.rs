//! Times of switches by the scheduler's clock of a CPU (`rq->clock`, kernel/sched/core.c), which is
//! read at no cost, as `CLOCK_MONOTONIC`.

/// The difference between the two clocks, and when it was measured: one CPU's.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SwitchClock {
    /// `CLOCK_MONOTONIC` minus the scheduler's clock, ns; a negative one wraps.
    pub offset_ns: u64,
    /// The scheduler's clock at the measurement, ns; 0: there was none.
    pub measured_ns: u64,
}

/// Time after which the difference is measured again.
const MEASURED_EVERY_NS: u64 = 1 << 20;
/// Most by which `CLOCK_MONOTONIC` is slowed or hastened to be right, as a shift: 1/1,024. NTP has
/// 1/2,000.
const MAX_SLEW: u32 = 10;
/// A difference that grows by more than this isn't lateness: a clock was set.
const MAX_LATE_NS: u64 = 1 << 20;

impl SwitchClock {
    /// Returns `CLOCK_MONOTONIC` at a time of the scheduler's clock, which has just been read
    /// there. `read_monotonic` reads the former now.
    #[inline(always)]
    pub fn monotonic_ns(&mut self, cpu_ns: u64, read_monotonic: impl FnOnce() -> u64) -> u64 {
        let age = cpu_ns.wrapping_sub(self.measured_ns);
        if self.measured_ns == 0 || age >= MEASURED_EVERY_NS {
            self.measure(cpu_ns, age, read_monotonic());
        }
        cpu_ns.wrapping_add(self.offset_ns)
    }

    /// The scheduler's clock was read some time before the other one, mostly 100 ns, but longer
    /// where it looked for work on other CPUs in between. So the smallest difference is the best,
    /// until the clocks may have drifted apart.
    #[inline(always)]
    fn measure(&mut self, cpu_ns: u64, age: u64, monotonic_ns: u64) {
        let offset = monotonic_ns.wrapping_sub(cpu_ns);
        let grown = offset.wrapping_sub(self.offset_ns);
        let drift = age >> MAX_SLEW;
        let is_late = self.measured_ns != 0 && grown > drift && grown - drift < MAX_LATE_NS;
        self.offset_ns = if is_late { self.offset_ns.wrapping_add(drift) } else { offset };
        self.measured_ns = cpu_ns;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MILLISECOND: u64 = 1_000_000;

    /// A clock that was measured at 5 s of the scheduler's, 100 ns after the switch: 1,000 s more.
    fn measured() -> SwitchClock {
        let mut clock = SwitchClock::default();
        assert_eq!(clock.monotonic_ns(5_000_000_000, || 1_005_000_000_100), 1_005_000_000_100);
        clock
    }

    fn unread() -> u64 {
        panic!("the other clock was read")
    }

    #[test]
    fn the_other_clock_is_read_once_a_millisecond() {
        let mut clock = measured();
        assert_eq!(clock.monotonic_ns(5_000_400_000, unread), 1_005_000_400_100);
        let later = 5_000_000_000 + MEASURED_EVERY_NS;
        assert_eq!(clock.monotonic_ns(later, || 1_000_000_000_060 + later), 1_000_000_000_060 + later);
        assert_eq!(clock.monotonic_ns(later + 5, unread), 1_000_000_000_065 + later);
    }

    #[test]
    fn a_switch_that_took_long_is_no_other_difference_of_the_clocks() {
        let mut clock = measured();
        let late = clock.monotonic_ns(5_002_048_000, || 1_005_002_048_000 + 300_000);
        assert_eq!(late, 1_005_002_048_000 + 100 + 2000, "1/1024 of the time since, and no more");
        let right = clock.monotonic_ns(5_004_096_000, || 1_005_004_096_050);
        assert_eq!(right, 1_005_004_096_050);
    }

    #[test]
    fn clocks_that_drift_apart_are_followed() {
        let mut clock = measured();
        for step in 1..1000 {
            let cpu_ns = 5_000_000_000 + step * 2 * MILLISECOND;
            // NTP's fastest: 1/2,000.
            let monotonic_ns = 1_000_000_000_100 + cpu_ns + step * MILLISECOND / 1000;
            assert_eq!(clock.monotonic_ns(cpu_ns, || monotonic_ns), monotonic_ns);
        }
    }

    #[test]
    fn a_clock_that_was_set_is_measured_anew() {
        let mut clock = measured();
        assert_eq!(clock.monotonic_ns(5_003_000_000, || 2_000_000_000_000), 2_000_000_000_000);
        let mut clock = measured();
        // The scheduler's clock began anew.
        assert_eq!(clock.monotonic_ns(1_000, || 1_005_000_009_000), 1_005_000_009_000);
        assert_eq!(clock.monotonic_ns(1_400, unread), 1_005_000_009_400);
    }
}
