//! jitdumps as files: growing, half-written, collected, cut, of others.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use jvmprof_common::rows::CfaRule;
use jvmprof_daemon::clock::monotonic_ns;
use jvmprof_daemon::jit::jitdump::process_jitdump::{ProcessJitDump, jitdump_marker};
use jvmprof_daemon::jit::jitdump::{JitDump, JitDumpError, JitDumpHeaderError};
use jvmprof_daemon::memory_budget::MemoryBudget;
use jvmprof_daemon::process::{ProcessTable, procfs};
use jvmprof_daemon::types::Avma;
use proptest::collection::vec;
use proptest::prelude::*;
use tempfile::TempDir;

const PID: u32 = 7;

struct DumpWriter {
    _directory: TempDir,
    path: PathBuf,
    file: File,
}

impl DumpWriter {
    fn new(pid: u32, flags: u64) -> Self {
        let directory = tempfile::tempdir().expect("a folder");
        let path = directory.path().join("jit-7.dump");
        let mut file = OpenOptions::new().create_new(true).append(true).open(&path).expect("a file");
        let mut header = [0x4A69_5444u32, 1, 40, 62, 0, pid].map(u32::to_le_bytes).concat();
        // V8 tells a time of another clock here.
        header.extend([1_795_290_717_344_161u64, flags].map(u64::to_le_bytes).concat());
        file.write_all(&header).expect("written");
        Self { _directory: directory, path, file }
    }

    fn put(&mut self, bytes: &[u8]) {
        self.file.write_all(bytes).expect("written");
    }

    fn dump(&self) -> JitDump {
        JitDump::new(open(&self.path), [PID, 1000 + PID])
    }
}

fn open(path: &Path) -> File {
    File::open(path).expect("the file")
}

fn record(id: u32, time_ns: u64, body: &[u8]) -> Vec<u8> {
    let size = 16 + u32::try_from(body.len()).expect("short");
    [&id.to_le_bytes()[..], &size.to_le_bytes(), &time_ns.to_le_bytes(), body].concat()
}

fn load(time_ns: u64, address: u64, size: u64, name: &str) -> Vec<u8> {
    let numbers = [0, address, address, size, 1].map(u64::to_le_bytes).concat();
    let code = vec![0x90; usize::try_from(size).expect("short")];
    record(0, time_ns, &[&numbers, name.as_bytes(), b"\0", &code].concat())
}

fn moved(time_ns: u64, from: u64, to: u64, size: u64) -> Vec<u8> {
    record(1, time_ns, &[0, to, from, to, size, 1].map(u64::to_le_bytes).concat())
}

fn lines(time_ns: u64, address: u64, places: &[(u64, u32)]) -> Vec<u8> {
    let mut body = [address, places.len() as u64].map(u64::to_le_bytes).concat();
    for (at, line) in places {
        body.extend([&at.to_le_bytes()[..], &line.to_le_bytes(), &[0; 4], b"a.src\0"].concat());
    }
    record(2, time_ns, &body)
}

fn at(dump: &JitDump, address: u64, time_ns: u64) -> Option<String> {
    dump.lookup(Avma(address), time_ns).map(|found| found.name.to_owned())
}

#[test]
fn records_hold_from_their_time_on_however_the_file_grows() {
    let all = |t: u64| {
        [
            load(t, 0x1000, 64, "first"),
            lines(t + 10, 0x1000, &[(0x1000, 3), (0x1010, 4)]),
            load(t + 20, 0x1000, 64, "second"),
            record(99, t + 25, b"of a later version"),
            record(4, t + 26, &[16u64, 8, 0, 0, 0].map(u64::to_le_bytes).concat()),
            moved(t + 30, 0x1000, 0x9000, 64),
            load(t + 40, 0x1020, 64, "third"),
        ]
        .concat()
    };
    let (mut prompt, mut late) = (0, 0);
    for cut in (0..all(1).len()).step_by(7) {
        let t = monotonic_ns();
        let all = all(t);
        let mut writer = DumpWriter::new(PID, 0);
        let mut dump = writer.dump();
        for part in [&all[..cut], &all[cut..]] {
            writer.put(part);
            dump.refresh().expect("a good file");
        }
        let name = |address, time| at(&dump, address, time);
        assert_eq!((name(0x1000, t - 1), name(0x1000, t)), (None, Some("first".into())), "cut at {cut}");
        assert_eq!(
            (name(0x1000, t + 19), name(0x1000, t + 20)),
            (Some("first".into()), Some("second".into()))
        );
        assert_eq!((name(0x1000, t + 30), name(0x9010, t + 29)), (None, None), "moved");
        assert_eq!(
            (name(0x9010, t + 30), name(0x1020, t + 40)),
            (Some("second".into()), Some("third".into()))
        );
        let found = dump.lookup(Avma(0x9012), t + 50).expect("the code that moved");
        let place = found.lines.and_then(|lines| lines.at(0x12)).map(|(file, line)| (file.to_string(), line));
        assert_eq!(place, Some(("a.src".into(), 4)), "its lines move with it");
        let counters = dump.counters();
        assert_eq!((counters.entries, counters.malformed), (4, 0));
        assert_eq!((counters.unwinding, counters.unusable_unwinding), (0, 1), "not of the code behind it");
        // Of records that are read long after their time the writer seems to collect them: a
        // machine may stand still between.
        let is_prompt = monotonic_ns() - t < 100_000_000;
        *(if is_prompt { &mut prompt } else { &mut late }) += 1;
        assert!(!is_prompt || (dump.is_complete_until(t + 40) && !dump.is_buffering()), "cut at {cut}");
    }
    assert!(prompt > late, "{late} of {} were read late", late + prompt);
}

#[test]
fn a_record_that_is_refused_in_part_ends_what_was_there() {
    let t = monotonic_ns();
    let mut writer = DumpWriter::new(PID, 0);
    for address in [0x1000, 0x2000, 0x3000, 0x4000] {
        writer.put(&load(t, address, 64, "old"));
    }
    let long = "n".repeat(5_000);
    writer.put(&load(t + 10, 0x1000, 64, &long));
    writer.put(&moved(t + 10, 0x9_0000, 0x2000, 64));
    writer.put(&moved(t + 10, u64::MAX, 0x3000, 64));
    let endless = [0, 0x4000, 0x4000, 64, 1].map(u64::to_le_bytes).concat();
    writer.put(&record(0, t + 10, &[&endless[..], b"its end is missing"].concat()));
    let mut dump = writer.dump();
    dump.refresh().expect("a good file");
    assert_eq!(at(&dump, 0x1000, t + 10).as_deref(), Some(&long[..4096]));
    for address in [0x2000, 0x3000, 0x4000] {
        let names = (at(&dump, address, t + 9), at(&dump, address, t + 10));
        assert_eq!(names, (Some("old".into()), None), "{address:#x}");
    }
    let counters = dump.counters();
    assert_eq!((counters.malformed, counters.over_limit), (3, 1));
}

/// A record that a writer writes.
#[derive(Clone, Debug)]
enum Told {
    Load { place: u64, size: u64, name: usize },
    Move { from: u64, to: u64, size: u64 },
}

/// Few of each, so that they meet; some are told late.
fn told() -> impl Strategy<Value = Vec<(bool, Told)>> {
    let place = || 0..6u64;
    let size = || prop_oneof![Just(16u64), Just(32)];
    let load = (place(), size(), 0..4usize).prop_map(|(place, size, name)| Told::Load { place, size, name });
    let moved = (place(), place(), size()).prop_map(|(from, to, size)| Told::Move { from, to, size });
    vec((any::<bool>(), prop_oneof![2 => load, 1 => moved]), 0..14)
}

/// The versions of one place: since when which name, by the place where its code begins and the
/// record that told it.
type Versions = Vec<(u64, Option<(usize, u64, usize)>)>;

fn write(all: &mut [Versions], place: u64, size: u64, time: u64, code: Option<(usize, u64, usize)>) {
    for versions in &mut all[place as usize..(place + size / 16) as usize] {
        let at = versions.partition_point(|(earlier, _)| *earlier <= time);
        versions.insert(at, (time, code));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    /// Against a list of all that was ever told of each 16 bytes.
    #[test]
    fn each_address_has_the_name_that_was_told_for_the_time(told in told(), cut in 0..100usize) {
        let names = ["short".to_owned(), "other".to_owned(), "n".repeat(4_096), "m".repeat(9_000)];
        let start = monotonic_ns() - 1_000_000_000;
        let mut versions: Vec<Versions> = vec![Vec::new(); 8];
        let mut bytes = Vec::new();
        for (index, (is_late, told)) in told.iter().enumerate() {
            let time = start + index as u64 * 1_000 - if *is_late { 2_500 } else { 0 };
            match *told {
                Told::Load { place, size, name } => {
                    bytes.extend(load(time, 0x1000 + place * 16, size, &names[name]));
                    write(&mut versions, place, size, time, Some((name, place, index)));
                }
                Told::Move { from, to, size } => {
                    bytes.extend(moved(time, 0x1000 + from * 16, 0x1000 + to * 16, size));
                    let live = |place: u64| {
                        let seen = versions[place as usize].iter().rfind(|(earlier, _)| *earlier <= time);
                        seen.and_then(|(_, code)| *code).filter(|(_, start, _)| *start == from)
                    };
                    let first = live(from);
                    let is_one = (from..from + size / 16).all(|place| live(place) == first);
                    let code = first.filter(|_| is_one).map(|(name, _, _)| (name, to, index));
                    write(&mut versions, from, size, time, None);
                    write(&mut versions, to, size, time, code);
                }
            }
        }
        let mut writer = DumpWriter::new(PID, 0);
        let mut dump = writer.dump();
        let cut = bytes.len() * cut / 100;
        for part in [&bytes[..cut], &bytes[cut..]] {
            writer.put(part);
            dump.refresh().expect("a good file");
        }
        for time in (0..told.len() as u64 * 2 + 6).map(|half| start - 3_000 + half * 500) {
            for (place, versions) in versions.iter().enumerate() {
                let seen = versions.iter().rfind(|(earlier, _)| *earlier <= time);
                let name = seen.and_then(|(_, code)| *code).map(|(name, _, _)| &names[name]);
                let expected = name.map(|name| name[..name.len().min(4_096)].to_owned());
                prop_assert_eq!(at(&dump, 0x1008 + place as u64 * 16, time), expected, "{} at {}", place, time);
            }
        }
    }
}

/// The `.eh_frame` of 64 bytes of code that lower the stack pointer by `frame`, as its writer would
/// have put it behind them.
fn unwinding(time_ns: u64, frame: u8) -> Vec<u8> {
    let cie: [u8; 24] =
        [20, 0, 0, 0, 0, 0, 0, 0, 1, b'z', b'R', 0, 1, 0x78, 16, 1, 0x1b, 0x0c, 7, 8, 0x90, 1, 0, 0];
    let mut fde = vec![24, 0, 0, 0, 28, 0, 0, 0];
    fde.extend((-(64i32 + 24 + 8)).to_le_bytes());
    fde.extend(64u32.to_le_bytes());
    fde.extend([0, 0x44, 0x0e, 8 + frame, 0, 0, 0, 0, 0, 0, 0, 0]);
    let section = [&cie[..], &fde, &[0; 4]].concat();
    let sizes = [section.len() as u64 + 20, 20, 0].map(u64::to_le_bytes).concat();
    record(4, time_ns, &[&sizes[..], &section, &[0; 20]].concat())
}

fn cfa(dump: &JitDump, address: u64, time_ns: u64) -> Option<CfaRule> {
    let found = dump.lookup(Avma(address), time_ns)?;
    Some(found.rows?.at(u32::try_from(address - found.start.0).expect("short"))?.cfa)
}

#[test]
fn unwinding_information_comes_and_goes_with_its_code() {
    let t = monotonic_ns();
    let mut writer = DumpWriter::new(PID, 0);
    for (at, frame) in [(0, Some(24)), (10, Some(40)), (20, None)] {
        if let Some(frame) = frame {
            writer.put(&unwinding(t + at, frame));
        }
        // The same name and size again: only the information differs.
        writer.put(&load(t + at, 0x1000, 64, "f"));
    }
    writer.put(&[unwinding(t + 30, 16), load(t + 30, 0x2000, 64, "g")].concat());
    writer.put(&moved(t + 40, 0x2000, 0x3000, 64));
    // It is of the very next code only.
    writer.put(&load(t + 50, 0x4000, 64, "h"));
    let mut dump = writer.dump();
    dump.refresh().expect("a good file");
    let rsp = |offset| Some(CfaRule::Rsp(offset));
    let cfas = [5, 15, 25].map(|at| cfa(&dump, 0x1004, t + at));
    assert_eq!(cfas, [rsp(32), rsp(48), None]);
    assert_eq!((cfa(&dump, 0x1003, t + 5), cfa(&dump, 0x1004, t - 1)), (rsp(8), None));
    let places = [(0x2004, 35), (0x2004, 45), (0x3004, 35), (0x3004, 45)];
    let moved = places.map(|(address, at)| cfa(&dump, address, t + at));
    assert_eq!(moved, [rsp(24), None, None, rsp(24)]);
    assert_eq!(cfa(&dump, 0x4004, t + 55), None);
    assert_eq!((dump.has_unwinding_info(), dump.counters().unwinding), (Some(true), 3));
}

#[test]
fn unwinding_information_has_no_more_memory_than_names() {
    let t = monotonic_ns();
    let mut writer = DumpWriter::new(PID, 0);
    for index in 0..2_000u64 {
        writer.put(&[unwinding(t, 24), load(t, 0x10_0000 + index * 64, 64, "f")].concat());
    }
    // Longer than any that is believed.
    let sizes = [1u64 << 20, 20, 0].map(u64::to_le_bytes).concat();
    writer.put(&record(4, t, &[&sizes[..], &[0; 1 << 20]].concat()));
    let mut dump = writer.dump();
    dump.set_memory_limit(100_000);
    dump.refresh().expect("a good file");
    assert!(dump.size_bytes() < 102_000, "{}", dump.size_bytes());
    let counters = dump.counters();
    assert!(counters.over_limit > 100, "{counters:?}");
    assert_eq!(counters.malformed, 1);
}

#[test]
fn a_writer_that_collects_its_records_is_found_out() {
    let mut writer = DumpWriter::new(PID, 0);
    let mut dump = writer.dump();
    dump.refresh().expect("a good file");
    let sampled = monotonic_ns();
    std::thread::sleep(Duration::from_millis(150));
    dump.refresh().expect("a good file");
    assert!(dump.is_complete_until(sampled), "nothing speaks against it yet");
    writer.put(&load(sampled - 20_000_000, 0x1000, 64, "late"));
    dump.refresh().expect("a good file");
    assert!(dump.is_buffering() && !dump.is_complete_until(sampled));
    assert_eq!(at(&dump, 0x1000, sampled).as_deref(), Some("late"));
    writer.put(&load(monotonic_ns(), 0x5000, 64, "now"));
    dump.refresh().expect("a good file");
    assert!(dump.is_complete_until(sampled) && !dump.is_complete_until(monotonic_ns()));
    writer.put(&record(3, monotonic_ns(), b""));
    dump.refresh().expect("a good file");
    assert!(dump.is_complete_until(u64::MAX), "closed");

    // A half record that isn't finished tells it, too.
    let mut writer = DumpWriter::new(PID, 0);
    let mut dump = writer.dump();
    writer.put(&load(monotonic_ns(), 0x1000, 64, "half")[..30]);
    dump.refresh().expect("a good file");
    std::thread::sleep(Duration::from_millis(150));
    dump.refresh().expect("a good file");
    assert!(dump.is_buffering());
}

/// Writes a jitdump that ends in the middle of a record, and gives it up: first the mapping, then
/// the file. Each step when it is told to.
const QUITTER: &str = r#"
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

static void told(void) {
    char go;
    if (write(1, "!", 1) != 1 || read(0, &go, 1) != 1)
        _exit(1);
}

int main(void) {
    char path[64];
    uint32_t text[14] = {0x4A695444, 1, 40, 62, 0, (uint32_t)getpid(), 0, 0, 0, 0, 0, 100, 1, 0};
    snprintf(path, sizeof path, "jit-%d.dump", (int)getpid());
    int file = open(path, O_CREAT | O_EXCL | O_RDWR, 0644);
    void *marker = mmap(NULL, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE, file, 0);
    if (marker == MAP_FAILED || write(file, text, sizeof text) != sizeof text)
        return 1;
    told();
    munmap(marker, 4096);
    told();
    close(file);
    told();
    return 0;
}
"#;

#[test]
fn a_dump_that_its_writer_gives_up_in_the_middle_of_a_record_is_known_to_its_end() {
    let directory = tempfile::tempdir().expect("a folder");
    let program = crate::support::compile(directory.path(), "quitter", QUITTER, &[]);
    let mut child = Command::new(program)
        .current_dir(directory.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the program runs");
    let (mut go, mut done) = (child.stdin.take().expect("a pipe"), child.stdout.take().expect("a pipe"));
    done.read_exact(&mut [0]).expect("the program has begun");
    let mut table = ProcessTable::new(1 << 20);
    let facts = procfs::process_info(child.id()).expect("the process");
    let process = table.insert_running(child.id(), &facts, monotonic_ns());
    let mark = jitdump_marker(process).expect("the mapping");
    let mut dump = ProcessJitDump::open(process, mark, MemoryBudget::new(1 << 20)).expect("a dump");
    let mut is_known = || {
        for _ in 0..2 {
            dump.read_new(monotonic_ns(), true).expect("readable");
            std::thread::sleep(Duration::from_millis(110));
        }
        dump.read_new(monotonic_ns(), true).expect("readable");
        assert!(dump.dump().is_buffering());
        dump.dump().is_complete_until(u64::MAX)
    };
    assert!(!is_known(), "it is mapped and open");
    go.write_all(b"!").expect("the program waits");
    done.read_exact(&mut [0]).expect("the program goes on");
    assert!(!is_known(), "it is open");
    go.write_all(b"!").expect("the program waits");
    done.read_exact(&mut [0]).expect("the program goes on");
    assert!(is_known());
    go.write_all(b"!").expect("the program waits");
    assert!(child.wait().expect("a child").success());
}

#[test]
fn what_cant_be_believed_is_refused_once_and_names_nothing() {
    let t = monotonic_ns();
    let refused = |writer: &DumpWriter| writer.dump().refresh().expect_err("not to be believed");
    let error = refused(&DumpWriter::new(PID, 1));
    assert!(matches!(error, JitDumpError::Header(JitDumpHeaderError::ArchTimestamps)), "{error}");
    let error = refused(&DumpWriter::new(8, 0));
    assert!(matches!(error, JitDumpError::OtherProcess { found: 8, expected: PID }), "{error}");

    for (bad, reason) in [
        (load(t * 1000, 0x5000, 64, "tomorrow"), "other clock"),
        ([0u32, 3, 0, 0].map(u32::to_le_bytes).concat(), "no record"),
    ] {
        let mut writer = DumpWriter::new(PID, 0);
        writer.put(&load(t, 0x1000, 64, "good"));
        writer.put(&bad);
        let mut dump = writer.dump();
        assert_eq!(dump.refresh().expect_err("refused").reason(), reason);
        assert_eq!(at(&dump, 0x1000, t), None, "other code may be there by now");
        assert!(dump.refresh().is_ok(), "said once");
    }

    let mut writer = DumpWriter::new(PID, 0);
    writer.put(&load(t, 0x1000, 64, "good"));
    let mut dump = writer.dump();
    dump.refresh().expect("a good file");
    writer.file.set_len(50).expect("cut");
    assert!(matches!(dump.refresh(), Err(JitDumpError::Truncated)));
    assert_eq!(at(&dump, 0x1000, t), None);
}

#[test]
fn memory_is_bounded_and_hostile_records_are_counted() {
    let t = monotonic_ns();
    let mut writer = DumpWriter::new(PID, 0);
    writer.put(&load(t, u64::MAX - 10, 64, "wraps"));
    writer.put(&record(0, t, b"short"));
    for index in 0..4_000u64 {
        writer.put(&load(t, 0x10_0000 + index * 64, 64, &format!("function {index} with a long name")));
    }
    let mut dump = writer.dump();
    dump.set_memory_limit(100_000);
    dump.refresh().expect("a good file");
    let counters = dump.counters();
    assert_eq!((counters.malformed, counters.entries), (2, 4_000));
    assert!(counters.over_limit > 1_000 && dump.size_bytes() < 102_000, "{}", dump.size_bytes());
}
