//! Frames of the model, made from names.

use std::sync::Arc;

use jvmprof_common::frame::UserFrame;

use super::java::{AttachedJvm, JvmAttachment};
use crate::hotspot::JavaFrame;
use crate::profile::model::{ExecutionMode, Frame, FrameKind, Line, Mapping};
use crate::types::Avma;

/// Bytes of a cached frame beside its text: itself, its line, its slot in the map.
const FRAME_BYTES: usize = 180;
/// Bytes of a line beside its text.
const LINE_BYTES: usize = 60;

fn java_mapping(java: Option<&AttachedJvm>) -> Option<Arc<Mapping>> {
    Some(Arc::clone(java?.mapping()))
}

/// Makes the frame of a Java method. `types`: names end in how the methods ran.
pub(super) fn java_frame(
    which: &UserFrame,
    methods: &[JavaFrame],
    java: Option<&AttachedJvm>,
    types: bool,
) -> Frame {
    Frame {
        kind: FrameKind::Java,
        address: which.lookup_address().map(Avma),
        mapping: java_mapping(java),
        lines: methods.iter().map(|method| java_line(method, types)).collect(),
    }
}

fn java_line(method: &JavaFrame, types: bool) -> Line {
    let name = if types {
        format!("{}{}", method.name, method.mode.suffix()).into()
    } else {
        Arc::clone(&method.name)
    };
    Line {
        name,
        system_name: Arc::clone(&method.system_name),
        file: method.file.clone(),
        line: method.line,
        bci: u16::try_from(method.bci).ok().filter(|_| method.line == 0),
        mode: Some(method.mode),
    }
}

/// Makes the frame that [`UserFrame::ENTER_SPECIAL`] stands for, with the same name as where its
/// code has been found: openjdk src/java.base/share/classes/jdk/internal/vm/Continuation.java.
pub(super) fn enter_special_frame(java: Option<&AttachedJvm>, types: bool) -> Frame {
    let method = JavaFrame {
        name: "jdk.internal.vm.Continuation.enterSpecial".into(),
        system_name: "jdk.internal.vm.Continuation.enterSpecial(Ljdk/internal/vm/Continuation;ZZ)V".into(),
        file: Some("Continuation.java".into()),
        line: 0,
        bci: -1,
        mode: ExecutionMode::Native,
    };
    let address = java.map(|java| Avma(java.jvm().return_barrier_start));
    Frame {
        kind: FrameKind::Java,
        address,
        mapping: java_mapping(java),
        lines: vec![java_line(&method, types)],
    }
}

pub(super) fn unknown_java(which: &UserFrame, reason: &str, java: Option<&AttachedJvm>) -> Arc<Frame> {
    let name: Arc<str> = format!("[unknown Java: {reason}]").into();
    let line = Line::named(name);
    let (address, mapping) = (which.lookup_address().map(Avma), java_mapping(java));
    Arc::new(Frame { kind: FrameKind::Java, address, mapping, lines: vec![line] })
}

pub(super) fn stub_frame(address: Avma, name_at: Avma, java: &mut JvmAttachment) -> Frame {
    let name = java.attached_mut().map(|java| java.stub_name(address, name_at));
    let name: Arc<str> = name.map_or_else(|| "[JVM stub]".into(), |name| format!("[{name}]").into());
    let mapping = java_mapping(java.attached_jvm());
    let line = Line::named(name);
    Frame { kind: FrameKind::Stub, address: Some(address), mapping, lines: vec![line] }
}

pub(super) fn frame(
    kind: FrameKind,
    address: Avma,
    mapping: Option<Arc<Mapping>>,
    name: Arc<str>,
    system_name: Arc<str>,
) -> Arc<Frame> {
    let line = Line { system_name, ..Line::named(name) };
    Arc::new(Frame { kind, address: Some(address), mapping, lines: vec![line] })
}

/// Makes a native frame whose name can't be resolved any more: its offset in its file.
pub(super) fn offset_frame(unnamed: &Frame) -> Arc<Frame> {
    let place = unnamed.mapping.as_ref().zip(unnamed.address).map(|(mapping, address)| {
        let file = mapping.path.rsplit('/').next().unwrap_or(&mapping.path);
        let offset = address.0.wrapping_sub(mapping.start.0).wrapping_add(mapping.offset.0);
        format!("{file}+{offset:#x}")
    });
    let name: Arc<str> = place.unwrap_or_else(|| "[unknown: no mapping]".to_owned()).into();
    let line = Line::named(name);
    Arc::new(Frame { lines: vec![line], ..unnamed.clone() })
}

/// Returns the memory of a cached frame. Names may be shared with other frames; counted each time,
/// the limit is on the safe side.
pub(super) fn frame_bytes(frame: &Frame) -> usize {
    let text = |line: &Line| line.name.len() + line.system_name.len() + LINE_BYTES;
    FRAME_BYTES + frame.lines.iter().map(text).sum::<usize>()
}

/// Makes the root of a stack that isn't whole, so that no flame graph hides it.
pub(super) fn marker(reason: &str) -> Arc<Frame> {
    let name: Arc<str> = format!("[truncated: {reason}]").into();
    let line = Line::named(name);
    Arc::new(Frame { kind: FrameKind::Marker, address: None, mapping: None, lines: vec![line] })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn how_a_method_ran_is_in_its_name_only_if_that_is_enabled() {
        let method = |mode| JavaFrame {
            name: "com.acme.Order.total".into(),
            system_name: "com.acme.Order.total()J".into(),
            file: Some("Order.java".into()),
            line: 7,
            bci: 3,
            mode,
        };
        let which = UserFrame::Native { pc: 0x1000, exact: true };
        let methods =
            [method(ExecutionMode::Inlined), method(ExecutionMode::C1), method(ExecutionMode::Interpreted)];
        let names = |types| -> Vec<String> {
            let frame = java_frame(&which, &methods, None, types);
            assert!(frame.lines.iter().all(|line| &*line.system_name == "com.acme.Order.total()J"));
            assert_eq!(frame.lines[1].mode, Some(ExecutionMode::C1));
            frame.lines.iter().map(|line| line.name.to_string()).collect()
        };
        assert_eq!(names(false), ["com.acme.Order.total"; 3]);
        assert_eq!(
            names(true),
            ["com.acme.Order.total_[i]", "com.acme.Order.total_[1]", "com.acme.Order.total_[0]"]
        );
    }

    #[test]
    fn a_method_without_a_line_there_keeps_its_bytecode_index_if_that_is_sure() {
        let at = |line, bci| {
            let method = JavaFrame {
                name: "A.a".into(),
                system_name: "A.a()V".into(),
                file: None,
                line,
                bci,
                mode: ExecutionMode::Inlined,
            };
            java_line(&method, false).bci
        };
        assert_eq!((at(0, 0), at(0, 65_535)), (Some(0), Some(65_535)));
        assert_eq!((at(7, 3), at(0, -1)), (None, None));
    }
}
