//! The query of a request of the page: a time range and conditions on labels.

mod stack_edits;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::time::Duration;

use url::form_urlencoded;

use crate::event_type::EventType;
use crate::export::store::{Matcher, NAME_LABEL, ProfileRef, SeriesInfo, Store, TimeRange, UnixNanos};
use crate::profile::call_tree::{InvalidPathHash, StackFilter};
use crate::profile::jvm_activity::THREAD_KIND_LABEL;
use crate::profile::model::{LabelSet, NO_PROGRAM, program_name};

use stack_edits::{EditError, StackEdits};

const NANOS_PER_MILLI: i64 = 1_000_000;

/// Longest range of one request. Ranges cost by the profiles in them, for which there are limits of
/// their own; this one catches times in the wrong unit.
const MAX_RANGE: Duration = Duration::from_secs(400 * 24 * 3600);

/// Longest range of a request in which samples count by their own times: the page draws it by
/// seconds.
const MAX_TIMES_RANGE: Duration = Duration::from_secs(15 * 60);

/// Profiles before such a range that are looked at, since one may reach into it.
const LONGEST_PROFILE: Duration = Duration::from_secs(3_600);

/// The time within which a sample is counted after it was taken: it is in the next profile, then.
const LATEST_COUNTED: Duration = Duration::from_secs(10);

/// The sample type whose times are known.
const TIMED_TYPE: &str = "samples";

/// Conditions of one request: more than a person clicks together.
const MAX_CONDITIONS: usize = 64;

/// A request that says something impossible.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub(super) enum SelectionError {
    #[error("parameter {name} is missing: milliseconds since 1970, UTC")]
    Missing { name: &'static str },
    #[error("parameter {name} isn't a number of milliseconds since 1970: {value:?}")]
    NotATime { name: &'static str, value: String },
    #[error("the range ends before it starts")]
    Backwards,
    #[error("the range is longer than {} days", MAX_RANGE.as_secs() / 86_400)]
    TooLong,
    #[error("match={0:?} isn't label=value or label!=value")]
    NotACondition(String),
    #[error("type={0:?} isn't series:type, such as process_cpu:samples or memory:alloc_space")]
    NotAType(String),
    #[error("more than {MAX_CONDITIONS} conditions")]
    TooManyConditions,
    #[error("times={0:?} isn't 1 or known")]
    NotTimes(String),
    #[error("parameter times: the range is longer than {} minutes", MAX_TIMES_RANGE.as_secs() / 60)]
    TooLongForTimes,
    #[error("parameter times: the samples of a comparison aren't counted by their own times")]
    TimesOfBase,
    #[error("parameter times: times are known of samples of CPU time, not of {0:?}")]
    TimesOfType(String),
    #[error("part={0:?} isn't FROM-TO, milliseconds since the begin of the range and within it")]
    NotAPart(String),
    #[error("parameter part: only samples that count by their own times have parts (times=1)")]
    PartWithoutTimes,
    #[error("parameter under: {0}")]
    Path(#[from] InvalidPathHash),
    #[error(transparent)]
    Edit(#[from] EditError),
}

/// The query of a request.
#[derive(Debug)]
pub(super) struct Query {
    pub(super) selection: Selection,
    /// What stacks are grouped by.
    pub(super) group: Option<StackGrouping>,
    /// The sample type that is counted; `None`: samples, or a profile's first one.
    pub(super) sample_type: Option<String>,
    /// What the selection is compared with.
    pub(super) base: Option<Selection>,
    /// The stacks to which the answer is limited.
    pub(super) stacks: StackFilter,
    /// Groups in which the nodes are that these pass through, if that is known: no other series are
    /// read.
    pub(super) under_groups: BTreeSet<String>,
    /// Samples count by their own times, not by those of their profiles.
    pub(super) by_times: bool,
    /// Those whose times aren't known count by the begin of their profiles then; else they don't.
    pub(super) has_untimed: bool,
    /// The part of the range whose samples count; `None`: all of it.
    part: Option<TimeRange>,
}

/// The grouping of stacks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum StackGrouping {
    /// The values of a label of series.
    Label(String),
    /// The kind of the thread, which is a label of samples (`group=thread_kind`).
    ThreadKind,
    /// The main class or else the command, if there are several (`group=auto`).
    Program,
}

impl StackGrouping {
    /// Returns the group that series as a whole are in, if these are what is grouped.
    pub(super) fn of_series(&self) -> Option<&Self> {
        (*self != Self::ThreadKind).then_some(self)
    }

    /// Returns the group of each series by its fingerprint: the value of one label, or a text that
    /// says that there is none; or its program.
    pub(super) fn names<'a>(&self, series: &'a [SeriesInfo]) -> HashMap<&'a str, String> {
        let name = |series: &'a SeriesInfo| {
            let name = match self {
                Self::Label(label) => {
                    let value = series.labels.get(label).filter(|value| !value.is_empty());
                    value.cloned().unwrap_or_else(|| format!("(no {label})"))
                }
                Self::Program | Self::ThreadKind => {
                    program_name(&series.labels).unwrap_or(NO_PROGRAM).to_owned()
                }
            };
            (series.fingerprint.as_str(), name)
        };
        series.iter().map(name).collect()
    }
}

/// A time range, and conditions that all must be fulfilled: at most one of each label and sign.
#[derive(Clone, Debug)]
pub(super) struct Selection {
    pub(super) range: TimeRange,
    matchers: Vec<Matcher>,
}

impl Query {
    /// Parses
    /// `from=MS&to=MS&match=label=value&match=label!=value&group=label&type=series:type&under=HASH`;
    /// values of one label are alternatives, those of `under` too, and other parameters mean
    /// nothing. `under_group` names the groups that nodes of `under` are in; `edit` and `through`
    /// leave stacks out ([`StackEdits`]). `base_from`, `base_to` and `base_match` select what that
    /// is compared with. `times=1` counts samples by their own times as far as these are known,
    /// `times=known` leaves out the others; with `part=MS-MS`, since `from`, only those of a part
    /// of the range count, whose times are known.
    pub(super) fn parse(query: &str) -> Result<Self, SelectionError> {
        let (mut main, mut base) = (SelectionParts::default(), SelectionParts::default());
        let (mut group, mut under_groups, mut edits) = (None, BTreeSet::new(), StackEdits::default());
        let (mut conditions, mut sample_type) = (0, None);
        let (mut by_times, mut has_untimed, mut part) = (false, true, None);
        for (name, value) in form_urlencoded::parse(query.as_bytes()) {
            match &*name {
                "from" => main.from = Some(time("from", &value)?),
                "to" => main.to = Some(time("to", &value)?),
                "base_from" => base.from = Some(time("base_from", &value)?),
                "base_to" => base.to = Some(time("base_to", &value)?),
                "group" if value == "auto" => group = Some(StackGrouping::Program),
                "group" if value == THREAD_KIND_LABEL => group = Some(StackGrouping::ThreadKind),
                "group" if !value.is_empty() => group = Some(StackGrouping::Label(value.into_owned())),
                "type" if !value.is_empty() => {
                    let (series, of) =
                        value.split_once(':').ok_or_else(|| SelectionError::NotAType(value.to_string()))?;
                    main.matchers.push(Matcher::equal(NAME_LABEL, series));
                    base.matchers.push(Matcher::equal(NAME_LABEL, series));
                    sample_type = Some(of.to_owned());
                }
                "times" if ["1", "known"].contains(&&*value) => {
                    by_times = true;
                    has_untimed = value == "1";
                }
                "times" => return Err(SelectionError::NotTimes(value.into_owned())),
                "part" => part = Some(value.into_owned()),
                "under" => {
                    conditions += 1;
                    edits.filter.under.push(value.parse()?);
                }
                "under_group" => {
                    conditions += 1;
                    under_groups.insert(value.into_owned());
                }
                "edit" => edits.add_edit(&value)?,
                "through" => edits.add_through(&value)?,
                "match" => {
                    conditions += 1;
                    add_condition(&mut main.matchers, &value)?;
                }
                "base_match" => {
                    conditions += 1;
                    add_condition(&mut base.matchers, &value)?;
                }
                _ => {}
            }
        }
        if conditions > MAX_CONDITIONS {
            return Err(SelectionError::TooManyConditions);
        }
        let has_base = base.from.is_some() || base.to.is_some();
        let base = has_base.then(|| base.selection(["base_from", "base_to"])).transpose()?;
        let selection = main.selection(["from", "to"])?;
        let part = part.map(|text| part_of(selection.range, &text)).transpose()?;
        has_untimed &= part.is_none();
        let stacks = edits.filter;
        let query =
            Self { selection, base, group, sample_type, stacks, under_groups, by_times, has_untimed, part };
        query.check_times()?;
        Ok(query)
    }

    fn check_times(&self) -> Result<(), SelectionError> {
        if !self.by_times {
            return if self.part.is_none() { Ok(()) } else { Err(SelectionError::PartWithoutTimes) };
        }
        let TimeRange { start, end } = self.selection.range;
        if Duration::from_nanos(end.0.abs_diff(start.0)) > MAX_TIMES_RANGE {
            return Err(SelectionError::TooLongForTimes);
        }
        if self.base.is_some() {
            return Err(SelectionError::TimesOfBase);
        }
        match &self.sample_type {
            Some(name) if name != TIMED_TYPE => Err(SelectionError::TimesOfType(name.clone())),
            _ => Ok(()),
        }
    }

    /// Returns the time whose samples count.
    pub(super) fn counted_range(&self) -> TimeRange {
        self.part.unwrap_or(self.selection.range)
    }

    /// Returns true if the answer is of all samples of the selection.
    pub(super) fn is_whole(&self) -> bool {
        self.part.is_none() && self.stacks.takes_all()
    }

    /// Returns the selected profiles, oldest first, and their series: where samples count by their
    /// own times, all profiles that may have some of the range. Of a part the series are those of
    /// the whole range, so that stacks have the same groups.
    pub(super) fn selected(&self, store: &Store) -> (Vec<SeriesInfo>, Vec<ProfileRef>) {
        if !self.by_times {
            return (self.selection.series(store), self.selection.profiles(store));
        }
        let (series, mut profiles) = self.selection.profiles_in_range(store);
        profiles.retain(|profile| may_have_samples_of(profile, self.counted_range()));
        (series, profiles)
    }

    /// Selects CPU time, if the request names no kind of profiles: see
    /// [`Selection::select_default_type`].
    pub(super) fn select_default_type(&mut self, store: &Store) {
        self.selection.select_default_type(store, self.by_times);
        if let Some(base) = &mut self.base {
            base.select_default_type(store, self.by_times);
        }
    }
}

/// The parts of a selection that a request has given so far.
#[derive(Debug, Default)]
struct SelectionParts {
    from: Option<UnixNanos>,
    to: Option<UnixNanos>,
    matchers: Vec<Matcher>,
}

impl SelectionParts {
    /// Returns what these parameters select. `names`: those of the begin and the end, for errors.
    fn selection(self, names: [&'static str; 2]) -> Result<Selection, SelectionError> {
        let start = self.from.ok_or(SelectionError::Missing { name: names[0] })?;
        let end = self.to.ok_or(SelectionError::Missing { name: names[1] })?;
        if end < start {
            return Err(SelectionError::Backwards);
        }
        if Duration::from_nanos(end.0.abs_diff(start.0)) > MAX_RANGE {
            return Err(SelectionError::TooLong);
        }
        Ok(Selection { range: TimeRange { start, end }, matchers: self.matchers })
    }
}

/// Milliseconds since 1970.
pub(super) fn millis(time: UnixNanos) -> i64 {
    time.0.div_euclid(NANOS_PER_MILLI)
}

fn time(name: &'static str, value: &str) -> Result<UnixNanos, SelectionError> {
    let millis = value.parse::<i64>().ok();
    let nanos = millis.and_then(|millis| millis.checked_mul(NANOS_PER_MILLI));
    nanos.map(UnixNanos).ok_or_else(|| SelectionError::NotATime { name, value: value.to_owned() })
}

/// Returns the part of a range that `text` says, `1500-2500`: milliseconds since its begin.
fn part_of(range: TimeRange, text: &str) -> Result<TimeRange, SelectionError> {
    let at = |millis: &str| {
        let nanos = i64::try_from(millis.parse::<u64>().ok()?).ok()?.checked_mul(NANOS_PER_MILLI)?;
        range.start.0.checked_add(nanos).filter(|time| *time <= range.end.0).map(UnixNanos)
    };
    let bounds = text.split_once('-').and_then(|(from, to)| Some((at(from)?, at(to)?)));
    match bounds {
        Some((start, end)) if start < end => Ok(TimeRange { start, end }),
        _ => Err(SelectionError::NotAPart(text.to_owned())),
    }
}

/// Returns true if a profile may have samples that were taken in this time.
fn may_have_samples_of(profile: &ProfileRef, TimeRange { start, end }: TimeRange) -> bool {
    profile.start.plus(profile.duration) > start && profile.start < end.plus(LATEST_COUNTED)
}

fn add_condition(matchers: &mut Vec<Matcher>, text: &str) -> Result<(), SelectionError> {
    let not_a_condition = || SelectionError::NotACondition(text.to_owned());
    let (label, value) = text.split_once('=').ok_or_else(not_a_condition)?;
    let (label, is_negated) = match label.strip_suffix('!') {
        Some(label) => (label, true),
        None => (label, false),
    };
    if label.is_empty() {
        return Err(not_a_condition());
    }
    match matchers.iter_mut().find(|it| it.label == label && it.is_negated == is_negated) {
        Some(matcher) => _ = matcher.values.insert(value.to_owned()),
        None => matchers.push(Matcher { is_negated, ..Matcher::equal(label, value) }),
    }
    Ok(())
}

impl Selection {
    /// Selects CPU time, if the selected series are of several kinds and the request names none:
    /// their numbers have different units.
    fn select_default_type(&mut self, store: &Store, by_times: bool) {
        let cpu = EventType::Cpu.descriptor().series;
        if self.matchers.iter().any(|matcher| matcher.label == NAME_LABEL) {
            return;
        }
        let series = if by_times { self.profiles_in_range(store).0 } else { self.series(store) };
        let is_cpu = |info: &SeriesInfo| info.labels.get(NAME_LABEL).is_some_and(|name| name == cpu);
        if series.iter().any(is_cpu) && !series.iter().all(is_cpu) {
            self.matchers.push(Matcher::equal(NAME_LABEL, cpu));
        }
    }

    /// Returns the same conditions on the profiles of an event, whatever kind is selected, in this
    /// range.
    pub(super) fn of_event(&self, event: EventType, range: TimeRange) -> Self {
        let matchers = self.matchers.iter().filter(|matcher| matcher.label != NAME_LABEL).cloned();
        let of_event = Matcher::equal(NAME_LABEL, event.descriptor().series);
        Self { range, matchers: matchers.chain([of_event]).collect() }
    }

    /// Returns true if a series with these labels is selected, conditions on the label `except`
    /// aside.
    fn selects(&self, labels: &LabelSet, except: Option<&str>) -> bool {
        let matchers = self.matchers.iter().filter(|matcher| except != Some(matcher.label.as_str()));
        matchers.into_iter().all(|matcher| matcher.matches(labels))
    }

    /// Returns the selected series that have profiles in the range.
    pub(super) fn series(&self, store: &Store) -> Vec<SeriesInfo> {
        store.series(self.range, &self.matchers)
    }

    /// Returns the profiles of the selected series in the range, oldest first.
    pub(super) fn profiles(&self, store: &Store) -> Vec<ProfileRef> {
        store.profiles(self.range, &self.matchers)
    }

    /// Returns the profiles of the selected series that may have samples which were taken in the
    /// range, oldest first, and these series.
    fn profiles_in_range(&self, store: &Store) -> (Vec<SeriesInfo>, Vec<ProfileRef>) {
        let TimeRange { start, end } = self.range;
        let longest = i64::try_from(LONGEST_PROFILE.as_nanos()).unwrap_or(i64::MAX);
        let wide =
            TimeRange { start: UnixNanos(start.0.saturating_sub(longest)), end: end.plus(LATEST_COUNTED) };
        let mut profiles = store.profiles(wide, &self.matchers);
        profiles.retain(|profile| may_have_samples_of(profile, self.range));
        let found: HashSet<&str> = profiles.iter().map(|profile| &*profile.fingerprint).collect();
        let mut series = store.series(wide, &self.matchers);
        series.retain(|info| found.contains(&*info.fingerprint));
        (series, profiles)
    }

    /// Returns when the newest profile of the selected series ended, whatever the range.
    pub(super) fn newest(&self, store: &Store) -> Option<UnixNanos> {
        store.series(TimeRange::ALL, &self.matchers).iter().map(|series| series.last).max()
    }

    /// Returns the values of each label with their samples. Values of a label that has a condition
    /// are returned as if it had none, so that one can choose another.
    pub(super) fn label_values(&self, store: &Store) -> BTreeMap<String, BTreeMap<String, u64>> {
        let mut labels: BTreeMap<String, BTreeMap<String, u64>> = BTreeMap::new();
        for series in store.series(self.range, &[]) {
            for (label, value) in &series.labels {
                if self.selects(&series.labels, Some(label)) {
                    let values = labels.entry(label.clone()).or_default();
                    *values.entry(value.clone()).or_default() += series.samples;
                }
            }
        }
        labels
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(pairs: &[(&str, &str)]) -> LabelSet {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    fn selection(query: &str) -> Selection {
        Query::parse(query).unwrap().selection
    }

    #[test]
    fn values_of_one_label_are_alternatives_and_labels_must_all_agree() {
        let chosen = selection("from=0&to=1&match=comm=java&match=comm=go&match=node%3Da%3Db&match=pid!=7");
        assert!(chosen.selects(&labels(&[("comm", "java"), ("node", "a=b")]), None));
        assert!(chosen.selects(&labels(&[("comm", "go"), ("node", "a=b"), ("pid", "8")]), None));
        assert!(!chosen.selects(&labels(&[("comm", "go"), ("node", "a=b"), ("pid", "7")]), None));
        assert!(!chosen.selects(&labels(&[("comm", "c"), ("node", "a=b")]), None));
        assert!(!chosen.selects(&labels(&[("comm", "go")]), None));
        assert!(chosen.selects(&labels(&[("comm", "c"), ("node", "a=b")]), Some("comm")));
    }

    #[test]
    fn a_missing_label_has_the_empty_value() {
        assert!(selection("from=0&to=1&match=pod=").selects(&labels(&[("comm", "java")]), None));
        assert!(!selection("from=0&to=1&match=pod!=").selects(&labels(&[("comm", "java")]), None));
    }

    #[test]
    fn impossible_requests_are_refused_with_the_reason() {
        let error = |query: &str| Query::parse(query).unwrap_err();
        assert_eq!(error("to=1"), SelectionError::Missing { name: "from" });
        assert_eq!(error("from=x&to=1"), SelectionError::NotATime { name: "from", value: "x".to_owned() });
        assert!(matches!(error("from=0&to=9223372036854775807"), SelectionError::NotATime { .. }));
        assert_eq!(error("from=2&to=1"), SelectionError::Backwards);
        assert_eq!(error("from=0&to=1700000000000"), SelectionError::TooLong);
        assert_eq!(error("from=0&to=1&match=java"), SelectionError::NotACondition("java".to_owned()));
        assert_eq!(error("from=0&to=1&match=!=java"), SelectionError::NotACondition("!=java".to_owned()));
        assert_eq!(
            error(&format!("from=0&to=1{}", "&match=a=b".repeat(65))),
            SelectionError::TooManyConditions
        );
        assert!(matches!(error("from=0&to=1&under=main"), SelectionError::Path(_)));
        assert_eq!(error("from=0&to=1&base_from=0"), SelectionError::Missing { name: "base_to" });
        assert_eq!(error("from=0&to=1&base_from=2&base_to=1"), SelectionError::Backwards);
        assert_eq!(error("from=0&to=1&times=yes"), SelectionError::NotTimes("yes".to_owned()));
        assert_eq!(error("from=0&to=900001&times=1"), SelectionError::TooLongForTimes);
        assert_eq!(error("from=0&to=1&times=1&base_from=0&base_to=1"), SelectionError::TimesOfBase);
        let of_bytes = error("from=0&to=1&times=1&type=memory:alloc_space");
        assert_eq!(of_bytes, SelectionError::TimesOfType("alloc_space".to_owned()));
        assert_eq!(error("from=0&to=9&part=1-2"), SelectionError::PartWithoutTimes);
        for part in ["", "1", "2-1", "2-2", "1-", "-1-2", "x-2", "5-10", "1-9223372036854775807"] {
            let wrong = error(&format!("from=0&to=9&times=1&part={part}"));
            assert_eq!(wrong, SelectionError::NotAPart(part.to_owned()));
        }
    }

    #[test]
    fn a_part_is_counted_from_the_begin_of_the_range() {
        let query = Query::parse("from=1000&to=9000&times=1&part=1500-2500").unwrap();
        let nanos = |millis: i64| UnixNanos(millis * NANOS_PER_MILLI);
        assert_eq!(query.counted_range(), TimeRange { start: nanos(2_500), end: nanos(3_500) });
        assert!(!query.has_untimed, "samples without a time are in no part");
        assert_eq!(query.selection.range, TimeRange { start: nanos(1_000), end: nanos(9_000) });
    }
}
