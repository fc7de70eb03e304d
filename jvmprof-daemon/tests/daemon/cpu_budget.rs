//! A budget of CPU time, which a daemon keeps by sampling less often. It measures itself for half a
//! minute: of this binary's tests it begins among the first.

use crate::telemetry::{CURRENT, Daemon, profiles_tell_both_frequencies};

#[test]
fn a_budget_lowers_the_frequency_and_profiles_say_so() {
    let daemon = Daemon::start(&[], &["--max-cpu", "0.01"], &[]);
    daemon.until_ready();
    daemon.until("slower", |daemon| daemon.metrics()[CURRENT] < 99.0);
    profiles_tell_both_frequencies(daemon);
}
