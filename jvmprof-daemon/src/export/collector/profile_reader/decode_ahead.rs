//! Reads and decodes stored profiles on several threads, while the caller adds up those before
//! them. The caller gets them in their order.

use std::num::NonZero;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;

use crate::export::store::{ProfileRef, Store};
use crate::profile::gzip::GzipError;
use crate::profile::pprof::decode::{DecodeError, DecodeLimits, decode};
use crate::proto::pprof::Profile;

/// Threads that decode for one request.
pub(super) const MAX_THREADS: usize = 4;

/// Limits of a profile that is decoded ahead: of its bytes when unpacked, and of the entries of its
/// tables. They bound each profile, not a request: each of up to [`MAX_THREADS`] threads has one
/// that waits and the caller another, decoded or (beyond the limits) as it is stored. An entry that
/// is decoded may take several times its encoded bytes. Ordinary profiles have a hundredth of it.
const AHEAD_LIMITS: DecodeLimits = DecodeLimits { max_bytes: 4 << 20, max_entries: 100_000 };

/// A profile that was read, and decoded if it isn't large.
pub(super) enum ReadProfile {
    Decoded(Result<Box<Profile>, String>),
    /// Beyond [`AHEAD_LIMITS`]: one at a time is decoded, by the caller's thread.
    Undecoded(Vec<u8>),
}

/// Hands every profile to `take`, or the reason why it can't be read, until that returns an error.
pub(super) fn for_each_profile<E>(
    store: &Store,
    profiles: &[ProfileRef],
    mut take: impl FnMut(&ProfileRef, Result<Profile, String>) -> Result<(), E>,
) -> Result<(), E> {
    let threads = thread::available_parallelism().map_or(1, NonZero::get).min(MAX_THREADS);
    thread::scope(|scope| {
        let start = |first: usize| -> Receiver<ReadProfile> {
            // Without room for any: a thread waits with what it has decoded.
            let (sender, receiver) = sync_channel(0);
            let own = profiles.iter().skip(first).step_by(threads);
            // Without a thread the caller decodes them.
            if let Err(error) =
                thread::Builder::new().spawn_scoped(scope, move || send_all(store, own, &sender))
            {
                tracing::warn!(%error, "no thread to decode profiles ahead");
            }
            receiver
        };
        // Dropped with an early return, which ends the threads.
        let receivers: Vec<_> = (0..threads.min(profiles.len())).map(start).collect();
        for (reference, receiver) in profiles.iter().zip(receivers.iter().cycle()) {
            let profile = match receiver.recv().unwrap_or_else(|_| read(store, reference)) {
                ReadProfile::Decoded(profile) => profile.map(|profile| *profile),
                ReadProfile::Undecoded(bytes) => decode_large(&bytes),
            };
            take(reference, profile)?;
        }
        Ok(())
    })
}

fn send_all<'a>(
    store: &Store,
    profiles: impl Iterator<Item = &'a ProfileRef>,
    sender: &SyncSender<ReadProfile>,
) {
    for reference in profiles {
        if sender.send(read(store, reference)).is_err() {
            return;
        }
    }
}

/// Decodes a profile of any size that is accepted: one at a time.
pub(super) fn decode_large(bytes: &[u8]) -> Result<Profile, String> {
    decode(bytes, DecodeLimits::default()).map_err(|error| error.to_string())
}

pub(super) fn read(store: &Store, reference: &ProfileRef) -> ReadProfile {
    let bytes = match store.read(reference) {
        Ok(bytes) => bytes,
        Err(error) => return ReadProfile::Decoded(Err(error.to_string())),
    };
    match decode(&bytes, AHEAD_LIMITS) {
        Err(DecodeError::TooManyEntries { .. } | DecodeError::Gzip(GzipError::TooLarge { .. })) => {
            ReadProfile::Undecoded(bytes)
        }
        decoded => ReadProfile::Decoded(decoded.map(Box::new).map_err(|error| error.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::export::store::{Matcher, NewProfile, StoreOptions, TimeRange, UnixNanos, with_name};
    use crate::profile::pprof::to_bytes;

    /// A profile with so many strings, and with `period` to know it by.
    fn profile(period: i64, strings: usize) -> Profile {
        let string_table = (0..strings).map(|number| format!("{number}")).collect();
        Profile { string_table, period, ..Profile::default() }
    }

    fn stored(dir: &std::path::Path, profiles: &[Vec<u8>]) -> (Store, Vec<ProfileRef>) {
        let store = Store::open(dir, StoreOptions::default()).unwrap();
        for (at, bytes) in (1..).zip(profiles) {
            let labels = with_name(&[("comm".to_owned(), "java".to_owned())].into(), "process_cpu").into();
            let (start, duration) = (UnixNanos(at * 1_000_000_000), Duration::from_secs(1));
            let pprof = bytes.clone().into();
            store.append(&[NewProfile { labels, start, duration, samples: 1, pprof }]).unwrap();
        }
        let all: &[Matcher] = &[];
        let references = store.profiles(TimeRange::ALL, all);
        (store, references)
    }

    #[test]
    fn profiles_come_in_their_order_whatever_their_size_and_broken_ones_with_the_reason() {
        let dir = tempfile::tempdir().unwrap();
        let mut bytes: Vec<_> = (0..23).map(|period| to_bytes(&profile(period, 2)).unwrap()).collect();
        // Beyond both limits of threads, and no profile at all.
        bytes[3] = to_bytes(&profile(3, AHEAD_LIMITS.max_entries + 1)).unwrap();
        let long = Profile { string_table: vec!["x".repeat(5 << 20)], period: 9, ..Profile::default() };
        bytes[9] = to_bytes(&long).unwrap();
        bytes[17] = b"no profile".to_vec();
        let (store, references) = stored(dir.path(), &bytes);
        let mut periods = Vec::new();
        let taken = for_each_profile(&store, &references, |_, profile| {
            periods.push(profile.map(|profile| profile.period).map_err(|_| ()));
            Ok::<_, ()>(())
        });
        let mut expected: Vec<_> = (0..23).map(Ok).collect();
        expected[17] = Err(());
        assert_eq!((taken, periods), (Ok(()), expected));
    }

    #[test]
    fn an_error_of_the_caller_ends_the_reading() {
        let dir = tempfile::tempdir().unwrap();
        let bytes: Vec<_> = (0..23).map(|period| to_bytes(&profile(period, 2)).unwrap()).collect();
        let (store, references) = stored(dir.path(), &bytes);
        let mut taken = 0;
        let ended = for_each_profile(&store, &references, |_, _| {
            taken += 1;
            if taken == 5 { Err("enough") } else { Ok(()) }
        });
        assert_eq!((ended, taken), (Err("enough"), 5));
    }
}
