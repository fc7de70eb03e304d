//! Tests that the checker finds planted errors, and passes true stacks. Line numbers are those of
//! `xtask/zoo/testdata/Edges.java`.

use super::class_file::{Instruction, InvokeKind};
use super::class_path::ClassPath;
use super::jvm_upcalls::from_instruction;
use super::profile::{Code, CountedStack, JavaMethod, ReportedFrame};
use super::stack_check::{Checker, StackFault};
use super::test_stacks::{java, other, stack};

const EDGES: &str = "test/Edges";
const BASE: &str = "test/Edges$Base";
const DERIVED: &str = "test/Edges$Derived";
const CALLER: (&str, &str, &str) = (EDGES, "caller", "(Ltest/Edges$Base;[I)I");
const INT: &str = "(I)I";

fn checker() -> Checker {
    let mut classes = ClassPath::default();
    classes
        .add_folder(&crate::paths::workspace().join("xtask/zoo/testdata"))
        .expect("the test data is there");
    Checker::new(classes)
}

/// Returns the errors of a stack (leaf first) except for its root, which is never a thread's first
/// method here.
fn faults(frames: impl IntoIterator<Item = ReportedFrame>) -> Vec<(StackFault, usize)> {
    let findings = checker().check(&stack(frames, 1)).findings;
    findings
        .iter()
        .map(|finding| (finding.fault, finding.at))
        .filter(|(fault, _)| *fault != StackFault::Root)
        .collect()
}

fn caller(line: u32) -> ReportedFrame {
    java(CALLER.0, CALLER.1, CALLER.2, line)
}

fn clinit(class: &str, line: u32) -> ReportedFrame {
    java(class, "<clinit>", "()V", line)
}

#[test]
fn true_stacks_pass() {
    // A virtual call of the base's method, two calls in one expression over two lines, a super
    // call.
    assert_eq!(faults([java(DERIVED, "other", INT, 29), java(DERIVED, "work", INT, 25), caller(40)]), []);
    assert_eq!(faults([java(BASE, "work", INT, 11), java(DERIVED, "work", INT, 24), caller(40)]), []);
    assert_eq!(faults([java(BASE, "work", INT, 11), caller(40)]), []);
}

#[test]
fn a_wrong_edge_is_found() {
    // `other` isn't called from `caller`: a lost frame.
    assert_eq!(faults([java(DERIVED, "other", INT, 29), caller(40)]), [(StackFault::Edge, 0)]);
    // The call is on another line.
    assert_eq!(faults([java(BASE, "work", INT, 11), caller(41)]), [(StackFault::Edge, 0)]);
    assert_eq!(
        faults([java(DERIVED, "other", INT, 29), java(DERIVED, "work", INT, 24)]),
        [(StackFault::Edge, 0)]
    );
    // Deep in the stack, not at its leaf.
    let deep = [
        java(DERIVED, "other", INT, 29),
        java(DERIVED, "work", INT, 25),
        caller(41),
        other(Code::Native("f".to_owned())),
    ];
    assert_eq!(faults(deep), [(StackFault::Edge, 1)]);
}

#[test]
fn a_class_that_the_call_cannot_reach_is_found() {
    // Name and descriptor are right, but no `Base` is an `Unrelated`.
    let wrong = [java("test/Edges$Unrelated", "work", INT, 35), caller(40)];
    assert_eq!(faults(wrong), [(StackFault::Edge, 0)]);
    // `super.work` never ends in the subclass.
    assert_eq!(
        faults([java(DERIVED, "work", INT, 24), java(DERIVED, "work", INT, 24)]),
        [(StackFault::Edge, 0)]
    );
}

#[test]
fn wrong_lines_are_found() {
    assert_eq!(faults([java(BASE, "work", INT, 12)]), [(StackFault::Line, 0)]);
    let in_caller = faults([java(BASE, "work", INT, 11), caller(29)]);
    assert!(in_caller.contains(&(StackFault::Line, 1)), "{in_caller:?}");
}

#[test]
fn another_source_file_is_found() {
    let from = |file: &str| faults([ReportedFrame { file: file.to_owned(), ..java(BASE, "work", INT, 11) }]);
    assert_eq!(from("Edges.java"), []);
    assert_eq!(from("Base.java"), [(StackFault::File, 0)]);
}

#[test]
fn missing_lines_are_counted_and_never_invented() {
    let report = checker().check(&stack([java(BASE, "work", INT, 0)], 1));
    assert_eq!((report.lines_missing, report.java_frames), (1, 1));
    // A native method has no lines.
    assert_eq!(checker().check(&stack([java(EDGES, "down", INT, 0)], 1)).lines_missing, 0);
    assert_eq!(faults([java(EDGES, "down", INT, 52)]), [(StackFault::Line, 0)]);
}

#[test]
fn a_bytecode_index_stands_for_a_line_and_must_be_the_calls_own() {
    let calls = |bci: u32| {
        let caller = ReportedFrame { bci: Some(bci), ..caller(0) };
        faults([java(BASE, "work", INT, 11), caller])
    };
    let fitting: Vec<u32> = (0..100).filter(|bci| calls(*bci).is_empty()).collect();
    assert!(!fitting.is_empty() && fitting.len() < 3, "{fitting:?}");
    assert_eq!(calls(fitting[0] + 1), [(StackFault::Edge, 0)]);
}

#[test]
fn names_of_no_class_and_no_method_are_found() {
    assert_eq!(faults([java("test/Edge", "work", INT, 11)]), [(StackFault::Name, 0)]);
    // One class with another's method.
    assert_eq!(faults([java(BASE, "other", INT, 29)]), [(StackFault::Name, 0)]);
    assert_eq!(faults([java(BASE, "work", "(J)J", 11)]), [(StackFault::Name, 0)]);
    let report =
        checker().check(&stack([java("test/Edges$$Lambda/0x01", "get", "()Ljava/lang/Object;", 0)], 1));
    assert_eq!(
        (
            report.findings.iter().filter(|finding| finding.fault == StackFault::Name).count(),
            report.unchecked
        ),
        (0, 1)
    );
}

#[test]
fn classes_are_initialised_where_they_are_used() {
    assert_eq!(faults([clinit(DERIVED, 16), caller(42)]), []);
    // The base is initialised before.
    assert_eq!(faults([clinit(BASE, 8), caller(42)]), []);
    assert_eq!(faults([clinit(DERIVED, 16), caller(41)]), [(StackFault::Edge, 0)]);
}

#[test]
fn the_jvm_throws_what_the_instruction_can_throw() {
    let made = |name: &str| java(&format!("java/lang/{name}"), "<init>", "()V", 0);
    // There are no class files of the JDK here: their names are wrong, their edges are checked.
    let edge =
        |frames: [ReportedFrame; 2]| faults(frames).iter().any(|(fault, _)| *fault == StackFault::Edge);
    assert!(!edge([made("ArrayIndexOutOfBoundsException"), caller(41)]));
    assert!(edge([made("ArithmeticException"), caller(41)]));
    assert!(!edge([made("ArithmeticException"), java(DERIVED, "other", INT, 29)]));
}

#[test]
fn a_copy_of_an_array_throws_what_the_jvm_finds_in_it() {
    let call = |name: &str| Instruction::Invoke {
        kind: InvokeKind::Static,
        class: "java/lang/System".to_owned(),
        name: name.to_owned(),
        descriptor: "(Ljava/lang/Object;ILjava/lang/Object;II)V".to_owned(),
    };
    let made = JavaMethod {
        class: "java/lang/ArrayStoreException".to_owned(),
        name: "<init>".to_owned(),
        descriptor: "(Ljava/lang/String;)V".to_owned(),
    };
    let may_throw = |name: &str| from_instruction(&ClassPath::default(), &call(name), &made);
    assert!(may_throw("arraycopy"));
    assert!(!may_throw("identityHashCode"));
}

#[test]
fn method_handle_code_is_called_from_where_it_is_linked() {
    let linker = || java("java/lang/invoke/MethodHandleNatives", "linkCallSite", "()V", 0);
    let edge =
        |frames: [ReportedFrame; 2]| faults(frames).iter().any(|(fault, _)| *fault == StackFault::Edge);
    assert!(!edge([linker(), java(EDGES, "lambda", "()Ljava/lang/Object;", 47)]));
    assert!(edge([linker(), java(EDGES, "lambda", "()Ljava/lang/Object;", 48)]));
    let lambda = || java("test/Edges$$Lambda/0x01", "get", "()Ljava/lang/Object;", 0);
    assert!(!edge([lambda(), java(EDGES, "lambda", "()Ljava/lang/Object;", 48)]));
    assert!(edge([lambda(), caller(40)]));
}

#[test]
fn classes_of_a_signature_are_loaded_anywhere_and_by_the_jvm_alone() {
    let load = || java("java/lang/ClassLoader", "loadClass", "(Ljava/lang/String;)Ljava/lang/Class;", 0);
    // The line has no instruction that refers to a class.
    let work = || java(BASE, "work", INT, 11);
    let edge =
        |frames: Vec<ReportedFrame>| faults(frames).iter().any(|(fault, _)| *fault == StackFault::Edge);
    assert!(!edge(vec![load(), other(Code::Native("f".to_owned())), work()]));
    assert!(edge(vec![load(), work()]));
}

#[test]
fn native_code_does_not_make_the_calls_of_bytecode() {
    let through = |native: Code| faults([java(BASE, "work", INT, 11), other(native), caller(40)]);
    assert_eq!(through(Code::Native("JavaCalls::call".to_owned())), [(StackFault::Edge, 0)]);
    assert_eq!(through(Code::Stub("itable stub".to_owned())), []);
    // A frame without a name may be anything: its neighbours aren't checked.
    assert_eq!(through(Code::Unknown("[unknown Java: freed]".to_owned())), []);
    let initialised = [clinit(DERIVED, 16), other(Code::Native("f".to_owned())), caller(42)];
    assert_eq!(faults(initialised), []);
}

#[test]
fn a_stack_that_begins_nowhere_is_found() {
    let roots = |frames: Vec<ReportedFrame>| -> usize {
        let checked: CountedStack = stack(frames, 1);
        let findings = checker().check(&checked).findings;
        findings.iter().filter(|finding| finding.fault == StackFault::Root).count()
    };
    let thread = || java("java/lang/Thread", "run", "()V", 0);
    assert_eq!(roots(vec![caller(40)]), 1);
    assert_eq!(roots(vec![caller(40), thread()]), 0);
    // The stack itself is marked as truncated.
    assert_eq!(roots(vec![caller(40), other(Code::Truncated("[truncated: x]".to_owned()))]), 0);
}
