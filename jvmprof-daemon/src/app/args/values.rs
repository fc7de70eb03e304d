//! Values that several flags take, and how they are read.

use std::ops::RangeInclusive;
use std::time::Duration;

pub(in crate::app) const DAY: Duration = Duration::from_hours(24);

/// Reads times within this range: `10s`, `1m 30s`, or a plain number of seconds.
pub(in crate::app) fn duration(
    range: RangeInclusive<Duration>,
) -> impl Fn(&str) -> Result<Duration, String> + Clone + Send + Sync {
    move |text| {
        let duration = match text.parse::<u64>() {
            Ok(seconds) => Duration::from_secs(seconds),
            Err(_) => humantime::parse_duration(text).map_err(|error| error.to_string())?,
        };
        if range.contains(&duration) {
            return Ok(duration);
        }
        let [least, most] = [range.start(), range.end()].map(|it| humantime::format_duration(*it));
        Err(format!("must be {least} at least and {most} at most"))
    }
}
