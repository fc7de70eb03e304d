//! A JVM's own map of its compiled code, as a cross-check: `jcmd PID Compiler.perfmap`, JDK 17 and
//! later.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use jvmprof_daemon::hotspot::JavaCache;
use jvmprof_daemon::jit::name_formats::code_name;

use crate::real::{Jvm, classes, request};
use crate::support::jdks;
use crate::support::left::remove_left;

/// The JVM's own map: names by where their code begins.
fn own_map(home: &Path, pid: u32) -> BTreeMap<u64, String> {
    let mut jcmd = Command::new(home.join("bin/jcmd"));
    let done = jcmd.args([&pid.to_string(), "Compiler.perfmap"]).stdout(Stdio::null()).status();
    assert!(done.expect("the JDK has a jcmd").success());
    let text = fs::read_to_string(format!("/tmp/perf-{pid}.map")).expect("a map");
    let entries = text.lines().map(|line| {
        let mut words = line.splitn(3, ' ');
        let start = words.next().and_then(|word| u64::from_str_radix(word.trim_start_matches("0x"), 16).ok());
        (start.unwrap_or_else(|| panic!("{line}")), words.nth(1).unwrap_or_default().to_owned())
    });
    entries.collect()
}

#[test]
fn compiled_code_has_the_names_that_the_jvm_itself_gives_it() {
    let classes = classes(&[]);
    for (feature, home) in jdks().into_iter().filter(|(feature, _)| *feature >= 17) {
        let jvm = Jvm::start(&home, &["-cp", classes.path().to_str().unwrap(), "Names"]);
        let mut hotspot = jvm.attach();
        let own = own_map(&home, jvm.0.id());
        let (mut same, mut without) = (0, 0);
        for compiled in hotspot.compiled().unwrap() {
            let start = compiled.code.start.0;
            let found = hotspot.resolve(&JavaCache::default(), &[request(&compiled, start)]).remove(0);
            // It may have gone, or come, since the JVM was asked.
            let Some((frames, own)) = found.ok().zip(own.get(&start)) else {
                without += 1;
                continue;
            };
            // What was inlined comes before the method that was compiled.
            let (ours, theirs) = (&*frames.last().unwrap().name, code_name(own).name);
            // Numbers of classes that were made at run time are taken off here.
            let compared = |name: &str| {
                let name = if own.contains("/0x") { name.rsplit('.').next().unwrap() } else { name };
                name.chars().filter(|it| !it.is_ascii_digit()).collect::<String>()
            };
            assert_eq!(compared(ours), compared(&theirs), "JDK {feature} at {start:#x}: {own}");
            same += 1;
        }
        remove_left(jvm.0.id());
        println!("JDK {feature}: {same} methods have the same name, {without} are only in one of both");
        assert!(same > 100 && without * 10 < same, "JDK {feature}: {same}, {without}");
    }
}
