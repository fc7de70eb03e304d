//! The fuzz targets' checks, on stable Rust and in little time: malformed input ends in errors and
//! holes.

mod image;
mod limits;

use std::fs::File;
use std::time::Duration;

use jvmprof_daemon::native::byte_source::RegularFile;
use jvmprof_daemon::native::elf::ElfFile;
use jvmprof_daemon::native::elf::build_id::from_note_bytes;
use jvmprof_daemon::native::symbols::demangle::demangle;
use jvmprof_daemon::native::unwind_rows::{EhFrameHdrRows, UnwindRows};
use jvmprof_daemon::sampler::KernelSymbol;
use jvmprof_daemon::types::{Avma, Svma};
use proptest::collection::vec;
use proptest::prelude::*;

use crate::support::processes::own_cpu_time;

/// The first entries of libc's `.eh_frame`: CIEs, the PLT's expression, ordinary functions.
fn eh_frame() -> Vec<u8> {
    let file = File::open("/lib/x86_64-linux-gnu/libc.so.6").expect("libc");
    let elf = ElfFile::parse(RegularFile::new(&file).expect("regular")).expect("an ELF file");
    let section = elf.section(".eh_frame").expect(".eh_frame");
    elf.read_piece(section, 0, 3000).expect("its bytes")
}

proptest! {
    #[test]
    fn changed_call_frame_information_gives_rows_or_none(
        changes in vec((0..3000usize, any::<u8>()), 0..60),
        cut in 0..3000usize,
    ) {
        let mut bytes = eh_frame();
        for (at, value) in changes {
            bytes[at] = value;
        }
        bytes.truncate(cut);
        let rows = UnwindRows::from_eh_frame(bytes.into(), Svma(0x10_0000), Svma(0)..Svma(u64::MAX));
        for (start, end) in rows.function_ranges() {
            for pc in [start.0, start.0 + (end.0 - start.0) / 2, end.0 - 1, end.0] {
                rows.row(Svma(pc));
            }
        }
    }

    #[test]
    fn a_table_of_functions_that_says_anything_costs_no_more_than_its_file(
        changes in vec((any::<bool>(), any::<u32>(), any::<u8>()), 0..20),
        places in vec(0..0x3_0000u64, 50),
    ) {
        let mut bytes = std::fs::read("/lib/x86_64-linux-gnu/libgcc_s.so.1").expect("libgcc");
        let sections = {
            let elf = ElfFile::parse(&*bytes).expect("an ELF file");
            [".eh_frame", ".eh_frame_hdr"].map(|name| {
                let section = elf.section(name).expect("it is a usual library");
                (elf.place(section).expect("inside the file").0 as usize, section.size as usize)
            })
        };
        for (in_table, at, byte) in &changes {
            let (offset, size) = sections[usize::from(*in_table)];
            bytes[offset + *at as usize % size] = *byte;
        }
        let elf = ElfFile::parse(&*bytes).expect("its headers are as they were");
        let rows = EhFrameHdrRows::load(&elf).expect("its sections are there");
        prop_assert!(rows.is_some() || changes.iter().any(|(in_table, ..)| *in_table), "an unchanged table");
        for (rows, place) in rows.iter().flat_map(|rows| places.iter().map(move |place| (rows, place))) {
            rows.row(Svma(*place));
            prop_assert!(rows.size_bytes() <= bytes.len());
        }
    }

    #[test]
    fn a_kernel_function_contains_the_address_that_it_was_asked_for(
        text in "(__pfx_)?[a-z_]{0,3}\\+?(0x)?[0-9a-f]{0,17}/?(0x)?[0-9a-f]{0,17}( \\[[a-z]{0,2}\\]?)?|.{0,40}",
        address in any::<u64>(),
    ) {
        if let Some(found) = KernelSymbol::parse(&text, Avma(address)) {
            prop_assert!(found.start.0 <= address && address - found.start.0 < found.size, "{found:?}");
            prop_assert!(found.start.0.checked_add(found.size).is_some(), "{found:?}");
            prop_assert!(!found.name.is_empty());
        }
    }

    #[test]
    fn notes_of_any_bytes_are_read_to_their_end(bytes in vec(prop_oneof![0..8u8, any::<u8>()], 0..200)) {
        for align in [4, 8] {
            from_note_bytes(&bytes, align);
        }
    }

    #[test]
    fn any_text_is_demangled_or_left(name in "(_ZN?|_R)?[0-9A-Za-z_.$@]{0,80}") {
        demangle(&name);
    }
}

#[test]
fn names_that_expand_without_bound_stay_mangled() {
    // Each type is a pair of the one before: 2^40 words.
    let mut name = "_Z1fISt4pairIiiE".to_owned();
    for level in 0..40u8 {
        let back = char::from_digit(u32::from(level % 36), 36).expect("a digit").to_ascii_uppercase();
        let back = if level < 36 { format!("S{back}_") } else { "SZ_".to_owned() };
        name += &format!("S_I{back}{back}E");
    }
    name += "EvT_";
    let begin = own_cpu_time();
    assert_eq!(demangle(&name), None);
    let deep = format!("_Z1f{}i", "P".repeat(10_000));
    demangle(&deep);
    demangle(&format!("_R{}", "NtB2_".repeat(3000)));
    demangle(&format!("_RMC0{}u", "R".repeat(15_000)));
    demangle(&"_Z".repeat(100_000));
    let took = own_cpu_time() - begin;
    assert!(took < Duration::from_secs(2), "{took:?}");
}

#[test]
fn versions_hashes_and_parameters_are_no_part_of_the_name() {
    for (raw, name) in [
        ("memcpy@@GLIBC_2.14", "memcpy"),
        ("_ZNSt6vectorIiSaIiEE9push_backERKi", "std::vector<int, std::allocator<int> >::push_back"),
        ("_ZN4core3fmt5write17h0123456789abcdefE", "core::fmt::write"),
        ("_RNvNtCs1234_7mycrate3foo3bar", "mycrate::foo::bar"),
        ("_ZN7Compile8OptimizeEv.cold", "Compile::Optimize"),
    ] {
        assert_eq!(demangle(raw).as_deref(), Some(name));
    }
    for raw in ["main", "_start", "@", "JVM_Sleep", "foo.constprop.0", ""] {
        assert_eq!(demangle(raw), None, "{raw}");
    }
}
