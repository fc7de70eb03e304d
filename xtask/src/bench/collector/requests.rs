//! Requests by curl: for metrics, and for what the collector's page shows, with their times.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, bail};

use super::access::{AccessFiles, TOKEN};
use crate::run::stdout_text;

/// The requests of the page, of its default range: its name, path and parameters.
const REQUESTS: [(&str, &str, &str); 4] = [
    ("labels", "labels", ""),
    ("timeline", "timeline", ""),
    ("graph of all hosts", "flamegraph", "&group=auto"),
    ("graph of one host", "flamegraph", "&group=auto&match=node=n1"),
];
const RANGE: Duration = Duration::from_mins(15);

/// The text that curl appends to an answer: status, when the request was sent, when the answer was
/// there, and its bytes on the wire.
const TIMES: &str = "\n%{http_code} %{time_pretransfer} %{time_total} %{size_download}";

#[derive(Debug)]
struct Answer {
    body: String,
    status: String,
    seconds: f64,
    bytes: f64,
}

impl Answer {
    /// Parses what curl has written.
    fn of(written: &str) -> Option<Self> {
        let (body, times) = written.rsplit_once('\n')?;
        let (status, times) = times.split_once(' ')?;
        let mut numbers = times.split(' ').map(str::parse::<f64>);
        let mut next = || numbers.next()?.ok();
        let (sent, total, bytes) = (next()?, next()?, next()?);
        Some(Self { body: body.to_owned(), status: status.to_owned(), seconds: total - sent, bytes })
    }
}

fn curl(args: &[&str]) -> anyhow::Result<Answer> {
    let mut command = Command::new("curl");
    command.args(["--silent", "--show-error", "--compressed", "--write-out", TIMES]).args(args);
    let written = stdout_text(&mut command)?;
    Answer::of(&written).with_context(|| format!("parsing the output of curl: {written}"))
}

fn get(access: &AccessFiles, url: &str) -> anyhow::Result<Answer> {
    let authority = access.authority.display().to_string();
    curl(&["--cacert", &authority, "--header", &format!("Authorization: Bearer {TOKEN}"), url])
}

/// A page of metrics.
#[derive(Debug)]
pub(super) struct Metrics(String);

impl Metrics {
    pub(super) fn of_collector(access: &AccessFiles, address: &str) -> anyhow::Result<Self> {
        Self::of(get(access, &format!("{address}/metrics"))?)
    }

    pub(super) fn of_daemon(socket: &Path) -> anyhow::Result<Self> {
        Self::of(curl(&["--unix-socket", &socket.display().to_string(), "http://daemon/metrics"])?)
    }

    fn of(answer: Answer) -> anyhow::Result<Self> {
        match &*answer.status {
            "200" => Ok(Self(answer.body)),
            status => bail!("metrics: {status}: {}", answer.body),
        }
    }

    /// Returns the sum over a metric's series that have this text among their labels.
    pub(super) fn sum(&self, name: &str, label: &str) -> f64 {
        let series = self.0.lines().filter_map(|line| line.rsplit_once(' '));
        let matching = series.filter(|(series, _)| {
            let (of, labels) = series.split_once('{').unwrap_or((series, ""));
            of == name && labels.contains(label)
        });
        matching.filter_map(|(_, value)| value.parse::<f64>().ok()).sum()
    }
}

/// Times of the page's requests.
#[derive(Debug, Default)]
pub(super) struct Page {
    /// For each request: seconds of its answers, and bytes of the last one.
    times: [(Vec<f64>, f64); REQUESTS.len()],
    /// Statuses other than 200.
    refused: Vec<String>,
}

impl Page {
    /// Sends each request once.
    pub(super) fn request_all(&mut self, access: &AccessFiles, address: &str) -> anyhow::Result<()> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).context("reading the clock")?;
        let (from, to) = (now.saturating_sub(RANGE).as_millis(), now.as_millis());
        for ((name, path, parameters), (seconds, bytes)) in REQUESTS.iter().zip(&mut self.times) {
            let answer = get(access, &format!("{address}/api/{path}?from={from}&to={to}{parameters}"))?;
            if answer.status == "200" {
                seconds.push(answer.seconds);
                *bytes = answer.bytes;
            } else {
                self.refused.push(format!("{name}: {} {}", answer.status, answer.body));
            }
        }
        Ok(())
    }

    pub(super) fn print(&mut self) {
        println!("\npage                  answers  median ms slowest ms  last kB");
        for ((name, ..), (seconds, bytes)) in REQUESTS.iter().zip(&mut self.times) {
            seconds.sort_by(f64::total_cmp);
            let milliseconds = |at: usize| seconds.get(at).map_or(f64::NAN, |seconds| seconds * 1e3);
            println!(
                "{name:<20} {:>8} {:>10.0} {:>10.0} {:>8.0}",
                seconds.len(),
                milliseconds(seconds.len() / 2),
                milliseconds(seconds.len().saturating_sub(1)),
                *bytes / 1e3,
            );
        }
        for refused in &self.refused {
            println!("no answer: {refused}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_have_the_time_behind_the_connection() {
        let answer = Answer::of("{\n}\n200 0.250000 1.000000 4096").unwrap();
        assert_eq!((&*answer.body, &*answer.status), ("{\n}", "200"));
        assert!((answer.seconds - 0.75).abs() < 1e-9 && (answer.bytes - 4096.0).abs() < 1e-9);
        assert!(Answer::of("no times").is_none());
    }

    #[test]
    fn metrics_are_summed_by_a_label() {
        let metrics = Metrics(
            "# TYPE a counter\na_total{result=\"stored\"} 2.0\na_total{result=\"refused\"} 3.0\nb_total 7.0\n"
                .to_owned(),
        );
        for (name, label, expected) in [
            ("a_total", "", 5.0),
            ("a_total", "\"refused\"", 3.0),
            ("b_total", "", 7.0),
            ("c_total", "", 0.0),
        ] {
            assert!((metrics.sum(name, label) - expected).abs() < 1e-9, "{name} {label}");
        }
    }
}
