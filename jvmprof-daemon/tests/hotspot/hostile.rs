//! A process that exports HotSpot's symbols and isn't one.

use std::io::Read as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use jvmprof_daemon::hotspot::{Hotspot, HotspotError, LiveMemory, images};

use crate::support::processes::own_cpu_time;
use crate::support::{KilledChild, compile, scratch};

/// Exports every symbol of the tables; `STRUCTS`, `STRIDE`, `NAME` and `BEFORE` say what is wrong
/// with them.
const FAKE: &str = r#"
#include <stdint.h>
#include <unistd.h>
struct entry { const char *type, *field, *type_string; int32_t is_static; uint64_t offset; void *address; };
struct type { const char *name, *super; int32_t a, b, c; uint64_t size; };
struct number { const char *name; uint64_t value; };
#define EXPORT __attribute__((visibility("default")))
#define VALUE(name, value) EXPORT uint64_t name = (value)
BEFORE
static struct type no_types[2];
static struct number no_numbers[2];
EXPORT struct entry *gHotSpotVMStructs = STRUCTS;
EXPORT struct type *gHotSpotVMTypes = no_types;
EXPORT struct number *gHotSpotVMIntConstants = no_numbers, *gHotSpotVMLongConstants = no_numbers;
VALUE(gHotSpotVMStructEntryTypeNameOffset, NAME);
VALUE(gHotSpotVMStructEntryFieldNameOffset, 8);
VALUE(gHotSpotVMStructEntryTypeStringOffset, 16);
VALUE(gHotSpotVMStructEntryIsStaticOffset, 24);
VALUE(gHotSpotVMStructEntryOffsetOffset, 32);
VALUE(gHotSpotVMStructEntryAddressOffset, 40);
VALUE(gHotSpotVMStructEntryArrayStride, STRIDE);
VALUE(gHotSpotVMTypeEntryTypeNameOffset, 0);
VALUE(gHotSpotVMTypeEntrySuperclassNameOffset, 8);
VALUE(gHotSpotVMTypeEntrySizeOffset, 32);
VALUE(gHotSpotVMTypeEntryArrayStride, 40);
VALUE(gHotSpotVMIntConstantEntryNameOffset, 0);
VALUE(gHotSpotVMIntConstantEntryValueOffset, 8);
VALUE(gHotSpotVMIntConstantEntryArrayStride, 16);
VALUE(gHotSpotVMLongConstantEntryNameOffset, 0);
VALUE(gHotSpotVMLongConstantEntryValueOffset, 8);
VALUE(gHotSpotVMLongConstantEntryArrayStride, 16);
int main(void) { FILL; write(1, "x", 1); for (;;) pause(); }
"#;

struct Fake<'f> {
    /// Declarations of the table.
    before: &'f str,
    /// What main does to it.
    fill: &'f str,
    structs: &'f str,
    stride: &'f str,
    name: &'f str,
}

const PLAIN: Fake<'_> =
    Fake { before: "static struct entry table[64];", fill: "", structs: "table", stride: "48", name: "0" };

/// What comes of attaching, which must take neither long nor much memory.
fn attach(folder: &Path, name: &str, fake: &Fake<'_>) -> HotspotError {
    let define = |name: &str, value: &str| format!("-D{name}={value}");
    let flags = [
        define("BEFORE", fake.before),
        define("FILL", fake.fill),
        define("STRUCTS", fake.structs),
        define("STRIDE", fake.stride),
        define("NAME", fake.name),
        "-rdynamic".to_owned(),
        // As old linkers did: the other kind of hash table.
        if name.len().is_multiple_of(2) { "-Wl,--hash-style=sysv" } else { "-Wl,--hash-style=gnu" }
            .to_owned(),
    ];
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let program = compile(folder, name, FAKE, &flags);
    let mut running = KilledChild(Command::new(&program).stdout(Stdio::piped()).spawn().expect("it runs"));
    // It says when it has filled its table.
    running.0.stdout.take().expect("it is piped").read_exact(&mut [0]).expect("it writes a byte");
    let (pid, begin) = (running.0.id(), own_cpu_time());
    let found = Hotspot::attach(&images(pid).unwrap(), LiveMemory::new(pid));
    let took = own_cpu_time() - begin;
    assert!(took < Duration::from_secs(2), "{name}: {took:?}");
    found.err().unwrap_or_else(|| panic!("{name} was taken for a JVM"))
}

#[test]
fn hostile_tables_are_refused_in_bounded_time_each_for_its_reason() {
    let folder = scratch();
    let endless = "for (int i = 0; i < (1 << 20); i++) table[i].type = table[i].field = \"x\"";
    let scattered = "for (int i = 0; i < 8000; i++) table[i].type = table[i].field = pages + i * 4096L";
    let unterminated = "memset(pages, 'x', sizeof pages); table[0].type = table[0].field = pages";
    let cyclic = "table[0].type = table[0].field = (char *)&table[0].type";
    let cases = [
        ("uninitialised", Fake { structs: "0", ..PLAIN }, "not_ready"),
        ("empty", PLAIN, "not_ready"),
        ("endless", Fake { before: "static struct entry table[1 << 20];", fill: endless, ..PLAIN }, "table"),
        (
            "scattered",
            Fake {
                before: "static struct entry table[8192]; static char pages[8192 * 4096L];",
                fill: scattered,
                ..PLAIN
            },
            "table",
        ),
        (
            "unterminated",
            Fake {
                before: "extern void *memset(void *, int, unsigned long); static struct entry table[8]; static char pages[65536];",
                fill: unterminated,
                ..PLAIN
            },
            "unknown_layout",
        ),
        ("cyclic", Fake { fill: cyclic, ..PLAIN }, "unknown_layout"),
        ("no_stride", Fake { stride: "0", ..PLAIN }, "not_ready"),
        ("odd_stride", Fake { stride: "47", ..PLAIN }, "implausible"),
        ("huge_stride", Fake { stride: "0x7fffffffffffffffUL", ..PLAIN }, "implausible"),
        ("far_name", Fake { name: "0xfffffffffffffff8UL", fill: cyclic, ..PLAIN }, "implausible"),
        ("unmapped", Fake { structs: "(struct entry *)0x1000", ..PLAIN }, "not_ready"),
        ("kernel", Fake { structs: "(struct entry *)0xffffffffffffffe8UL", ..PLAIN }, "not_ready"),
    ];
    for (name, fake, reason) in cases {
        let error = attach(folder.path(), name, &fake);
        assert_eq!(error.reason(), reason, "{name}: {error}");
        assert_eq!(error.is_transient(), reason == "not_ready", "{name}: {error}");
    }
}

#[test]
fn this_process_is_no_jvm() {
    let pid = std::process::id();
    let error = Hotspot::attach(&images(pid).unwrap(), LiveMemory::new(pid)).expect_err("it is Rust");
    assert_eq!(error.reason(), "not_hotspot");
}
