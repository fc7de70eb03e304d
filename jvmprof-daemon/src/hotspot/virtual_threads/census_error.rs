//! Errors of counting virtual threads.

/// Reasons why there is no census.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum VirtualThreadsError {
    /// The program keeps no set of them: `-Djdk.trackAllThreads=false`.
    Untracked,
    /// A set isn't one, or can't be read.
    NoSet,
    /// A set was being moved to a larger table.
    Resized,
    /// Collections followed one another too quickly.
    Collected,
    /// The collector was moving objects, or some could not be read.
    Moving,
    /// They took too long to read.
    Slow,
}

impl VirtualThreadsError {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Untracked => "the program doesn't track them (-Djdk.trackAllThreads=false)",
            Self::NoSet => "their sets can't be read",
            Self::Resized => "their sets are growing",
            Self::Collected => "collections follow one another too quickly",
            Self::Moving => "objects are being moved, or can't be read",
            Self::Slow => "their sets take too long to read",
        }
    }
}
