//! Large objects within buffers, over all recordings: what censuses alone see, so that a bias shows
//! beside the scatter of single recordings.

use std::collections::BTreeMap;

use super::oracle::OracleAllocations;
use super::recorded::RecordedAllocations;

/// Mean bytes of the objects of a class that is summed: from so many on the kernel program counts
/// the first of a buffer.
const LARGE: u64 = 16 << 10;

/// Bytes of large objects that weren't each an event.
#[derive(Debug, Default)]
pub(super) struct InsideSums(BTreeMap<String, InsideSum>);

#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct InsideSum {
    recordings: u32,
    truth: f64,
    estimated: f64,
    /// The sum of the variances that the recordings state.
    variance: f64,
}

impl InsideSums {
    /// Adds a recording.
    pub(super) fn add(&mut self, allocated: &OracleAllocations, recorded: &RecordedAllocations) {
        for (class, bytes, objects) in allocated.classes() {
            let Some(counted) = recorded.counted_bytes(&class) else { continue };
            if bytes < objects.max(1) * LARGE {
                continue;
            }
            let estimated = recorded.class(&class) as f64;
            let error = recorded.deviation(&class).unwrap_or(0.0) * estimated;
            let sum = self.0.entry(class).or_default();
            sum.recordings += 1;
            sum.truth += bytes as f64 - counted as f64;
            sum.estimated += estimated - counted as f64;
            sum.variance += error * error;
        }
    }

    pub(super) fn print(&self) {
        for (class, sum) in &self.0 {
            println!("{class} within buffers, {}", sum.text());
        }
    }
}

impl InsideSum {
    fn text(&self) -> String {
        let percent = |bytes: f64| bytes * 100.0 / self.truth.max(1.0);
        format!(
            "{} recordings: {:.3} GB of {:.3}, {:+.2} % (standard error {:.2})",
            self.recordings,
            self.estimated / 1e9,
            self.truth / 1e9,
            percent(self.estimated - self.truth),
            percent(self.variance.sqrt())
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_an_event_each_is_summed_of_large_classes() {
        let allocated = "double[]\tlarge\t10\t20000000\nbyte[]\tbytes\t100000\t60000000\nall\t80000000\n";
        let allocated = OracleAllocations::parse(allocated).unwrap();
        let json = r#"{"losses": {}, "allocation": {"events": 1, "effective_events": 1,
            "censuses": 2, "screened_buffers": 0,
            "classes": [{"name": "double[]", "counted_bytes": 8000000, "error_percent": 30.0},
                {"name": "byte[]", "counted_bytes": 0}]}}"#;
        let mut sums = InsideSums::default();
        for estimated in [18_000_000, 10_000_000] {
            let folded = format!("Allocations$Worker.large;double[] {estimated}\nbyte[] 60000000\n");
            sums.add(&allocated, &RecordedAllocations::parse(&folded, json).unwrap());
        }
        let variance = (18e6_f64 * 0.3).powi(2) + (10e6_f64 * 0.3).powi(2);
        let expected = InsideSum { recordings: 2, truth: 24e6, estimated: 12e6, variance };
        assert_eq!(sums.0.keys().collect::<Vec<_>>(), ["double[]"]);
        let found = sums.0["double[]"];
        assert!((found.variance / variance - 1.0).abs() < 1e-9, "{found:?}");
        assert_eq!(InsideSum { variance, ..found }, expected);
        let text = "2 recordings: 0.012 GB of 0.024, -50.00 % (standard error 25.74)";
        assert_eq!(found.text(), text);
    }
}
