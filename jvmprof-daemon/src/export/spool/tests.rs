//! The spool under faults: crashes, damage, no room, nobody's permission.

use std::fs;
use std::path::PathBuf;

use super::*;

const DAY: Duration = Duration::from_secs(86_400);

/// Makes a folder in memory: thousands of spools are opened here, and each syncs what it writes.
fn scratch() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").expect("a folder in memory")
}

fn cpu(samples: u64) -> SamplesByEvent {
    SamplesByEvent::of(EventType::Cpu, samples)
}

fn options() -> SpoolOptions {
    SpoolOptions { max_bytes: 1 << 20, max_age: DAY, send_again: false }
}

fn record(samples: u64, body: &[u8]) -> NewRecord {
    NewRecord {
        created: SystemTime::now(),
        event: EventType::Cpu,
        samples,
        series: 1,
        tries: 0,
        body: body.to_vec(),
    }
}

fn open(dir: &Path) -> (Spool, SpoolRecovery) {
    Spool::open(dir, options(), &[]).expect("the spool opens")
}

/// Takes and delivers everything; the samples in their order.
fn drain(spool: &mut Spool) -> Vec<u64> {
    let mut samples = Vec::new();
    while let Some(taken) = spool.take_next().expect("records can be read") {
        spool.complete(taken.id, taken.samples);
        samples.push(taken.samples);
    }
    samples
}

fn only_segment(dir: &Path) -> PathBuf {
    let files: Vec<_> = fs::read_dir(dir).expect("a folder").flatten().map(|entry| entry.path()).collect();
    let mut files: Vec<_> =
        files.into_iter().filter(|path| path.to_string_lossy().ends_with(".spool")).collect();
    files.sort();
    files.pop().expect("a segment")
}

#[test]
fn what_goes_in_comes_out_oldest_first_also_after_a_restart() {
    let dir = scratch();
    let (mut spool, found) = open(dir.path());
    assert_eq!(found, SpoolRecovery::default());
    for samples in 1..=600 {
        spool.append(&record(samples, format!("body {samples}").as_bytes())).expect("room");
    }
    assert_eq!((spool.samples(), spool.appended()), (cpu(180_300), cpu(180_300)));
    let first = spool.take_next().expect("readable").expect("a record");
    assert_eq!((first.samples, &first.body[..]), (1, &b"body 1"[..]));
    spool.complete(first.id, 1);
    drop(spool);
    let (mut spool, found) = open(dir.path());
    assert_eq!(
        found,
        SpoolRecovery { waiting: cpu(180_299), appended: cpu(180_300), ..SpoolRecovery::default() }
    );
    spool.append(&record(601, b"new")).expect("room");
    assert_eq!(drain(&mut spool), (2..=601).collect::<Vec<_>>());
    assert!(spool.samples().is_none());
    drop(spool);
    // The sum of what was ever there outlives the records.
    let (spool, found) = open(dir.path());
    assert_eq!((found.waiting, found.appended), (cpu(0), cpu(180_901)));
    assert!(spool.bytes() < 1 << 16, "{}", spool.bytes());
}

#[test]
fn a_segment_that_ends_at_any_byte_keeps_all_records_before() {
    let dir = scratch();
    let (mut spool, _) = open(dir.path());
    let mut ends = vec![HEAD_BYTES];
    for samples in 1..=4 {
        spool.append(&record(samples, &vec![samples as u8; 30 + samples as usize])).expect("room");
        ends.push(fs::metadata(only_segment(dir.path())).expect("a file").len());
    }
    drop(spool);
    let whole = fs::read(only_segment(dir.path())).expect("readable");
    for length in 0..=whole.len() {
        let dir = scratch();
        fs::write(dir.path().join(segment::file_name(1)), &whole[..length]).expect("written");
        let (mut spool, found) = open(dir.path());
        let kept = ends.iter().skip(1).filter(|end| **end <= length as u64).count() as u64;
        assert_eq!(found.damaged_places, u64::from(!ends.contains(&(length as u64))), "{length} bytes");
        spool.append(&record(9, b"after the crash")).expect("a spool with a torn end is of use");
        let expected: Vec<_> = (1..=kept).chain([9]).collect();
        assert_eq!(drain(&mut spool), expected, "{length} bytes");
    }
}

#[test]
fn a_flipped_bit_costs_the_record_that_it_hits_and_no_other() {
    let dir = scratch();
    let (mut spool, _) = open(dir.path());
    let mut ends = vec![HEAD_BYTES as usize];
    for samples in 1..=4_u64 {
        // Bodies with what looks like the beginning of a record.
        spool
            .append(&record(samples, &[&segment_format::MARKER[..], &[samples as u8; 40]].concat()))
            .expect("room");
        ends.push(spool.bytes() as usize);
    }
    drop(spool);
    let whole = fs::read(only_segment(dir.path())).expect("readable");
    let marks_end = RecordMark::offset(4) as usize;
    let sums = HEAD_BYTES as usize - 64..HEAD_BYTES as usize;
    for at in (0..marks_end).chain(sums.start..whole.len()) {
        let mut flipped = whole.clone();
        flipped[at] ^= 1 << (at % 8);
        let dir = scratch();
        fs::write(dir.path().join(segment::file_name(1)), &flipped).expect("written");
        let (mut spool, found) = open(dir.path());
        let hit = match at {
            // The head's own fields are known from elsewhere.
            ..32 => 0,
            _ if sums.contains(&at) => 0,
            // A damaged mark: nobody knows whether the record was sent.
            32..4096 => (at as u64 - 32) / 16 + 1,
            _ => ends.iter().filter(|end| **end <= at).count() as u64,
        };
        let expected: Vec<_> = (1..=4).filter(|samples| *samples != hit).collect();
        assert_eq!(drain(&mut spool), expected, "byte {at}");
        let lost = (found.interrupted + spool.losses().damaged).total();
        // Whose header is hit is only known to be a damaged record.
        assert!(lost == hit || found.damaged_places == 1, "byte {at}: {found:?} {:?}", spool.losses());
    }
}

#[test]
fn a_record_that_damage_has_copied_to_another_place_is_there_once() {
    let dir = scratch();
    let (mut spool, _) = open(dir.path());
    let mut ends = vec![HEAD_BYTES as usize];
    for samples in 1..=3 {
        spool.append(&record(samples, &[samples as u8; 40])).expect("room");
        ends.push(spool.bytes() as usize);
    }
    drop(spool);
    let whole = fs::read(only_segment(dir.path())).expect("readable");
    // In the place of the second, and behind the last.
    let first = whole[ends[0]..ends[1]].to_vec();
    for at in [ends[1], ends[3]] {
        let mut copied = whole.clone();
        copied.resize(copied.len().max(at + first.len()), 0);
        copied[at..at + first.len()].copy_from_slice(&first);
        let dir = scratch();
        fs::write(dir.path().join(segment::file_name(1)), &copied).expect("written");
        let (mut spool, found) = open(dir.path());
        assert_eq!(found.damaged_places, 1);
        let expected = if at == ends[1] { vec![1, 3] } else { vec![1, 2, 3] };
        assert_eq!(drain(&mut spool), expected);
        assert!(spool.samples().is_none() && spool.untried_samples().is_none());
    }
}

#[test]
fn a_record_that_was_being_sent_is_sent_again_only_if_that_is_allowed() {
    for send_again in [false, true] {
        let dir = scratch();
        let options = SpoolOptions { send_again, ..options() };
        let (mut spool, _) = Spool::open(dir.path(), options, &[]).expect("opens");
        spool.append(&record(5, b"sent")).expect("room");
        spool.append(&record(7, b"not sent")).expect("room");
        let taken = spool.take_next().expect("readable").expect("a record");
        drop(spool);
        let (spool, found) = Spool::open(dir.path(), options, &[taken.id]).expect("opens");
        assert_eq!(found.finished, []);
        let (over, again) = if send_again { (0, 5) } else { (5, 0) };
        assert_eq!((found.interrupted, found.sent_again), (cpu(over), cpu(again)));
        assert_eq!(found.waiting, cpu(7 + again));
        drop(spool);
        // The next daemon ends before it sends anything: nothing is at stake once more.
        let (mut spool, found) = Spool::open(dir.path(), options, &[]).expect("opens");
        assert_eq!((found.interrupted, found.sent_again), (cpu(0), cpu(0)));
        assert_eq!(drain(&mut spool), if send_again { vec![5, 7] } else { vec![7] });
    }
}

#[test]
fn what_became_of_a_record_is_known_after_a_crash() {
    let dir = scratch();
    let (mut spool, _) = open(dir.path());
    spool.append(&record(5, b"")).expect("room");
    let taken = spool.take_next().expect("readable").expect("a record");
    spool.complete(taken.id, 3);
    drop(spool);
    let (_, found) = Spool::open(dir.path(), options(), &[taken.id]).expect("opens");
    assert_eq!(
        (found.finished, found.waiting, found.interrupted),
        (vec![(taken.id, cpu(3))], cpu(0), cpu(0))
    );
}

#[test]
fn of_several_records_under_way_each_has_an_end_of_its_own() {
    let dir = scratch();
    let (mut spool, _) = open(dir.path());
    for samples in 1..=5 {
        spool.append(&record(samples, b"")).expect("room");
    }
    let taken: Vec<_> =
        std::iter::repeat_with(|| spool.take_next().expect("readable").expect("a record")).take(4).collect();
    assert_eq!(taken.iter().map(|taken| taken.samples).collect::<Vec<_>>(), [1, 2, 3, 4]);
    assert_eq!((spool.untried_samples(), spool.samples()), (cpu(5), cpu(15)));
    // The second is stored, the third is not, of the first and the fourth there is no answer.
    spool.complete(taken[1].id, 2);
    spool.requeue(&taken[2]);
    assert_eq!((spool.untried_samples(), spool.samples()), (cpu(3 + 5), cpu(13)));
    drop(spool);
    let unresolved: Vec<_> = taken.iter().map(|taken| taken.id).collect();
    let (mut spool, found) = Spool::open(dir.path(), options(), &unresolved).expect("opens");
    assert_eq!(found.finished, [(taken[1].id, cpu(2))]);
    assert_eq!((found.interrupted, found.waiting), (cpu(1 + 4), cpu(3 + 5)));
    assert_eq!(drain(&mut spool), [3, 5]);
}

#[test]
fn a_record_that_is_put_back_is_the_first_again() {
    let dir = scratch();
    let (mut spool, _) = open(dir.path());
    spool.append(&record(1, b"")).expect("room");
    spool.append(&record(2, b"")).expect("room");
    let taken = spool.take_next().expect("readable").expect("a record");
    spool.requeue(&taken);
    drop(spool);
    let (mut spool, found) = open(dir.path());
    assert!(found.interrupted.is_none());
    assert_eq!(drain(&mut spool), [1, 2]);
}

#[test]
fn a_record_that_was_tried_waits_behind_the_others() {
    let dir = scratch();
    let (mut spool, _) = open(dir.path());
    for samples in 1..=3 {
        spool.append(&record(samples, b"")).expect("room");
    }
    let taken = spool.take_next().expect("readable").expect("a record");
    spool.requeue(&RecordInFlight { tries: 2, ..taken });
    spool.append(&NewRecord { tries: 1, ..record(4, b"") }).expect("room");
    assert_eq!((spool.retry_samples(), spool.samples()), (cpu(1 + 4), cpu(10)));
    assert_eq!(drain(&mut spool), [2, 3]);
    let least = spool.take_retry().expect("readable").expect("a record");
    assert_eq!((least.samples, least.tries), (4, 1));
    spool.complete(least.id, 4);
    drop(spool);
    // The next daemon begins anew.
    let (mut spool, _) = open(dir.path());
    assert_eq!((spool.retry_samples(), drain(&mut spool)), (cpu(0), vec![1]));
}

#[test]
fn the_oldest_make_room_and_are_counted() {
    let dir = scratch();
    let options = SpoolOptions { max_bytes: 100_000, ..options() };
    let (mut spool, _) = Spool::open(dir.path(), options, &[]).expect("opens");
    for samples in 1..=100 {
        spool.append(&record(samples, &[7; 5000])).expect("the oldest leave");
        assert!(spool.bytes() <= 100_000, "{}", spool.bytes());
    }
    let full = spool.losses().full.total();
    let kept = drain(&mut spool);
    assert!(kept.len() > 10 && kept.ends_with(&[99, 100]), "{kept:?}");
    assert_eq!(full + kept.iter().sum::<u64>(), 5050);
    let error = spool.append(&record(1, &[0; 100_000])).expect_err("larger than the spool");
    assert!(error.to_string().contains("whose limit is 100000 bytes"), "{error}");
}

#[test]
fn a_record_whose_room_was_needed_while_it_was_sent_is_counted_once() {
    for is_stored in [false, true] {
        let dir = scratch();
        let options = SpoolOptions { max_bytes: 40_000, ..options() };
        let (mut spool, _) = Spool::open(dir.path(), options, &[]).expect("opens");
        spool.append(&record(1, &[0; 5000])).expect("room");
        let taken = spool.take_next().expect("readable").expect("a record");
        for _ in 0..20 {
            spool.append(&record(1, &[0; 5000])).expect("the oldest leave");
        }
        if is_stored {
            spool.complete(taken.id, 1);
        } else {
            spool.requeue(&taken);
        }
        let rest = drain(&mut spool).len() as u64 + u64::from(is_stored);
        assert_eq!((rest + spool.losses().full.total(), spool.samples()), (21, cpu(0)));
    }
}

#[test]
fn what_is_too_old_is_counted_and_a_clock_set_back_makes_nothing_old() {
    let dir = scratch();
    let (mut spool, _) = open(dir.path());
    let now = SystemTime::now();
    for (samples, created) in [(1, now - 2 * DAY), (2, now), (4, now + 2 * DAY)] {
        spool.append(&NewRecord { created, ..record(samples, b"") }).expect("room");
    }
    assert_eq!(drain(&mut spool), [2, 4]);
    assert_eq!(spool.losses(), SpoolLosses { expired: cpu(1), ..SpoolLosses::default() });
}

#[test]
fn a_clock_that_is_set_while_records_wait_makes_none_of_them_old() {
    let dir = scratch();
    let (mut spool, _) = open(dir.path());
    // Booted without a clock, and it is set by the network later.
    spool.append(&NewRecord { created: SystemTime::UNIX_EPOCH, ..record(1, b"") }).expect("room");
    let segment = spool.segments.back_mut().expect("a segment");
    let now = ClockReading::now();
    let at_boot = ClockReading { wall_ms: 1, ..now };
    segment.pending[0].appended = Some(at_boot);
    spool.expire(now);
    assert_eq!(spool.samples(), cpu(1));
    let day = saturating_millis(DAY);
    spool.expire(ClockReading { boot_ms: now.boot_ms + day + 1, ..at_boot });
    assert_eq!((spool.samples(), spool.losses().expired), (cpu(0), cpu(1)), "it has waited for a day");
}

#[test]
fn each_event_is_counted_by_itself_also_after_a_restart() {
    let allocated = |samples| SamplesByEvent::of(EventType::Allocation, samples);
    let dir = scratch();
    let (mut spool, _) = open(dir.path());
    let allocation = |samples| NewRecord { event: EventType::Allocation, ..record(samples, b"objects") };
    for new in [record(1, b"ticks"), allocation(2), record(4, b"ticks"), allocation(8)] {
        spool.append(&new).expect("room");
    }
    let first = spool.take_next().expect("readable").expect("a record");
    spool.complete(first.id, 1);
    let second = spool.take_next().expect("readable").expect("a record");
    assert_eq!(second.samples_by_event(), allocated(2));
    drop(spool);
    // It was being sent.
    let (mut spool, found) = open(dir.path());
    assert_eq!((found.waiting, found.interrupted), (cpu(4) + allocated(8), allocated(2)));
    assert_eq!((found.appended, spool.appended()), (cpu(5) + allocated(10), cpu(5) + allocated(10)));
    assert_eq!(drain(&mut spool), [4, 8]);
    drop(spool);
    let (_, found) = open(dir.path());
    assert_eq!(found, SpoolRecovery { appended: cpu(5) + allocated(10), ..SpoolRecovery::default() });
}

#[test]
fn a_segment_of_the_first_version_is_read_and_followed_by_one_of_this() {
    let dir = scratch();
    let segment = include_bytes!("../../../tests/fixtures/spool-version-1/0000000000000001.spool");
    fs::write(dir.path().join(segment::file_name(1)), segment).expect("written");
    let options = SpoolOptions { max_age: 100_000 * DAY, ..options() };
    let (mut spool, found) = Spool::open(dir.path(), options, &[]).expect("opens");
    assert_eq!(found, SpoolRecovery { waiting: cpu(20), appended: cpu(20), ..SpoolRecovery::default() });
    let allocation = NewRecord { event: EventType::Allocation, ..record(7, b"objects") };
    spool.append(&allocation).expect("room");
    assert!(only_segment(dir.path()).ends_with(segment::file_name(2)), "nothing is appended to the old one");
    let first = spool.take_next().expect("readable").expect("a record");
    spool.complete(first.id, first.samples);
    let second = spool.take_next().expect("readable").expect("a record");
    assert_eq!((first.samples_by_event(), second.samples_by_event()), (cpu(1), cpu(3)));
    drop(spool);
    let (mut spool, found) = Spool::open(dir.path(), options, &[first.id]).expect("opens");
    assert_eq!(
        (found.interrupted, found.finished),
        (cpu(3), vec![(first.id, cpu(1))]),
        "marks are where they were"
    );
    assert_eq!(drain(&mut spool), [6, 10, 7]);
    assert_eq!(spool.appended(), cpu(20) + SamplesByEvent::of(EventType::Allocation, 7));
}

#[test]
fn the_last_segment_of_the_first_version_keeps_its_sum_when_it_is_emptied() {
    let dir = scratch();
    let segment = include_bytes!("../../../tests/fixtures/spool-version-1/0000000000000001.spool");
    fs::write(dir.path().join(segment::file_name(1)), segment).expect("written");
    let options = SpoolOptions { max_age: 100_000 * DAY, ..options() };
    let (mut spool, _) = Spool::open(dir.path(), options, &[]).expect("opens");
    assert_eq!(drain(&mut spool), [1, 3, 6, 10]);
    drop(spool);
    let (mut spool, found) = Spool::open(dir.path(), options, &[]).expect("opens");
    assert_eq!(found, SpoolRecovery { appended: cpu(20), ..SpoolRecovery::default() });
    spool.append(&record(5, b"new")).expect("room");
    drop(spool);
    let (mut spool, found) = Spool::open(dir.path(), options, &[]).expect("opens");
    assert_eq!((found.appended, drain(&mut spool)), (cpu(25), vec![5]));
}

#[test]
fn a_second_user_of_a_spool_is_refused_by_name() {
    let dir = scratch();
    let (first, _) = open(dir.path());
    let error = Spool::open(dir.path(), options(), &[]).expect_err("in use").to_string();
    assert!(
        error.contains(dir.path().to_str().expect("UTF-8")) && error.contains("another daemon"),
        "{error}"
    );
    drop(first);
    open(dir.path());
}

#[test]
fn foreign_files_are_left_alone() {
    let dir = scratch();
    for name in ["notes.txt", "1.spool", "000000000000000g.spool"] {
        fs::write(dir.path().join(name), "mine").expect("written");
    }
    let (mut spool, found) = open(dir.path());
    assert_eq!(found, SpoolRecovery::default());
    spool.append(&record(1, b"")).expect("room");
    assert_eq!(fs::read_dir(dir.path()).expect("a folder").count(), 5);
}
