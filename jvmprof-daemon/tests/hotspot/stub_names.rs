//! Names of stubs, held against what the JVM itself prints of them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{BufRead, BufReader};
use std::ops::Range;
use std::process::{Command, Stdio};

use jvmprof_daemon::hotspot::stubs::StubRows;
use jvmprof_daemon::hotspot::{Hotspot, JavaCache, LiveMemory, images};
use jvmprof_daemon::types::Avma;

use crate::class_files::javac;
use crate::real::shared_folder;
use crate::support::jdks;

/// Virtual and interface calls that lead to four classes.
const CALLS: &str = r#"
public class Calls {
    interface Shape { int area(int x); }
    static abstract class Base implements Shape { abstract int side(int x); }
    static class A extends Base { public int area(int x) { return x + 1; } int side(int x) { return x * 3; } }
    static class B extends Base { public int area(int x) { return x + 2; } int side(int x) { return x * 5; } }
    static class C extends Base { public int area(int x) { return x + 3; } int side(int x) { return x * 7; } }
    static class D extends Base { public int area(int x) { return x + 4; } int side(int x) { return x * 9; } }
    static volatile long sink;
    static long run(Shape[] shapes, Base[] bases) {
        long sum = 0;
        for (int i = 0; i < 100_000; i++) sum += shapes[i & 3].area(i) + bases[i & 3].side(i);
        return sum;
    }
    public static void main(String[] args) throws Exception {
        Base[] bases = { new A(), new B(), new C(), new D() };
        long until = System.nanoTime() + 2_000_000_000L;
        while (System.nanoTime() < until) sink += run(bases, bases);
        System.out.println("warm");
        Thread.sleep(Long.MAX_VALUE);
    }
}
"#;

/// `StubRoutines::call_stub [0x00007f3064938c3f, 0x00007f3064938d2d] (238 bytes)`; up to JDK 16 the
/// second bracket opens, too.
fn printed(line: &str) -> Option<(Range<u64>, String)> {
    let (name, bounds) = line.strip_prefix("StubRoutines::")?.split_once(" [0x")?;
    let (start, end) = bounds.split_once(", 0x")?;
    let number = |text: &str| {
        let digits = text.split(|c: char| !c.is_ascii_hexdigit()).next()?;
        u64::from_str_radix(digits, 16).ok()
    };
    Some((number(start)?..number(end)?, name.to_owned()))
}

#[test]
fn each_byte_of_each_stub_has_the_name_that_the_jvm_prints() {
    let folder = shared_folder();
    let source = folder.path().join("Calls.java");
    fs::write(&source, CALLS).unwrap();
    javac(&source, folder.path(), &[]);
    for (feature, home) in jdks() {
        let mut java = Command::new(home.join("bin/java"))
            .args(["-XX:+UnlockDiagnosticVMOptions", "-XX:+PrintStubCode", "-cp"])
            .arg(folder.path())
            .arg("Calls")
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(java.stdout.take().unwrap()).lines().map_while(Result::ok);
        let truth: Vec<(Range<u64>, String)> =
            lines.take_while(|line| line != "warm").filter_map(|line| printed(&line)).collect();
        let pid = java.id();
        let mut hotspot = Hotspot::attach(&images(pid).unwrap(), LiveMemory::new(pid)).unwrap();
        let blobs = hotspot.stub_blobs().unwrap();
        let mut rows = StubRows::default();
        rows.update_blobs(&blobs, &(Avma(0)..Avma(0)));
        let by_blob = rows.name(Avma(truth[0].0.start)).unwrap().0.to_string();
        assert_eq!(hotspot.stub_name(&rows, Avma(truth[0].0.start)).as_deref(), Some(&*by_blob));
        hotspot.locate_stub_names(pid, &JavaCache::default());
        let has_names = hotspot.stub_name(&rows, Avma(truth[0].0.start)).as_deref() != Some(&*by_blob);
        // Debian's JDK 8 has no symbols.
        assert!(has_names || feature == 8, "JDK {feature} has symbols");
        let mut seen: BTreeMap<String, usize> = BTreeMap::new();
        for blob in &blobs {
            for pc in blob.blob.code.start.0..blob.blob.code.end.0 {
                let Some(name) = hotspot.stub_name(&rows, Avma(pc)) else { continue };
                let listed = truth.iter().find(|(code, _)| has_names && code.contains(&pc));
                if blob.blob.name.starts_with("StubRoutines") {
                    let expected = listed.map_or(&*blob.blob.name, |(_, name)| name);
                    assert_eq!(&*name, expected, "JDK {feature}: {pc:#x}");
                }
                *seen.entry(name.to_string()).or_default() += 1;
            }
        }
        let _ = (java.kill(), java.wait());
        let names: BTreeSet<&str> = seen.keys().map(|name| &**name).collect();
        println!("JDK {feature}: {} stubs, {} names", truth.len(), names.len());
        assert!(truth.len() > 50, "JDK {feature} prints its stubs: {truth:?}");
        for needed in ["call_stub", "vtable stub", "itable stub"] {
            assert!(!has_names || names.contains(needed), "JDK {feature}: {needed} of {names:?}");
        }
    }
}
