//! Why a Java frame has no name.

/// What kept a frame from being named; each is shown and counted, none leads to a guess.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Unnamed {
    /// The process ended, or its memory isn't mapped any more.
    Unreadable,
    /// Other code, or none, is where the compiled method was when the sample was taken.
    CodeReplaced,
    /// The code was being unloaded.
    CodeUnloaded,
    /// Another method has taken the method's place.
    MethodReplaced,
    /// Classes were unloaded since the sample was taken: the method's may be one of them.
    TooLate,
    /// Something changed between the first and the last read.
    Changed,
    /// The pc lies outside the compiled method.
    OutsideCode,
    /// The compiled method's debug information makes no sense.
    DebugInfo,
    /// Method, constant pool and class don't belong together.
    Metadata,
    /// The bytecode index lies outside the method.
    BytecodeIndex,
    /// This JVM doesn't say where its compiled methods keep their debug information.
    Layout,
}

impl Unnamed {
    /// For people and for counters.
    pub fn reason(self) -> &'static str {
        match self {
            Self::Unreadable => "memory is gone",
            Self::CodeReplaced => "code was replaced",
            Self::CodeUnloaded => "code was unloaded",
            Self::MethodReplaced => "method was replaced",
            Self::TooLate => "read too late",
            Self::Changed => "changed while read",
            Self::OutsideCode => "pc outside its code",
            Self::DebugInfo => "bad debug information",
            Self::Metadata => "bad metadata",
            Self::BytecodeIndex => "bad bytecode index",
            Self::Layout => "unknown layout",
        }
    }
}
