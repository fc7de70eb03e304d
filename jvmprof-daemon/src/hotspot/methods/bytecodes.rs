//! Bytecodes of the pieces of the interpreter: checks that an interpreted frame is where its
//! bytecode pointer says.
//!
//! The interpreter rewrites bytecodes into faster ones whose numbers differ by JDK; their names,
//! which the codelets bear, don't: openjdk src/hotspot/share/interpreter/bytecodes.cpp.

use crate::hotspot::code_cache::interpreter_codelets::InterpreterCodelet;
use crate::types::Avma;

const MONITORENTER: u8 = 194;
const WIDE: u8 = 196;
const BREAKPOINT: u8 = 202;
const INVOKEDYNAMIC: u8 = 186;
const INVOKE: std::ops::RangeInclusive<u8> = 182..=186;

/// The bytecode that must stand at a frame's bytecode index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum ExpectedBytecode {
    Anything,
    /// This bytecode, as a class file has it.
    Bytecode(u8),
    /// A call.
    Invoke,
}

/// The interpreter's codelets by address.
#[derive(Debug, Default)]
pub(crate) struct BytecodeTemplates {
    codelets: Box<[(Avma, Avma, ExpectedBytecode)]>,
    /// By the JVM's own number, the class file's.
    java_codes: Box<[u8]>,
}

impl BytecodeTemplates {
    pub(crate) fn new(codelets: &[InterpreterCodelet]) -> Self {
        let mut java_codes: Vec<u8> = (0..=u8::MAX).collect();
        for codelet in codelets {
            if let (Some(code), Some(java)) = (codelet.bytecode, original(&codelet.description)) {
                java_codes[usize::from(code)] = java;
            }
        }
        let expected = |codelet: &InterpreterCodelet| match codelet.bytecode {
            Some(code) => ExpectedBytecode::Bytecode(java_codes[usize::from(code)]),
            None if codelet.description.contains("return entry points") => ExpectedBytecode::Invoke,
            None => ExpectedBytecode::Anything,
        };
        let mut by_address: Vec<(Avma, Avma, ExpectedBytecode)> = codelets
            .iter()
            .map(|codelet| (codelet.code.start, codelet.code.end, expected(codelet)))
            .collect();
        by_address.sort_unstable_by_key(|(start, ..)| *start);
        Self { codelets: by_address.into(), java_codes: java_codes.into() }
    }

    /// Returns the bytecode that the code at this address is for. A return address may lie right
    /// behind its codelet's last instruction.
    pub(crate) fn expected(&self, pc: Avma) -> ExpectedBytecode {
        let at = Avma(pc.0.saturating_sub(1));
        let behind = self.codelets.partition_point(|(start, ..)| *start <= at);
        match behind.checked_sub(1).and_then(|index| self.codelets.get(index)) {
            Some((_, end, expected)) if at < *end => *expected,
            _ => ExpectedBytecode::Anything,
        }
    }

    /// Returns whether a bytecode, as it stands in memory, calls the method that its operand names;
    /// `None` if that isn't to be known.
    pub(crate) fn is_call(&self, in_memory: u8) -> Option<bool> {
        let java = self.java_codes.get(usize::from(in_memory)).copied().unwrap_or(in_memory);
        match java {
            WIDE | BREAKPOINT | INVOKEDYNAMIC => None,
            _ => Some(INVOKE.contains(&java)),
        }
    }

    /// Returns the index of the bytecode that runs in a frame whose pointer says `bci`; `None` if
    /// what stands there isn't what the frame's code is for.
    pub(crate) fn running(&self, expected: ExpectedBytecode, code: &[u8], bci: u16) -> Option<u16> {
        let fits = |bci: &u16| code.get(usize::from(*bci)).is_some_and(|code| self.fits(expected, *code));
        // `monitorenter` sets the pointer to the next bytecode before it locks: openjdk
        // src/hotspot/cpu/x86/templateTable_x86.cpp, `TemplateTable::monitorenter`.
        let is_locking = expected == ExpectedBytecode::Bytecode(MONITORENTER);
        let before = bci.checked_sub(1).filter(|_| is_locking);
        let enters = |bci: &u16| code.get(usize::from(*bci)) == Some(&MONITORENTER);
        // Behind a `monitorenter` a prefix or a breakpoint isn't the one that runs.
        let exact = Some(bci).filter(|bci| !is_locking || enters(bci)).filter(fits);
        exact.or_else(|| before.filter(enters)).or_else(|| Some(bci).filter(fits))
    }

    /// Returns true if the bytecode at an index, as it stands in memory, is what the frame's code
    /// is for.
    fn fits(&self, expected: ExpectedBytecode, in_memory: u8) -> bool {
        let java = self.java_codes.get(usize::from(in_memory)).copied().unwrap_or(in_memory);
        // A prefix or a breakpoint stands in place of the bytecode that runs.
        if matches!(in_memory, WIDE | BREAKPOINT) {
            return true;
        }
        match expected {
            ExpectedBytecode::Anything => true,
            ExpectedBytecode::Bytecode(code) => code == java,
            ExpectedBytecode::Invoke => INVOKE.contains(&java),
        }
    }
}

/// The class file's bytecode of one that only the JVM has.
fn original(name: &str) -> Option<u8> {
    let name = name.strip_prefix("no").unwrap_or(name).strip_prefix("fast_").or(match name {
        "return_register_finalizer" | "invokehandle" => Some(name),
        _ => None,
    })?;
    Some(match name {
        _ if name.ends_with("getfield") => 180,
        _ if name.ends_with("putfield") => 181,
        "aload_0" | "iaccess_0" | "aaccess_0" | "faccess_0" => 42,
        "iload" | "iload2" | "icaload" => 21,
        "invokevfinal" | "invokehandle" => 182,
        "linearswitch" | "binaryswitch" => 171,
        "aldc" => 18,
        "aldc_w" => 19,
        "return_register_finalizer" => 177,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn codelet(description: &str, bytecode: Option<u8>, start: u64) -> InterpreterCodelet {
        InterpreterCodelet {
            description: description.into(),
            bytecode,
            code: Avma(start)..Avma(start + 0x40),
        }
    }

    #[test]
    fn rewritten_bytecodes_are_their_originals() {
        let templates = BytecodeTemplates::new(&[
            codelet("return entry points", None, 0x1000),
            codelet("new", Some(187), 0x1040),
            codelet("fast_igetfield", Some(208), 0x1080),
            codelet("getfield", Some(180), 0x10c0),
            codelet("invokehandle", Some(233), 0x1100),
        ]);
        assert_eq!(templates.expected(Avma(0x1001)), ExpectedBytecode::Invoke);
        assert_eq!(
            templates.expected(Avma(0x1080)),
            ExpectedBytecode::Bytecode(187),
            "behind a call at the very end"
        );
        assert_eq!(templates.expected(Avma(0x1088)), ExpectedBytecode::Bytecode(180));
        assert_eq!(templates.expected(Avma(0x2000)), ExpectedBytecode::Anything);
        assert!(templates.fits(ExpectedBytecode::Bytecode(180), 208));
        assert!(!templates.fits(ExpectedBytecode::Bytecode(187), 208));
        assert!(
            templates.fits(ExpectedBytecode::Invoke, 233) && templates.fits(ExpectedBytecode::Invoke, 186)
        );
        assert!(!templates.fits(ExpectedBytecode::Invoke, 187));
        assert!(templates.fits(ExpectedBytecode::Bytecode(187), BREAKPOINT));
    }

    #[test]
    fn a_monitor_is_entered_with_the_pointer_behind_its_bytecode() {
        let (load, enter, exit, invoke) = (0x2a, MONITORENTER, 195, 182);
        let code = [load, enter, load, invoke, 0, WIDE, exit];
        let templates = BytecodeTemplates::new(&[codelet("monitorenter", Some(enter), 0x1000)]);
        let expected = templates.expected(Avma(0x1010));
        let running = |bci| templates.running(expected, &code, bci);
        assert_eq!([running(2), running(1)], [Some(1); 2]);
        assert_eq!([running(0), running(3), running(6), running(7), running(u16::MAX)], [None; 5]);
        let prefixed = [load, enter, WIDE, load, 0, 1];
        assert_eq!(templates.running(expected, &prefixed, 2), Some(1), "a prefix fits anything");
        let other = |bci| templates.running(ExpectedBytecode::Invoke, &code, bci);
        assert_eq!([other(3), other(4), other(2)], [Some(3), None, None], "others stay where they are");
    }

    #[test]
    fn names_of_the_jvms_own_bytecodes_are_known() {
        for (name, java) in
            [("nofast_getfield", 180), ("fast_aload_0", 42), ("fast_aldc_w", 19), ("nofast_iload", 21)]
        {
            assert_eq!(original(name), Some(java), "{name}");
        }
        for name in ["nop", "iload", "new", "fastest"] {
            assert_eq!(original(name), None, "{name}");
        }
    }
}
