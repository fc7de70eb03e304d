//! Stacks through code that is mapped in unusual ways, or says unusually little of itself: they are
//! whole, and no stack is said to be whole that isn't. Needs root, gcc and binutils.

mod hostile;
mod rooted;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::support::{Workload, record_json, scratch};
use serde_json::Value;

/// Neither frame pointers nor sibling calls, so that rows alone lead on.
const WITHOUT_FRAME_POINTERS: [&str; 3] = ["-O2", "-fomit-frame-pointer", "-fno-optimize-sibling-calls"];

fn build(directory: &Path, output: &str, file: &str, flags: &[&str]) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/record/mapped_files/programs").join(file);
    let program = directory.join(output);
    let mut gcc = Command::new("gcc");
    gcc.args(WITHOUT_FRAME_POINTERS).args(flags).arg("-o").arg(&program).arg(source);
    assert!(gcc.status().expect("this test runs gcc").success(), "gcc {flags:?} {file}");
    program
}

/// The results of a recording.
struct Recorded {
    summary: Value,
    /// Stacks, root first, and how many samples they had.
    stacks: Vec<(Vec<String>, u64)>,
}

impl Recorded {
    /// Samples a program for two seconds, or until a command ends.
    fn of(what: &[&str]) -> Self {
        let directory = scratch();
        let file = directory.path().join("x.folded");
        let mut arguments = vec!["-F", "499", "-o", file.to_str().expect("a path in UTF-8")];
        arguments.extend(what);
        let summary = record_json(&arguments);
        let folded = fs::read_to_string(&file).expect("the recording was written");
        let stacks = folded.lines().filter_map(|line| line.rsplit_once(' '));
        let stacks = stacks.map(|(stack, count)| {
            (stack.split(';').map(str::to_owned).collect(), count.parse().expect("a count"))
        });
        Self { summary, stacks: stacks.collect() }
    }

    fn of_load(program: &Path) -> Self {
        Self::of_running(&Workload::start(program, &[]))
    }

    fn of_running(load: &Workload) -> Self {
        Self::of(&["-d", "2s", "-p", &load.pid().to_string()])
    }

    fn count(&self, condition: impl Fn(&[String]) -> bool) -> u64 {
        self.stacks.iter().filter(|(stack, _)| condition(stack)).map(|(_, count)| count).sum()
    }

    fn all(&self) -> u64 {
        self.summary["samples"].as_u64().expect("a number")
    }

    fn whole(&self) -> u64 {
        self.summary["complete"].as_u64().expect("a number")
    }

    /// Nearly all samples of this leaf have these frames above it, from the root on.
    fn assert_whole(&self, frames: &[&str]) {
        let summary = &self.summary;
        assert!(self.all() > 50, "{summary}");
        let is_it = |stack: &[String]| {
            let mut rest = frames.iter().peekable();
            stack.iter().for_each(|frame| _ = rest.next_if(|wanted| **wanted == frame));
            rest.peek().is_none()
        };
        let as_expected = self.count(is_it);
        assert!(as_expected * 10 >= self.all() * 9, "{as_expected} have {frames:?}: {summary}");
        assert!(self.whole() * 100 >= self.all() * 99, "{summary}");
    }
}

/// A daemon that believed what hostile files say would take gigabytes.
fn assert_small(recorded: &Recorded, what: &str) {
    let peak = recorded.summary["daemon"]["peak_rss_bytes"].as_u64().expect("bytes");
    assert!(peak < 200 << 20, "{what}: {peak} bytes");
}

#[test]
fn a_library_in_the_place_of_another_is_walked_by_its_own_rows() {
    let directory = scratch();
    for (name, frame) in [("a", "40"), ("b", "200")] {
        let (name_flag, frame_flag) = (format!("-DNAME={name}"), format!("-DFRAME={frame}"));
        let flags = ["-g0", "-fPIC", "-shared", "-Wl,--build-id", &name_flag, &frame_flag];
        build(directory.path(), &format!("lib{name}.so"), "library.c", &flags);
    }
    let swap = build(directory.path(), "swap", "swap.c", &["-g0"]);
    let command = format!("cd {} && exec {} 4", directory.path().display(), swap.display());
    let recorded = Recorded::of(&["--", "sh", "-c", &command]);
    let has = |stack: &[String], name: &str| stack.iter().any(|frame| frame == name);
    let is_in = |stack: &[String], library: &str| {
        let names = ["leaf", "middle"].map(|name| format!("{name}_{library}"));
        names.iter().any(|name| has(stack, name))
    };
    for (own, other) in [("a", "b"), ("b", "a")] {
        let caller = format!("in_{own}");
        let right = recorded.count(|stack| is_in(stack, own) && has(stack, &caller));
        let wrong = recorded.count(|stack| is_in(stack, own) && has(stack, &format!("in_{other}")));
        assert!(right > 50, "{right} in lib{own}.so: {}", recorded.summary);
        assert_eq!(wrong, 0, "stacks through code of both libraries: {:?}", recorded.stacks);
    }
    // Linking takes some samples, too.
    let (whole, all) = (recorded.whole(), recorded.all());
    assert!(whole * 100 >= all * 97, "{whole} of {all}: {}", recorded.summary);
}

/// As Java libraries extract their native code, load it and remove the file; built by a linker that
/// gives code no segment of its own, and the first segment the addresses of all.
#[test]
fn a_removed_library_whose_mapping_was_cut_by_its_loader_is_walked_and_named() {
    for build_id in ["-Wl,--build-id=none", "-Wl,--build-id"] {
        let directory = scratch();
        let flags = ["-g0", "-fPIC", "-shared", "-Wl,-z,noseparate-code", "-DNAME=a", "-DFRAME=40", build_id];
        let library = build(directory.path(), "liba.so", "library.c", &flags);
        let program = build(directory.path(), "extracted", "extracted.c", &["-g0"]);
        let [program, library] = [&program, &library].map(|path| path.to_str().expect("a path in UTF-8"));
        let recorded = Recorded::of(&["--", program, library, "2"]);
        recorded.assert_whole(&["main", "work", "middle_a", "leaf_a"]);
    }
}

/// The kernel doesn't choose the place: not every kernel lets the kernel program notice, and stacks
/// may end in such code until the daemon has told of it. None goes on by the rows of what was there
/// before.
#[test]
fn code_that_is_mapped_over_other_code_is_never_walked_by_the_others_rows() {
    let directory = scratch();
    for (name, frame) in [("a", "40"), ("b", "200")] {
        let (name_flag, frame_flag) = (format!("-DNAME={name}"), format!("-DFRAME={frame}"));
        let flags = ["-g0", "-fPIC", "-shared", "-nostdlib", "-Wl,-e,work", "-Wl,--build-id"];
        let flags = [&flags[..], &[&name_flag, &frame_flag]].concat();
        build(directory.path(), &format!("{name}.so"), "unlinked.c", &flags);
    }
    let over = build(directory.path(), "over", "over.c", &["-g0"]);
    let command = format!("cd {} && exec {} 4 1500", directory.path().display(), over.display());
    let recorded = Recorded::of(&["--", "sh", "-c", &command]);
    let has = |stack: &[String], name: &str| stack.iter().any(|frame| frame == name);
    for (own, other) in [("a", "b"), ("b", "a")] {
        let (leaf, middle) = (format!("leaf_{own}"), format!("middle_{own}"));
        let is_in = |stack: &[String]| has(stack, &leaf) || has(stack, &middle);
        let right = recorded.count(|stack| is_in(stack) && has(stack, &format!("in_{own}")));
        // What ends there is cut off at the first frame of this code.
        let ends = |stack: &[String]| stack[0].contains("code mapped over other code") && stack.len() == 2;
        let wrong = recorded.count(|stack| {
            let is_right = has(stack, &format!("in_{own}")) && !has(stack, &format!("in_{other}"));
            is_in(stack) && !is_right && !ends(stack)
        });
        assert!(right > 500, "{right} in {own}.so: {}", recorded.summary);
        assert_eq!(wrong, 0, "stacks through {own}.so: {:?}", recorded.stacks);
    }
    let (whole, all) = (recorded.whole(), recorded.all());
    assert!(whole * 100 >= all * 55, "{whole} of {all}: {}", recorded.summary);
}

/// The first samples of each process come before the kernel program knows it, and carry their
/// stack.
#[test]
fn large_frames_of_processes_that_are_new_are_walked() {
    let directory = scratch();
    let wide = build(directory.path(), "wide", "wide.c", &["-g0"]);
    let command = format!("for i in $(seq 60); do {}; done", wide.display());
    let recorded = Recorded::of(&["--", "sh", "-c", &command]);
    let in_leaf = recorded.count(|stack| stack.iter().any(|frame| frame == "leaf"));
    let is_whole = |stack: &[String]| {
        let mut rest = stack.iter();
        ["_start", "main", "wide", "leaf"].iter().all(|wanted| rest.any(|frame| frame == wanted))
    };
    let whole = recorded.count(is_whole);
    assert!(in_leaf > 200, "{}", recorded.summary);
    assert!(whole * 1000 >= in_leaf * 995, "{whole} of {in_leaf}: {:?}", recorded.stacks);
}

#[test]
fn a_program_that_lies_in_memory_alone_is_walked_as_any_other() {
    let directory = scratch();
    let program = build(directory.path(), "deep", "deep.c", &[]);
    let frames = ["main", "outer", "middle", "leaf"];
    // Python hands the file on without a path.
    let run = "import os, sys
memory = os.memfd_create('deep')
os.write(memory, open(sys.argv[1], 'rb').read())
os.execve(memory, ['deep'], {})";
    let load =
        Workload::start(Path::new("python3"), &["-c", run, program.to_str().expect("a path in UTF-8")]);
    let executable = format!("/proc/{}/exe", load.pid());
    while !fs::read_link(&executable).expect("it runs").starts_with("/memfd:deep (deleted)") {
        std::thread::sleep(Duration::from_millis(10));
    }
    Recorded::of_running(&load).assert_whole(&frames);

    let shared =
        tempfile::Builder::new().prefix("jvmprof-").tempdir_in("/dev/shm").expect("/dev/shm is there");
    let copy = shared.path().join("deep");
    fs::copy(program, &copy).expect("/dev/shm takes files");
    Recorded::of_load(&copy).assert_whole(&frames);
}

#[test]
fn programs_without_a_dynamic_linker_are_walked_as_any_other() {
    let directory = scratch();
    for kind in ["-static", "-static-pie"] {
        let program = build(directory.path(), "deep", "deep.c", &["-g0", kind]);
        Recorded::of_load(&program).assert_whole(&["_start", "main", "outer", "middle", "leaf"]);
    }
}

/// No file of the host has that code.
#[test]
fn code_of_the_vdso_is_walked_and_named() {
    let directory = scratch();
    let recorded = Recorded::of_load(&build(directory.path(), "clock", "clock.c", &["-g0"]));
    // libc's function, and that of the vdso which it calls: one of the two names that it has there.
    let inside =
        recorded.count(|stack| stack.windows(3).any(|it| it == ["ask", "clock_gettime", "clock_gettime"]));
    assert!(recorded.all() > 50 && inside * 2 > recorded.all(), "{inside}: {:?}", recorded.stacks);
    assert!(recorded.whole() * 100 >= recorded.all() * 99, "{}", recorded.summary);
}

#[test]
fn functions_that_only_debug_frame_tells_of_are_walked_by_it() {
    let directory = scratch();
    // More code than is analysed where nothing tells of it.
    let flags = ["-g", "-DMUCH", "-fno-asynchronous-unwind-tables", "-fno-unwind-tables"];
    let program = build(directory.path(), "deep", "deep.c", &flags);
    Recorded::of_load(&program).assert_whole(&["_start", "main", "outer", "middle", "leaf"]);
}

#[test]
fn a_program_without_section_headers_is_walked_by_its_eh_frame() {
    let directory = scratch();
    let program = build(directory.path(), "deep", "deep.c", &["-g0"]);
    let mut bytes = fs::read(&program).expect("it was built");
    // e_shoff; e_shnum and e_shstrndx.
    bytes[0x28..0x30].fill(0);
    bytes[0x3c..0x40].fill(0);
    let cut = directory.path().join("cut");
    fs::write(&cut, bytes).expect("the folder is writable");
    fs::set_permissions(&cut, fs::Permissions::from_mode(0o755)).expect("the file is ours");
    let recorded = Recorded::of_load(&cut);
    assert!(recorded.all() > 50, "{}", recorded.summary);
    assert!(recorded.whole() * 100 >= recorded.all() * 99, "{}", recorded.summary);
    // _start, main and three functions; between them glibc has two.
    let deep = recorded.count(|stack| stack.iter().filter(|frame| frame.starts_with("cut+")).count() == 5);
    assert!(deep * 10 >= recorded.all() * 9, "{deep}: {:?}", recorded.stacks);
}

/// glibc has no frame information of the instructions behind its system call, from where the parent
/// returns and the child goes on.
#[test]
fn threads_that_begin_all_the_time_have_whole_stacks_in_parent_and_child() {
    let directory = scratch();
    let recorded = Recorded::of_load(&build(directory.path(), "threads", "threads.c", &["-g0", "-pthread"]));
    let count = |function: &str| {
        recorded.count(|stack| {
            stack.iter().any(|frame| frame == function)
                && stack.iter().any(|frame| frame.starts_with("clone"))
        })
    };
    // Few of the children are met before they have called anything.
    println!("{} in parents, {} of children not begun yet", count("main"), count("ret_from_fork"));
    assert!(count("main") > 10, "{:?}", recorded.stacks);
    assert!(recorded.whole() * 100 >= recorded.all() * 99, "{}: {:?}", recorded.summary, recorded.stacks);
}

#[test]
fn a_zero_in_rbp_makes_no_stack_whole() {
    let directory = scratch();
    let flags = ["-g0", "-fno-asynchronous-unwind-tables", "-fno-unwind-tables"];
    let program = build(directory.path(), "zeroed", "zeroed.c", &flags);
    let recorded = Recorded::of_load(&program);
    // Interrupts are seen in the kernel, too.
    let cut = recorded.count(|stack| {
        stack[0] == "[truncated: frame pointer chain ended]" && stack.get(1).is_some_and(|it| it == "zeroed")
    });
    assert!(recorded.all() > 50, "{}", recorded.summary);
    assert!(cut * 100 >= recorded.all() * 99, "{cut}: {}, {:?}", recorded.summary, recorded.stacks);
}

#[test]
fn threads_that_the_kernel_started_for_a_process_have_no_stack_to_be_cut() {
    let directory = scratch();
    let recorded = Recorded::of_load(&build(directory.path(), "uring", "uring.c", &["-g0"]));
    let in_workers = recorded.count(|stack| stack.iter().any(|frame| frame.starts_with("io_wq_worker")));
    assert!(in_workers > 50, "{in_workers}: {:?}", recorded.stacks);
    assert!(recorded.whole() * 100 >= recorded.all() * 99, "{}", recorded.summary);
}

#[test]
fn frame_pointers_that_lead_to_where_programs_and_threads_begin_make_stacks_whole() {
    let directory = scratch();
    let flags = [
        // Functions that call none have a frame, too.
        "-O0",
        "-nostdlib",
        "-static",
        "-fno-stack-protector",
        "-fno-omit-frame-pointer",
        "-fno-asynchronous-unwind-tables",
        "-fno-unwind-tables",
    ];
    let program = build(directory.path(), "bare", "bare.c", &flags);
    let recorded = Recorded::of_load(&program);
    let below = |root: &'static str| recorded.count(|stack| stack.iter().any(|frame| frame == root));
    assert!(below("in_thread") > 50 && below("in_program") > 50, "{:?}", recorded.stacks);
    assert!(recorded.whole() * 100 >= recorded.all() * 99, "{:?}", recorded.stacks);
}
