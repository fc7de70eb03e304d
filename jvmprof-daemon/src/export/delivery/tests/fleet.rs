//! A fleet of daemons and one server, on virtual time: the delays and the windows are the daemon's
//! own, the server and the network are a model. `docs/measurements/sinks.md` has the results.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use backon::ExponentialBackoff;

use crate::export::delivery::options::DeliveryOptions;
use crate::export::delivery::server_state::backoff;
use crate::window_length::{first_window_length, window_length};

/// A daemon: what it has to send, and if it believes that the server takes it.
struct Host {
    waiting: u64,
    backoff: ExponentialBackoff,
    /// True after a failure, until an empty request is answered.
    is_away: bool,
    /// The last thing was an answer to an empty request.
    probe_answered: bool,
}

/// The next thing that a host does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Step {
    /// A window ends: a request more waits.
    Window,
    /// It sends a request, or asks by an empty one whether the server is back.
    Send,
}

/// The requests that the server has seen.
#[derive(Debug, Default)]
struct Outcome {
    /// Most requests in a second, empty ones among them, while it answered.
    peak: u64,
    refused: u64,
    delivered: u64,
    /// When no host had anything to send but its last window, in seconds since the server answers.
    caught_up: Option<u64>,
}

const WINDOW: Duration = Duration::from_secs(10);
/// A host sends its spool at 2 MiB a second, in requests of some 10 KiB.
const BETWEEN_SPOOLED: Duration = Duration::from_millis(5);

/// Gives the length of a window for an interval.
type WindowLength = fn(Duration) -> Duration;

/// Simulates so many hosts, which all begin at once, for so long. The server answers nobody before
/// `down` has passed, and takes `capacity` requests a second then.
fn simulate(
    hosts: usize,
    first_window: WindowLength,
    capacity: u64,
    down: Duration,
    end: Duration,
) -> Outcome {
    let options = DeliveryOptions::default();
    let host = |_| Host { waiting: 0, backoff: backoff(&options), is_away: false, probe_answered: false };
    let mut fleet: Vec<Host> = (0..hosts).map(host).collect();
    let mut steps: BinaryHeap<_> =
        (0..hosts).map(|host| Reverse((first_window(WINDOW), host, Step::Window))).collect();
    let (mut outcome, mut second, mut taken, mut seen) = (Outcome::default(), 0, 0, 0);
    let mut behind = 0_usize;
    while let Some(Reverse((now, at, step))) = steps.pop().filter(|Reverse((now, ..))| *now < end) {
        if now.as_secs() != second {
            (second, taken, seen) = (now.as_secs(), 0, 0);
        }
        let host = &mut fleet[at];
        let was_behind = host.waiting > 1;
        match step {
            Step::Window => {
                host.waiting += 1;
                steps.push(Reverse((now + window_length(WINDOW), at, Step::Window)));
                if host.waiting == 1 && !host.is_away {
                    steps.push(Reverse((now, at, Step::Send)));
                }
            }
            Step::Send => {
                let answers = now >= down;
                seen += u64::from(answers);
                outcome.peak = outcome.peak.max(seen);
                let is_taken = answers && taken < capacity;
                taken += u64::from(is_taken);
                outcome.refused += u64::from(answers && !is_taken);
                let is_probe = host.is_away;
                // As `Sender::attempt`: what fails right after an answer is the request's fault.
                let is_request_failure = !is_taken && std::mem::take(&mut host.probe_answered);
                let delay = match (is_taken, is_probe) {
                    (true, true) => {
                        (host.is_away, host.probe_answered) = (false, true);
                        Some(BETWEEN_SPOOLED)
                    }
                    (true, false) => {
                        host.waiting -= 1;
                        host.backoff = backoff(&options);
                        outcome.delivered += 1;
                        (host.waiting > 0).then_some(BETWEEN_SPOOLED)
                    }
                    (false, false) if is_request_failure => {
                        Some(if host.waiting > 1 { BETWEEN_SPOOLED } else { options.max_delay })
                    }
                    (false, _) => {
                        host.is_away = true;
                        host.backoff.next()
                    }
                };
                steps.extend(delay.map(|delay| Reverse((now + delay, at, Step::Send))));
            }
        }
        behind = behind + usize::from(host.waiting > 1) - usize::from(was_behind);
        let is_caught_up = now > down + WINDOW.mul_f64(1.5) && behind * 100 <= hosts;
        if outcome.caught_up.is_none() && is_caught_up {
            outcome.caught_up = Some((now - down).as_secs());
        }
    }
    outcome
}

const HOSTS: usize = 10_000;
/// Requests a second that all windows are.
const NEEDED: u64 = HOSTS as u64 / WINDOW.as_secs();

#[test]
fn ten_thousand_daemons_that_start_at_once_are_served_by_a_server_for_their_mean() {
    let minutes = Duration::from_mins(5);
    let capacity = NEEDED * 5 / 4;
    let outcome = simulate(HOSTS, first_window_length, capacity, Duration::ZERO, minutes);
    // The requests of a second are at least six standard deviations below that.
    assert!(outcome.peak < capacity, "{outcome:?}");
    assert_eq!(outcome.refused, 0, "{outcome:?}");
    // But for those whose last window is open when the time is over.
    let windows = NEEDED * minutes.as_secs();
    assert!(outcome.delivered * 100 > windows * 99, "{outcome:?}");

    // What it would be if the first window were as long as the others.
    let in_step = simulate(HOSTS, window_length, capacity, Duration::ZERO, minutes);
    println!("spread: {outcome:?}\nin step: {in_step:?}");
    assert!(in_step.peak > 2 * capacity && in_step.refused > 0, "the model sees no stampede: {in_step:?}");
}

#[test]
fn a_server_that_was_away_is_not_run_over_by_ten_thousand_daemons_with_full_spools() {
    let down = Duration::from_mins(10);
    let outcome = simulate(HOSTS, first_window_length, NEEDED * 2, down, Duration::from_mins(30));
    println!("{outcome:?}");
    // What it can't take is asked for again after half a minute, not at once.
    assert!(outcome.peak < 8 * NEEDED, "{outcome:?}");
    // 600 seconds' windows beside fresh ones.
    assert!(outcome.caught_up.is_some_and(|seconds| (500..1500).contains(&seconds)), "{outcome:?}");
}
