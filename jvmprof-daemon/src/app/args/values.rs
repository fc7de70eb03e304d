//! Values that several flags take, and how they are read.

use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;
use std::time::Duration;

pub(in crate::app) const DAY: Duration = Duration::from_hours(24);

/// Reads times within this range: `10s`, `1m 30s`, or a plain number of seconds.
pub(in crate::app) fn duration(
    range: RangeInclusive<Duration>,
) -> impl Fn(&str) -> Result<Duration, String> + Clone + Send + Sync {
    move |text| {
        let duration = match text.parse::<u64>() {
            Ok(seconds) => Duration::from_secs(seconds),
            Err(_) => humantime::parse_duration(text)
                .map_err(|_| "must be a time, such as 10s, 1500ms, 5m or 1h 30m".to_owned())?,
        };
        if range.contains(&duration) {
            return Ok(duration);
        }
        let [least, most] = [range.start(), range.end()].map(|it| limit_text(*it));
        Err(format!("must be {least} at least and {most} at most"))
    }
}

/// `365 days`, which are `11months 30days 3h 50m 24s` for humantime.
fn limit_text(limit: Duration) -> String {
    let (seconds, day) = (limit.as_secs(), DAY.as_secs());
    if seconds > day && seconds.is_multiple_of(day) {
        return format!("{} days", seconds / day);
    }
    humantime::format_duration(limit).to_string()
}

/// Reads a number of bytes within this range: `512KiB`, `4MiB`, `1GiB`, or a plain number.
pub(in crate::app) fn bytes(
    range: RangeInclusive<u64>,
) -> impl Fn(&str) -> Result<u64, String> + Clone + Send + Sync {
    const UNITS: [(&str, u32); 7] =
        [("KiB", 10), ("MiB", 20), ("GiB", 30), ("K", 10), ("M", 20), ("G", 30), ("B", 0)];
    move |text| {
        let unit = UNITS.iter().find_map(|(unit, shift)| Some((text.strip_suffix(unit)?, *shift)));
        let (number, shift) = unit.unwrap_or((text, 0));
        let bytes = number.trim().parse::<u64>().ok().and_then(|number| number.checked_mul(1 << shift));
        match bytes {
            Some(bytes) if range.contains(&bytes) => Ok(bytes),
            Some(_) => Err(format!("must be {} at least and {} at most", range.start(), range.end())),
            None => Err("must be a number of bytes, such as 512KiB or 4MiB".to_owned()),
        }
    }
}

/// Reads the name of an OpenTelemetry attribute that a label can be made of.
pub(in crate::app) fn attribute_name(text: &str) -> Result<String, String> {
    // Datadog's tracers publish `_dd.trace.operation`; names with two underscores are of rules.
    let is_name = text.strip_prefix('_').unwrap_or(text).starts_with(|it: char| it.is_ascii_alphabetic())
        && text.len() <= 128
        && text.chars().all(|it| it.is_ascii_alphanumeric() || "._-/".contains(it));
    if !is_name {
        return Err(format!(
            "{text:?} is no attribute's name: a letter, or _ and one, then letters, digits and . _ - /"
        ));
    }
    Ok(text.to_owned())
}

/// A process that is named on the command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProcessArg {
    Pid(u32),
    /// The name of a program or of a JVM's main class.
    Name(String),
}

impl FromStr for ProcessArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Ok(pid) = text.parse() {
            return Ok(Self::Pid(pid));
        }
        let is_number = text.trim_start_matches(['-', '+']).bytes().all(|byte| byte.is_ascii_digit());
        if is_number || text.trim().is_empty() {
            return Err("must be a pid, a program's name or a JVM's main class".to_owned());
        }
        Ok(Self::Name(text.to_owned()))
    }
}

impl fmt::Display for ProcessArg {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pid(pid) => write!(f, "{pid}"),
            Self::Name(name) => f.write_str(name),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_of_times_are_named_as_people_do() {
        let said = |text: &str, range| duration(range)(text).expect_err("out of its range");
        assert_eq!(
            said("0s", Duration::from_millis(1)..=365 * DAY),
            "must be 1ms at least and 365 days at most"
        );
        assert_eq!(
            said("2h", Duration::from_secs(1)..=Duration::from_mins(90)),
            "must be 1s at least and 1h 30m at most"
        );
    }

    #[test]
    fn bytes_have_units() {
        let parse = bytes(1024..=1 << 30);
        for (text, value) in [("512KiB", 512 << 10), ("4M", 4 << 20), ("2048", 2048), ("1 GiB", 1 << 30)] {
            assert_eq!(parse(text), Ok(value), "{text}");
        }
        for text in ["", "KiB", "1kb", "-1", "1023", "2GiB", "99999999999GiB"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
