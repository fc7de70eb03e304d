//! The language runtime of a process, by the files that it has mapped: the label `runtime`.

use std::path::Path;

use super::executable_mappings::{Backing, MappedCode, is_hotspot};
use super::process_table::Process;

/// Returns the `runtime` label of a process: `jvm`, `node`, `python`, `dotnet`, or `native` for all
/// others.
pub fn language_runtime(process: &Process) -> &'static str {
    let of_mappings = process.mappings.iter().find_map(|mapping| of_library(mapping));
    let of_program = || process.executable().as_deref().and_then(of_program);
    of_mappings.or_else(of_program).unwrap_or("native")
}

fn of_library(mapping: &MappedCode) -> Option<&'static str> {
    if is_hotspot(mapping) {
        return Some("jvm");
    }
    if mapping.backing != Backing::File {
        return None;
    }
    let name = Path::new(&*mapping.path).file_name()?.to_str()?;
    let starts =
        [("libjvm.so", "jvm"), ("libj9vm", "jvm"), ("libnode.so", "node"), ("libcoreclr.so", "dotnet")];
    let library = starts.iter().find(|(start, _)| name.starts_with(start)).map(|(_, runtime)| *runtime);
    library.or_else(|| (name.starts_with("libpython") && name.contains(".so")).then_some("python"))
}

fn of_program(path: &Path) -> Option<&'static str> {
    let name = path.file_name()?.to_str()?;
    // The kernel's suffix for a file that was replaced.
    let name = name.strip_suffix(" (deleted)").unwrap_or(name);
    let is_version = |name: &str| name.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    let programs = [("nodejs", "node"), ("node", "node"), ("python", "python")];
    let program = programs.iter().find(|(program, _)| name.strip_prefix(program).is_some_and(is_version));
    program.map(|(_, runtime)| *runtime)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::process_table::mapped_code;
    use crate::types::{Avma, FileOffset};

    #[test]
    fn runtimes_are_known_by_their_files() {
        for (path, runtime) in [
            ("/usr/lib/jvm/lib/server/libjvm.so", Some("jvm")),
            ("/opt/j9/lib/default/libj9vm29.so", Some("jvm")),
            ("/usr/lib/libpython3.13.so.1.0", Some("python")),
            ("/usr/lib/dotnet/libcoreclr.so", Some("dotnet")),
            ("/usr/lib/libnode.so.115", Some("node")),
            ("/usr/lib/libc.so.6", None),
            ("/usr/lib/libpython-notes", None),
        ] {
            let mapping = mapped_code(7, Avma(0x1000), 0x1000, FileOffset(0), path, None);
            assert_eq!(of_library(&mapping), runtime, "{path}");
        }
        for (path, runtime) in [
            ("/usr/bin/node", Some("node")),
            ("/usr/bin/node20", Some("node")),
            ("/usr/bin/nodejs", Some("node")),
            ("/usr/bin/node_exporter", None),
            ("/usr/bin/python3.13", Some("python")),
            ("/usr/bin/python3 (deleted)", Some("python")),
            ("/usr/bin/python-config", None),
            ("/usr/bin/cat", None),
        ] {
            assert_eq!(of_program(Path::new(path)), runtime, "{path}");
        }
    }
}
