//! A fleet of daemons and one server, on virtual time: the delays and the windows are the daemon's
//! own, with fixed random numbers, the server and the network are a model. `docs/scale.md` and
//! `docs/measurements/sinks.md` have the results.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use backon::{BackoffBuilder as _, ExponentialBackoff};
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};

use crate::export::delivery::options::DeliveryOptions;
use crate::export::delivery::server_state::backoff_builder;
use crate::window_length::{first_window_length_by, window_length_by};

const SEED: u64 = 1;
const WINDOW: Duration = Duration::from_secs(10);
/// A host sends its spool at 2 MiB a second, in requests of some 10 KiB.
const BETWEEN_SPOOLED: Duration = Duration::from_millis(5);

/// Daemons that are alike.
struct Fleet {
    hosts: usize,
    /// Of each window.
    requests: u64,
    /// The most that a host has under way.
    concurrency: usize,
    answer_time: Duration,
}

/// What Parca and receivers of OTLP get.
const ONE_REQUEST: Fleet = Fleet { hosts: 10_000, requests: 1, concurrency: 1, answer_time: Duration::ZERO };
/// What Pyroscope gets of ten JVMs on each host: one for each series.
const MANY_REQUESTS: Fleet =
    Fleet { hosts: 500, requests: 21, concurrency: 16, answer_time: Duration::from_millis(400) };

impl Fleet {
    /// Requests a second that all windows are.
    const fn needed(&self) -> u64 {
        self.hosts as u64 * self.requests / WINDOW.as_secs()
    }
}

/// Answers nobody before `down` has passed, and takes `capacity` requests a second then.
struct Server {
    capacity: u64,
    down: Duration,
}

/// A daemon: what it has to send, and if it believes that the server takes it.
struct Host {
    /// Requests that aren't under way.
    waiting: u64,
    /// Since the last failure.
    under_way: usize,
    /// The most that may be under way now.
    limit: usize,
    /// Number of failures.
    epoch: u64,
    backoff: ExponentialBackoff,
    /// True after a failure, until an empty request is answered.
    is_away: bool,
    /// The last thing was an answer to an empty request.
    probe_answered: bool,
    /// A [`Step::Send`] is to come.
    is_scheduled: bool,
    /// The spool may be sent from then on.
    next_spooled: Duration,
}

impl Host {
    fn new(backoff: ExponentialBackoff) -> Self {
        Self {
            waiting: 0,
            under_way: 0,
            limit: 1,
            epoch: 0,
            backoff,
            is_away: false,
            probe_answered: false,
            is_scheduled: false,
            next_spooled: Duration::ZERO,
        }
    }

    fn may_send(&self) -> bool {
        !self.is_away && self.waiting > 0 && self.under_way < self.limit
    }

    /// A request since the last failure was stored.
    fn note_delivered(&mut self, concurrency: usize, backoff: ExponentialBackoff) {
        self.under_way -= 1;
        self.limit = (self.limit + 1).min(concurrency);
        self.backoff = backoff;
    }

    /// Returns when to ask whether the server is back.
    fn note_failure(&mut self) -> Option<Duration> {
        self.epoch += 1;
        (self.is_away, self.under_way, self.limit) = (true, 0, 1);
        self.backoff.next()
    }
}

/// The next thing that happens to a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Step {
    /// A window ends: its requests wait.
    Window,
    /// It sends a request, or asks by an empty one whether the server is back.
    Send,
    /// A request was stored that began after so many failures.
    Stored { epoch: u64 },
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

/// Gives the length of a window for an interval.
type WindowLength = fn(&mut StdRng, Duration) -> Duration;

/// Simulates hosts which all begin at once, for so long.
fn simulate(fleet: &Fleet, first_window: WindowLength, server: &Server, end: Duration) -> Outcome {
    let options = DeliveryOptions::default();
    let mut rng = StdRng::seed_from_u64(SEED);
    let delays = |rng: &mut StdRng| backoff_builder(&options).with_jitter_seed(rng.random()).build();
    let mut hosts: Vec<Host> = (0..fleet.hosts).map(|_| Host::new(delays(&mut rng))).collect();
    let mut steps: BinaryHeap<_> =
        (0..fleet.hosts).map(|at| Reverse((first_window(&mut rng, WINDOW), at, Step::Window))).collect();
    let (mut outcome, mut second, mut taken, mut seen) = (Outcome::default(), 0, 0, 0);
    let mut behind = 0_usize;
    while let Some(Reverse((now, at, step))) = steps.pop().filter(|Reverse((now, ..))| *now < end) {
        if now.as_secs() != second {
            (second, taken, seen) = (now.as_secs(), 0, 0);
        }
        let host = &mut hosts[at];
        let was_behind = host.waiting > fleet.requests;
        let mut delay = None;
        match step {
            Step::Window => {
                host.waiting += fleet.requests;
                steps.push(Reverse((now + window_length_by(&mut rng, WINDOW), at, Step::Window)));
                delay = host.may_send().then_some(Duration::ZERO);
            }
            Step::Stored { epoch } => {
                outcome.delivered += 1;
                if epoch == host.epoch {
                    host.note_delivered(fleet.concurrency, delays(&mut rng));
                    delay = host.may_send().then(|| host.next_spooled.saturating_sub(now));
                }
            }
            Step::Send => {
                host.is_scheduled = false;
                let is_probe = host.is_away;
                if is_probe || host.may_send() {
                    let answers = now >= server.down;
                    seen += u64::from(answers);
                    outcome.peak = outcome.peak.max(seen);
                    let is_taken = answers && taken < server.capacity;
                    taken += u64::from(is_taken);
                    outcome.refused += u64::from(answers && !is_taken);
                    // As `ServerState`: what fails right after an answer is the request's fault.
                    let is_after_probe = !is_probe && std::mem::take(&mut host.probe_answered);
                    delay = match (is_taken, is_probe) {
                        (true, true) => {
                            (host.is_away, host.probe_answered) = (false, true);
                            Some(BETWEEN_SPOOLED)
                        }
                        (true, false) => {
                            host.waiting -= 1;
                            host.under_way += 1;
                            host.next_spooled = now + BETWEEN_SPOOLED;
                            let stored = Step::Stored { epoch: host.epoch };
                            steps.push(Reverse((now + fleet.answer_time, at, stored)));
                            host.may_send().then_some(BETWEEN_SPOOLED)
                        }
                        (false, false) if is_after_probe => {
                            Some(if host.waiting > 1 { BETWEEN_SPOOLED } else { options.max_delay })
                        }
                        (false, false) => host.note_failure(),
                        (false, true) => host.backoff.next(),
                    };
                }
            }
        }
        if let Some(delay) = delay.filter(|_| !host.is_scheduled) {
            host.is_scheduled = true;
            steps.push(Reverse((now + delay, at, Step::Send)));
        }
        behind = behind + usize::from(host.waiting > fleet.requests) - usize::from(was_behind);
        let is_caught_up = now > server.down + WINDOW.mul_f64(1.5) && behind * 100 <= fleet.hosts;
        if outcome.caught_up.is_none() && is_caught_up {
            outcome.caught_up = Some((now - server.down).as_secs());
        }
    }
    outcome
}

/// Checks a number against that which stands behind these words in the documentation: within a
/// tenth.
fn assert_documented(found: u64, words: &str) {
    let text = include_str!("../../../../../docs/scale.md").split_whitespace().collect::<Vec<_>>().join(" ");
    let (_, rest) = text.split_once(words).unwrap_or_else(|| panic!("not documented: {words}"));
    let number = rest.chars().take_while(|c| c.is_ascii_digit() || *c == ',');
    let number: String = number.filter(char::is_ascii_digit).collect();
    let documented: u64 = number.parse().unwrap_or_else(|_| panic!("no number behind: {words}"));
    assert!(found.abs_diff(documented) * 10 <= documented, "{words}{documented}, not {found}");
}

#[test]
fn ten_thousand_daemons_that_start_at_once_are_served_by_a_server_for_their_mean() {
    let minutes = Duration::from_mins(5);
    let (fleet, needed) = (&ONE_REQUEST, ONE_REQUEST.needed());
    let server = Server { capacity: needed * 5 / 4, down: Duration::ZERO };
    let outcome = simulate(fleet, first_window_length_by, &server, minutes);
    // The requests of a second are at least six standard deviations below that.
    assert!(outcome.peak < server.capacity, "{outcome:?}");
    assert_eq!(outcome.refused, 0, "{outcome:?}");
    assert_documented(outcome.peak, "They begin at once**: ");
    // But for those whose last window is open when the time is over.
    let windows = needed * minutes.as_secs();
    assert!(outcome.delivered * 100 > windows * 99, "{outcome:?}");

    // What it would be if the first window were as long as the others.
    let in_step = simulate(fleet, window_length_by, &server, minutes);
    println!("spread: {outcome:?}\nin step: {in_step:?}");
    assert!(in_step.peak > 2 * server.capacity, "the model sees no stampede: {in_step:?}");
    assert_documented(in_step.peak, "as long as the others, it would be ");
    assert_documented(in_step.refused, "in the busiest second, in five minutes ");
}

#[test]
fn a_server_that_was_away_is_not_run_over_by_ten_thousand_daemons_with_full_spools() {
    let needed = ONE_REQUEST.needed();
    let server = Server { capacity: needed * 2, down: Duration::from_mins(10) };
    let outcome = simulate(&ONE_REQUEST, first_window_length_by, &server, Duration::from_mins(30));
    println!("{outcome:?}");
    // What it can't take is asked for again after half a minute, not at once.
    assert!(outcome.peak < 8 * needed, "{outcome:?}");
    assert_documented(outcome.peak, "takes 2,000 a second, the busiest second has ");
    // 600 seconds' windows beside fresh ones.
    assert!(outcome.caught_up.is_some_and(|seconds| (500..1500).contains(&seconds)), "{outcome:?}");
    assert_documented(outcome.caught_up.unwrap_or_default(), "waits in spools, and after ");
}

#[test]
fn daemons_with_many_requests_a_window_that_start_at_once_are_served_by_a_server_for_twice_their_mean() {
    let minutes = Duration::from_mins(5);
    let (fleet, needed) = (&MANY_REQUESTS, MANY_REQUESTS.needed());
    let server = Server { capacity: needed * 2, down: Duration::ZERO };
    let outcome = simulate(fleet, first_window_length_by, &server, minutes);
    println!("{outcome:?}");
    assert_eq!(outcome.refused, 0, "{outcome:?}");
    assert_documented(needed, "with Pyroscope's requests make ");
    assert_documented(outcome.peak, "on average: when they begin at once, ");
    let requests = needed * minutes.as_secs();
    assert!(outcome.delivered * 100 > requests * 99, "{outcome:?}");
}

#[test]
fn a_server_that_was_away_gets_the_spools_of_many_requests_a_window_if_several_are_under_way() {
    let needed = MANY_REQUESTS.needed();
    let server = Server { capacity: needed * 2, down: Duration::from_mins(10) };
    let end = Duration::from_mins(30);
    let outcome = simulate(&MANY_REQUESTS, first_window_length_by, &server, end);
    assert_documented(outcome.peak, "takes 2,100 of them a second, the busiest second has ");
    assert_documented(outcome.caught_up.unwrap_or_default(), "their spools are empty after ");

    // Each answer takes its time: one after the other they are no more than what comes in.
    let one_at_a_time = Fleet { concurrency: 1, ..MANY_REQUESTS };
    let slow = simulate(&one_at_a_time, first_window_length_by, &server, end);
    println!("16 at once: {outcome:?}\none at a time: {slow:?}");
    assert_eq!(slow.caught_up, None, "{slow:?}");
}
