//! Processes in a root of their own, which holds what its owner likes: nothing there leads out of
//! it, is waited for, or names what another process runs.

use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use jvmprof_daemon::native::byte_source::RegularFile;
use jvmprof_daemon::native::elf::ElfFile;
use jvmprof_daemon::process::procfs::mappings;
use nix::sys::stat::{Mode, SFlag, makedev, mknod};
use nix::unistd::mkfifo;
use tempfile::TempDir;

use super::{Recorded, assert_small, build};
use crate::support::{Workload, scratch};

/// A root directory with the program `/opt/deep`, stripped, whose debug file lies outside.
struct Root {
    scratch: TempDir,
    debug: PathBuf,
    id: String,
    contained: PathBuf,
}

fn run(program: &str, arguments: &[&Path]) {
    let status = Command::new(program).args(arguments).status();
    assert!(status.unwrap_or_else(|error| panic!("this test runs {program}: {error}")).success());
}

fn build_id(program: &Path) -> String {
    let file = File::open(program).expect("it was built");
    let elf = ElfFile::parse(RegularFile::new(&file).expect("a regular file")).expect("an ELF file");
    elf.build_id().expect("a build id").to_string()
}

impl Root {
    /// `flags`: more of them for the compiler.
    fn new(flags: &[&str]) -> Self {
        let scratch = scratch();
        let opt = scratch.path().join("root/opt");
        fs::create_dir_all(&opt).expect("made");
        fs::create_dir(scratch.path().join("root/proc")).expect("made");
        let flags = [&["-static", "-g", "-Wl,--build-id=sha1"], flags].concat();
        let program = build(&opt, "deep", "deep.c", &flags);
        let debug = scratch.path().join("deep.debug");
        run("objcopy", &[Path::new("--only-keep-debug"), &program, &debug]);
        run("strip", &[&program]);
        let id = build_id(&program);
        let contained = build(scratch.path(), "contained", "contained.c", &[]);
        Self { scratch, debug, id, contained }
    }

    fn path(&self, inside: &str) -> PathBuf {
        self.scratch.path().join("root").join(inside)
    }

    /// Where a debug file of this build is looked for first.
    fn place(&self) -> PathBuf {
        let (first, rest) = self.id.split_at(2);
        let place = self.path(&format!("usr/lib/debug/.build-id/{first}/{rest}.debug"));
        fs::create_dir_all(place.parent().expect("a folder")).expect("made");
        place
    }

    /// Starts the program as a container's runtime does, with a `/proc` of its own.
    fn start(&self) -> Workload {
        self.start_by(&self.contained)
    }

    /// Starts the program by another one, which gives it its root.
    fn start_by(&self, way: &Path) -> Workload {
        let load = Workload::start(way, &[path_text(&self.path("")), "/opt/deep"]);
        let executable = format!("/proc/{}/exe", load.pid());
        while !fs::read_link(&executable).expect("it runs").ends_with("opt/deep") {
            std::thread::sleep(Duration::from_millis(10));
        }
        load
    }

    fn record(&self) -> Recorded {
        record(&[self.start()])
    }
}

fn record(running: &[Workload]) -> Recorded {
    let pids: Vec<String> = running.iter().map(|load| load.pid().to_string()).collect();
    let mut arguments = vec!["-d", "2s"];
    pids.iter().for_each(|pid| arguments.extend(["-p", pid]));
    Recorded::of(&arguments)
}

fn path_text(path: &Path) -> &str {
    path.to_str().expect("a path in UTF-8")
}

/// Nearly all samples have such a frame, and all of this was done with little memory.
fn assert_frames(recorded: &Recorded, what: &str, is_it: impl Fn(&str) -> bool) {
    let found = recorded.count(|stack| stack.iter().any(|frame| is_it(frame)));
    assert!(recorded.all() > 20, "{what}: {}", recorded.summary);
    assert!(found * 10 >= recorded.all() * 9, "{what}: {:?}", recorded.stacks);
    assert!(recorded.whole() * 100 >= recorded.all() * 99, "{what}: {}", recorded.summary);
    assert_small(recorded, what);
}

fn assert_named(recorded: &Recorded, what: &str) {
    assert_frames(recorded, what, |frame| frame == "outer");
}

fn assert_nameless(recorded: &Recorded, what: &str) {
    assert_frames(recorded, what, |frame| frame.starts_with("deep+0x"));
    let named = recorded.count(|stack| stack.iter().any(|frame| frame == "outer"));
    assert_eq!(named, 0, "{what}: {:?}", recorded.stacks);
}

/// Of [`hostile`], where it can be put in more than one place.
const FEW: [&str; 4] = ["a link out of the root", "a FIFO", "a device", GOES_ON];
const GOES_ON: &str = "a debug file that goes on for four gigabytes";

/// A hostile file: its name, and how it is put somewhere.
type Hostile<'a> = (&'static str, Box<dyn Fn(&Path) + 'a>);

/// What somebody may put where a debug file is expected, and that gives no names.
fn hostile(root: &Root) -> Vec<Hostile<'_>> {
    let linked = |target: PathBuf| move |place: &Path| symlink(&target, place).expect("linked");
    let outside = root.debug.clone();
    let below = outside.strip_prefix("/").expect("an absolute path").to_owned();
    let up = Path::new("../../../../../../../../../../../..").join(&below);
    vec![
        ("a link out of the root", Box::new(linked(outside.clone()))),
        ("a link that goes up", Box::new(linked(up))),
        ("a link through a process's root", Box::new(linked(Path::new("/proc/1/root").join(&below)))),
        ("a link through an open file", Box::new(linked("/proc/self/exe".into()))),
        ("a FIFO", Box::new(|place| mkfifo(place, Mode::S_IRWXU).expect("made"))),
        (
            "a device",
            // /dev/zero.
            Box::new(|place| mknod(place, SFlag::S_IFCHR, Mode::S_IRWXU, makedev(1, 5)).expect("made")),
        ),
        ("a folder", Box::new(|place| fs::create_dir(place).expect("made"))),
        (
            "four gigabytes of nothing",
            Box::new(|place| File::create(place).and_then(|file| file.set_len(4 << 30)).expect("sparse")),
        ),
        (
            GOES_ON,
            Box::new(move |place| {
                let mut bytes = fs::read(&outside).expect("it was built");
                let headers = u64::from_le_bytes(bytes[40..48].try_into().expect("eight bytes")) as usize;
                let count = usize::from(u16::from_le_bytes([bytes[60], bytes[61]]));
                for section in 1..count {
                    // sh_size, of all but the notes, so that the build id is right.
                    let at = headers + 64 * section;
                    if bytes[at + 4] != 7 {
                        bytes[at + 32..at + 40].copy_from_slice(&(3u64 << 30).to_le_bytes());
                    }
                }
                fs::write(place, bytes).expect("written");
                File::options()
                    .write(true)
                    .open(place)
                    .and_then(|file| file.set_len(4 << 30))
                    .expect("sparse");
            }),
        ),
    ]
}

fn remove(place: &Path) {
    match place.is_dir() && !place.is_symlink() {
        true => fs::remove_dir(place),
        false => fs::remove_file(place),
    }
    .expect("it was made");
}

#[test]
fn what_a_container_has_for_a_debug_file_by_build_id_is_one_in_its_root_or_none() {
    let root = Root::new(&[]);
    let place = root.place();
    for (what, make) in hostile(&root) {
        make(&place);
        assert_nameless(&root.record(), what);
        remove(&place);
    }
    // Its own links are followed as it would itself.
    fs::copy(&root.debug, root.path("opt/elsewhere")).expect("copied");
    symlink("/opt/elsewhere", &place).expect("linked");
    assert_named(&root.record(), "a link in the root");
}

#[test]
fn what_a_container_has_for_a_linked_debug_file_is_one_in_its_root_or_none() {
    let root = Root::new(&[]);
    let link = format!("--add-gnu-debuglink={}", root.debug.display());
    run("objcopy", &[Path::new(&link), &root.path("opt/deep")]);
    let place = root.path("opt/deep.debug");
    for (what, make) in hostile(&root).into_iter().filter(|(what, _)| FEW.contains(what)) {
        make(&place);
        assert_nameless(&root.record(), what);
        remove(&place);
    }
    fs::copy(&root.debug, &place).expect("copied");
    assert_named(&root.record(), "the debug file");
}

/// The very file that runs is read, whatever its path leads to by now.
#[test]
fn a_program_whose_place_somebody_else_took_is_named_by_itself() {
    let root = Root::new(&[]);
    fs::copy(&root.debug, root.place()).expect("copied");
    let (program, kept) = (root.path("opt/deep"), root.path("opt/kept"));
    fs::rename(&program, &kept).expect("renamed");
    for (what, make) in hostile(&root).into_iter().filter(|(what, _)| FEW.contains(what)) {
        fs::copy(&kept, &program).expect("copied");
        let running = root.start();
        fs::remove_file(&program).expect("removed");
        make(&program);
        assert_named(&record(&[running]), what);
        remove(&program);
    }
}

/// `/proc/PID/maps` tells paths as its reader sees them, the kernel's events as the process does:
/// both must mean the same.
#[test]
fn paths_of_what_a_process_in_another_root_has_mapped_begin_there() {
    let root = Root::new(&[]);
    for way in [&root.contained, Path::new("/usr/sbin/chroot")] {
        let running = root.start_by(way);
        let mapped = mappings(running.pid()).expect("it runs");
        let paths: Vec<&str> = mapped.iter().map(|mapping| &*mapping.path).collect();
        assert!(paths.contains(&"/opt/deep"), "{way:?}: {paths:?}");
    }
}

/// Whoever makes a file may give it another's build id.
#[test]
fn processes_whose_files_have_one_build_id_are_each_named_by_their_own() {
    let other_names = ["-Dleaf=other_leaf", "-Dmiddle=other_middle", "-Douter=other_outer"];
    let roots = [Root::new(&[]), Root::new(&[&["-fno-pie", "-no-pie"], &other_names[..]].concat())];
    let note = roots[0].scratch.path().join("note");
    let section = |flag: &str| format!("--{flag}=.note.gnu.build-id={}", note.display());
    run("objcopy", &[Path::new(&section("dump-section")), &roots[0].debug]);
    for file in [&roots[1].debug, &roots[1].path("opt/deep")] {
        run("objcopy", &[Path::new(&section("update-section")), file]);
    }
    assert_eq!(build_id(&roots[1].path("opt/deep")), roots[0].id);
    // Debug files by the same name, too.
    let place = roots[0].place();
    fs::copy(&roots[0].debug, &place).expect("copied");
    let inside = place.strip_prefix(roots[0].path("")).expect("below the root");
    let others = roots[1].path(path_text(inside));
    fs::create_dir_all(others.parent().expect("a folder")).expect("made");
    fs::copy(&roots[1].debug, others).expect("copied");

    let recorded = record(&roots.each_ref().map(Root::start));
    let has = |stack: &[String], name: &str| stack.iter().any(|frame| frame == name);
    let own = recorded.count(|stack| has(stack, "outer") && has(stack, "middle") && has(stack, "leaf"));
    let others = recorded
        .count(|stack| has(stack, "other_outer") && has(stack, "other_middle") && has(stack, "other_leaf"));
    let mixed = recorded.count(|stack| {
        let is_others = |frame: &String| frame.starts_with("other_");
        stack.iter().any(is_others) && ["outer", "middle", "leaf"].iter().any(|name| has(stack, name))
    });
    assert!(own > 20 && others > 20, "{own} and {others}: {:?}", recorded.stacks);
    assert_eq!(mixed, 0, "{:?}", recorded.stacks);
    assert!((own + others) * 10 >= recorded.all() * 9, "{:?}", recorded.stacks);
    assert!(recorded.whole() * 100 >= recorded.all() * 99, "{}", recorded.summary);
}
