//! The symbols of the running kernel. Needs root (or CAP_SYSLOG), and fails without.
#![allow(clippy::expect_used, reason = "a test ends by its first surprise")]

use std::collections::BTreeMap;
use std::time::Instant;

use jvmprof_daemon::native::kallsyms::Kallsyms;
use jvmprof_daemon::types::Avma;

#[test]
fn every_function_of_the_running_kernel_is_found() {
    let begin = Instant::now();
    let symbols = Kallsyms::load().expect("the kernel's symbols; this test needs CAP_SYSLOG");
    let taken = begin.elapsed();
    let text = std::fs::read_to_string("/proc/kallsyms").expect("the kernel's symbols");
    let mut functions = BTreeMap::<u64, Vec<&str>>::new();
    for line in text.lines() {
        let fields: Vec<_> = line.split([' ', '\t']).collect();
        let [address, kind, name, ..] = fields[..] else { continue };
        if ["t", "T", "w", "W"].contains(&kind) {
            functions.entry(u64::from_str_radix(address, 16).expect("hex")).or_default().push(name);
        }
    }
    let is_padding = |name: &str| name.starts_with("__pfx_");
    let mut padded = 0;
    for (start, names) in &functions {
        let found =
            symbols.lookup(Avma(*start)).unwrap_or_else(|| panic!("nothing at {start:#x}, {names:?}"));
        // The padding before a function belongs to it.
        if names.iter().all(|name| is_padding(name)) {
            assert_eq!(found.start, Avma(*start), "{names:?}");
            let function = found.start.0..found.start.0 + found.size;
            let behind = functions.range(start + 1..).next().expect("a function");
            assert!(
                function.contains(behind.0) && behind.1.contains(&found.name.as_str()),
                "{names:?}: {found:?}"
            );
            padded += 1;
            continue;
        }
        let before = start - found.start.0;
        let padding = functions.get(&found.start.0).is_some_and(|names| is_padding(names[0]));
        assert!(before == 0 || padding && before <= 64, "{before} bytes before {names:?}");
        assert!(names.contains(&found.name.as_str()), "{} at {start:#x}, one of {names:?}", found.name);
        let end = found.start.0 + found.size;
        let last = symbols.lookup(Avma(end - 1)).expect("its last byte");
        assert_eq!(last, found);
        let behind = symbols.lookup(Avma(end));
        assert!(behind.is_none_or(|behind| behind.start.0 == end));
    }
    println!("{} functions, {} bytes, loaded in {taken:?}", symbols.len(), symbols.size_bytes());
    assert_eq!(symbols.len(), functions.len() - padded);
    assert!(symbols.size_bytes() < 20 * symbols.len());
}
