//! Times of the samples of a profile of CPU time: a comment, which readers of pprof pass over.
//!
//! A label with a time would make each event a sample of its own. The comment is a prefix and, in
//! base64, numbers in LEB128: how many milliseconds before the profile's start the times are
//! counted from, then for each sample, in the profile's order, how many of its events have a known
//! time, and these times, oldest first, each as the milliseconds since the one before it.

use std::ops::Range;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use prost::encoding::{decode_varint, encode_varint};

use crate::profile::model;
use crate::proto::pprof::{Profile, Sample};

/// The begin of the comment.
const PREFIX: &str = "jvmprof sample times: ";

const NANOS_PER_MILLI: i64 = 1_000_000;

/// The reason why the times of a profile's samples make no sense.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum InvalidSampleTimes {
    #[error("the times of samples aren't base64: {0}")]
    Base64(#[from] base64::DecodeError),
    #[error("the times of samples are cut short, or more than there are samples")]
    Length,
    #[error("sample {position} has {times} times for {events} events")]
    Events { position: usize, times: usize, events: i64 },
    #[error("sample {position} has {values} values: times are of samples that are counted alone")]
    Values { position: usize, values: usize },
}

/// Times of those samples of a profile that lie in a time range.
#[derive(Debug, Default)]
pub struct TimesInRange {
    /// By sample: the end of its part of `times`. None where no times are known.
    ends: Vec<usize>,
    /// Milliseconds since the range's start.
    times: Vec<u32>,
}

impl TimesInRange {
    /// Returns the known times of a sample's events, in milliseconds since the range's start.
    pub fn of(&self, sample: usize) -> &[u32] {
        self.ends.get(sample).map_or(&[], |end| &self.times[begin(&self.ends, sample)..*end])
    }

    /// Returns the number of times.
    pub fn len(&self) -> usize {
        self.times.len()
    }

    /// Returns true if there is none.
    pub fn is_empty(&self) -> bool {
        self.times.is_empty()
    }
}

fn begin(ends: &[usize], sample: usize) -> usize {
    sample.checked_sub(1).and_then(|before| ends.get(before)).copied().unwrap_or(0)
}

/// Returns the comment for samples, in the order in which they are in their profile; `None` if no
/// time is known.
pub(super) fn comment(samples: &[model::Sample]) -> Option<String> {
    let first = *samples.iter().flat_map(|sample| &sample.times).min()?;
    let origin = first.min(0);
    let mut bytes = Vec::new();
    encode_varint(u64::from(origin.unsigned_abs()), &mut bytes);
    let mut times = Vec::new();
    for sample in samples {
        encode_varint(sample.times.len() as u64, &mut bytes);
        times.clear();
        times.extend_from_slice(&sample.times);
        times.sort_unstable();
        let mut before = origin;
        for &time in &times {
            encode_varint(u64::from(time.abs_diff(before)), &mut bytes);
            before = time;
        }
    }
    Some(format!("{PREFIX}{}", STANDARD.encode(bytes)))
}

/// Keeps the events of a profile of CPU time that were taken in a time range, in nanoseconds since
/// 1970, and returns when they were. Events whose times aren't known stay if `has_untimed`. Samples
/// of which no event stays are removed.
///
/// # Errors
/// What is wrong with the times; the profile is as it was.
pub fn keep_within(
    profile: &mut Profile,
    range: &Range<i64>,
    has_untimed: bool,
) -> Result<TimesInRange, InvalidSampleTimes> {
    let Some(known) = KnownTimes::read(profile)? else {
        if !has_untimed {
            profile.sample.clear();
        }
        return Ok(TimesInRange::default());
    };
    let start = profile.time_nanos;
    let mut in_range = TimesInRange::default();
    let mut position = 0;
    profile.sample.retain_mut(|sample| {
        let times = known.of(position);
        position += 1;
        let before = in_range.times.len();
        let since_1970 = times.iter().map(|ms| start.saturating_add(ms.saturating_mul(NANOS_PER_MILLI)));
        let kept = since_1970.filter(|time| range.contains(time));
        let since_start = kept.map(|time| time.saturating_sub(range.start) / NANOS_PER_MILLI);
        in_range.times.extend(since_start.map(|ms| u32::try_from(ms).unwrap_or(u32::MAX)));
        let kept = in_range.times.len() - before;
        let Some(events) = sample.value.first_mut() else { return false };
        let untimed = if has_untimed { *events - number(times.len()) } else { 0 };
        *events = number(kept) + untimed;
        if *events > 0 {
            in_range.ends.push(in_range.times.len());
        }
        *events > 0
    });
    Ok(in_range)
}

fn number(of: usize) -> i64 {
    i64::try_from(of).unwrap_or(i64::MAX)
}

/// All times that a profile has, in milliseconds since its start.
struct KnownTimes {
    ends: Vec<usize>,
    times: Vec<i64>,
}

impl KnownTimes {
    fn of(&self, sample: usize) -> &[i64] {
        &self.times[begin(&self.ends, sample)..self.ends[sample]]
    }

    /// Reads the times of each sample; `None` if the profile has none.
    fn read(profile: &Profile) -> Result<Option<Self>, InvalidSampleTimes> {
        let text = |index: &i64| usize::try_from(*index).ok().and_then(|at| profile.string_table.get(at));
        let mut comments = profile.comment.iter().filter_map(text);
        let Some(packed) = comments.find_map(|text| text.strip_prefix(PREFIX)) else { return Ok(None) };
        let bytes = STANDARD.decode(packed)?;
        let mut rest = &*bytes;
        let mut next = || {
            let number = decode_varint(&mut rest).ok().and_then(|number| u32::try_from(number).ok());
            number.ok_or(InvalidSampleTimes::Length)
        };
        let origin = -i64::from(next()?);
        let mut all = Self { ends: Vec::with_capacity(profile.sample.len()), times: Vec::new() };
        for (position, sample) in profile.sample.iter().enumerate() {
            let mut time = origin;
            let times = next()? as usize;
            let events = events_of(position, sample, times)?;
            for _ in 0..events {
                time += i64::from(next()?);
                all.times.push(time);
            }
            all.ends.push(all.times.len());
        }
        if rest.is_empty() { Ok(Some(all)) } else { Err(InvalidSampleTimes::Length) }
    }
}

/// Checks that a sample may have so many times, and returns them.
fn events_of(position: usize, sample: &Sample, times: usize) -> Result<usize, InvalidSampleTimes> {
    let [events] = sample.value[..] else {
        return Err(InvalidSampleTimes::Values { position, values: sample.value.len() });
    };
    if number(times) > events {
        return Err(InvalidSampleTimes::Events { position, times, events });
    }
    Ok(times)
}
