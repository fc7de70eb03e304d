//! Stacks of the profile under test.

use std::collections::HashMap;
use std::fs;
use std::io::Read as _;
use std::path::Path;
use std::rc::Rc;

use anyhow::Context as _;
use flate2::read::GzDecoder;
use prost::Message as _;

/// The messages of `proto/perftools/profiles/profile.proto`, as generated for the daemon.
#[allow(clippy::all, clippy::pedantic, missing_debug_implementations, unreachable_pub, dead_code)]
pub(super) mod pprof {
    include!("../../../jvmprof-daemon/src/proto/generated/perftools.profiles.rs");
}

/// The mapping of Java frames.
const JVM: &str = "jvm";

/// A frame as it is reported.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct ReportedFrame {
    pub(super) code: Code,
    /// 0 if there is none.
    pub(super) line: u32,
    /// Bytecode index, where there is no line.
    pub(super) bci: Option<u32>,
    /// The last component of its source file; empty if there is none.
    pub(super) file: String,
    /// True if it is inlined into the next frame.
    pub(super) is_inlined: bool,
    /// True for frames in the JVM's code caches: a Java method, one without a name, or the JVM's
    /// own code.
    pub(super) is_jvm_code: bool,
}

/// The code of a frame.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Code {
    Java(JavaMethod),
    /// The JVM's own generated code: stubs, adapters.
    Stub(String),
    Native(String),
    Kernel(String),
    /// A frame without a name: `[unknown ...]`.
    Unknown(String),
    /// The end of a stack that isn't whole: `[truncated: REASON]`.
    Truncated(String),
}

/// A Java method by name.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct JavaMethod {
    /// Internal name: `java/lang/String`.
    pub(super) class: String,
    pub(super) name: String,
    pub(super) descriptor: String,
}

/// A stack and how often it was seen.
#[derive(Clone, Debug)]
pub(super) struct CountedStack {
    /// Leaf first, inlined ones included.
    pub(super) frames: Vec<Rc<ReportedFrame>>,
    pub(super) count: u64,
}

impl ReportedFrame {
    pub(super) fn java(&self) -> Option<&JavaMethod> {
        match &self.code {
            Code::Java(method) => Some(method),
            _ => None,
        }
    }

    /// Formats the frame for reports.
    pub(super) fn report_line(&self) -> String {
        match &self.code {
            Code::Java(method) => {
                let ReportedFrame { file, line, bci, .. } = self;
                let at = bci.map(|bci| format!(" @ bci {bci}")).unwrap_or_default();
                format!("{}.{}{} {file}:{line}{at}", method.class, method.name, method.descriptor)
            }
            Code::Stub(name) => format!("stub {name}"),
            Code::Native(name) => format!("native {name}"),
            Code::Kernel(name) => format!("kernel {name}"),
            Code::Unknown(name) | Code::Truncated(name) => name.clone(),
        }
    }
}

impl JavaMethod {
    /// Parses `com.acme.Order.total(Ljava/util/List;)J`; the class may hold slashes and dots of a
    /// hidden class.
    fn parse(system_name: &str) -> Option<Self> {
        let (method, descriptor) = system_name.split_at(system_name.find('(')?);
        let (class, name) = method.rsplit_once('.')?;
        Some(Self {
            class: class.replace('.', "/"),
            name: name.to_owned(),
            descriptor: descriptor.to_owned(),
        })
    }
}

/// Classifies a frame by its names. This is the one place that depends on how the profiler names
/// things.
fn classify(mapping: &str, name: &str, system_name: &str) -> Code {
    if name.starts_with("[truncated") {
        return Code::Truncated(name.to_owned());
    }
    if name.starts_with("[unknown") || name.is_empty() {
        return Code::Unknown(if name.is_empty() {
            format!("[no name in {mapping}]")
        } else {
            name.to_owned()
        });
    }
    match mapping {
        JVM => match JavaMethod::parse(system_name) {
            Some(method) => Code::Java(method),
            None => Code::Stub(name.to_owned()),
        },
        "[kernel.kallsyms]" => Code::Kernel(name.to_owned()),
        _ => Code::Native(name.to_owned()),
    }
}

/// Returns whether the JVM generates classes of such a name at run time, so that there is no class
/// file. This is the one place that depends on how hidden and generated classes are named.
pub(super) fn is_generated(class: &str) -> bool {
    let simple = class.rsplit('/').next().unwrap_or(class);
    let parts = [
        "$$Lambda",
        "LambdaForm$",
        "BoundMethodHandle$Species_",
        "$$StringConcat",
        "$$InjectedInvoker",
        "$$TypeSwitch",
        "$$HasherSpecializer",
        "GeneratedMethodAccessor",
        "GeneratedConstructorAccessor",
        "GeneratedSerializationConstructorAccessor",
    ];
    parts.iter().any(|part| class.contains(part))
        || simple.starts_with("$Proxy")
        // Of the foreign-function API.
        || matches!(simple, "DowncallStub" | "UpcallStub")
        // A hidden class or one of `Unsafe.defineAnonymousClass`: the name goes on with an address.
        || class.contains("/0x")
        || class.contains("+0x")
        || simple.bytes().all(|byte| byte.is_ascii_digit())
}

/// Reads a profile of `jvmprof record`.
///
/// # Errors
/// It can't be read, or isn't a pprof profile.
pub(super) fn read(path: &Path) -> anyhow::Result<Vec<CountedStack>> {
    let packed = fs::read(path).with_context(|| format!("reading {}", path.display()))?;
    let mut bytes = Vec::new();
    GzDecoder::new(&packed[..])
        .read_to_end(&mut bytes)
        .with_context(|| format!("unpacking {}", path.display()))?;
    let profile =
        pprof::Profile::decode(&bytes[..]).with_context(|| format!("parsing {}", path.display()))?;
    Ok(stacks(&profile))
}

/// Returns the index of the bytecode in a line's column, which has it plus one in its lower 17
/// bits.
fn bytecode_index(column: i64) -> Option<u32> {
    u32::try_from(column & 0x1_ffff).ok()?.checked_sub(1)
}

/// Returns the stacks of a profile; references that lead nowhere become unknown frames.
pub(super) fn stacks(profile: &pprof::Profile) -> Vec<CountedStack> {
    let text = |index: i64| {
        let index = usize::try_from(index).unwrap_or(usize::MAX);
        profile.string_table.get(index).map_or("", String::as_str)
    };
    let mappings: HashMap<u64, &str> =
        profile.mapping.iter().map(|mapping| (mapping.id, text(mapping.filename))).collect();
    let functions: HashMap<u64, &pprof::Function> =
        profile.function.iter().map(|function| (function.id, function)).collect();
    let frames = |location: &pprof::Location| -> Vec<Rc<ReportedFrame>> {
        let mapping = mappings.get(&location.mapping_id).copied().unwrap_or_default();
        let frame = |(index, line): (usize, &pprof::Line)| {
            let function = functions.get(&line.function_id);
            let name = |of: fn(&pprof::Function) -> i64| function.map_or("", |function| text(of(function)));
            Rc::new(ReportedFrame {
                code: classify(mapping, name(|f| f.name), name(|f| f.system_name)),
                line: u32::try_from(line.line).unwrap_or(0),
                bci: bytecode_index(line.column),
                file: name(|f| f.filename).rsplit('/').next().unwrap_or_default().to_owned(),
                is_inlined: index + 1 < location.line.len(),
                is_jvm_code: mapping == JVM,
            })
        };
        if location.line.is_empty() {
            let code = classify(mapping, "", "");
            let is_jvm_code = mapping == JVM;
            return vec![Rc::new(ReportedFrame {
                code,
                line: 0,
                bci: None,
                file: String::new(),
                is_inlined: false,
                is_jvm_code,
            })];
        }
        location.line.iter().enumerate().map(frame).collect()
    };
    let locations: HashMap<u64, Vec<Rc<ReportedFrame>>> =
        profile.location.iter().map(|location| (location.id, frames(location))).collect();
    let stack = |sample: &pprof::Sample| CountedStack {
        frames: sample.location_id.iter().filter_map(|id| locations.get(id)).flatten().cloned().collect(),
        count: sample.value.first().and_then(|count| u64::try_from(*count).ok()).unwrap_or(0),
    };
    profile.sample.iter().map(stack).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn java_frames_are_distinguished_from_others_by_mapping_and_signature() {
        let java = classify("jvm", "com.acme.Order.total", "com.acme.Order.total(Ljava/util/List;)J");
        let Code::Java(method) = java else { panic!("{java:?}") };
        assert_eq!(method.class, "com/acme/Order");
        assert_eq!((method.name.as_str(), method.descriptor.as_str()), ("total", "(Ljava/util/List;)J"));
        assert!(matches!(classify("jvm", "jbyte_arraycopy", "jbyte_arraycopy"), Code::Stub(_)));
        assert!(matches!(classify("libjvm.so", "f(int)", "_Z1fi"), Code::Native(_)));
        assert!(matches!(classify("jvm", "[truncated: unknown code]", ""), Code::Truncated(_)));
        assert!(matches!(classify("jvm", "[unknown Java: freed]", ""), Code::Unknown(_)));
    }

    #[test]
    fn classes_made_at_run_time_are_recognised() {
        for class in [
            "zoo/Streams$$Lambda/0x00007f1234",
            "zoo/Streams$$Lambda$14/1234",
            "java/lang/invoke/LambdaForm$MH/0x0001",
            "com/sun/proxy/$Proxy3",
            "jdk/internal/reflect/GeneratedMethodAccessor12",
        ] {
            assert!(is_generated(class), "{class}");
        }
        for class in ["zoo/Known$Inlined", "java/lang/invoke/LambdaForms", "zoo/Upcalls$1"] {
            assert!(!is_generated(class), "{class}");
        }
    }
}
