//! Modes: sets of JVM flags.

use std::ffi::OsString;
use std::path::Path;

/// JVM flags under a short name.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct JvmMode {
    pub(super) name: &'static str,
    flags: &'static [&'static str],
    /// The first JDK that has these flags.
    since: u32,
    /// The last JDK that has them.
    until: u32,
    /// The archive that a run before the recording leaves, and the recorded one uses.
    pub(super) archive: Option<Archive>,
}

/// A file with what a JVM has loaded, linked or compiled, for the next one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Archive {
    /// An ahead-of-time cache: JEP 483, 514, 515.
    Aot,
    /// A dynamic archive of class data: JEP 350.
    ClassData,
}

impl Archive {
    /// Returns the flags of the run that writes the archive.
    pub(super) fn training_flags(self, file: &Path) -> Vec<OsString> {
        match self {
            Self::Aot => vec![with_file("-XX:AOTCacheOutput=", file)],
            Self::ClassData => vec![with_file("-XX:ArchiveClassesAtExit=", file)],
        }
    }

    /// Returns the flags of a run that uses the archive, and fails if it can't.
    pub(super) fn flags(self, file: &Path) -> Vec<OsString> {
        match self {
            Self::Aot => vec!["-XX:AOTMode=on".into(), with_file("-XX:AOTCache=", file)],
            Self::ClassData => vec!["-Xshare:on".into(), with_file("-XX:SharedArchiveFile=", file)],
        }
    }
}

fn with_file(flag: &str, file: &Path) -> OsString {
    let mut word = OsString::from(flag);
    word.push(file);
    word
}

const fn mode(name: &'static str, flags: &'static [&'static str], since: u32) -> JvmMode {
    JvmMode { name, flags, since, until: u32::MAX, archive: None }
}

const UNLOCK: &str = "-XX:+UnlockExperimentalVMOptions";

/// Graal in C2's place: these JDKs contain it (JEP 317, removed by JEP 410).
const GRAAL: JvmMode =
    JvmMode { until: 16, ..mode("graal", &[UNLOCK, "-XX:+EnableJVMCI", "-XX:+UseJVMCICompiler"], 10) };

/// Adapters, stubs and compiled code in the cache as well, where a JDK has that but not by default.
const AOT_CODE: &[&str] =
    &["-XX:+UnlockDiagnosticVMOptions", "-XX:+AOTAdapterCaching", "-XX:+AOTStubCaching"];

/// All modes. A collector that a JDK lacks is found by [`super::required_jdks::Jdk::takes`].
pub(super) const MODES: &[JvmMode] = &[
    mode("default", &[], 8),
    mode("int", &["-Xint"], 8),
    mode("c1", &["-XX:TieredStopAtLevel=1"], 8),
    mode("c2", &["-XX:-TieredCompilation"], 8),
    mode("nosegment", &["-XX:-SegmentedCodeCache"], 9),
    mode("segment", &["-XX:+SegmentedCodeCache"], 9),
    mode("serial", &["-XX:+UseSerialGC"], 8),
    mode("parallel", &["-XX:+UseParallelGC"], 8),
    mode("cms", &["-XX:+UseConcMarkSweepGC"], 8),
    mode("g1", &["-XX:+UseG1GC"], 8),
    mode("z", &[UNLOCK, "-XX:+UseZGC"], 11),
    mode("zgen", &[UNLOCK, "-XX:+UseZGC", "-XX:+ZGenerational"], 21),
    mode("shenandoah", &[UNLOCK, "-XX:+UseShenandoahGC"], 8),
    mode("epsilon", &[UNLOCK, "-XX:+UseEpsilonGC", "-Xmx8g"], 11),
    mode("nocoops", &["-XX:-UseCompressedOops", "-XX:-UseCompressedClassPointers"], 8),
    mode("coh", &[UNLOCK, "-XX:+UseCompactObjectHeaders"], 24),
    mode("dns", &["-XX:+UnlockDiagnosticVMOptions", "-XX:+DebugNonSafepoints"], 8),
    mode("nostrip", &["-XX:LoopStripMiningIter=0"], 10),
    mode("noinline", &["-XX:-Inline"], 8),
    mode("nocds", &["-Xshare:off"], 8),
    JvmMode { archive: Some(Archive::ClassData), ..mode("cds", &[], 13) },
    JvmMode { archive: Some(Archive::Aot), ..mode("aot", &[], 25) },
    JvmMode { archive: Some(Archive::Aot), ..mode("aotcode", AOT_CODE, 25) },
    mode("fp", &["-XX:+PreserveFramePointer"], 8),
    mode("smallcode", &["-XX:ReservedCodeCacheSize=8m", "-XX:-SegmentedCodeCache"], 9),
    GRAAL,
];

impl JvmMode {
    /// Returns the mode of that name.
    pub(super) fn named(name: &str) -> Option<&'static Self> {
        MODES.iter().find(|mode| mode.name == name)
    }

    /// Returns the flags for a JDK, if it has them.
    pub(super) fn flags(&self, feature: u32) -> Option<&'static [&'static str]> {
        (self.since..=self.until).contains(&feature).then_some(self.flags)
    }

    /// Returns whether shares of time can be compared: whether HotSpot's own rule attributes
    /// samples. C1 polls for safepoints at a loop's end, and the rule attributes what the loop does
    /// after the poll to the next safepoint, which may be the caller's. Graal leaves no safepoint
    /// in counted loops.
    pub(super) fn has_time_shares(&self) -> bool {
        !matches!(self.name, "c1" | "graal")
    }

    /// Returns whether a program can run for long: without a collector, one that allocates much
    /// can't.
    pub(super) fn allows(&self, program: &str) -> bool {
        self.name != "epsilon" || !matches!(program, "Garbage" | "Churn" | "Streams" | "Text" | "Upcalls")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_flags_keep_to_their_jdks() {
        for mode in MODES {
            assert_eq!(JvmMode::named(mode.name), Some(mode), "{}", mode.name);
        }
        let z = JvmMode::named("z").expect("it is there");
        assert_eq!(z.flags(8), None);
        assert!(z.flags(17).is_some_and(|flags| flags.contains(&"-XX:+UseZGC")));
        let graal = JvmMode::named("graal").expect("it is there");
        assert_eq!([8, 11, 16, 17].map(|jdk| graal.flags(jdk).is_some()), [false, true, true, false]);
        let epsilon = JvmMode::named("epsilon").expect("it is there");
        assert!(epsilon.allows("Known") && !epsilon.allows("Garbage"));
    }
}
