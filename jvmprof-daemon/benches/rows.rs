//! Cost of unwind rows: `cargo bench --bench rows [-- FILE...]`.
//!
//! The time from a file's section to the kernel's form of its rows, and how large that is. Not a
//! divan benchmark: what counts is bytes a row, and time by megabyte of `.eh_frame`.
#![allow(clippy::expect_used, reason = "a benchmark ends by its first surprise")]

use std::fs::File;
use std::path::Path;
use std::time::{Duration, Instant};

use jvmprof_daemon::hotspot::stubs::analyze_native;
use jvmprof_daemon::kernel_tables::FileRows;
use jvmprof_daemon::native::byte_source::RegularFile;
use jvmprof_daemon::native::elf::ElfFile;
use jvmprof_daemon::native::unwind_rows::UnwindRows;

/// What is measured where no file is named; those that aren't here are left out.
const FILES: [&str; 5] = [
    "/lib/x86_64-linux-gnu/libc.so.6",
    "/usr/lib/x86_64-linux-gnu/libstdc++.so.6",
    "/usr/lib/jvm/java-17-openjdk-amd64/lib/server/libjvm.so",
    "/usr/bin/node",
    "/usr/lib/x86_64-linux-gnu/libLLVM.so",
];
/// The quickest of so many counts: others were interrupted.
const TURNS: usize = 5;

fn main() {
    let named = std::env::args().skip(1).filter(|arg| !arg.starts_with("--"));
    let mut files: Vec<String> = named.collect();
    if files.is_empty() {
        files = FILES.into_iter().filter(|path| Path::new(path).exists()).map(str::to_owned).collect();
    }
    println!(
        ".eh_frame KiB     rows  functions  bytes/row  all of .eh_frame  ms/MB   load ms  pack ms  file"
    );
    files.iter().for_each(|path| measure(path));
}

fn measure(path: &str) {
    let file = File::open(path).expect("the file");
    let section = {
        let elf = ElfFile::parse(RegularFile::new(&file).expect("a regular file")).expect("an ELF file");
        elf.sections().iter().find(|section| section.name == ".eh_frame").map_or(0, |section| section.size)
    };
    let mut best: Option<(Duration, Duration)> = None;
    let mut made = (0, FileRows::default());
    for _ in 0..TURNS {
        let begin = Instant::now();
        let elf = ElfFile::parse(RegularFile::new(&file).expect("a regular file")).expect("an ELF file");
        let rows = UnwindRows::load_with(&elf, Some(analyze_native)).expect("rows");
        let load = begin.elapsed();
        let begin = Instant::now();
        let packed = FileRows::new(|handle| rows.for_each(handle));
        let pack = begin.elapsed();
        if best.is_none_or(|(a, b)| load + pack < a + b) {
            best = Some((load, pack));
        }
        made = (rows.function_ranges().count(), packed);
    }
    let (functions, packed) = made;
    let (load, pack) = best.unwrap_or_default();
    let megabytes = (section as f64 / 1e6).max(f64::MIN_POSITIVE);
    println!(
        "{:>13} {:>8} {:>10} {:>10.2} {:>16.0} % {:>6.1} {:>9.1} {:>8.1}  {path}",
        section / 1024,
        packed.len(),
        functions,
        packed.size_bytes() as f64 / packed.len().max(1) as f64,
        packed.size_bytes() as f64 * 100.0 / (megabytes * 1e6),
        (load + pack).as_secs_f64() * 1e3 / megabytes,
        load.as_secs_f64() * 1e3,
        pack.as_secs_f64() * 1e3,
    );
}
