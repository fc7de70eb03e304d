//! Whether a stack can be true, by the class files: each caller's line must hold an instruction
//! that reaches the callee, each line must be one of its method's.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use super::class_file::{Class, Instruction, Invoke, Method, Place};
use super::class_path::ClassPath;
use super::jvm_upcalls;
use super::profile::{Code, Frame, JavaMethod, Stack, is_generated};

/// What is wrong with a stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Wrong {
    /// There is no such class or method.
    Name,
    /// The class file names another source file, or none.
    File,
    /// The method's table has no such line, or the method has no table at all.
    Line,
    /// No instruction of the caller's line leads to the callee.
    Edge,
    /// No thread begins there.
    Root,
}

/// The verdict on a frame or a pair of frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Right,
    /// There is no class file to check by: the JVM made the class.
    Unchecked,
    /// The frame has no line although the method has lines, or no bytecode index either.
    LineMissing,
    Wrong(Wrong),
}

/// Something wrong, with the frames that show it.
#[derive(Clone, Debug)]
pub(super) struct Finding {
    pub(super) wrong: Wrong,
    /// Position in the stack of the frame, or of the callee.
    pub(super) at: usize,
}

/// What was found in a stack.
#[derive(Clone, Debug, Default)]
pub(super) struct Report {
    pub(super) findings: Vec<Finding>,
    pub(super) edges: u64,
    pub(super) java_frames: u64,
    /// Frames without a class file.
    pub(super) unchecked: u64,
    pub(super) lines_missing: u64,
}

type Edge = (Rc<Frame>, Rc<Frame>, bool);

/// Checks stacks against class files; verdicts are remembered.
#[derive(Debug)]
pub(super) struct Checker {
    classes: ClassPath,
    frames: RefCell<HashMap<Rc<Frame>, Verdict>>,
    edges: RefCell<HashMap<Edge, Verdict>>,
}

impl Checker {
    pub(super) fn new(classes: ClassPath) -> Self {
        Self { classes, frames: RefCell::default(), edges: RefCell::default() }
    }

    /// Checks each frame, each pair of neighbours, and the root of a stack.
    pub(super) fn check(&self, stack: &Stack) -> Report {
        let mut report = Report::default();
        let mut callee: Option<(usize, &Rc<Frame>)> = None;
        let mut through_native = false;
        for (at, frame) in stack.frames.iter().enumerate() {
            match frame.code {
                Code::Java(_) => {}
                // What stands between can't be judged.
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
                Verdict::Right => {}
                Verdict::Unchecked => report.unchecked += 1,
                Verdict::LineMissing => report.lines_missing += 1,
                Verdict::Wrong(wrong) => report.findings.push(Finding { wrong, at }),
            }
            if let Some((callee_at, callee)) = callee {
                report.edges += 1;
                if let Verdict::Wrong(wrong) = self.edge(frame, callee, through_native) {
                    report.findings.push(Finding { wrong, at: callee_at });
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
            report.findings.push(Finding { wrong: Wrong::Root, at });
        }
        report
    }

    fn frame(&self, frame: &Rc<Frame>) -> Verdict {
        if let Some(known) = self.frames.borrow().get(frame) {
            return *known;
        }
        let verdict = frame.java().map_or(Verdict::Right, |method| self.judge_frame(method, frame));
        self.frames.borrow_mut().insert(Rc::clone(frame), verdict);
        verdict
    }

    fn judge_frame(&self, method: &JavaMethod, frame: &Frame) -> Verdict {
        let versions = self.classes.get(&method.class);
        let methods: Vec<&Method> = find(&versions, method).collect();
        if methods.is_empty() {
            let made_at_run_time = if versions.is_empty() {
                is_generated(&method.class)
            } else {
                jvm_upcalls::is_regenerated(&method.class)
            };
            return if made_at_run_time { Verdict::Unchecked } else { Verdict::Wrong(Wrong::Name) };
        }
        let last = |path: &str| path.rsplit('/').next() == Some(frame.file.as_str());
        let is_source = |class: &Class| class.source.as_deref().is_some_and(last);
        if !frame.file.is_empty() && !versions.iter().any(is_source) {
            return Verdict::Wrong(Wrong::File);
        }
        if frame.line != 0 {
            let found = methods.iter().any(|method| method.has_line(frame.line));
            return if found { Verdict::Right } else { Verdict::Wrong(Wrong::Line) };
        }
        let is_placed = methods.iter().any(|method| match method.has_lines() {
            true => false,
            false => method.is_native || frame.bci.is_some(),
        });
        if is_placed { Verdict::Right } else { Verdict::LineMissing }
    }

    fn edge(&self, caller: &Rc<Frame>, callee: &Rc<Frame>, through_native: bool) -> Verdict {
        let key = (Rc::clone(caller), Rc::clone(callee), through_native);
        if let Some(known) = self.edges.borrow().get(&key) {
            return *known;
        }
        let verdict = match (caller.java(), callee.java()) {
            (Some(from), Some(to)) => self.judge_edge(from, caller, to, through_native),
            _ => Verdict::Right,
        };
        self.edges.borrow_mut().insert(key, verdict);
        verdict
    }

    fn judge_edge(
        &self,
        from: &JavaMethod,
        caller: &Frame,
        to: &JavaMethod,
        through_native: bool,
    ) -> Verdict {
        let versions = self.classes.get(&from.class);
        let mut methods = find(&versions, from).peekable();
        if methods.peek().is_none() {
            // Said by the frame's own verdict.
            return Verdict::Unchecked;
        }
        let reaches = methods.any(|method| {
            if method.is_native {
                return jvm_upcalls::from_native(from, to);
            }
            if jvm_upcalls::from_method(from, to) || (through_native && jvm_upcalls::precedes_compilation(to))
            {
                return true;
            }
            let place = match caller.bci {
                Some(bci) => Place::Bytecode(bci),
                None if method.has_line(caller.line) => Place::Line(caller.line),
                None => Place::Anywhere,
            };
            method.instructions_at(place).any(|instruction| {
                (!through_native && self.calls(from, instruction, to))
                    || jvm_upcalls::from_instruction(&self.classes, instruction, to)
            })
        });
        if reaches { Verdict::Right } else { Verdict::Wrong(Wrong::Edge) }
    }

    /// Whether the instruction calls the method, by itself or through method handles.
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

    /// Whether a call of a method of `named` can end in the method of `selected`.
    fn may_select(&self, kind: Invoke, named: &str, selected: &str) -> bool {
        let classes = &self.classes;
        match kind {
            Invoke::Static | Invoke::Special => classes.is_subtype(named, selected),
            // A class may inherit the method from one that knows nothing of the interface.
            Invoke::Interface => true,
            Invoke::Virtual => {
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

/// The versions of a method.
fn find<'a>(versions: &'a [Class], method: &'a JavaMethod) -> impl Iterator<Item = &'a Method> {
    let overloads = versions.iter().filter_map(|class| class.methods.get(&method.name)).flatten();
    let any = jvm_upcalls::is_polymorphic(method);
    overloads.filter(move |overload| any || overload.descriptor == method.descriptor)
}

/// Calls whose signature the JVM takes from the call site: their targets are method handle code,
/// and what that in turn is bound to.
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

/// ClassPath that bind and adapt method handles, made by the JVM or not.
fn is_method_handle_code(class: &str) -> bool {
    class.starts_with("java/lang/invoke/") || is_generated(class)
}
