//! Perf maps as files: growing, cut, replaced, rewritten, and put there by somebody hostile.
//!
//! The fixtures are excerpts of what OpenJDK 17.0.15 and 25 wrote on `jcmd PID Compiler.perfmap`,
//! and node 20.20.2 with `--perf-basic-prof`.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::Path;
use std::time::{Duration, Instant};

use jvmprof_daemon::clock::monotonic_ns;
use jvmprof_daemon::jit::name_formats::code_name;
use jvmprof_daemon::jit::perf_map::{PerfMap, PerfMapLimits};
use jvmprof_daemon::native::open_file::{OpenError, open_in_root, open_in_root_owned, open_regular};
use jvmprof_daemon::types::Avma;
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;

const JDK17: &str = include_str!("../fixtures/perf-map/jdk17.map");
const JDK25: &str = include_str!("../fixtures/perf-map/jdk25.map");
const NODE: &str = include_str!("../fixtures/perf-map/node.map");

fn raw_at(map: &PerfMap, address: u64) -> Option<&str> {
    map.lookup(Avma(address), u64::MAX).map(|symbol| symbol.name)
}

fn refresh(map: &mut PerfMap, path: &Path) -> jvmprof_daemon::jit::perf_map::RefreshResult {
    map.refresh(&File::open(path).expect("the map")).expect("it can be read")
}

/// Time passes in which nothing is written.
fn rewritten(map: &mut PerfMap, path: &Path) {
    std::thread::sleep(Duration::from_millis(250));
    refresh(map, path);
}

#[test]
fn every_line_of_real_maps_is_found_with_its_name_for_people() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("perf-1.map");
    for text in [JDK17, JDK25, NODE] {
        fs::write(&path, text).expect("written");
        let mut map = PerfMap::default();
        refresh(&mut map, &path);
        let mut java = 0;
        for line in text.lines() {
            let [start, size, name] = line.splitn(3, ' ').collect::<Vec<_>>()[..] else { panic!("{line}") };
            let number = |text: &str| u64::from_str_radix(text.trim_start_matches("0x"), 16).expect("hex");
            let symbol = map.lookup(Avma(number(start)), u64::MAX).expect("an entry");
            assert_eq!((symbol.name, symbol.size), (name, number(size)));
            let shown = code_name(name).name;
            assert!(!shown.is_empty() && !shown.starts_with("JS:"), "{shown}");
            if name.ends_with(')') && text != NODE {
                java += 1;
                let class_and_method = shown.rsplit_once('.').is_some();
                assert!(class_and_method && !shown.contains(['(', ' ', ',']), "{name} is shown as {shown}");
            }
        }
        assert_eq!(map.counters().entries, text.lines().count() as u64);
        assert!(java > 30 || text == NODE, "{java} Java methods");
    }
}

#[test]
fn only_new_bytes_are_read_and_a_half_line_waits() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("perf-1.map");
    let mut writer = File::create(&path).expect("the map");
    let mut map = PerfMap::default();
    write!(writer, "1000 10 a\n2000 10 b\n3000 1").expect("written");
    assert_eq!(refresh(&mut map, &path).added, 2);
    assert_eq!((raw_at(&map, 0x100f), raw_at(&map, 0x1010), raw_at(&map, 0x3000)), (Some("a"), None, None));
    assert_eq!(refresh(&mut map, &path).added, 0);
    writeln!(writer, "0 c c").expect("written");
    let read = map.counters().bytes_read;
    assert_eq!(refresh(&mut map, &path).added, 1);
    assert_eq!(raw_at(&map, 0x300f), Some("c c"));
    assert_eq!(map.counters().bytes_read - read, 6);
    assert_eq!(map.counters().restarts, 0);
}

#[test]
fn a_map_that_is_cut_replaced_or_rewritten_is_read_again() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("perf-1.map");
    let mut map = PerfMap::default();
    fs::write(&path, "1000 10 first\n2000 10 second\n").expect("written");
    refresh(&mut map, &path);

    // As HotSpot writes: into the same file, from its start, and longer than before.
    std::thread::sleep(Duration::from_millis(20));
    fs::write(&path, "1000 10 other\n5000 10 fifth\n6000 10 sixth\n7000 10 seventh\n").expect("written");
    let before = monotonic_ns();
    assert!(refresh(&mut map, &path).restarted);
    assert_eq!((raw_at(&map, 0x1000), raw_at(&map, 0x2000)), (Some("other"), Some("second")));
    assert_eq!(map.lookup(Avma(0x1000), before).map(|found| found.name), Some("first"));
    // Once it is whole, what it doesn't have is gone.
    rewritten(&mut map, &path);
    assert_eq!((raw_at(&map, 0x1000), raw_at(&map, 0x2000)), (Some("other"), None));
    let second = map.lookup(Avma(0x2000), before).map(|found| (found.name, found.is_ambiguous));
    assert_eq!(second, Some(("second", true)), "when it went is not known");
    assert_eq!(raw_at(&map, 0x7000), Some("seventh"));

    OpenOptions::new().write(true).open(&path).expect("the map").set_len(14).expect("cut");
    assert!(refresh(&mut map, &path).restarted);
    rewritten(&mut map, &path);
    assert_eq!((raw_at(&map, 0x1000), raw_at(&map, 0x7000)), (Some("other"), None));

    let new = directory.path().join("new");
    fs::write(&new, "9000 10 ninth\n").expect("written");
    fs::rename(&new, &path).expect("replaced");
    assert!(refresh(&mut map, &path).restarted);
    rewritten(&mut map, &path);
    assert_eq!((raw_at(&map, 0x1000), raw_at(&map, 0x9000)), (None, Some("ninth")));
    assert_eq!(map.counters().restarts, 3);
}

#[test]
fn hostile_lines_are_counted_and_the_rest_is_read() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("perf-1.map");
    let mut text = b"1000 10 good\n".to_vec();
    text.extend_from_slice(b"2000 10 \xff\xfe\x1b[2J\n");
    text.extend([b'x'; 100_000]);
    text.extend_from_slice(
        b"\nffffffffffffffff ffffffffffffffff overflow\nnonsense\n0 7fffffffffff all of it\n\n",
    );
    text.extend_from_slice(b"1008 10 over the first\n");
    fs::write(&path, &text).expect("written");
    let mut map = PerfMap::default();
    refresh(&mut map, &path);
    assert_eq!(raw_at(&map, 0x1007), Some("good"));
    assert_eq!(raw_at(&map, 0x1008), Some("over the first"));
    assert_eq!(raw_at(&map, 0x2000), Some("\u{fffd}\u{fffd}\u{fffd}[2J"));
    assert_eq!(raw_at(&map, 0x9000), None);
    let counters = map.counters();
    assert_eq!((counters.entries, counters.malformed, counters.too_long), (3, 4, 1));
}

#[test]
fn a_map_of_ten_gigabytes_costs_no_more_than_its_limits() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("perf-1.map");
    let file = File::create(&path).expect("the map");
    file.set_len(10 << 30).expect("a sparse file");
    let mut map = PerfMap::new(PerfMapLimits { read_bytes: 4 << 20, ..PerfMapLimits::default() });
    for _ in 0..3 {
        assert!(refresh(&mut map, &path).more);
    }
    assert_eq!(map.counters().bytes_read, 12 << 20);
    assert_eq!(map.read_until_ns(), 0, "what is behind may say otherwise");
    assert!(map.size_bytes() < 10_000);
}

#[test]
fn what_is_there_at_a_look_was_written_before_it_however_many_turns_it_takes_to_read() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("perf-1.map");
    let filler: String =
        (0..2_000).map(|index| format!("{:x} 10 filler{index}\n", 0x10_0000 + index * 16)).collect();
    fs::write(&path, format!("1000 10 old\n{filler}1000 10 new\n")).expect("written");
    let mut map = PerfMap::new(PerfMapLimits { read_bytes: 1 << 12, ..PerfMapLimits::default() });
    let before = monotonic_ns();
    assert!(refresh(&mut map, &path).more);
    let during = monotonic_ns();
    OpenOptions::new()
        .append(true)
        .open(&path)
        .expect("the map")
        .write_all(b"1000 10 newer\n")
        .expect("written");
    let mut turns = 1;
    while map.read_until_ns() <= before {
        assert_eq!((raw_at(&map, 0x1000), map.may_have_unread_entries(before)), (Some("old"), true));
        refresh(&mut map, &path);
        turns += 1;
    }
    while refresh(&mut map, &path).more {}
    assert!(!map.may_have_unread_entries(u64::MAX));
    assert!(turns > 5, "{turns}");
    let at = |at_ns| map.lookup(Avma(0x1000), at_ns).map(|found| (found.name, found.is_ambiguous));
    assert_eq!(at(u64::MAX), Some(("newer", false)));
    assert!(matches!(at(during), Some(("new", _))), "{:?}", at(during));
    assert!(matches!(at(before), Some((_, true))), "any of them may have been there: {:?}", at(before));
}

#[test]
fn a_line_that_is_refused_in_part_ends_what_was_there() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("perf-1.map");
    let long = "n".repeat(5_000);
    let text = format!("1000 10 old\n2000 10 old\n3000 10 old\n1000 10 {long}\n2000 10 \n3000 10\n");
    fs::write(&path, text).expect("written");
    let mut map = PerfMap::default();
    refresh(&mut map, &path);
    let name = raw_at(&map, 0x1000).expect("the start of its name");
    assert!(name.len() > 4_000 && long.starts_with(name), "{name}");
    assert_eq!((raw_at(&map, 0x2000), raw_at(&map, 0x3000)), (None, None));
    let counters = map.counters();
    assert_eq!((counters.entries, counters.malformed, counters.too_long), (4, 2, 1));
}

#[test]
fn memory_is_bounded_for_a_map_of_many_entries() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("perf-1.map");
    let name = "long com.acme.some.quite.deep.package.OrderController.handle(java.lang.String)";
    let text: String =
        (0..200_000u64).map(|i| format!("{:x} 40 {name} {i}\n", 0x7f00_0000_0000 + i * 64)).collect();
    fs::write(&path, &text).expect("written");
    let begin = Instant::now();
    let mut map = PerfMap::new(PerfMapLimits::default());
    while refresh(&mut map, &path).more {}
    println!(
        "{} entries of {} bytes in {:?}: {} bytes of memory",
        map.len(),
        text.len(),
        begin.elapsed(),
        map.size_bytes()
    );
    assert_eq!(map.counters().entries, 200_000);
    let mut map = PerfMap::new(PerfMapLimits { memory_bytes: 4 << 20, ..PerfMapLimits::default() });
    while refresh(&mut map, &path).more {}
    let counters = map.counters();
    assert_eq!(counters.entries + counters.over_limit, 200_000);
    assert!(counters.entries > 20_000 && map.size_bytes() <= (4 << 20) + 5000, "{counters:?}");
}

#[test]
fn only_a_regular_file_inside_the_root_and_of_the_right_owner_is_opened() {
    let directory = tempfile::tempdir().expect("a directory");
    let root = directory.path().join("root");
    fs::create_dir_all(root.join("tmp")).expect("a root");
    let name = |name: &str| Path::new("/tmp").join(name);
    let inside = |name: &str| root.join("tmp").join(name);
    fs::write(directory.path().join("secret"), "1000 10 secret\n").expect("written");
    fs::write(inside("perf-1.map"), "1000 10 a\n").expect("written");
    mkfifo(&inside("perf-2.map"), Mode::S_IRWXU).expect("a FIFO");
    symlink("/tmp/perf-1.map", inside("perf-3.map")).expect("a link");
    symlink("../../secret", inside("perf-4.map")).expect("a link");
    symlink("../..", inside("up")).expect("a link");
    symlink("/tmp", root.join("alias")).expect("a link");

    assert!(open_in_root(&root, &name("perf-1.map")).is_ok());
    assert!(
        open_in_root(&root, Path::new("/alias/perf-1.map")).is_ok(),
        "links of directories lead into the root"
    );
    let begin = Instant::now();
    assert!(matches!(open_in_root(&root, &name("perf-2.map")), Err(OpenError::NotRegular { .. })));
    assert!(begin.elapsed() < Duration::from_secs(1));
    for link in ["perf-3.map", "perf-4.map"] {
        assert!(matches!(open_in_root(&root, &name(link)), Err(OpenError::NotRegular { .. })), "{link}");
    }
    for outside in ["/tmp/up/secret", "/../secret", "/tmp/up/up/secret"] {
        let error = open_in_root(&root, Path::new(outside)).expect_err(outside);
        assert!(error.is_not_found(), "{error}");
    }
    assert!(matches!(open_regular(Path::new("/dev/null")), Err(OpenError::NotRegular { .. })));
    assert!(matches!(open_regular(&inside("perf-2.map")), Err(OpenError::NotRegular { .. })));

    let owner = fs::metadata(inside("perf-1.map")).expect("the map").uid();
    assert!(open_in_root_owned(&root, &name("perf-1.map"), owner).is_ok());
    // A file of root is believed for anybody; another user's is believed for nobody else.
    let stranger = open_in_root_owned(&root, &name("perf-1.map"), owner + 1);
    assert_eq!(stranger.is_ok(), owner == 0);
    if owner == 0 {
        std::os::unix::fs::chown(inside("perf-1.map"), Some(1234), None).expect("chown by root");
        let error = open_in_root_owned(&root, &name("perf-1.map"), 0).expect_err("another user's file");
        assert!(matches!(error, OpenError::ForeignOwner { found: 1234, expected: 0, .. }), "{error}");
    }
}
