//! Classes that are loaded, run hot and unloaded in a loop, so that code and metadata take over
//! each other's addresses while they are read: a name that mixes two of them must never come out.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::time::{Duration, Instant};

use jvmprof_daemon::hotspot::{
    CompiledMethod, Hotspot, JavaCache, JavaFrames, LiveMemory, NamingError, PhysicalFrame, images,
};

use crate::class_files::javac;
use crate::real::{Jvm, request, shared_folder};
use crate::support::jdks;

const KINDS: usize = 24;

/// Longest time for a JVM to load and unload as many classes as are to be seen.
const MOST_TIME: Duration = Duration::from_secs(60);

/// `Churn`, and classes `K0` to `K23` whose methods bear their class's number.
fn source() -> String {
    let mut source = String::from(
        "import java.net.*; import java.util.concurrent.ThreadLocalRandom;
public class Churn {
  public static void main(String[] args) throws Exception {
    URL[] urls = { Churn.class.getProtectionDomain().getCodeSource().getLocation() };
    System.out.println(\"warm\");
    for (int round = 0; ; round++) {
      for (int i = 0; i < 24; i++) {
        URLClassLoader loader = new URLClassLoader(urls, null);
        int kind = ThreadLocalRandom.current().nextInt(24);
        java.lang.reflect.Constructor<?> make = loader.loadClass(\"K\" + kind).getDeclaredConstructor();
        make.setAccessible(true);
        ((Runnable) make.newInstance()).run();
      }
      System.gc();
    }
  }
}
",
    );
    for kind in 0..KINDS {
        writeln!(
            source,
            "class Sum{kind} {{ static int add{kind}(int a, int b) {{ return a * {kind} + b; }} }}
class K{kind} implements Runnable {{
  public K{kind}() {{}}
  static int work{kind}(int n) {{ int s = 0; for (int i = 0; i < n; i++) s = Sum{kind}.add{kind}(s, i); return s; }}
  int keep{kind};
  public void run() {{ for (int i = 0; i < 3000; i++) keep{kind} += work{kind}(50 + i % 7); }}
}}"
        )
        .unwrap();
    }
    source
}

/// The number that a made-up class or method ends in.
fn number(name: &str) -> Option<usize> {
    let digits = name.trim_start_matches(|c: char| !c.is_ascii_digit());
    digits.parse().ok()
}

/// Each frame's class and method belong together, and so do all frames.
fn check(frames: &JavaFrames) -> bool {
    let mut kinds = BTreeSet::new();
    for frame in frames.iter() {
        let (class, method) = frame.name.rsplit_once('.').unwrap();
        let ours = (class.starts_with('K') || class.starts_with("Sum")) && !class.contains('.');
        let Some(kind) = number(class).filter(|_| ours) else { continue };
        kinds.insert(kind);
        assert!(number(method).is_none_or(|of_method| of_method == kind), "mixed up: {frames:?}");
        assert_eq!(frame.file.as_deref(), Some("Churn.java"), "{frames:?}");
    }
    assert!(kinds.len() <= 1, "mixed up: {frames:?}");
    kinds.len() == 1
}

fn names(frames: &JavaFrames) -> Vec<String> {
    frames.iter().map(|frame| format!("{}:{}", frame.system_name, frame.line)).collect()
}

#[test]
fn classes_that_take_each_others_place_are_never_mixed_up() {
    let folder = shared_folder();
    let file = folder.path().join("Churn.java");
    fs::write(&file, source()).unwrap();
    javac(&file, folder.path(), &[]);
    for (feature, home) in jdks() {
        let flags = ["-Xmx48m", "-XX:+UseSerialGC", "-XX:MaxMetaspaceSize=32m", "-XX:TieredStopAtLevel=4"];
        let program = ["-cp", folder.path().to_str().unwrap(), "Churn"];
        let jvm = Jvm::start(&home, &[&flags[..], &program].concat());
        let pid = jvm.0.id();
        let mut hotspot = Hotspot::attach(&images(pid).unwrap(), LiveMemory::new(pid)).unwrap();
        let cache = JavaCache::default();
        let mut before: BTreeMap<(u64, u32), (CompiledMethod, Vec<String>)> = BTreeMap::new();
        let (mut named, mut lost, mut stale) = (0, BTreeMap::<NamingError, usize>::new(), 0);
        // Four seconds, and on a busy machine for as long as it takes to see enough of it.
        let (least, most) = (Instant::now() + Duration::from_secs(4), Instant::now() + MOST_TIME);
        let is_enough = |named: usize, stale: usize| named > 200 && stale > 20;
        while Instant::now() < least || (!is_enough(named, stale) && Instant::now() < most) {
            for compiled in hotspot.compiled().unwrap() {
                let pcs = (compiled.code.start.0..compiled.code.end.0).step_by(48).take(16);
                let requests: Vec<PhysicalFrame> = pcs.map(|pc| request(&compiled, pc)).collect();
                for (index, found) in hotspot.resolve(&cache, &requests).iter().enumerate() {
                    match found {
                        Ok(frames) if check(frames) => {
                            named += 1;
                            if index == 0 {
                                let key = (compiled.blob.0, compiled.compile_id);
                                before.insert(key, (compiled.clone(), names(frames)));
                            }
                        }
                        Ok(_) => {}
                        Err(unnamed) => *lost.entry(*unnamed).or_default() += 1,
                    }
                }
            }
            // Without what is remembered, code that was there before is itself or not there.
            let fresh = JavaCache::default();
            let requests: Vec<PhysicalFrame> =
                before.values().map(|(compiled, _)| request(compiled, compiled.code.start.0)).collect();
            let again = hotspot.resolve(&fresh, &requests);
            for ((_, wanted), found) in before.values().zip(again) {
                match found {
                    Ok(frames) => assert_eq!(names(&frames), *wanted, "JDK {feature}"),
                    Err(_) => stale += 1,
                }
            }
            let gone = before.len().saturating_sub(200);
            before = before.into_iter().skip(gone).collect();
        }
        println!("JDK {feature}: {named} named, {stale} gone, {lost:?}");
        assert!(is_enough(named, stale), "JDK {feature}: {named} named, {stale} gone, {lost:?}");
    }
}
