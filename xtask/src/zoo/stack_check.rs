//! Check of a stack against class files: each caller's line must hold an instruction that reaches
//! the callee, and each line must be one of its method's.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use super::class_file::{Class, Instruction, InvokeKind, Method, MethodPlace};
use super::class_path::ClassPath;
use super::jvm_upcalls;
use super::profile::{Code, CountedStack, JavaMethod, ReportedFrame, is_generated};

/// A kind of error in a stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum StackFault {
    /// A class or method that doesn't exist.
    Name,
    /// The class file names another source file, or none.
    File,
    /// The method's table has no such line, or the method has no table at all.
    Line,
    /// No instruction of the caller's line leads to the callee.
    Edge,
    /// The root is no method with which a thread begins.
    Root,
    /// No instruction of the line that allocates can allocate.
    Allocation,
}

/// The result of the check of a frame or of a pair of frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CheckResult {
    Right,
    /// The JVM generated the class: there is no class file to check against.
    Unchecked,
    /// The frame has no line although the method has lines, or no bytecode index either.
    LineMissing,
    Wrong(StackFault),
}

/// An error, with the frames that show it.
#[derive(Clone, Debug)]
pub(super) struct StackError {
    pub(super) fault: StackFault,
    /// Position in the stack of the frame, or of the callee.
    pub(super) at: usize,
}

/// The result of the check of a stack.
#[derive(Clone, Debug, Default)]
pub(super) struct StackReport {
    pub(super) findings: Vec<StackError>,
    pub(super) edges: u64,
    pub(super) java_frames: u64,
    /// Frames without a class file.
    pub(super) unchecked: u64,
    pub(super) lines_missing: u64,
}

type Edge = (Rc<ReportedFrame>, Rc<ReportedFrame>, bool);

/// Checks stacks against class files; results are cached.
#[derive(Debug)]
pub(super) struct Checker {
    classes: ClassPath,
    frames: RefCell<HashMap<Rc<ReportedFrame>, CheckResult>>,
    edges: RefCell<HashMap<Edge, CheckResult>>,
}

impl Checker {
    pub(super) fn new(classes: ClassPath) -> Self {
        Self { classes, frames: RefCell::default(), edges: RefCell::default() }
    }

    /// Checks each frame, each pair of neighbours, and the root of a stack.
    pub(super) fn check(&self, stack: &CountedStack) -> StackReport {
        let mut report = StackReport::default();
        let mut callee: Option<(usize, &Rc<ReportedFrame>)> = None;
        let mut through_native = false;
        for (at, frame) in stack.frames.iter().enumerate() {
            match frame.code {
                Code::Java(_) => {}
                // Frames between them can't be checked.
                Code::Unknown(_) | Code::Truncated(_) => {
                    callee = None;
                    continue;
                }
                Code::Native(_) | Code::Kernel(_) => {
                    through_native = true;
                    continue;
                }
                Code::Stub(_) => continue,
            }
            report.java_frames += 1;
            match self.frame(frame) {
                CheckResult::Right => {}
                CheckResult::Unchecked => report.unchecked += 1,
                CheckResult::LineMissing => report.lines_missing += 1,
                CheckResult::Wrong(fault) => report.findings.push(StackError { fault, at }),
            }
            if let Some((callee_at, callee)) = callee {
                report.edges += 1;
                if let CheckResult::Wrong(fault) = self.edge(frame, callee, through_native) {
                    report.findings.push(StackError { fault, at: callee_at });
                }
            }
            callee = Some((at, frame));
            through_native = false;
        }
        let is_whole = !stack.frames.iter().any(|frame| matches!(frame.code, Code::Truncated(_)));
        if let Some((at, root)) = callee
            && is_whole
            && root.java().is_some_and(|root| !jvm_upcalls::is_root(&self.classes, root))
        {
            report.findings.push(StackError { fault: StackFault::Root, at });
        }
        report
    }

    /// Checks that the youngest Java method of an allocation's stack can allocate where it stands:
    /// by an instruction that makes an object, calls a method, loads a class or throws.
    pub(super) fn check_allocation(&self, stack: &CountedStack) -> Option<StackError> {
        let at = stack.frames.iter().position(|frame| !matches!(frame.code, Code::Stub(_)))?;
        let frame = &stack.frames[at];
        let method = frame.java()?;
        let versions = self.classes.get(&method.class);
        let mut methods = find(&versions, method).peekable();
        methods.peek()?;
        let can_allocate = methods.any(|found| {
            let place = place(found, frame);
            found.is_native || found.instructions_at(place).next().is_some()
        });
        (!can_allocate).then_some(StackError { fault: StackFault::Allocation, at })
    }

    fn frame(&self, frame: &Rc<ReportedFrame>) -> CheckResult {
        if let Some(known) = self.frames.borrow().get(frame) {
            return *known;
        }
        let verdict = frame.java().map_or(CheckResult::Right, |method| self.check_frame(method, frame));
        self.frames.borrow_mut().insert(Rc::clone(frame), verdict);
        verdict
    }

    fn check_frame(&self, method: &JavaMethod, frame: &ReportedFrame) -> CheckResult {
        let versions = self.classes.get(&method.class);
        let methods: Vec<&Method> = find(&versions, method).collect();
        if methods.is_empty() {
            let made_at_run_time = if versions.is_empty() {
                is_generated(&method.class)
            } else {
                jvm_upcalls::is_regenerated(&method.class)
            };
            return if made_at_run_time {
                CheckResult::Unchecked
            } else {
                CheckResult::Wrong(StackFault::Name)
            };
        }
        let last = |path: &str| path.rsplit('/').next() == Some(frame.file.as_str());
        let is_source = |class: &Class| class.source.as_deref().is_some_and(last);
        if !frame.file.is_empty() && !versions.iter().any(is_source) {
            return CheckResult::Wrong(StackFault::File);
        }
        if frame.line != 0 {
            let found = methods.iter().any(|method| method.has_line(frame.line));
            return if found { CheckResult::Right } else { CheckResult::Wrong(StackFault::Line) };
        }
        let is_placed = methods.iter().any(|method| match method.has_lines() {
            true => false,
            false => method.is_native || frame.bci.is_some(),
        });
        if is_placed { CheckResult::Right } else { CheckResult::LineMissing }
    }

    fn edge(
        &self,
        caller: &Rc<ReportedFrame>,
        callee: &Rc<ReportedFrame>,
        through_native: bool,
    ) -> CheckResult {
        let key = (Rc::clone(caller), Rc::clone(callee), through_native);
        if let Some(known) = self.edges.borrow().get(&key) {
            return *known;
        }
        let verdict = match (caller.java(), callee.java()) {
            (Some(from), Some(to)) => self.check_edge(from, caller, to, through_native),
            _ => CheckResult::Right,
        };
        self.edges.borrow_mut().insert(key, verdict);
        verdict
    }

    fn check_edge(
        &self,
        from: &JavaMethod,
        caller: &ReportedFrame,
        to: &JavaMethod,
        through_native: bool,
    ) -> CheckResult {
        let versions = self.classes.get(&from.class);
        let mut methods = find(&versions, from).peekable();
        if methods.peek().is_none() {
            // Said by the frame's own verdict.
            return CheckResult::Unchecked;
        }
        let reaches = methods.any(|method| {
            if method.is_native {
                return jvm_upcalls::from_native(from, to);
            }
            if jvm_upcalls::from_method(from, to) || (through_native && jvm_upcalls::precedes_compilation(to))
            {
                return true;
            }
            method.instructions_at(place(method, caller)).any(|instruction| {
                (!through_native && self.calls(from, instruction, to))
                    || jvm_upcalls::from_instruction(&self.classes, instruction, to)
            })
        });
        if reaches { CheckResult::Right } else { CheckResult::Wrong(StackFault::Edge) }
    }

    /// Returns whether the instruction calls the method, by itself or through method handles.
    fn calls(&self, from: &JavaMethod, instruction: &Instruction, to: &JavaMethod) -> bool {
        match instruction {
            Instruction::Invoke { kind, class, name, descriptor } => {
                (*name == to.name && *descriptor == to.descriptor && self.may_select(*kind, class, &to.class))
                    || polymorphic(from, class, name, to)
            }
            Instruction::InvokeDynamic => is_method_handle_code(&to.class),
            _ => false,
        }
    }

    /// Returns whether a call of a method of `named` can end in the method of `selected`.
    fn may_select(&self, kind: InvokeKind, named: &str, selected: &str) -> bool {
        let classes = &self.classes;
        match kind {
            InvokeKind::Static | InvokeKind::Special => classes.is_subtype(named, selected),
            // A class may inherit the method from one that doesn't implement the interface.
            InvokeKind::Interface => true,
            InvokeKind::Virtual => {
                let versions = classes.get(selected);
                let unknown =
                    versions.is_empty() || (!named.starts_with('[') && classes.get(named).is_empty());
                unknown
                    || versions.iter().any(|class| class.is_interface)
                    || classes.is_subtype(selected, named)
                    || classes.is_subtype(named, selected)
                    || (named.starts_with('[') && selected == "java/lang/Object")
            }
        }
    }
}

/// Returns the place of a frame in a method, as exactly as the frame has it.
fn place(method: &Method, frame: &ReportedFrame) -> MethodPlace {
    match frame.bci {
        Some(bci) => MethodPlace::Bytecode(bci),
        None if method.has_line(frame.line) => MethodPlace::Line(frame.line),
        None => MethodPlace::Anywhere,
    }
}

/// Returns the versions of a method.
fn find<'a>(versions: &'a [Class], method: &'a JavaMethod) -> impl Iterator<Item = &'a Method> {
    let overloads = versions.iter().filter_map(|class| class.methods.get(&method.name)).flatten();
    let any = jvm_upcalls::is_polymorphic(method);
    overloads.filter(move |overload| any || overload.descriptor == method.descriptor)
}

/// Returns whether the call's signature comes from the call site. Its targets are method handle
/// code, and what that in turn is bound to.
fn polymorphic(from: &JavaMethod, class: &str, name: &str, to: &JavaMethod) -> bool {
    match class {
        "java/lang/invoke/MethodHandle" if name == "invokeBasic" || name.starts_with("linkTo") => {
            is_method_handle_code(&from.class)
        }
        "java/lang/invoke/MethodHandle" => {
            matches!(name, "invoke" | "invokeExact") && is_method_handle_code(&to.class)
        }
        "java/lang/invoke/VarHandle" => is_method_handle_code(&to.class),
        _ => false,
    }
}

/// Returns whether the class binds and adapts method handles, generated by the JVM or not.
fn is_method_handle_code(class: &str) -> bool {
    class.starts_with("java/lang/invoke/") || is_generated(class)
}
