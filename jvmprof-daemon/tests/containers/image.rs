//! Images made on the spot: no registry is asked.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use serde_json::json;
use sha2::{Digest as _, Sha256};

use crate::support::{LOAD, compile, compile_java, jdks};

/// What holds a pod's namespaces: it sleeps until it is told to end.
const PAUSE: &str = r"
#include <signal.h>
#include <unistd.h>
static void end(int signal) { _exit(signal == SIGTERM ? 0 : 1); }
int main(void) { signal(SIGTERM, end); for (;;) pause(); }
";

pub(crate) fn run(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Packs a root into an archive as `docker save` writes it. `name`: with its tag.
pub(crate) fn pack(dir: &Path, name: &str, root: &Path, entrypoint: &str) -> PathBuf {
    let work = dir.join(format!("{}.image", name.replace(['/', ':'], "_")));
    fs::create_dir_all(&work).expect("the folder is writable");
    let layer = work.join("layer.tar");
    run(Command::new("tar").args(["--owner=0", "--group=0", "-C"]).arg(root).arg("-cf").arg(&layer).arg("."));
    let digest = Sha256::digest(fs::read(&layer).expect("it was written"));
    let digest: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    let config = json!({
        "architecture": "amd64", "os": "linux", "config": {"Entrypoint": [entrypoint]},
        "rootfs": {"type": "layers", "diff_ids": [format!("sha256:{digest}")]},
    });
    fs::write(work.join("config.json"), config.to_string()).expect("written");
    let manifest = json!([{"Config": "config.json", "RepoTags": [name], "Layers": ["layer.tar"]}]);
    fs::write(work.join("manifest.json"), manifest.to_string()).expect("written");
    let archive = work.with_extension("tar");
    let parts = ["manifest.json", "config.json", "layer.tar"];
    run(Command::new("tar").arg("-C").arg(&work).arg("-cf").arg(&archive).args(parts));
    fs::remove_dir_all(&work).expect("it is ours");
    archive
}

pub(crate) fn pause(dir: &Path) -> PathBuf {
    let root = dir.join("pause-root");
    fs::create_dir_all(&root).expect("the folder is writable");
    compile(dir, "pause", PAUSE, &["-O1", "-static"]);
    fs::rename(dir.join("pause"), root.join("pause")).expect("the same file system");
    pack(dir, "localhost/pause:1", &root, "/pause")
}

/// Makes an image that several tests need, in a folder that outlives each of them.
pub(crate) fn once(
    image: &'static OnceLock<PathBuf>,
    name: &str,
    make: impl FnOnce(&Path) -> PathBuf,
) -> PathBuf {
    let make_anew = || {
        let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("images").join(name);
        // Of an earlier run.
        let _ = fs::remove_dir_all(&dir);
        fs::create_dir_all(&dir).expect("the folder is writable");
        make(&dir)
    };
    image.get_or_init(make_anew).clone()
}

/// A small JVM with a load to run: `/jre/bin/java -cp /app Load 0`.
pub(crate) fn jvm() -> PathBuf {
    static IMAGE: OnceLock<PathBuf> = OnceLock::new();
    once(&IMAGE, "jvm", make_jvm)
}

fn make_jvm(dir: &Path) -> PathBuf {
    let root = dir.join("jvm-root");
    fs::create_dir_all(root.join("tmp")).expect("the folder is writable");
    let app = root.join("app");
    fs::create_dir_all(&app).expect("the folder is writable");
    compile_java(&app, "Load", LOAD);
    let jlink =
        jdks().into_iter().map(|(_, home)| home).find(|home| home.join("jmods/java.base.jmod").is_file());
    let jlink = jlink.expect("one of the JDKs needs its jmods").join("bin/jlink");
    let jre = root.join("jre");
    run(Command::new(jlink)
        .args(["--add-modules", "java.base", "--strip-java-debug-attributes", "--output"])
        .arg(&jre));
    let programs = [
        jre.join("bin/java"),
        jre.join("lib/server/libjvm.so"),
        jre.join("lib/libnio.so"),
        jre.join("lib/libzip.so"),
    ];
    copy_libraries(&root, &programs);
    pack(dir, "localhost/jvm:1", &root, "/jre/bin/java")
}

/// Copies the libraries that programs need to the same places below `root`.
pub(crate) fn copy_libraries(root: &Path, programs: &[PathBuf]) {
    let needed = run(Command::new("ldd").args(programs));
    let paths = needed.split_whitespace().filter(|word| word.starts_with("/lib") || word.starts_with("/usr"));
    for path in paths {
        let to = root.join(path.trim_start_matches('/'));
        if !path.ends_with(':') && !to.exists() {
            fs::create_dir_all(to.parent().expect("it is below a folder")).expect("the folder is writable");
            fs::copy(path, &to).expect("a library");
            fs::set_permissions(&to, fs::Permissions::from_mode(0o755)).expect("it is ours");
        }
    }
}
