//! Which program a JVM runs: the label `jvm_main_class`.
//!
//! What the launcher understands: openjdk src/java.base/share/native/libjli/java.c,
//! `ParseArguments` and `IsWhiteSpaceOption`. What the JVM keeps of it: the counter
//! `sun.rt.javaCommand`, laid out as src/hotspot/share/runtime/perfMemory.hpp (`PerfDataPrologue`,
//! `PerfDataEntry`) says. Two others among those tell how many classes it has loaded and unloaded.

use std::ops::Range;

use crate::hotspot::error::HotspotError;
use crate::hotspot::process_memory::{ProcessMemory, field};
use crate::hotspot::vmstructs::field_offsets::Lookup;
use crate::types::Avma;

/// Bytes of performance counters; the JVM reserves 32 KiB.
const MAX_PERF_BYTES: u64 = 4 << 20;
const MAX_ENTRIES: u32 = 65_536;
const COMMAND: &[u8] = b"sun.rt.javaCommand\0";
const LOADED_CLASSES: &[u8] = b"java.cls.loadedClasses\0";
const UNLOADED_CLASSES: &[u8] = b"java.cls.unloadedClasses\0";
/// `PerfDataPrologue::magic`, as it stands in memory.
const MAGIC: u32 = 0xc0c0_feca;
/// Options whose value is the next argument.
const WITH_VALUE: [&str; 14] = [
    "-cp",
    "-classpath",
    "--class-path",
    "-p",
    "--module-path",
    "--upgrade-module-path",
    "--add-modules",
    "--limit-modules",
    "--add-exports",
    "--add-opens",
    "--add-reads",
    "--patch-module",
    "--enable-native-access",
    "--source",
];

/// The program of a `java` command line, without the launcher's own name: the main class, without
/// its module, or the file name of a jar. `None` if the command line doesn't tell, as with
/// `@argument-files`.
pub fn main_class_of_arguments<'a>(arguments: impl IntoIterator<Item = &'a str>) -> Option<String> {
    let mut arguments = arguments.into_iter();
    while let Some(argument) = arguments.next() {
        match argument {
            "-jar" => return Some(file_name(arguments.next()?).to_owned()),
            "-m" | "--module" => return Some(without_module(arguments.next()?)),
            _ if WITH_VALUE.contains(&argument) => _ = arguments.next()?,
            _ if argument.starts_with('@') => return None,
            _ => match argument.strip_prefix("--module=") {
                Some(module) => return Some(without_module(module)),
                None if argument.starts_with('-') => {}
                // A source file is a program, too.
                None if argument.ends_with(".java") => return Some(file_name(argument).to_owned()),
                None => return Some(argument.replace('/', ".")).filter(|name| !name.is_empty()),
            },
        }
    }
    None
}

/// The program of `sun.rt.javaCommand`: a class, `module/class`, or the path of a jar, and then the
/// arguments.
pub fn main_class_of_command(command: &str) -> Option<String> {
    // A path may hold spaces; the first `.jar` that ends a word is the most that can be known.
    let jar = command.split_inclusive(' ').scan(0, |end, word| {
        *end += word.len();
        Some(command.get(..*end).unwrap_or(command).trim_end())
    });
    let first = command.split(' ').next().filter(|first| !first.is_empty())?;
    let is_path = first.contains('/') && !first.contains('.') || command.starts_with(['/', '.']);
    if (is_path || first.ends_with(".jar"))
        && let Some(jar) = jar.into_iter().find(|path| path.ends_with(".jar"))
    {
        return Some(file_name(jar).to_owned());
    }
    Some(without_module(first))
}

fn file_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// `module/class` is the class; a module alone stands for its main class.
fn without_module(name: &str) -> String {
    name.rsplit('/').next().unwrap_or(name).to_owned()
}

/// Where a JVM counts its classes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ClassCounters {
    pub(crate) loaded: Avma,
    pub(crate) unloaded: Avma,
}

/// Where the performance counters are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PerfFields {
    start: Avma,
    top: Avma,
    prologue_entries: usize,
    prologue_count: usize,
    entry_length: usize,
    name_offset: usize,
    data_offset: usize,
}

impl PerfFields {
    pub(crate) fn new(lookup: Lookup<'_>) -> Result<Self, HotspotError> {
        let one = |name| lookup.one(name).map(usize::from);
        Ok(Self {
            start: lookup.address("PerfMemory::_start")?,
            top: lookup.address("PerfMemory::_top")?,
            prologue_entries: one("PerfDataPrologue::entry_offset")?,
            prologue_count: one("PerfDataPrologue::num_entries")?,
            entry_length: one("PerfDataEntry::entry_length")?,
            name_offset: one("PerfDataEntry::name_offset")?,
            data_offset: one("PerfDataEntry::data_offset")?,
        })
    }

    /// What the JVM was started for. `None` before it is known, and with `-XX:-UsePerfData`.
    pub(crate) fn java_command(&self, memory: &impl ProcessMemory) -> Option<String> {
        let (_, bytes) = self.counters(memory)?;
        let text = bytes.get(self.find(&bytes, COMMAND)?)?;
        let end = text.iter().position(|byte| *byte == 0).unwrap_or(text.len());
        let text = String::from_utf8_lossy(&text[..end]).into_owned();
        Some(text).filter(|text| !text.is_empty())
    }

    /// Where the JVM counts the classes that it has loaded, and those that it has unloaded, as
    /// `jlong`s. `None` as above.
    pub(crate) fn classes(&self, memory: &impl ProcessMemory) -> Option<ClassCounters> {
        let (start, bytes) = self.counters(memory)?;
        let counter = |name| {
            let value = self.find(&bytes, name)?;
            let address = start.0 + value.start as u64;
            (value.len() >= size_of::<u64>() && address.is_multiple_of(8)).then_some(Avma(address))
        };
        Some(ClassCounters { loaded: counter(LOADED_CLASSES)?, unloaded: counter(UNLOADED_CLASSES)? })
    }

    /// All counters, and their address.
    fn counters(&self, memory: &impl ProcessMemory) -> Option<(Avma, Vec<u8>)> {
        let (start, top) = (memory.read_u64(self.start)?, memory.read_u64(self.top)?);
        let len = top.checked_sub(start).filter(|len| (1..=MAX_PERF_BYTES).contains(len))?;
        Some((Avma(start), memory.read_bytes(Avma(start), len as usize)?))
    }

    /// Where the value of a counter is among all of them: from its first byte to the end of its
    /// entry.
    fn find(&self, bytes: &[u8], counter: &[u8]) -> Option<Range<usize>> {
        if field::u32(bytes, 0)? != MAGIC {
            return None;
        }
        let mut at = field::u32(bytes, self.prologue_entries)? as usize;
        let count = field::u32(bytes, self.prologue_count)?.min(MAX_ENTRIES);
        for _ in 0..count {
            let entry = bytes.get(at..)?;
            let length = field::u32(entry, self.entry_length)? as usize;
            let entry = entry.get(..length).filter(|entry| !entry.is_empty())?;
            let name = field::u32(entry, self.name_offset)? as usize;
            if entry.get(name..).is_some_and(|name| name.starts_with(counter)) {
                let value = field::u32(entry, self.data_offset)? as usize;
                return (value <= length).then_some(at + value..at + length);
            }
            at = at.checked_add(length)?;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_known_by_their_command_lines() {
        for (line, program) in [
            ("-cp a:b com.acme.Main x y", Some("com.acme.Main")),
            ("-Xmx1g -XX:+UseZGC -jar /opt/app/app-1.2.jar -jar other.jar", Some("app-1.2.jar")),
            ("-p mods -m acme.app/com.acme.Main arg", Some("com.acme.Main")),
            ("--module=acme.app/com.acme.Main", Some("com.acme.Main")),
            ("--add-opens java.base/java.lang=ALL-UNNAMED -Dx=y com/acme/Main", Some("com.acme.Main")),
            ("--add-opens=java.base/java.lang=ALL-UNNAMED Main", Some("Main")),
            ("--source 21 Hello.java", Some("Hello.java")),
            ("@args", None),
            ("-version", None),
            ("-cp", None),
            ("-jar", None),
            ("", None),
        ] {
            assert_eq!(main_class_of_arguments(line.split_whitespace()).as_deref(), program, "{line}");
        }
    }

    #[test]
    fn programs_are_known_by_what_the_jvm_keeps() {
        for (command, program) in [
            ("com.acme.Main x y", Some("com.acme.Main")),
            ("jdk.compiler/com.sun.tools.javac.Main -d out Hello.java", Some("com.sun.tools.javac.Main")),
            ("/opt/my app/app.jar --port 80", Some("app.jar")),
            ("app.jar other.jar", Some("app.jar")),
            ("lib/app.jar", Some("app.jar")),
            ("Main /tmp/x.jar", Some("Main")),
            ("", None),
        ] {
            assert_eq!(main_class_of_command(command).as_deref(), program, "{command}");
        }
    }

    #[test]
    fn counters_are_searched_within_their_bounds() {
        let fields = PerfFields {
            start: Avma(0),
            top: Avma(0),
            prologue_entries: 24,
            prologue_count: 28,
            entry_length: 0,
            name_offset: 4,
            data_offset: 16,
        };
        let mut bytes = vec![0; 32];
        bytes[..4].copy_from_slice(&MAGIC.to_le_bytes());
        (bytes[24], bytes[28]) = (32, 2);
        let entry = |name: &[u8], value: &[u8]| {
            let length = 20 + name.len() + value.len();
            let mut entry = vec![0; 20];
            (entry[0], entry[4], entry[16]) = (length as u8, 20, (20 + name.len()) as u8);
            entry.extend([name, value].concat());
            entry
        };
        bytes.extend(entry(b"sun.rt.other\0", b"no\0"));
        bytes.extend(entry(COMMAND, b"com.acme.Main 1\0"));
        let value = fields.find(&bytes, COMMAND).map(|value| &bytes[value]);
        assert_eq!(value, Some(&b"com.acme.Main 1\0"[..]));
        assert_eq!(fields.find(&bytes, LOADED_CLASSES), None);
        for cut in 0..bytes.len() - 20 {
            assert_eq!(fields.find(&bytes[..cut], COMMAND), None, "{cut}");
        }
        bytes[32] = 0;
        assert_eq!(fields.find(&bytes, COMMAND), None, "an entry of no length");
    }
}
