//! Labels of a JVM's series.

use std::fs;
use std::path::Path;

use crate::hotspot::{Hotspot, ProcessMemory};
use crate::process::java_launcher::main_class_of_arguments;

/// Characters of a main class that are kept: a label is stored with each series.
const MAX_NAME: usize = 200;
/// Bytes of a command line that are read: class paths come first, and may be long.
const MAX_COMMAND_LINE: usize = 256 << 10;

/// Version and main class of a JVM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JvmLabels {
    /// Version as `java -version` begins: `17.0.15`, `1.8.0_504`.
    pub version: String,
    /// Main class, or the file name of a jar; `None` if neither is known.
    pub main_class: Option<String>,
}

impl JvmLabels {
    /// Reads the labels. The JVM's own data has precedence; the process's arguments replace it
    /// while the JVM starts, and where it has none. Returns true with the JVM's own data: the
    /// labels are final.
    pub(crate) fn read<M: ProcessMemory>(hotspot: &Hotspot<M>, pid: u32) -> (Self, bool) {
        let own = hotspot.main_class();
        let is_final = own.is_some();
        let main_class = own.or_else(|| main_class_of_process(pid)).map(|name| bounded(&name));
        let main_class = main_class.filter(|name| !name.is_empty());
        (Self { version: bounded(&hotspot.version().to_string()), main_class }, is_final)
    }
}

/// Returns the main class in the command line, if the launcher is `java`: others, such as `javac`,
/// have arguments of their own.
fn main_class_of_process(pid: u32) -> Option<String> {
    let line = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    main_class_of_line(&line)
}

/// Returns the main class in a command line whose arguments end in zero bytes.
fn main_class_of_line(line: &[u8]) -> Option<String> {
    let line = String::from_utf8_lossy(line.get(..MAX_COMMAND_LINE).unwrap_or(line));
    let mut arguments = line.strip_suffix('\0').unwrap_or(&line).split('\0');
    let launcher = Path::new(arguments.next()?).file_name()?;
    (launcher == "java").then(|| main_class_of_arguments(arguments))?
}

fn bounded(name: &str) -> String {
    name.chars().filter(|c| !c.is_control()).take(MAX_NAME).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_java_launchers_arguments_have_the_main_class() {
        for (line, program) in [
            (&b"/usr/bin/java\0-cp\0a b\0com.acme.Main\0x\0"[..], Some("com.acme.Main")),
            (b"java\0-jar\0/opt/my app.jar\0", Some("my app.jar")),
            (b"/usr/bin/javac\0Hello.java\0", None),
            (b"./renamed\0com.acme.Main\0", None),
            (b"java\0", None),
            (b"", None),
        ] {
            assert_eq!(main_class_of_line(line).as_deref(), program, "{}", String::from_utf8_lossy(line));
        }
    }

    #[test]
    fn names_are_bounded() {
        assert_eq!(bounded(&"é".repeat(300)), "é".repeat(MAX_NAME));
        assert_eq!(bounded("a\nb"), "ab");
    }
}
