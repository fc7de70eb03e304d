//! Programs that run, and whose files lie: samples of them are still named as far as anything true
//! is known, and the profiler comes to no harm.

use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::Path;

use jvmprof_daemon::native::byte_source::RegularFile;
use jvmprof_daemon::native::elf::ElfFile;

use super::{Recorded, assert_small, build};
use crate::support::scratch;

/// Changes bytes of a section's contents.
fn change(program: &Path, section: &str, mut change: impl FnMut(&mut [u8])) {
    let mut file = File::options().read(true).write(true).open(program).expect("it was built");
    let elf = ElfFile::parse(RegularFile::new(&file).expect("a regular file")).expect("an ELF file");
    let found = elf.sections().iter().find(|it| it.name == section).expect("it has that section");
    let (offset, size) = (found.offset.0, usize::try_from(found.size).expect("small"));
    drop(elf);
    let mut bytes = vec![0; size];
    file.seek(SeekFrom::Start(offset)).expect("there");
    file.read_exact(&mut bytes).expect("read");
    change(&mut bytes);
    file.seek(SeekFrom::Start(offset)).expect("there");
    file.write_all(&bytes).expect("written");
}

#[test]
fn frame_information_of_garbage_costs_stacks_and_not_names() {
    let directory = scratch();
    for seed in [1u64, 2, 3] {
        let program = build(directory.path(), &format!("deep{seed}"), "deep.c", &["-g0"]);
        let mut state = seed;
        change(&program, ".eh_frame", |bytes| {
            for byte in bytes.iter_mut() {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                // The first keeps its lengths for the most part, so that there are entries to be
                // read.
                if seed > 1 || state >> 60 == 0 {
                    *byte = (state >> 40) as u8;
                }
            }
        });
        let recorded = Recorded::of_load(&program);
        let named = recorded.count(|stack| stack.iter().any(|frame| frame == "leaf"));
        assert!(recorded.all() > 50, "{}", recorded.summary);
        assert!(named * 10 >= recorded.all() * 9, "{named}: {:?}", recorded.stacks);
        println!("{seed}: {} of {} whole, {}", recorded.whole(), recorded.all(), recorded.summary["losses"]);
        assert_small(&recorded, "garbage");
    }
}

#[test]
fn a_program_of_four_gigabytes_whose_sections_claim_three_each_is_profiled_all_the_same() {
    let directory = scratch();
    let program = build(directory.path(), "deep", "deep.c", &["-g0"]);
    let mut file = File::options().read(true).write(true).open(&program).expect("it was built");
    let mut header = [0; 64];
    file.read_exact(&mut header).expect("a header");
    let section_headers = u64::from_le_bytes(header[40..48].try_into().expect("eight bytes"));
    file.set_len(4 << 30).expect("sparse");
    for section in 1..u64::from(u16::from_le_bytes([header[60], header[61]])) {
        // sh_size.
        file.seek(SeekFrom::Start(section_headers + section * 64 + 32)).expect("there");
        file.write_all(&(3u64 << 30).to_le_bytes()).expect("written");
    }
    drop(file);
    let recorded = Recorded::of_load(&program);
    let own = recorded.count(|stack| stack.iter().any(|frame| frame.starts_with("deep+0x")));
    assert!(recorded.all() > 50 && own * 10 >= recorded.all() * 9, "{:?}", recorded.stacks);
    assert_small(&recorded, "four gigabytes");
}

#[test]
fn code_in_memory_of_a_device_is_walked_and_the_device_left_alone() {
    let directory = scratch();
    let recorded = Recorded::of_load(&build(directory.path(), "device", "device.c", &["-g0"]));
    recorded.assert_whole(&["_start", "main", "caller", "[jit: unknown]"]);
}

/// Whoever maps such a file is ended by what isn't there any more; who only reads it isn't.
#[test]
fn a_library_that_is_cut_short_while_it_runs_harms_nobody_else() {
    let directory = scratch();
    let flags = ["-g0", "-fPIC", "-shared", "-Wl,--build-id", "-DNAME=a", "-DFRAME=40"];
    let library = build(directory.path(), "liba.so", "library.c", &flags);
    let original = fs::read(&library).expect("it was built");
    fs::copy(&library, directory.path().join("libb.so")).expect("copied");
    let swap = build(directory.path(), "swap", "swap.c", &["-g0"]);
    let cut = original.len() - 1000;
    let command = format!(
        "cd {0} && (sleep 0.5; truncate -s {cut} liba.so; sleep 0.5; truncate -s 100 libb.so) & \
         cd {0} && ({1} 3 || true)",
        directory.path().display(),
        swap.display()
    );
    let recorded = Recorded::of(&["--", "sh", "-c", &command]);
    println!("{}", recorded.summary);
    assert_small(&recorded, "cut short");
}
