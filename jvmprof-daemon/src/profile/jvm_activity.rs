//! Activities that a JVM's CPU time goes to: what a sample of it was taken in, by the kind of its
//! thread and by the frames of its stack. The rules are the two tables of this file;
//! `docs/pages.md` says them in words. The page filters by both.
//!
//! Functions: openjdk src/hotspot/share (classfile/systemDictionary.cpp, oops/instanceKlass.cpp,
//! runtime/safepoint.cpp, runtime/handshake.cpp, gc/shared/gcVMOperations.hpp, gc/*/*Barrier*.cpp).

use serde::{Serialize, Serializer};

use super::model::{LabelSet, Sample};

/// The label with the kind of a sample's thread, of which the pipeline makes the values.
pub const THREAD_KIND_LABEL: &str = "thread_kind";

/// A label that series of JVMs have.
pub const JVM_LABEL: &str = "jvm_version";

/// The activity that a sample of CPU time was taken in. The numbers are those of `ACTIVITIES` in
/// `activities.js`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum JvmActivity {
    /// Java code of the application and its libraries.
    Application = 0,
    Gc = 1,
    Compiler = 2,
    /// VM operations, safepoints, and the JVM's other threads of its own.
    Vm = 3,
    ClassLoading = 4,
    /// The kernel on behalf of Java threads.
    Kernel = 5,
    /// Native code that Java threads call, the JVM's own included, and threads of native code.
    Native = 6,
    /// A JVM's, nothing else is known.
    Unknown = 7,
    /// Not a JVM's.
    OtherProcess = 8,
}

/// Number of activities.
pub const JVM_ACTIVITIES: usize = JvmActivity::OtherProcess as usize + 1;

impl JvmActivity {
    /// Each with its name in the pages' addresses.
    const NAMES: [(Self, &'static str); JVM_ACTIVITIES] = [
        (Self::Application, "application"),
        (Self::Gc, "gc"),
        (Self::Compiler, "compiler"),
        (Self::Vm, "vm"),
        (Self::ClassLoading, "class-loading"),
        (Self::Kernel, "kernel"),
        (Self::Native, "native"),
        (Self::Unknown, "unknown"),
        (Self::OtherProcess, "other"),
    ];

    fn of_number(number: u64) -> Option<Self> {
        let mut all = Self::NAMES.iter().map(|(activity, _)| *activity);
        all.find(|activity| *activity as u64 == number)
    }

    /// Returns the activity that the pages' addresses call so.
    pub fn of_name(name: &str) -> Option<Self> {
        Self::NAMES.iter().find(|(_, it)| *it == name).map(|(activity, _)| *activity)
    }

    /// Returns the names of all activities in the pages' addresses.
    pub fn names() -> impl Iterator<Item = &'static str> {
        Self::NAMES.iter().map(|(_, name)| *name)
    }
}

/// The kind of a sample's thread. The numbers are those of `THREAD_KINDS` in `activities.js`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum ThreadKind {
    /// Not known, or that of a process that is no JVM.
    Unknown = 0,
    Java = 1,
    /// A virtual thread that is mounted.
    Virtual = 2,
    Gc = 3,
    Compiler = 4,
    /// HotSpot's other threads.
    Vm = 5,
    Native = 6,
}

impl ThreadKind {
    /// Each with its name in the pages' addresses.
    const NAMES: [(Self, &'static str); 7] = [
        (Self::Unknown, "unknown"),
        (Self::Java, "java"),
        (Self::Virtual, "virtual"),
        (Self::Gc, "gc"),
        (Self::Compiler, "compiler"),
        (Self::Vm, "vm"),
        (Self::Native, "native"),
    ];

    fn of_number(number: u64) -> Option<Self> {
        Self::NAMES.iter().map(|(kind, _)| *kind).find(|kind| *kind as u64 == number)
    }

    /// Returns the kind that the pages' addresses call so.
    pub fn of_name(name: &str) -> Option<Self> {
        Self::NAMES.iter().find(|(_, it)| *it == name).map(|(kind, _)| *kind)
    }

    /// Returns its name, which is the value of the label, too.
    pub fn name(self) -> &'static str {
        Self::NAMES[self as usize].1
    }

    /// Returns the names of all kinds in the pages' addresses.
    pub fn names() -> impl Iterator<Item = &'static str> {
        Self::NAMES.iter().map(|(_, name)| *name)
    }
}

/// The activity that a sample was taken in, the kind of its thread, and its process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SampledActivity {
    pub activity: JvmActivity,
    pub thread: ThreadKind,
    /// The number of the process, where processes are distinguished; else 0. Stored sums have 0.
    pub process: u16,
}

/// Bits of [`SampledActivity::number`] that are the activity's, and those that are the thread's;
/// above them is the process.
const ACTIVITY_BITS: u32 = 4;
const THREAD_BITS: u32 = 4;
const _: () = assert!(JVM_ACTIVITIES <= 1 << ACTIVITY_BITS);
const _: () = assert!((ThreadKind::Native as usize) < 1 << THREAD_BITS);

impl SampledActivity {
    /// Returns the number that stands for both in the page's data and in stored sums.
    pub(crate) fn number(self) -> u64 {
        let process = u64::from(self.process) << (ACTIVITY_BITS + THREAD_BITS);
        process | ((self.thread as u64) << ACTIVITY_BITS) | self.activity as u64
    }

    /// Returns what this number of stored sums stands for.
    pub(crate) fn of_number(number: u64) -> Option<Self> {
        let activity = JvmActivity::of_number(number & ((1 << ACTIVITY_BITS) - 1))?;
        Some(Self { activity, thread: ThreadKind::of_number(number >> ACTIVITY_BITS)?, process: 0 })
    }
}

impl Serialize for SampledActivity {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(self.number())
    }
}

/// The division of the samples of a kind of thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Division {
    /// All of them are this.
    All(JvmActivity),
    /// The collector's where one of its functions is anywhere on the stack, else the VM's.
    GcOrVm,
    /// By [`FRAMES`], and where none of them is found by the code of the leaf.
    FramesAndLeaf,
}

/// By the value of the label `thread_kind`.
const THREADS: &[(&str, ThreadKind, Division)] = &[
    ("java", ThreadKind::Java, Division::FramesAndLeaf),
    ("virtual", ThreadKind::Virtual, Division::FramesAndLeaf),
    ("gc", ThreadKind::Gc, Division::All(JvmActivity::Gc)),
    ("compiler", ThreadKind::Compiler, Division::All(JvmActivity::Compiler)),
    ("vm", ThreadKind::Vm, Division::GcOrVm),
    ("native", ThreadKind::Native, Division::All(JvmActivity::Native)),
];

/// Functions that say what is going on in a stack, whatever they call; the innermost one decides.
/// `*` stands for any end of a name, and parameters don't count.
const FRAMES: &[(JvmActivity, &[&str])] = &[
    // The collections that the VM thread carries out, and what barriers let Java threads do.
    (
        JvmActivity::Gc,
        &[
            "VM_GC_Operation::*",
            "VM_GenCollect*",
            "VM_SerialCollect*",
            "VM_SerialGC*",
            "VM_ParallelCollect*",
            "VM_ParallelGC*",
            "VM_G1*",
            "VM_CollectForMetadataAllocation::*",
            "VM_CGC_Operation::*",
            "VM_CMS*",
            "VM_Shenandoah*",
            "VM_ZOperation::*",
            "VM_XOperation::*",
            "ZBarrier::*",
            "ZBarrierSetRuntime::*",
            "XBarrier::*",
            "XBarrierSetRuntime::*",
            "ShenandoahBarrierSet::*",
            "ShenandoahRuntime::*",
            "G1BarrierSetRuntime::*",
            "G1DirtyCardQueueSet::*",
        ],
    ),
    (
        JvmActivity::Vm,
        &[
            "SafepointSynchronize::*",
            "SafepointMechanism::*",
            "ThreadSafepointState::*",
            "Handshake::*",
            "HandshakeState::*",
            "VMThread::execute",
            "VMThread::wait_until_executed",
        ],
    ),
    (
        JvmActivity::ClassLoading,
        &[
            "java.lang.ClassLoader.loadClass",
            "java.lang.ClassLoader.defineClass*",
            "java.lang.ClassLoader.findBootstrapClass*",
            "java.lang.invoke.MethodHandles$Lookup$ClassDefiner.defineClass*",
            "jdk.internal.loader.BuiltinClassLoader.loadClass*",
            "jdk.internal.loader.BuiltinClassLoader.findClass*",
            "jdk.internal.misc.Unsafe.defineClass*",
            "SystemDictionary::*",
            "ClassFileParser::*",
            "ClassLoader::*",
            "KlassFactory::*",
            "InstanceKlass::link_class*",
            "Verifier::*",
            "ClassVerifier::*",
            "Rewriter::*",
            "jvm_define_class_common",
        ],
    ),
];

/// The name of the methods of static initializers: what they run is the application's, though it is
/// run while a class is loaded.
const CLASS_INITIALIZER: &str = ".<clinit>";

/// The role of a function in the stacks that it is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FrameRole {
    Is(JvmActivity),
    ClassInitializer,
    None,
}

impl FrameRole {
    pub(super) fn of_function(name: &str) -> Self {
        let name = name.split_once('(').map_or(name, |(name, _)| name);
        let is_in = |names: &[&str]| {
            names.iter().any(|it| it.strip_suffix('*').map_or(*it == name, |start| name.starts_with(start)))
        };
        if name.ends_with(CLASS_INITIALIZER) {
            return Self::ClassInitializer;
        }
        let found = FRAMES.iter().find(|(_, names)| is_in(names));
        found.map_or(Self::None, |(activity, _)| Self::Is(*activity))
    }
}

/// The code that the leaf of a stack runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LeafCode {
    /// Java, and what HotSpot or another compiler generated for it.
    Java,
    Kernel,
    Native,
    /// A marker, or no frame at all.
    Unknown,
}

/// Returns what a sample was taken in. `roles`: of its functions, from the leaf on.
pub(super) fn activity_of(
    thread: JvmThread<'_>,
    roles: impl Iterator<Item = FrameRole>,
    leaf: LeafCode,
) -> JvmActivity {
    let JvmThread::Kind(kind) = thread else {
        return if thread == JvmThread::OtherProcess {
            JvmActivity::OtherProcess
        } else {
            JvmActivity::Unknown
        };
    };
    let division = THREADS.iter().find(|(name, ..)| *name == kind).map(|(.., division)| *division);
    let division = division.unwrap_or(Division::All(JvmActivity::Unknown));
    if let Division::All(activity) = division {
        return activity;
    }
    let mut roles = roles.filter(|role| *role != FrameRole::None);
    if division == Division::GcOrVm {
        let is_gc = roles.any(|role| role == FrameRole::Is(JvmActivity::Gc));
        return if is_gc { JvmActivity::Gc } else { JvmActivity::Vm };
    }
    match (roles.next(), leaf) {
        (Some(FrameRole::Is(activity)), _) => activity,
        (_, LeafCode::Java) => JvmActivity::Application,
        (_, LeafCode::Kernel) => JvmActivity::Kernel,
        (_, LeafCode::Native) => JvmActivity::Native,
        (_, LeafCode::Unknown) => JvmActivity::Unknown,
    }
}

/// The thread of a sample, as far as it is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum JvmThread<'a> {
    /// The value of the label `thread_kind`.
    Kind(&'a str),
    /// A JVM's, of an unknown kind.
    UnknownKind,
    OtherProcess,
}

impl<'a> JvmThread<'a> {
    /// Returns what is known of a sample's thread. `kind`: the label of the sample; `is_jvm` says
    /// whether its process is a JVM otherwise.
    pub(super) fn new(kind: Option<&'a str>, is_jvm: bool) -> Self {
        match kind {
            Some(kind) => Self::Kind(kind),
            None if is_jvm => Self::UnknownKind,
            None => Self::OtherProcess,
        }
    }

    /// Returns its kind, as far as the table of kinds has it.
    pub(super) fn kind(self) -> ThreadKind {
        let Self::Kind(kind) = self else { return ThreadKind::Unknown };
        let found = THREADS.iter().find(|(name, ..)| *name == kind);
        found.map_or(ThreadKind::Unknown, |(_, kind, _)| *kind)
    }
}

/// Returns the kind of a sample's thread, if it is known and a JVM's.
pub fn thread_kind_of(sample: &Sample) -> Option<&str> {
    sample.labels.iter().find(|label| &*label.name == THREAD_KIND_LABEL).map(|label| &*label.value)
}

/// Returns true if a series with these labels is a JVM's.
pub fn is_jvm(labels: &LabelSet) -> bool {
    labels.contains_key(JVM_LABEL) || labels.get("runtime").is_some_and(|runtime| runtime == "jvm")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(kind: Option<&str>, leaf_first: &[&str], leaf: LeafCode) -> JvmActivity {
        let roles = leaf_first.iter().map(|name| FrameRole::of_function(name));
        activity_of(JvmThread::new(kind, true), roles, leaf)
    }

    #[test]
    fn java_threads_are_divided_by_frames_and_then_by_the_leaf() {
        use JvmActivity::*;
        let java = |names: &[&str], leaf| of(Some("java"), names, leaf);
        assert_eq!(java(&["acme.Shop.serve", "java.lang.Thread.run"], LeafCode::Java), Application);
        assert_eq!(java(&["tcp_sendmsg", "send", "acme.Shop.serve"], LeafCode::Kernel), Kernel);
        assert_eq!(java(&["deflate", "acme.Shop.serve"], LeafCode::Native), Native);
        assert_eq!(java(&["[unknown 0x1]"], LeafCode::Unknown), Unknown);
        let loading = ["inflate", "java.lang.ClassLoader.loadClass", "acme.Shop.<clinit>"];
        assert_eq!(java(&loading, LeafCode::Native), ClassLoading);
        let initializing =
            ["acme.Tax.<clinit>", "InstanceKlass::initialize_impl(JavaThread*)", "SystemDictionary::x()"];
        assert_eq!(java(&initializing, LeafCode::Java), Application);
        let parsing = ["ClassFileParser::parse_stream(ClassFileStream const*, JavaThread*)", "A.main"];
        assert_eq!(java(&parsing, LeafCode::Native), ClassLoading);
        assert_eq!(java(&["futex_wait", "SafepointSynchronize::block(JavaThread*)"], LeafCode::Kernel), Vm);
        assert_eq!(java(&["ZBarrier::relocate_or_mark(zaddress)", "A.main"], LeafCode::Native), Gc);
        assert_eq!(of(Some("virtual"), &["A.run"], LeafCode::Java), Application);
    }

    #[test]
    fn other_threads_are_what_they_are_for() {
        use JvmActivity::*;
        let kernel = |kind| of(Some(kind), &["clear_page_erms"], LeafCode::Kernel);
        assert_eq!(
            [
                kernel("gc"),
                kernel("compiler"),
                kernel("vm"),
                kernel("native"),
                kernel("new in a later version")
            ],
            [Gc, Compiler, Vm, Native, Unknown]
        );
        assert_eq!(of(Some("vm"), &["mark", "VM_G1CollectForAllocation::doit()"], LeafCode::Native), Gc);
        assert_eq!(of(Some("vm"), &["SystemDictionary::do_unloading()"], LeafCode::Native), Vm);
        assert_eq!(of(None, &["A.main"], LeafCode::Java), Unknown);
        assert_eq!(activity_of(JvmThread::new(None, false), [].into_iter(), LeafCode::Kernel), OtherProcess);
    }

    #[test]
    fn an_activity_and_a_kind_of_thread_are_one_number() {
        for (name, kind, _) in THREADS {
            assert_eq!(JvmThread::Kind(name).kind(), *kind);
        }
        assert_eq!(JvmThread::Kind("new in a later version").kind(), ThreadKind::Unknown);
        let sampled_in =
            SampledActivity { activity: JvmActivity::Native, thread: ThreadKind::Virtual, process: 0 };
        assert_eq!((sampled_in.number(), SampledActivity::of_number(38)), (38, Some(sampled_in)));
        let other =
            SampledActivity { activity: JvmActivity::OtherProcess, thread: ThreadKind::Unknown, process: 0 };
        assert_eq!((other.number(), SampledActivity::of_number(8)), (8, Some(other)));
        assert_eq!([SampledActivity::of_number(9), SampledActivity::of_number(7 << 4)], [None, None]);
    }

    #[test]
    fn names_are_those_of_the_page_in_the_order_of_its_numbers() {
        let script = include_str!("../../assets/tree/activities.js");
        let keys = script.split("{ key: \"").skip(1).filter_map(|rest| rest.split('"').next());
        let names = JvmActivity::names().chain(ThreadKind::names());
        assert_eq!(names.collect::<Vec<_>>(), keys.collect::<Vec<_>>());
        for (number, name) in (0..).zip(JvmActivity::names()) {
            assert_eq!(JvmActivity::of_name(name), JvmActivity::of_number(number));
        }
        for (number, name) in (0..).zip(ThreadKind::names()) {
            assert_eq!(ThreadKind::of_name(name), ThreadKind::of_number(number));
        }
        assert_eq!((JvmActivity::of_name("GC"), ThreadKind::of_name("")), (None, None));
    }
}
