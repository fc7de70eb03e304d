//! Calls of Java methods that the JVM makes by itself. The list is short on purpose: an upcall that
//! isn't listed counts as a wrong edge until somebody has checked it.

use super::class_file::{Instruction, InvokeKind};
use super::class_path::ClassPath;
use super::profile::JavaMethod;

/// Returns whether the JVM may call `to` while it executes this instruction of `from`.
pub(super) fn from_instruction(classes: &ClassPath, instruction: &Instruction, to: &JavaMethod) -> bool {
    initialises(classes, instruction, to)
        // Any of them may refer to a class; a search for the handler of an exception loads what
        // handlers name.
        || is_class_loading(to)
        || (may_link(instruction) && is_linking(to))
        || throws(classes, instruction, to)
        || (matches!(instruction, Instruction::Invoke { .. }) && finds_native_code(to))
}

/// Returns whether the JVM may call `to` from any place of `from`.
pub(super) fn from_method(from: &JavaMethod, to: &JavaMethod) -> bool {
    registers_finalizer(from, to) || leaves_continuation(from, to)
}

/// Returns whether the JVM makes this call before a compilation. A method may be due for
/// compilation wherever it is entered or goes on with a loop. Then classes of its signature are
/// loaded (openjdk src/hotspot/share/compiler/compileBroker.cpp, `CompileBroker::compile_method`),
/// and a compiler that is written in Java may choose the tier (openjdk jdk-11
/// src/hotspot/share/jvmci/jvmciRuntime.cpp, `adjust_comp_level`). Both calls are the JVM's own, so
/// that its frames lie between.
pub(super) fn precedes_compilation(to: &JavaMethod) -> bool {
    is_class_loading(to) || (to.class == JVMCI_RUNTIME && to.name == "adjustCompilationLevel")
}

/// Class through which the JVM calls a compiler that is written in Java.
const JVMCI_RUNTIME: &str = "jdk/vm/ci/hotspot/HotSpotJVMCIRuntime";
/// Package through which such a compiler calls the JVM.
const JVMCI: &str = "jdk/vm/ci/";

/// Returns whether a native method may call `to`.
pub(super) fn from_native(from: &JavaMethod, to: &JavaMethod) -> bool {
    // Any JNI code may find classes and construct objects.
    if matches!(to.name.as_str(), "<clinit>" | "<init>")
        || is_class_loading(to)
        || is_linking(to)
        || finds_native_code(to)
        || converts_text(to)
    {
        return true;
    }
    // The JVM makes the compiler's objects for its classes, methods and constants (openjdk
    // src/hotspot/share/jvmci/jvmciEnv.cpp).
    if from.class.starts_with(JVMCI) && to.class.starts_with(JVMCI) {
        return true;
    }
    match (from.class.as_str(), from.name.as_str()) {
        // Native in JDK 8 to 11.
        ("java/security/AccessController", "doPrivileged") => to.name == "run",
        (
            "sun/reflect/NativeMethodAccessorImpl"
            | "jdk/internal/reflect/NativeMethodAccessorImpl"
            | "jdk/internal/reflect/DirectMethodHandleAccessor$NativeAccessor",
            "invoke0",
        )
        // The intrinsics of method handles, where they have a frame of their own.
        | ("java/lang/invoke/MethodHandle" | "java/lang/invoke/VarHandle", _) => true,
        ("java/lang/StackStreamFactory$AbstractStackWalker", "callStackWalk") => to.name == "doStackWalk",
        // The list of commands, as JMX asks for it, has the help of JFR's, which is written in Java
        // (openjdk src/hotspot/share/jfr/dcmd/jfrDcmds.cpp, `JfrDCmd::print_help`).
        ("com/sun/management/internal/DiagnosticCommandImpl", "executeDiagnosticCommand") => {
            to.class.starts_with("jdk/jfr/internal/dcmd/")
        }
        // openjdk src/hotspot/share/services/memoryPool.cpp, `get_memory_pool_instance`.
        ("sun/management/MemoryImpl", "getMemoryPools0") => to.name == "createMemoryPool",
        ("jdk/internal/vm/Continuation", "enterSpecial") => {
            to.class == "jdk/internal/vm/Continuation" && to.name == "enter"
        }
        // A library's JNI_OnLoad finds classes for the class that loads it (jni.cpp,
        // `jni_FindClass`); libnet's reads its switches (net_util.c, `DEF_JNI_OnLoad`).
        (
            "jdk/internal/loader/NativeLibraries"
            | "java/lang/ClassLoader$NativeLibrary"
            | "jdk/internal/loader/NativeLibraries$NativeLibraryImpl",
            "load" | "load0",
        ) => {
            to.name == "getFromClass" || (to.class == "java/lang/Boolean" && to.name == "getBoolean")
        }
        // The properties of JDK 8 are put one by one; how their text is encoded, is one
        // (jni_util.c, `initializeEncoding`).
        ("java/lang/System", "initProperties") => {
            matches!(to.name.as_str(), "setProperty" | "put" | "getProperty")
        }
        // JDK 28 resolves the system's charset as soon as it has read its name (jni_util.c,
        // `InitializeEncoding`).
        ("jdk/internal/util/SystemProps$Raw", "platformProperties") => to.name == "forName",
        _ => false,
    }
}

/// Returns whether the method can be the first of a thread, or the first that the JVM calls without
/// any Java below it.
pub(super) fn is_root(classes: &ClassPath, method: &JavaMethod) -> bool {
    let (class, name) = (method.class.as_str(), method.name.as_str());
    match name {
        "run" => method.descriptor == "()V" && classes.is_subtype(class, "java/lang/Thread"),
        "main" => method.descriptor == "([Ljava/lang/String;)V",
        "<clinit>" => true,
        // The JVM makes the first threads, their groups and the errors that it keeps ready.
        _ if is_of_archived_class(method) => true,
        // Of classes whose initialized state was archived (openjdk
        // src/hotspot/share/cds/aotClassInitializer.cpp, `call_runtime_setup`).
        "runtimeSetup" => method.descriptor == "()V",
        "<init>" => class.starts_with("java/lang/"),
        _ => {
            let roots = [
                ("java/lang/Thread", "exit"),
                ("java/lang/Thread", "dispatchUncaughtException"),
                ("java/lang/Shutdown", "shutdown"),
                ("java/lang/System", "initializeSystemClass"),
                ("java/lang/System", "initPhase1"),
                ("java/lang/System", "initPhase2"),
                ("java/lang/System", "initPhase3"),
                // Both by openjdk src/hotspot/share/classfile/systemDictionary.cpp,
                // `compute_java_loaders`.
                ("java/lang/ClassLoader", "getSystemClassLoader"),
                ("java/lang/ClassLoader", "getPlatformClassLoader"),
                ("java/lang/ThreadGroup", "add"),
                ("sun/instrument/InstrumentationImpl", "<init>"),
                ("sun/instrument/InstrumentationImpl", "loadClassAndCallPremain"),
                // An agent's jar is added to the class path before anything else.
                ("jdk/internal/loader/ClassLoaders$AppClassLoader", "appendToClassPathForInstrumentation"),
                ("sun/misc/Launcher$AppClassLoader", "appendToClassPathForInstrumentation"),
                // By the notification thread (openjdk services/gcNotifier.cpp).
                ("com/sun/management/internal/GarbageCollectorExtImpl", "createGCNotification"),
                ("sun/management/GarbageCollectorImpl", "createGCNotification"),
                ("sun/misc/Signal", "dispatch"),
                ("jdk/internal/misc/Signal", "dispatch"),
                // A virtual thread's own first frame; what carries it lies below.
                ("jdk/internal/vm/Continuation", "enterSpecial"),
                ("jdk/internal/vm/VMSupport", "serializePropertiesToByteArray"),
                // Threads of a compiler that is written in Java.
                (JVMCI_RUNTIME, "compileMethod"),
                (JVMCI_RUNTIME, "runtime"),
                (JVMCI_RUNTIME, "bootstrapFinished"),
                ("jdk/vm/ci/runtime/JVMCI", "getRuntime"),
            ];
            // The launcher calls its helper, and finds classes.
            roots.contains(&(class, name))
                || class == "sun/launcher/LauncherHelper"
                // What is to be compiled becomes an object of the compiler's.
                || (class.starts_with(JVMCI) && name == "fromMetaspace")
                || is_class_loading(method)
        }
    }
}

/// Returns whether the method is signature-polymorphic: the JVM has it in every signature that is
/// called, where the class file has one.
pub(super) fn is_polymorphic(method: &JavaMethod) -> bool {
    match method.class.as_str() {
        "java/lang/invoke/MethodHandle" => {
            method.name.starts_with("linkTo")
                || matches!(method.name.as_str(), "invoke" | "invokeExact" | "invokeBasic")
        }
        "java/lang/invoke/VarHandle" => true,
        _ => false,
    }
}

/// Returns whether the class has more methods in the JVM than in its file. Such are classes that a
/// class-data archive contains anew for the lambda forms that were in use when it was written, and
/// event classes, which the JVM completes when it loads them (openjdk
/// src/hotspot/share/jfr/instrumentation/jfrEventClassTransformer.cpp).
pub(super) fn is_regenerated(class: &str) -> bool {
    class.starts_with("java/lang/invoke/") && class.ends_with("$Holder")
        || class.starts_with("jdk/internal/event/")
}

/// Returns whether `to` is `<clinit>` of the class or of one that must be initialised before it.
fn initialises(classes: &ClassPath, instruction: &Instruction, to: &JavaMethod) -> bool {
    if to.name != "<clinit>" {
        return false;
    }
    match instruction {
        Instruction::Initialise(class) | Instruction::Invoke { kind: InvokeKind::Static, class, .. } => {
            classes.is_subtype(class, &to.class)
        }
        // Its constant may be a field or a method of any class.
        Instruction::LoadConstant => true,
        _ => false,
    }
}

/// Returns whether the method is called to load a class. The JVM calls the class's loader, and its
/// check of the package; agents may transform the class.
fn is_class_loading(to: &JavaMethod) -> bool {
    let of_loader = matches!(to.name.as_str(), "loadClass" | "loadClassInternal")
        && to.descriptor == "(Ljava/lang/String;)Ljava/lang/Class;";
    of_loader
        || (to.class == "java/lang/ClassLoader"
            && matches!(to.name.as_str(), "checkPackageAccess" | "addClass"))
        || (to.class == "sun/instrument/InstrumentationImpl" && to.name == "transform")
        || is_of_archived_class(to)
}

/// Returns whether the method gives an archived class of a jar its protection domain or its package
/// (openjdk src/hotspot/share/cds/cdsProtectionDomain.cpp).
fn is_of_archived_class(to: &JavaMethod) -> bool {
    let (class, name) = (to.class.as_str(), to.name.as_str());
    matches!(
        (class, name),
        ("java/util/jar/Manifest", "<init>")
            | ("jdk/internal/loader/ClassLoaders", "toFileURL")
            | ("java/security/SecureClassLoader", "getProtectionDomain")
    ) || (class.starts_with("jdk/internal/loader/") && name == "defineOrCheckPackage")
}

fn may_link(instruction: &Instruction) -> bool {
    match instruction {
        Instruction::InvokeDynamic | Instruction::LoadConstant => true,
        Instruction::Invoke { class, .. } => {
            matches!(class.as_str(), "java/lang/invoke/MethodHandle" | "java/lang/invoke/VarHandle")
        }
        _ => false,
    }
}

/// Returns whether the method is called to link a call site (`openjdk jdk-21
/// src/hotspot/share/classfile/systemDictionary.cpp`).
fn is_linking(to: &JavaMethod) -> bool {
    let names = [
        "linkCallSite",
        "linkMethod",
        "linkMethodHandleConstant",
        "linkDynamicConstant",
        "findMethodHandleType",
    ];
    to.class == "java/lang/invoke/MethodHandleNatives" && names.contains(&to.name.as_str())
}

/// Returns whether the call constructs an exception that the JVM throws for one of its own
/// instructions.
fn throws(classes: &ClassPath, instruction: &Instruction, to: &JavaMethod) -> bool {
    if to.name != "<init>" {
        return false;
    }
    let Some(simple) = to.class.strip_prefix("java/lang/") else { return false };
    match instruction {
        Instruction::Throws(names) => names.contains(&simple),
        // Compiled code copies arrays without a call of the method, and calls the JVM for what it
        // can't copy (openjdk src/hotspot/share/runtime/sharedRuntime.cpp, `slow_arraycopy_C`).
        Instruction::Invoke { class, name, .. } if class == "java/lang/System" && name == "arraycopy" => {
            let names = ["NullPointerException", "ArrayStoreException", "ArrayIndexOutOfBoundsException"];
            names.contains(&simple)
        }
        Instruction::Invoke { .. } => {
            simple == "NullPointerException" || classes.is_subtype(&to.class, "java/lang/LinkageError")
        }
        Instruction::Resolve(_) | Instruction::Initialise(_) => {
            let names = ["NullPointerException", "ClassCastException", "NegativeArraySizeException"];
            names.contains(&simple) || classes.is_subtype(&to.class, "java/lang/LinkageError")
        }
        Instruction::InvokeDynamic | Instruction::LoadConstant => {
            classes.is_subtype(&to.class, "java/lang/LinkageError")
        }
    }
}

/// Returns whether the method is called to find a native method's code at its first call.
fn finds_native_code(to: &JavaMethod) -> bool {
    to.class == "java/lang/ClassLoader" && to.name == "findNative"
}

/// Returns whether the method is one of `String`'s by which JNI code of the JDK converts names to
/// the platform's encoding (`openjdk src/java.base/share/native/libjava/jni_util.c`).
fn converts_text(to: &JavaMethod) -> bool {
    matches!(
        (to.class.as_str(), to.name.as_str()),
        ("java/nio/charset/Charset", "isSupported") | ("java/lang/String", "getBytes")
    )
}

/// Returns whether the call registers a finalizer at the end of `Object.<init>`.
fn registers_finalizer(from: &JavaMethod, to: &JavaMethod) -> bool {
    from.class == "java/lang/Object"
        && from.name == "<init>"
        && to.class == "java/lang/ref/Finalizer"
        && to.name == "register"
}

/// Returns whether the call is the end of `doYield`, whose last instructions take the place of
/// `enterSpecial`, by whose frame they return (openjdk
/// src/hotspot/cpu/x86/sharedRuntime_x86_64.cpp, `gen_continuation_yield`).
fn leaves_continuation(from: &JavaMethod, to: &JavaMethod) -> bool {
    let is_continuation = |method: &JavaMethod| method.class == "jdk/internal/vm/Continuation";
    is_continuation(from) && is_continuation(to) && from.name == "run" && to.name == "doYield"
}
