//! Times of switches by the scheduler's clock of a CPU (`rq->clock`, kernel/sched/core.c), which is
//! read at no cost, as `CLOCK_MONOTONIC`.

/// The difference between the two clocks, and when it was measured: one CPU's.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SwitchClock {
    /// `CLOCK_MONOTONIC` minus the scheduler's clock, ns; a negative one wraps.
    pub offset_ns: u64,
    /// The scheduler's clock when the difference was found, ns; 0: it wasn't yet.
    pub measured_ns: u64,
    /// The smallest difference of a measurement that isn't complete, how often it was measured for
    /// that, and the scheduler's clock when that began.
    pub smallest_ns: u64,
    pub tries: u64,
    pub began_ns: u64,
}

/// Time after which the difference is measured again.
const MEASURED_EVERY_NS: u64 = 1 << 20;
/// A difference that has grown by more is measured several times.
const MAX_GROWN_NS: u64 = 1000;
const TRIES: u64 = 4;

impl SwitchClock {
    /// Returns `CLOCK_MONOTONIC` at a time of the scheduler's clock that was read a moment ago.
    /// `read_monotonic` reads the former now.
    #[inline(always)]
    pub fn monotonic_ns(&mut self, cpu_ns: u64, read_monotonic: impl FnOnce() -> u64) -> u64 {
        if self.measured_ns != 0 && cpu_ns.wrapping_sub(self.measured_ns) < MEASURED_EVERY_NS {
            return cpu_ns.wrapping_add(self.offset_ns);
        }
        let now = read_monotonic();
        self.measure(cpu_ns, now.wrapping_sub(cpu_ns));
        now
    }

    /// The scheduler's clock was read some time before the other one, mostly 100 ns, but longer
    /// where the scheduler looked for work on other CPUs in between, or the hypervisor took the
    /// CPU. So a difference that has grown is measured at several switches, and the smallest one
    /// counts.
    #[inline(always)]
    fn measure(&mut self, cpu_ns: u64, offset: u64) {
        // The clocks may have drifted apart since an earlier begin.
        if cpu_ns.wrapping_sub(self.began_ns) >= MEASURED_EVERY_NS {
            (self.tries, self.began_ns) = (0, cpu_ns);
        }
        let smallest =
            if self.tries == 0 || is_smaller(offset, self.smallest_ns) { offset } else { self.smallest_ns };
        let tries = self.tries + 1;
        let limit = self.offset_ns.wrapping_add(MAX_GROWN_NS);
        let is_known = self.measured_ns != 0 && !is_smaller(limit, smallest);
        if is_known || tries == TRIES {
            (self.offset_ns, self.measured_ns, self.tries) = (smallest, cpu_ns, 0);
        } else {
            (self.smallest_ns, self.tries) = (smallest, tries);
        }
    }
}

/// Compares two differences, which may be negative.
#[inline(always)]
const fn is_smaller(left: u64, right: u64) -> bool {
    (left.wrapping_sub(right) as i64) < 0
}

#[cfg(test)]
mod tests {
    use super::*;

    const MILLISECOND: u64 = 1_000_000;
    /// The other clock's lead.
    const LEAD: u64 = 1_000_000_000_000;

    /// A clock whose lead was measured at 5 s of the scheduler's, 100 ns after each switch.
    fn measured() -> SwitchClock {
        let mut clock = SwitchClock::default();
        for switch in 0..TRIES {
            let cpu_ns = 5_000_000_000 + switch * 10;
            assert_eq!(clock.monotonic_ns(cpu_ns, || LEAD + cpu_ns + 100), LEAD + cpu_ns + 100);
        }
        clock
    }

    fn unread() -> u64 {
        panic!("the other clock was read")
    }

    #[test]
    fn the_other_clock_is_read_once_a_millisecond() {
        let mut clock = measured();
        assert_eq!(clock.monotonic_ns(5_000_400_000, unread), LEAD + 5_000_400_100);
        let later = 5_002_000_000;
        assert_eq!(clock.monotonic_ns(later, || LEAD + 60 + later), LEAD + 60 + later);
        assert_eq!(clock.monotonic_ns(later + 5, unread), LEAD + 65 + later);
    }

    #[test]
    fn a_switch_that_took_long_is_no_other_difference_of_the_clocks() {
        let mut clock = measured();
        // The time of that switch itself is right.
        assert_eq!(clock.monotonic_ns(5_300_000_000, || LEAD + 5_300_300_000), LEAD + 5_300_300_000);
        assert_eq!(clock.monotonic_ns(5_300_400_000, || LEAD + 5_300_400_090), LEAD + 5_300_400_090);
        assert_eq!(clock.monotonic_ns(5_300_500_000, unread), LEAD + 5_300_500_090);
    }

    #[test]
    fn clocks_that_drift_apart_are_followed_however_fast() {
        for per_million in [-100_000_i64, -83_333, -500, 0, 500, 83_333, 100_000] {
            let mut clock = SwitchClock::default();
            for step in 0..20_000_u64 {
                // A switch each 100 µs.
                let cpu_ns = 5_000_000_000 + step * MILLISECOND / 10;
                let drift = (step as i64) * (MILLISECOND as i64 / 10) * per_million / 1_000_000;
                let true_ns = (LEAD + cpu_ns).wrapping_add_signed(drift);
                let seen = clock.monotonic_ns(cpu_ns, || true_ns + 100);
                // What the clocks drift apart by in the time of a measurement.
                let most = 100 + 2 * MILLISECOND * per_million.unsigned_abs() / 1_000_000;
                assert!(seen.abs_diff(true_ns) <= most, "{per_million} ppm, step {step}: {seen} {true_ns}");
            }
        }
    }

    #[test]
    fn clocks_that_drift_apart_while_a_cpu_switches_rarely_are_followed() {
        let mut clock = SwitchClock::default();
        for burst in 0..1000_u64 {
            for switch in 0..1 + burst % 8 {
                // Ten seconds between bursts, 100 µs between their switches, 50 ppm.
                let since = burst * 10_000 * MILLISECOND + switch * MILLISECOND / 10;
                let true_ns = LEAD + 5_000_000_000 + since + since / 20_000;
                let seen = clock.monotonic_ns(5_000_000_000 + since, || true_ns + 100);
                assert!(seen.abs_diff(true_ns) <= 200, "burst {burst}, {switch}: {seen} {true_ns}");
            }
        }
    }

    #[test]
    fn a_clock_that_was_set_is_measured_anew() {
        let mut clock = measured();
        for cpu_ns in (5_003_000_000..).step_by(1000).take(TRIES as usize) {
            assert_eq!(clock.monotonic_ns(cpu_ns, || 2 * LEAD + cpu_ns), 2 * LEAD + cpu_ns);
        }
        assert_eq!(clock.monotonic_ns(5_003_400_000, unread), 2 * LEAD + 5_003_400_000);
        let mut clock = measured();
        // The scheduler's clock began anew.
        for cpu_ns in (1000..).step_by(1000).take(TRIES as usize) {
            assert_eq!(
                clock.monotonic_ns(cpu_ns, || LEAD + 6_000_000_000 + cpu_ns) - cpu_ns,
                LEAD + 6_000_000_000
            );
        }
        assert_eq!(clock.monotonic_ns(9_000, unread), LEAD + 6_000_009_000);
    }
}
