//! Callees of frames that wait, against the class files.

use std::collections::BTreeMap;

use jvmprof_common::unwind::hotspot::method_identity::method_identity;
use jvmprof_daemon::hotspot::vmstructs::VmStructs;
use jvmprof_daemon::hotspot::{Callee, Hotspot, JavaCache, LiveMemory, PhysicalFrame, images};
use jvmprof_daemon::types::Avma;

use crate::class_files::{ClassMethod, methods};
use crate::real::{Jvm, Words, classes, method_of, request};
use crate::support::jdks;

/// What the class file says: `invokevirtual #7  // Method Names$Box.put:(Ljava/lang/Comparable;)V`.
fn truth_of(instruction: &str) -> Callee {
    match instruction.split_once("Method ") {
        _ if !instruction.starts_with("invoke") => Callee::Nothing,
        Some((_, method)) if !instruction.starts_with("invokedynamic") => {
            let (name, signature) = method.split_once(':').expect("javap prints name and descriptor");
            let name = name.rsplit('.').next().unwrap().trim_matches('"');
            Callee::Method(format!("{name}{signature}").into())
        }
        _ => Callee::Anything,
    }
}

/// ExecutionMode often each answer was right.
#[derive(Debug, Default)]
struct Right {
    methods: usize,
    nothing: usize,
    anything: usize,
}

impl Right {
    fn check(&mut self, called: &Callee, instruction: &str) {
        assert_eq!(*called, truth_of(instruction), "{instruction}");
        match called {
            Callee::Method(_) => self.methods += 1,
            Callee::Nothing => self.nothing += 1,
            Callee::Anything => self.anything += 1,
        }
    }
}

/// Every bytecode of the program's methods that are compiled by now, as if the interpreter were
/// there.
fn interpreted(jvm: &Jvm, hotspot: &mut Hotspot<LiveMemory>, truth: &BTreeMap<String, ClassMethod>) -> Right {
    let (_, structs) = VmStructs::read(&images(jvm.0.id()).unwrap(), &jvm.memory()).unwrap();
    let (layout, cache) = (hotspot.jvm().layout, JavaCache::default());
    let mut right = Right::default();
    for compiled in hotspot.compiled().unwrap() {
        let method = method_of(jvm, &structs, &compiled);
        let Some(identity) = method_identity(Avma(method), &layout, &mut Words(jvm.memory())) else {
            continue;
        };
        let at = |bci: u32| PhysicalFrame::Interpreted {
            method: Avma(method),
            check: identity.check,
            bcp_offset: u32::from(layout.const_bytes) + bci,
            codelet_pc: None,
            leaf: false,
        };
        assert_eq!(hotspot.called(&JavaCache::default(), &at(0)), Callee::Anything, "nothing is known of it");
        let name = hotspot.resolve(&cache, &[at(0)]).remove(0).unwrap()[0].system_name.clone();
        for (bci, instruction) in truth.get(&*name).into_iter().flat_map(|method| &method.code) {
            right.check(&hotspot.called(&cache, &at(*bci as u32)), instruction);
        }
    }
    right
}

/// Every address of the program's compiled methods.
fn compiled(hotspot: &mut Hotspot<LiveMemory>, truth: &BTreeMap<String, ClassMethod>) -> Right {
    let cache = JavaCache::default();
    let mut right = Right::default();
    for compiled in hotspot.compiled().unwrap() {
        let requests: Vec<PhysicalFrame> =
            (compiled.code.start.0..compiled.code.end.0).map(|pc| request(&compiled, pc)).collect();
        for (request, found) in requests.iter().zip(hotspot.resolve(&cache, &requests)) {
            let Ok(frames) = found else { continue };
            let known = truth.get(&*frames[0].system_name);
            if let Some(instruction) = known.and_then(|method| method.code.get(&frames[0].bci))
                && frames[0].line != 0
            {
                right.check(&hotspot.called(&cache, request), instruction);
            }
        }
    }
    right
}

#[test]
fn what_a_frame_calls_is_what_the_class_file_says() {
    let classes = classes(&[]);
    let truth = methods(classes.path());
    for (feature, home) in jdks() {
        let jvm = Jvm::start(&home, &["-cp", classes.path().to_str().unwrap(), "Names"]);
        let mut hotspot = jvm.attach();
        let [interpreted, compiled] =
            [interpreted(&jvm, &mut hotspot, &truth), compiled(&mut hotspot, &truth)];
        println!("JDK {feature}: interpreted {interpreted:?}, compiled {compiled:?}");
        assert!(interpreted.anything > 0, "{interpreted:?}");
        for right in [interpreted, compiled] {
            assert!(right.methods > 20 && right.nothing > 100, "{right:?}");
        }
    }
}

#[test]
fn of_a_jvm_that_is_gone_nothing_is_said() {
    let classes = classes(&[]);
    let truth = methods(classes.path());
    let (_, home) = jdks().remove(0);
    let jvm = Jvm::start(&home, &["-cp", classes.path().to_str().unwrap(), "Names"]);
    let mut hotspot = jvm.attach();
    let cache = JavaCache::default();
    let mut calls = Vec::new();
    for compiled in hotspot.compiled().unwrap() {
        for pc in compiled.code.start.0..compiled.code.end.0 {
            let request = request(&compiled, pc);
            let Ok(frames) = hotspot.resolve(&cache, &[request]).remove(0) else { continue };
            if truth.contains_key(&*frames[0].system_name)
                && let Callee::Method(_) = hotspot.called(&cache, &request)
            {
                calls.push(request);
            }
        }
    }
    assert!(!calls.is_empty());
    drop(jvm);
    for call in calls {
        assert_eq!(hotspot.called(&cache, &call), Callee::Anything);
    }
}
