//! Frames and stacks for tests.

use std::rc::Rc;

use super::profile::{Code, CountedStack, JavaMethod, ReportedFrame};

/// Returns a Java frame; the class by its internal name.
pub(super) fn java(class: &str, name: &str, descriptor: &str, line: u32) -> ReportedFrame {
    let method =
        JavaMethod { class: class.to_owned(), name: name.to_owned(), descriptor: descriptor.to_owned() };
    ReportedFrame { code: Code::Java(method), line, is_jvm_code: true, ..other(Code::Unknown(String::new())) }
}

/// Returns any other frame.
pub(super) fn other(code: Code) -> ReportedFrame {
    ReportedFrame { code, line: 0, bci: None, file: String::new(), is_inlined: false, is_jvm_code: false }
}

/// Returns a stack, leaf first.
pub(super) fn stack(frames: impl IntoIterator<Item = ReportedFrame>, count: u64) -> CountedStack {
    CountedStack { frames: frames.into_iter().map(Rc::new).collect(), count }
}
