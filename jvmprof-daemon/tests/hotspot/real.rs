//! Real JVMs of every generation.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use jvmprof_common::address::StackAddress;
use jvmprof_common::unwind::Memory;
use jvmprof_common::unwind::hotspot::method_identity::method_identity;
use jvmprof_daemon::hotspot::vmstructs::VmStructs;
use jvmprof_daemon::hotspot::{
    CompiledMethod, FlagOrigin, Hotspot, JavaCache, JavaFrames, LiveMemory, NamingError, PhysicalFrame,
    ProcessMemory, images,
};
use jvmprof_daemon::profile::model::ExecutionMode;
use jvmprof_daemon::types::Avma;

use crate::class_files::{ClassMethod, javac, methods};
use crate::snapshot::{Recorder, save};
use crate::support::processes::{LONGEST_WAIT, own_cpu_time};
use crate::support::{jdks, scratch};

/// A JVM that has printed its first line.
pub(crate) struct Jvm(pub(crate) Child);

impl Jvm {
    pub(crate) fn start(home: &Path, args: &[&str]) -> Self {
        let mut java = Command::new(home.join("bin/java"));
        let mut child = java.args(args).stdout(Stdio::piped()).spawn().expect("the JDK has a java");
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "warm\n");
        Self(child)
    }

    pub(crate) fn attach(&self) -> Hotspot<LiveMemory> {
        let pid = self.0.id();
        Hotspot::attach(&images(pid).unwrap(), LiveMemory::new(pid)).unwrap()
    }

    pub(crate) fn memory(&self) -> LiveMemory {
        LiveMemory::new(self.0.id())
    }
}

impl Drop for Jvm {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

const SOURCE: &str = include_str!("Names.java");

/// A folder that JVMs in other roots see, too.
pub(crate) fn shared_folder() -> tempfile::TempDir {
    let shared = std::env::var_os("JVMPROF_TEST_SHARED_DIR");
    shared.map_or_else(scratch, |shared| tempfile::tempdir_in(shared).unwrap())
}

/// Compiles the program.
pub(crate) fn classes(flags: &[&str]) -> tempfile::TempDir {
    let folder = shared_folder();
    let source = folder.path().join("Names.java");
    fs::write(&source, SOURCE).unwrap();
    javac(&source, folder.path(), flags);
    fs::remove_file(source).unwrap();
    folder
}

pub(crate) fn request(compiled: &CompiledMethod, pc: u64) -> PhysicalFrame {
    let CompiledMethod { blob, compile_id, osr, .. } = *compiled;
    PhysicalFrame::Compiled { pc: Avma(pc), blob, compile_id, osr }
}

/// Names that were found at all pcs of all compiled methods.
#[derive(Default)]
struct Seen {
    frames: usize,
    inlined: usize,
    methods: BTreeSet<String>,
    how: BTreeSet<String>,
}

/// Holds every pc of every compiled method against the class files.
fn check_all(hotspot: &mut Hotspot<LiveMemory>, truth: &BTreeMap<String, ClassMethod>, lines: bool) -> Seen {
    let cache = JavaCache::default();
    let mut seen = Seen::default();
    let mut lost = 0;
    for compiled in hotspot.compiled().unwrap() {
        let pcs: Vec<u64> = (compiled.code.start.0..compiled.code.end.0).collect();
        let requests: Vec<PhysicalFrame> = pcs.iter().map(|pc| request(&compiled, *pc)).collect();
        for found in hotspot.resolve(&cache, &requests) {
            match found {
                Ok(frames) => check(&frames, truth, lines, &mut seen),
                // It may die while it is looked at.
                Err(NamingError::CodeReplaced | NamingError::CodeUnloaded) => lost += 1,
                Err(unnamed) => panic!("{compiled:?}: {unnamed:?}"),
            }
        }
    }
    assert!(lost * 20 < seen.frames, "{lost} of {} pcs lost", seen.frames);
    seen
}

fn check(frames: &JavaFrames, truth: &BTreeMap<String, ClassMethod>, lines: bool, seen: &mut Seen) {
    let last = frames.len() - 1;
    for (index, frame) in frames.iter().enumerate() {
        assert_eq!(
            frame.mode == ExecutionMode::Inlined,
            index != last && frame.mode != ExecutionMode::Native,
            "{frames:?}"
        );
        seen.frames += 1;
        seen.inlined += usize::from(index != last);
        seen.how.insert(format!("{:?}", frame.mode));
        seen.methods.insert(frame.name.to_string());
        let Some(method) = truth.get(&*frame.system_name) else {
            assert!(!frame.name.starts_with("Names.") || frame.name.contains("$$Lambda"), "{frame:?}");
            continue;
        };
        let at = method.code.get(&frame.bci);
        assert!(frame.bci == -1 || at.is_some(), "no instruction there: {frame:?}");
        let line = if lines { method.line(frame.bci) } else { 0 };
        assert!(frame.line == line || frame.line == 0 && frame.bci == -1, "{line} {frame:?}");
        assert_eq!(frame.file.as_deref(), lines.then_some("Names.java"), "{frame:?}");
        if index > 0 {
            // Whoever inlines a method calls it there.
            let callee = frames[index - 1].name.rsplit('.').next().unwrap();
            let call = at.unwrap_or_else(|| panic!("{frames:?}"));
            assert!(call.starts_with("invoke"), "{call} {frames:?}");
            // What a call site of invokedynamic reaches isn't in the class file.
            let reaches = call.contains(callee) || call.starts_with("invokedynamic");
            assert!(reaches, "{call} {frames:?}");
        }
    }
}

#[test]
fn every_pc_of_compiled_code_is_named_as_the_class_files_say() {
    let classes = classes(&[]);
    let truth = methods(classes.path());
    let path = classes.path().to_str().unwrap();
    for (feature, home) in jdks() {
        for mode in [&[][..], &["-XX:TieredStopAtLevel=1"], &["-XX:-TieredCompilation"]] {
            let jvm = Jvm::start(&home, &[mode, &["-cp", path, "Names"]].concat());
            let mut hotspot = jvm.attach();
            let version = hotspot.version();
            assert_eq!(version.feature, feature, "{version:?}");
            assert!(hotspot.is_complete(), "JDK {feature}: {:?}", hotspot.jvm());
            let names = ["Names.größe", "Names.fall", "Names$Box.put", "Names.caught", "Names.apply"];
            let has_all =
                |seen: &Seen| seen.inlined > 500 && names.iter().all(|name| seen.methods.contains(*name));
            let (begin, mut seen) = (Instant::now(), check_all(&mut hotspot, &truth, true));
            // On a busy machine methods wait for their compilers.
            while !has_all(&seen) && begin.elapsed() < LONGEST_WAIT {
                seen = check_all(&mut hotspot, &truth, true);
            }
            println!(
                "JDK {feature} {mode:?}: {} frames, {} inlined, {:?}",
                seen.frames, seen.inlined, seen.how
            );
            assert!(seen.inlined > 500, "JDK {feature} {mode:?}: {}", seen.inlined);
            for name in names {
                assert!(
                    seen.methods.contains(name),
                    "JDK {feature} {mode:?}: no {name} in {:?}",
                    seen.methods
                );
            }
            let made_up = ["Names$$Lambda.applyAsInt", "$Proxy.area"];
            assert!(made_up.iter().any(|name| seen.methods.contains(*name)), "{:?}", seen.methods);
            let numbered = |name: &&String| name.contains("0x") || name.contains('/') || name.contains('+');
            assert_eq!(seen.methods.iter().find(numbered), None, "JDK {feature} {mode:?}");
        }
    }
}

#[test]
fn without_line_tables_no_line_and_no_file_is_invented() {
    let classes = classes(&["-g:none"]);
    let truth = methods(classes.path());
    for (feature, home) in jdks() {
        let jvm = Jvm::start(&home, &["-cp", classes.path().to_str().unwrap(), "Names"]);
        let seen = check_all(&mut jvm.attach(), &truth, false);
        assert!(seen.methods.contains("Names.größe"), "JDK {feature}: {:?}", seen.methods);
    }
}

/// The target's memory as the unwinder's core reads it.
pub(crate) struct Words(pub(crate) LiveMemory);

impl Memory for Words {
    fn read_u64(&mut self, address: StackAddress) -> Option<u64> {
        self.0.read_u64(address.avma())
    }
}

/// A compiled method's `Method`, by what the JVM itself says.
pub(crate) fn method_of(jvm: &Jvm, structs: &VmStructs, compiled: &CompiledMethod) -> u64 {
    let field = ["nmethod::_method", "CompiledMethod::_method"].iter().find_map(|name| structs.offset(name));
    jvm.memory().read_u64(Avma(compiled.blob.0 + field.unwrap())).unwrap()
}

#[test]
fn interpreted_frames_are_named_by_who_they_were() {
    let classes = classes(&[]);
    let truth = methods(classes.path());
    for (feature, home) in jdks() {
        let jvm = Jvm::start(&home, &["-cp", classes.path().to_str().unwrap(), "Names"]);
        let mut hotspot = jvm.attach();
        let (_, structs) = VmStructs::read(&images(jvm.0.id()).unwrap(), &jvm.memory()).unwrap();
        let layout = hotspot.jvm().layout;
        let (codelets, _) = hotspot.codelets().unwrap();
        let cache = JavaCache::default();
        let mut checked = 0;
        for compiled in hotspot.compiled().unwrap() {
            let method = method_of(&jvm, &structs, &compiled);
            let Some(identity) = method_identity(Avma(method), &layout, &mut Words(jvm.memory())) else {
                continue;
            };
            let interpreted = |bci: u32, check, codelet_pc, leaf| {
                let bcp_offset = u32::from(layout.const_bytes) + bci;
                let method = Avma(method);
                let request = PhysicalFrame::Interpreted { method, check, bcp_offset, codelet_pc, leaf };
                hotspot.resolve(&cache, &[request]).remove(0)
            };
            let first = interpreted(0, identity.check, None, true).unwrap();
            let Some(known) = truth.get(&*first[0].system_name) else { continue };
            checked += 1;
            for (bci, instruction) in &known.code {
                let frame = &interpreted(*bci as u32, identity.check, None, true).unwrap()[0];
                assert_eq!(
                    (frame.bci, frame.line, frame.mode),
                    (*bci, known.line(*bci), ExecutionMode::Interpreted)
                );
                // A frame that waits in the code of one bytecode is at such a bytecode.
                let opcode = instruction.split_whitespace().next().unwrap();
                let code =
                    |name: &str| codelets.iter().find(|codelet| &*codelet.description == name).unwrap();
                let inside = |name: &str| Some(Avma(code(name).code.start.0 + 4));
                let own = &interpreted(*bci as u32, identity.check, inside(opcode), false).unwrap()[0];
                assert_eq!(own.line, known.line(*bci), "JDK {feature}: {instruction}");
                let other = if opcode == "monitorenter" { "new" } else { "monitorenter" };
                let wrong = &interpreted(*bci as u32, identity.check, inside(other), false).unwrap()[0];
                assert_eq!(wrong.line, 0, "JDK {feature}: {instruction} in the code of {other}");
            }
            let other = interpreted(0, identity.check ^ 1, None, true);
            assert_eq!(other, Err(NamingError::MethodReplaced), "JDK {feature}");
        }
        assert!(checked >= 5, "JDK {feature}: {checked} methods of the program");
    }
}

#[test]
fn another_compile_id_is_never_answered_with_what_is_there_now() {
    let classes = classes(&[]);
    for (feature, home) in jdks() {
        let jvm = Jvm::start(&home, &["-cp", classes.path().to_str().unwrap(), "Names"]);
        let mut hotspot = jvm.attach();
        let cache = JavaCache::default();
        for compiled in hotspot.compiled().unwrap().into_iter().take(20) {
            let old = CompiledMethod { compile_id: compiled.compile_id + 100_000, ..compiled.clone() };
            let osr = CompiledMethod { osr: !compiled.osr, ..compiled.clone() };
            let nowhere = CompiledMethod { blob: Avma(compiled.blob.0 + 64), ..compiled.clone() };
            let pc = compiled.code.start.0;
            for other in [old, osr, nowhere] {
                let found = hotspot.resolve(&cache, &[request(&other, pc)]).remove(0);
                assert_eq!(found, Err(NamingError::CodeReplaced), "JDK {feature}");
            }
            let outside = hotspot.resolve(&cache, &[request(&compiled, compiled.code.end.0 + 1)]).remove(0);
            assert_eq!(outside, Err(NamingError::OutsideCode), "JDK {feature}");
        }
    }
}

#[test]
fn a_jvm_that_is_gone_has_no_names_but_those_that_are_known() {
    let classes = classes(&[]);
    let (_, home) = jdks().into_iter().next_back().unwrap();
    let jvm = Jvm::start(&home, &["-cp", classes.path().to_str().unwrap(), "Names"]);
    let mut hotspot = jvm.attach();
    let cache = JavaCache::default();
    let compiled: Vec<CompiledMethod> = hotspot.compiled().unwrap().into_iter().take(2).collect();
    let known = request(&compiled[0], compiled[0].code.start.0);
    let unknown = request(&compiled[1], compiled[1].code.start.0);
    let before = hotspot.resolve(&cache, &[known]).remove(0).unwrap();
    drop(jvm);
    let after = hotspot.resolve(&cache, &[known, unknown]);
    assert_eq!(after, [Ok(before), Err(NamingError::Unreadable)]);
    assert!(hotspot.refresh().is_err());
}

#[test]
fn attaching_is_quick_and_succeeds_within_the_jvms_first_moments() {
    let classes = classes(&[]);
    for (feature, home) in jdks() {
        let mut java = Command::new(home.join("bin/java"));
        java.args(["-cp", classes.path().to_str().unwrap(), "Names"]).stdout(Stdio::null());
        let jvm = Jvm(java.spawn().unwrap());
        let pid = jvm.0.id();
        let begin = own_cpu_time();
        let hotspot = loop {
            match Hotspot::attach(&images(pid).unwrap_or_default(), LiveMemory::new(pid)) {
                Ok(hotspot) => break hotspot,
                Err(error) => {
                    let before_libjvm = error.reason() == "not_hotspot";
                    assert!(before_libjvm || error.is_transient(), "JDK {feature}: {error}");
                    let took = own_cpu_time() - begin;
                    assert!(took < Duration::from_secs(20), "JDK {feature}: {error}, for {took:?}");
                }
            }
        };
        let layout = hotspot.jvm();
        assert!(layout.heaps[0].end > layout.heaps[0].start, "JDK {feature}");
        assert!(layout.interpreter_end - layout.interpreter_start > 50_000, "JDK {feature}: {layout:?}");
    }
}

#[test]
fn a_jvm_tells_its_flags_threads_and_program() {
    let classes = classes(&[]);
    for (feature, home) in jdks() {
        let path = classes.path().to_str().unwrap();
        let jvm = Jvm::start(&home, &["-Xmx64m", "-XX:+UseSerialGC", "-cp", path, "Names", "x.jar"]);
        let mut hotspot = jvm.attach();
        let flags = hotspot.flags();
        let flag = |name: &str| flags.iter().find(|flag| flag.name == name);
        let (heap, serial) = (flag("MaxHeapSize").unwrap(), flag("UseSerialGC").unwrap());
        assert_eq!((&*heap.value, &*serial.value), ("67108864", "true"), "JDK {feature}");
        assert_eq!(
            (heap.origin, serial.origin),
            (FlagOrigin::CommandLine, FlagOrigin::CommandLine),
            "JDK {feature}"
        );
        assert!(flags.len() < 60, "JDK {feature}: {flags:?}");
        let tasks = format!("/proc/{}/task", jvm.0.id());
        let threads = hotspot.threads();
        assert!(threads.len() > 3, "JDK {feature}: {threads:?}");
        for thread in &threads {
            assert!(Path::new(&tasks).join(thread.tid.to_string()).exists(), "JDK {feature}: {thread:?}");
        }
        let states: BTreeSet<&str> = threads.iter().map(|thread| thread.state).collect();
        assert!(states.contains("blocked") && !states.contains("unknown"), "JDK {feature}: {threads:?}");
        assert_eq!(hotspot.main_class().as_deref(), Some("Names"), "JDK {feature}");

        let interpreter = Avma(hotspot.jvm().interpreter_start + 0x2000);
        let explained = hotspot.explain(interpreter).unwrap().unwrap();
        assert!(explained.codelet.is_some_and(|codelet| codelet.code.contains(&interpreter)));
        assert_eq!((&*explained.blob.name, explained.compiled), ("Interpreter", None), "JDK {feature}");
        let compiled = hotspot.compiled().unwrap().into_iter().find(|compiled| compiled.level == 1).unwrap();
        let explained = hotspot.explain(compiled.code.start).unwrap().unwrap();
        let (which, frames) = explained.compiled.unwrap();
        assert_eq!(which, compiled, "JDK {feature}");
        assert_eq!(frames.unwrap().last().unwrap().mode, ExecutionMode::C1, "JDK {feature}");
        assert_eq!(hotspot.explain(Avma(16)).unwrap(), None);
    }
}

/// Needs JDK 8, 11, 21 and 28, which few machines have; the recordings are what tests run on
/// elsewhere.
#[test]
#[ignore = "writes the recordings of tests/fixtures/hotspot"]
fn record_jvms() {
    assert!(std::env::var_os("JVMPROF_RECORD").is_some(), "recordings are written only if asked for");
    let classes = classes(&[]);
    let truth = methods(classes.path());
    for (feature, home) in jdks().into_iter().filter(|(feature, _)| [8, 11, 21, 28].contains(feature)) {
        let jvm = Jvm::start(&home, &["-XX:+UseSerialGC", "-cp", classes.path().to_str().unwrap(), "Names"]);
        let mut live = jvm.attach();
        let cache = JavaCache::default();
        let mut requests = Vec::new();
        for compiled in live.compiled().unwrap() {
            let first = request(&compiled, compiled.code.start.0);
            let Ok(frames) = live.resolve(&cache, &[first]).remove(0) else { continue };
            let native = frames.last().unwrap().mode == ExecutionMode::Native && requests.len() < 4;
            if native || frames.last().unwrap().name.starts_with("Names") {
                let pcs = (compiled.code.start.0..compiled.code.end.0).step_by(64).take(12);
                requests.extend(pcs.map(|pc| request(&compiled, pc)));
            }
        }
        let image = live.image();
        let recorder = Recorder { memory: jvm.memory(), lines: RefCell::default() };
        let hotspot = Hotspot::attach(&[image], &recorder).unwrap();
        let cache = JavaCache::default();
        let named: Vec<(PhysicalFrame, JavaFrames)> = requests
            .into_iter()
            .take(200)
            .filter_map(|request| Some((request, hotspot.resolve(&cache, &[request]).remove(0).ok()?)))
            .collect();
        let mut seen = Seen::default();
        named.iter().for_each(|(_, frames)| check(frames, &truth, true, &mut seen));
        assert!(named.len() > 60 && seen.inlined > 10, "JDK {feature}: {} {}", named.len(), seen.inlined);
        save(&recorder, &format!("jdk-{feature}"), image, &named);
    }
}
