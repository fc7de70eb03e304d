//! Recordings of Java Flight Recorder, by the JDK's own reader.

use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, bail};
use serde_json::Value;

use crate::run::stdout_text;

/// Returns the events of these types, separated by commas, in a recording. `home`: the JDK's.
///
/// # Errors
/// There is no recording, or the JDK has no reader.
pub(crate) fn events(home: &Path, recording: &Path, types: &str) -> anyhow::Result<Vec<Value>> {
    let mut jfr = Command::new(home.join("bin/jfr"));
    jfr.args(["print", "--json", "--stack-depth", "64", "--events", types]);
    parse(&stdout_text(jfr.arg(recording))?)
}

fn parse(json: &str) -> anyhow::Result<Vec<Value>> {
    let mut printed: Value = serde_json::from_str(json).context("reading JFR's events")?;
    match printed.pointer_mut("/recording/events").map(Value::take) {
        Some(Value::Array(events)) => Ok(events),
        _ => bail!("JFR printed no events"),
    }
}

/// Returns the methods of an event's stack, the first one of the thread first; `None` if it has no
/// stack.
pub(crate) fn methods(event: &Value) -> Option<Vec<String>> {
    let frames = event["values"]["stackTrace"]["frames"].as_array()?.iter().rev();
    let name = |frame: &Value| {
        let method = &frame["method"];
        let class = method["type"]["name"].as_str()?.replace('/', ".");
        Some(format!("{class}.{}", method["name"].as_str()?))
    };
    Some(frames.filter_map(name).collect())
}

/// Returns the nanoseconds that an event took; `None` if it has no duration.
pub(crate) fn nanoseconds(event: &Value) -> Option<u64> {
    nanoseconds_of(event["values"]["duration"].as_str()?)
}

/// Reads what `java.time.Duration` writes: `PT1M2.5S`.
fn nanoseconds_of(duration: &str) -> Option<u64> {
    let (mut seconds, mut rest) = (0.0, duration.strip_prefix("PT")?);
    while let Some((at, unit)) = rest.char_indices().find(|(_, letter)| letter.is_ascii_alphabetic()) {
        let number: f64 = rest[..at].parse().ok()?;
        seconds += number
            * match unit {
                'H' => 3600.0,
                'M' => 60.0,
                'S' => 1.0,
                _ => return None,
            };
        rest = &rest[at + 1..];
    }
    (rest.is_empty() && seconds >= 0.0).then_some((seconds * 1e9).round() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_nanoseconds() {
        for (text, ns) in [
            ("PT0.012345678S", 12_345_678),
            ("PT1M2.5S", 62_500_000_000),
            ("PT1H", 3_600_000_000_000),
            ("PT0S", 0),
        ] {
            assert_eq!(nanoseconds_of(text), Some(ns), "{text}");
        }
        for text in ["", "0.5", "PT1.5", "P1D", "PTxS", "PT-1S", "PT1D"] {
            assert_eq!(nanoseconds_of(text), None, "{text}");
        }
    }

    #[test]
    fn an_event_has_its_methods_and_its_duration() {
        let json = r#"{"recording": {"events": [
            {"type": "jdk.ThreadPark", "values": {"duration": "PT0.5S", "stackTrace": {"frames": [
                {"method": {"type": {"name": "jdk/internal/misc/Unsafe"}, "name": "park"}},
                {"method": {"type": {"name": "Waits"}, "name": "take"}}]}}},
            {"type": "jdk.ThreadSleep", "values": {"stackTrace": null}}]}}"#;
        let events = parse(json).unwrap();
        let names = ["Waits.take", "jdk.internal.misc.Unsafe.park"].map(str::to_owned);
        assert_eq!(methods(&events[0]), Some(names.to_vec()));
        assert_eq!(nanoseconds(&events[0]), Some(500_000_000));
        assert_eq!((methods(&events[1]), nanoseconds(&events[1])), (None, None));
        assert!(parse(r#"{"recording": {}}"#).is_err());
        assert!(parse("[]").is_err());
    }
}
