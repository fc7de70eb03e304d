//! The whole account of the daemons' ledgers and the backend's profiles, of each event by itself.

use super::events::{EVENTS, SampledEvent};
use super::ledger::{Counts, LedgerEntry, SamplesByEvent};
use super::stored::{StoredProfiles, StoredSamples};

/// A daemon from its start to its end.
#[derive(Clone, Debug)]
pub(super) struct DaemonRun {
    /// By the kernel program's counters.
    pub(super) taken: SamplesByEvent,
    /// By its ledger.
    pub(super) recorded: LedgerEntry,
    pub(super) killed: bool,
}

/// The whole account.
#[derive(Debug)]
pub(super) struct Accounting<'a> {
    pub(super) runs: &'a [DaemonRun],
    pub(super) stored: &'a StoredProfiles,
}

/// The numbers of one event.
#[derive(Debug)]
struct EventAccount {
    event: &'static str,
    taken: u64,
    /// Taken after the last note of a daemon that was killed.
    unrecorded: u64,
    lost_before: u64,
    handed_over: u64,
    delivered: u64,
    delivered_late: u64,
    /// By reason.
    losses: Vec<(String, u64)>,
    spooled: u64,
    waiting: u64,
    stored: StoredSamples,
}

impl Accounting<'_> {
    fn total(&self) -> Counts {
        self.runs.last().map(|run| run.recorded.total()).unwrap_or_default()
    }

    /// Prints it, and says what doesn't add up.
    pub(super) fn discrepancies(&self) -> Vec<String> {
        let mut wrong = Vec::new();
        let accounts: Vec<_> = EVENTS.iter().map(|event| self.of(event)).collect();
        for account in &accounts {
            account.print(self.runs.len());
            wrong.extend(account.discrepancies());
            wrong.extend(self.discrepancies_of_runs(account.event));
        }
        println!();
        accounts.iter().for_each(EventAccount::print_sum);
        wrong
    }

    fn of(&self, event: &SampledEvent) -> EventAccount {
        let (total, name) = (self.total(), event.name);
        let sum = |of: &dyn Fn(&DaemonRun) -> u64| self.runs.iter().map(of).sum::<u64>();
        let losses = total.losses.iter().map(|(reason, samples)| (reason.clone(), samples.of(name)));
        EventAccount {
            event: name,
            taken: sum(&|run| run.taken.of(name)),
            unrecorded: sum(&|run| run.taken.of(name).saturating_sub(run.recorded.taken.of(name))),
            lost_before: sum(&|run| run.recorded.lost_before.of(name)),
            handed_over: total.handed_over.of(name),
            delivered: total.delivered.of(name),
            delivered_late: total.delivered_late.of(name),
            losses: losses.filter(|(_, samples)| *samples > 0).collect(),
            spooled: total.spooled.of(name),
            waiting: total.waiting.of(name),
            stored: self.stored.of(event),
        }
    }

    /// Returns what daemons that ended in good order didn't record.
    fn discrepancies_of_runs(&self, event: &str) -> impl Iterator<Item = String> {
        self.runs.iter().filter(|run| !run.killed).filter_map(move |run| {
            let (taken, recorded) = (run.taken.of(event), &run.recorded);
            let handed_over = recorded.handed_over_before.of(event) + recorded.run.handed_over.of(event);
            let (noted, lost_before) = (recorded.taken.of(event), recorded.lost_before.of(event));
            let holds = taken == noted && taken == lost_before + handed_over;
            (!holds).then(|| {
                format!(
                    "{event}: a daemon that ended in good order took {taken}, recorded {noted} and handed over {handed_over}"
                )
            })
        })
    }
}

impl EventAccount {
    fn lost(&self) -> u64 {
        self.losses.iter().map(|(_, samples)| samples).sum()
    }

    fn possibly_lost(&self) -> u64 {
        self.losses.iter().filter(|(reason, _)| reason == "possibly_lost").map(|(_, samples)| samples).sum()
    }

    fn print(&self, runs: usize) {
        let Self { event, taken, stored, delivered_late, lost_before, unrecorded, .. } = self;
        println!("\n{taken:>9} samples of {event} were taken, in {runs} runs of the daemon");
        let StoredSamples { samples, profiles, .. } = stored;
        println!(
            "{samples:>9} are in the backend, in {profiles} profiles; {delivered_late} of them came out of the spool"
        );
        println!("{lost_before:>9} were lost before they could be handed over, and counted");
        for (reason, samples) in &self.losses {
            println!("{samples:>9} counted as {reason}");
        }
        println!(
            "{unrecorded:>9} were taken after the last note of a killed daemon: only the kernel knows of them"
        );
    }

    fn print_sum(&self) {
        let (stored, possibly) = (self.stored.samples, self.possibly_lost());
        println!(
            "{}: {} = {stored} stored + {} lost + {} possibly lost and not stored",
            self.event,
            self.taken,
            self.lost() - possibly + self.lost_before + self.unrecorded,
            (self.delivered + possibly).saturating_sub(stored)
        );
    }

    fn discrepancies(&self) -> Vec<String> {
        let Self { event, taken, unrecorded, lost_before, handed_over, delivered, spooled, waiting, .. } =
            self;
        let (lost, possibly) = (self.lost(), self.possibly_lost());
        let StoredSamples { samples: stored, duplicates, .. } = self.stored;
        let mut wrong = Vec::new();
        let mut check = |holds: bool, what: String| {
            if !holds {
                wrong.push(format!("{event}: {what}"));
            }
        };
        check(*taken > 0, "no sample was taken: the soak has not tested it".to_owned());
        check(
            *handed_over == delivered + lost + spooled + waiting,
            format!(
                "{handed_over} handed over are not {delivered} delivered, {lost} lost, {spooled} spooled and {waiting} waiting"
            ),
        );
        check(
            spooled + waiting == 0,
            format!("{spooled} samples are still in the spool, {waiting} in memory"),
        );
        check(
            *taken == handed_over + lost_before + unrecorded,
            format!(
                "{taken} taken are not {handed_over} handed over, {lost_before} lost before and {unrecorded} not recorded"
            ),
        );
        check(
            (*delivered..=delivered + possibly).contains(&stored),
            format!("{stored} samples in the backend, {delivered} delivered and {possibly} possibly lost"),
        );
        check(duplicates == 0, format!("{duplicates} profiles are there twice"));
        wrong
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    /// The same number of samples of each event.
    fn each(samples: u64) -> SamplesByEvent {
        EVENTS.iter().map(|event| (event.name, samples)).collect()
    }

    fn run(taken: u64, recorded: u64, handed_over: u64, delivered: u64, killed: bool) -> DaemonRun {
        let losses = BTreeMap::from([("refused".to_owned(), each(handed_over - delivered))]);
        let counts = Counts {
            handed_over: each(handed_over),
            delivered: each(delivered),
            losses,
            ..Counts::default()
        };
        let recorded = LedgerEntry {
            run: counts,
            taken: each(recorded),
            lost_before: each(recorded - handed_over),
            ..LedgerEntry::default()
        };
        DaemonRun { taken: each(taken), recorded, killed }
    }

    fn stored(samples: u64, duplicates: u64) -> StoredProfiles {
        let of_each = StoredSamples { profiles: 1, samples, duplicates };
        let events = EVENTS.iter().map(|event| (event.name, of_each)).collect();
        StoredProfiles { events, ..StoredProfiles::default() }
    }

    #[test]
    fn an_account_that_adds_up_is_told_from_one_that_does_not() {
        let discrepancies = |run: DaemonRun, samples, duplicates| {
            let wrong = Accounting { runs: &[run], stored: &stored(samples, duplicates) }.discrepancies();
            let of_cpu = wrong.iter().filter(|what| what.starts_with("cpu: ")).count();
            assert_eq!(of_cpu * EVENTS.len(), wrong.len(), "each event is checked: {wrong:?}");
            of_cpu
        };
        assert_eq!(discrepancies(run(100, 100, 90, 80, false), 80, 0), 0);
        assert_eq!(
            discrepancies(run(100, 100, 90, 80, false), 81, 0),
            1,
            "more is stored than was delivered"
        );
        assert_eq!(discrepancies(run(100, 100, 90, 80, false), 80, 1), 1, "something is there twice");
        assert_eq!(discrepancies(run(101, 100, 90, 80, false), 80, 0), 1, "one sample is missing");
        assert_eq!(discrepancies(run(101, 100, 90, 80, true), 80, 0), 0, "as it may be if it was killed");
        let mut reopened = run(100, 100, 90, 80, false);
        reopened.recorded.lost_before = each(5);
        assert_eq!(discrepancies(reopened.clone(), 80, 0), 2, "5 samples are missing");
        // They were handed over to the sink before.
        let earlier = Counts { handed_over: each(5), delivered: each(5), ..Counts::default() };
        (reopened.recorded.handed_over_before, reopened.recorded.earlier) = (each(5), earlier);
        assert_eq!(discrepancies(reopened, 85, 0), 0);
    }

    #[test]
    fn what_one_event_has_too_much_makes_up_for_nothing_that_another_lacks() {
        let mut stored = stored(80, 0);
        for (event, samples) in [("cpu", 79), ("allocation", 81)] {
            stored.events.entry(event).or_default().samples = samples;
        }
        let wrong = Accounting { runs: &[run(100, 100, 90, 80, false)], stored: &stored }.discrepancies();
        assert_eq!(wrong.len(), 2, "{wrong:?}");
        assert!(wrong[0].starts_with("cpu: 79 samples") && wrong[1].starts_with("allocation: 81 samples"));
    }
}
