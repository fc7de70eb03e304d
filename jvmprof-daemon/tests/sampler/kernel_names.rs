//! The names of the running kernel's functions. Needs root, as the profiler itself, and to compare
//! them CAP_SYSLOG; fails without.

use std::collections::BTreeMap;
use std::time::Instant;

use jvmprof_daemon::sampler::{KernelSymbolizer, Sampler, SamplerOptions};
use jvmprof_daemon::types::Avma;

/// The kernel's own image; modules and BPF programs, which come and go, lie above.
const IMAGE: std::ops::Range<u64> = 0xffff_ffff_8000_0000..0xffff_ffff_a000_0000;

fn names() -> (Sampler, KernelSymbolizer) {
    let options =
        SamplerOptions { pids: Some(vec![u32::MAX]), ring_bytes: 4096, ..SamplerOptions::of_cpu_time(1) };
    let mut names = None;
    let sampler = Sampler::start(&options, |mut tables| names = tables.kernel_symbolizer.take());
    (sampler.expect("the kernel lets root sample"), names.expect("the kernel takes the program"))
}

#[test]
fn every_function_of_the_running_kernel_is_named_as_the_list_of_its_symbols_does() {
    let (_sampler, mut names) = names();
    let text = std::fs::read_to_string("/proc/kallsyms").expect("the kernel's symbols");
    let mut listed = BTreeMap::<u64, Vec<&str>>::new();
    for line in text.lines() {
        let fields: Vec<_> = line.split([' ', '\t']).collect();
        let [address, kind, name, ..] = fields[..] else { continue };
        let address = u64::from_str_radix(address, 16).expect("hex");
        if ["t", "T", "w", "W"].contains(&kind) && IMAGE.contains(&address) {
            listed.entry(address).or_default().push(name);
        }
    }
    // Behind it is what ran once, at boot.
    let etext = listed.iter().find(|(_, names)| names.contains(&"_etext")).map(|(end, _)| *end);
    listed.split_off(&etext.expect("the end of the kernel's code; this test needs CAP_SYSLOG"));
    assert!(listed.len() > 10_000, "{} addresses", listed.len());
    // Somewhere in the function, as a pc is.
    let places: Vec<_> = listed.keys().map(|start| Avma(start + 1)).collect();
    let begin = Instant::now();
    let named = names.symbolize(&places).expect("the kernel runs the program");
    println!("{} functions named in {:?}", places.len(), begin.elapsed());
    let mut of_one_byte = 0;
    for ((start, aliases), symbol) in listed.iter().zip(&named) {
        // What is a byte long ends before the place that was asked for.
        if listed.contains_key(&(start + 1)) {
            of_one_byte += 1;
            continue;
        }
        let symbol = symbol.as_ref().unwrap_or_else(|| panic!("nothing at {start:#x}, {aliases:?}"));
        let is_named = aliases.iter().any(|name| name.strip_prefix("__pfx_").unwrap_or(name) == symbol.name);
        assert!(is_named, "{symbol:?} at {start:#x}, {aliases:?}");
        assert_eq!((symbol.start, &symbol.module), (Avma(*start), &None), "{symbol:?}");
    }
    assert!(of_one_byte * 1000 < listed.len(), "{of_one_byte} of {}", listed.len());
}

#[test]
fn what_is_no_code_of_the_kernel_has_no_name_and_the_program_itself_has_one() {
    let (_sampler, mut names) = names();
    let nowhere = [Avma(1), Avma(0x7fff_0000_0000), Avma(0xffff_8880_0000_0000), Avma(u64::MAX)];
    assert_eq!(names.symbolize(&nowhere).expect("the kernel runs the program"), [const { None }; 4]);
    assert_eq!(names.symbolize(&[]).expect("nothing to do"), []);
    let own = names.probe().expect("the kernel runs the program").expect("a function");
    assert!(own.contains("kernel_names") || own.contains("bpf"), "{own}");
}
