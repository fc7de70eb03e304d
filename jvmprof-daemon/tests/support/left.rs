//! Files that processes write for profilers and debuggers, and leave when they end: in `/tmp`, or
//! where they run.

use std::fs;
use std::path::{Path, PathBuf};

/// Removes what a recorded command has left, when it is dropped.
pub(crate) struct Left {
    told: PathBuf,
}

impl Left {
    /// The command as it has to be run: in this folder, where it tells its pid first, which only
    /// the recorder would know.
    pub(crate) fn by(directory: &Path, command: &[&str]) -> (Self, Vec<String>) {
        let folder = directory.display().to_string();
        let script = r#"cd "$0" && echo $$ > pid && exec "$@""#;
        let shell = ["sh", "-c", script, &folder];
        let command = shell.iter().chain(command);
        (Self { told: directory.join("pid") }, command.map(|word| (*word).to_owned()).collect())
    }
}

impl Drop for Left {
    fn drop(&mut self) {
        let pid = fs::read_to_string(&self.told).ok().and_then(|text| text.trim().parse().ok());
        if let Some(pid) = pid {
            remove_left(pid);
        }
    }
}

/// Removes what a process that has ended may have left: perf map, jitdump, .NET's list of
/// libraries, and the socket of a JVM that was killed.
pub(crate) fn remove_left(pid: u32) {
    for (begin, end) in [("perf-", ".map"), ("jit-", ".dump"), ("perfinfo-", ".map"), (".java_pid", "")] {
        let path = Path::new("/tmp").join(format!("{begin}{pid}{end}"));
        // Mostly there is none; tests put folders there, too.
        let _ = fs::remove_file(&path).or_else(|_| fs::remove_dir(&path));
    }
}
