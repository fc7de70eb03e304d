//! Where the JVM calls Java by itself. Short on purpose: what isn't here is a wrong edge until
//! somebody has looked at it.

use super::class_file::{Instruction, Invoke};
use super::class_path::ClassPath;
use super::profile::JavaMethod;

/// Whether the JVM may call `to` while it executes this instruction of `from`.
pub(super) fn from_instruction(classes: &ClassPath, instruction: &Instruction, to: &JavaMethod) -> bool {
    initialises(classes, instruction, to)
        // Any of them may refer to a class; a search for the handler of an exception loads what
        // handlers name.
        || is_class_loading(to)
        || (may_link(instruction) && is_linking(to))
        || throws(classes, instruction, to)
        || (matches!(instruction, Instruction::Invoke { .. }) && finds_native_code(to))
}

/// Whether the JVM may call `to` from any place of `from`.
pub(super) fn from_method(from: &JavaMethod, to: &JavaMethod) -> bool {
    registers_finalizer(from, to) || leaves_continuation(from, to)
}

/// A method that is to be compiled is met anywhere: when it is entered, or goes on with a loop.
/// Then classes of its signature are loaded (openjdk src/hotspot/share/compiler/compileBroker.cpp,
/// `CompileBroker::compile_method`), and a compiler that is written in Java may be asked for the
/// tier (openjdk jdk-11 src/hotspot/share/jvmci/jvmciRuntime.cpp, `adjust_comp_level`). Both calls
/// are the JVM's own, so that its frames lie between.
pub(super) fn precedes_compilation(to: &JavaMethod) -> bool {
    is_class_loading(to) || (to.class == JVMCI_RUNTIME && to.name == "adjustCompilationLevel")
}

/// By which the JVM uses a compiler that is written in Java.
const JVMCI_RUNTIME: &str = "jdk/vm/ci/hotspot/HotSpotJVMCIRuntime";
/// What such a compiler uses of the JVM.
const JVMCI: &str = "jdk/vm/ci/";

/// Whether a native method may call `to`.
pub(super) fn from_native(from: &JavaMethod, to: &JavaMethod) -> bool {
    // Any JNI code may look classes up and make objects.
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
        ("jdk/internal/vm/Continuation", "enterSpecial") => {
            to.class == "jdk/internal/vm/Continuation" && to.name == "enter"
        }
        // A library's JNI_OnLoad looks classes up for the class that loads it (jni.cpp,
        // `jni_FindClass`); libnet's asks for its switches (net_util.c, `DEF_JNI_OnLoad`).
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
        // JDK 28 looks up the charset that text of the system has as soon as it knows its name
        // (jni_util.c, `InitializeEncoding`).
        ("jdk/internal/util/SystemProps$Raw", "platformProperties") => to.name == "forName",
        _ => false,
    }
}

/// Whether the method can be the first of a thread, or the first that the JVM calls without any
/// Java below it.
pub(super) fn is_root(classes: &ClassPath, method: &JavaMethod) -> bool {
    let (class, name) = (method.class.as_str(), method.name.as_str());
    match name {
        "run" => method.descriptor == "()V" && classes.is_subtype(class, "java/lang/Thread"),
        "main" => method.descriptor == "([Ljava/lang/String;)V",
        "<clinit>" => true,
        // The JVM makes the first threads, their groups and the errors that it keeps ready.
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
                ("java/lang/ClassLoader", "getSystemClassLoader"),
                ("java/lang/ThreadGroup", "add"),
                ("sun/instrument/InstrumentationImpl", "<init>"),
                ("sun/instrument/InstrumentationImpl", "loadClassAndCallPremain"),
                // An agent's jar is added to the class path before anything else.
                ("jdk/internal/loader/ClassLoaders$AppClassLoader", "appendToClassPathForInstrumentation"),
                ("sun/misc/Launcher$AppClassLoader", "appendToClassPathForInstrumentation"),
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
            // The launcher asks its helper, and looks classes up.
            roots.contains(&(class, name))
                || class == "sun/launcher/LauncherHelper"
                // What is to be compiled becomes an object of the compiler's.
                || (class.starts_with(JVMCI) && name == "fromMetaspace")
                || is_class_loading(method)
        }
    }
}

/// Methods that the JVM has in every signature that somebody calls, where the class file has one.
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

/// ClassPath of the JDK that have more methods than their files: those that a class-data archive
/// has anew for the lambda forms that were in use when it was written, and event classes, which the
/// JVM completes when it loads them (openjdk
/// src/hotspot/share/jfr/instrumentation/jfrEventClassTransformer.cpp).
pub(super) fn is_regenerated(class: &str) -> bool {
    class.starts_with("java/lang/invoke/") && class.ends_with("$Holder")
        || class.starts_with("jdk/internal/event/")
}

/// `<clinit>` of the class or of what must be initialised before it.
fn initialises(classes: &ClassPath, instruction: &Instruction, to: &JavaMethod) -> bool {
    if to.name != "<clinit>" {
        return false;
    }
    match instruction {
        Instruction::Initialise(class) | Instruction::Invoke { kind: Invoke::Static, class, .. } => {
            classes.is_subtype(class, &to.class)
        }
        // Its constant may be a field or a method of any class.
        Instruction::LoadConstant => true,
        _ => false,
    }
}

/// Loading asks the class's loader, and whether the package may be used; agents may change what was
/// found.
fn is_class_loading(to: &JavaMethod) -> bool {
    let of_loader = matches!(to.name.as_str(), "loadClass" | "loadClassInternal")
        && to.descriptor == "(Ljava/lang/String;)Ljava/lang/Class;";
    of_loader
        || (to.class == "java/lang/ClassLoader"
            && matches!(to.name.as_str(), "checkPackageAccess" | "addClass"))
        || (to.class == "sun/instrument/InstrumentationImpl" && to.name == "transform")
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

/// `openjdk jdk-21 src/hotspot/share/classfile/systemDictionary.cpp` calls these.
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

/// The JVM makes the exceptions of its own instructions by their constructors.
fn throws(classes: &ClassPath, instruction: &Instruction, to: &JavaMethod) -> bool {
    if to.name != "<init>" {
        return false;
    }
    let Some(simple) = to.class.strip_prefix("java/lang/") else {
        return false;
    };
    match instruction {
        Instruction::Throws(names) => names.contains(&simple),
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

/// The first call of a native method looks for its code.
fn finds_native_code(to: &JavaMethod) -> bool {
    to.class == "java/lang/ClassLoader" && to.name == "findNative"
}

/// JNI code of the JDK converts names to the platform's encoding by `String`'s own methods
/// (`openjdk src/java.base/share/native/libjava/jni_util.c`).
fn converts_text(to: &JavaMethod) -> bool {
    matches!(
        (to.class.as_str(), to.name.as_str()),
        ("java/nio/charset/Charset", "isSupported") | ("java/lang/String", "getBytes")
    )
}

/// The end of `Object.<init>` registers what has a finalizer.
fn registers_finalizer(from: &JavaMethod, to: &JavaMethod) -> bool {
    from.class == "java/lang/Object"
        && from.name == "<init>"
        && to.class == "java/lang/ref/Finalizer"
        && to.name == "register"
}

/// The last instructions of `doYield` take the place of `enterSpecial`, by whose frame they return
/// (openjdk src/hotspot/cpu/x86/sharedRuntime_x86_64.cpp, `gen_continuation_yield`).
fn leaves_continuation(from: &JavaMethod, to: &JavaMethod) -> bool {
    let is_continuation = |method: &JavaMethod| method.class == "jdk/internal/vm/Continuation";
    is_continuation(from) && is_continuation(to) && from.name == "run" && to.name == "doYield"
}
