//! A small library that is built, stripped and asked for names.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use jvmprof_daemon::native::byte_source::RegularFile;
use jvmprof_daemon::native::debug_files::DebugFileLocator;
use jvmprof_daemon::native::elf::ElfFile;
use jvmprof_daemon::native::file_cache::{FileCache, FileCacheLimits};
use jvmprof_daemon::native::open_file::open_regular;
use jvmprof_daemon::types::{BuildId, Svma};
use tempfile::TempDir;

pub(crate) const CODE: &str = r#"
volatile int sink;
static inline __attribute__((always_inline)) int innermost(int x) { sink += x; return x * 7; }
static inline __attribute__((always_inline)) int middle(int x) {
    sink -= x;
    return innermost(x) + 1;
}
__attribute__((noinline)) static int hidden(int x) {
    return middle(x + sink) * 3;
}
__attribute__((noinline)) int exported(int x) { return hidden(x) + hidden(x + 1); }
__attribute__((noinline)) static int hidden_too(int x) { sink ^= x; return sink * 5; }
int exported_too(int x) { return hidden_too(x) - 7; }
"#;

/// A library with all its symbols, in a root of its own.
pub(crate) struct Library {
    pub(crate) scratch: TempDir,
    pub(crate) path: PathBuf,
    pub(crate) id: String,
}

pub(crate) fn run(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output();
    let output = output.unwrap_or_else(|e| panic!("this test runs {program}: {e}"));
    assert!(output.status.success(), "{program} {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

pub(crate) fn text(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}

impl Library {
    pub(crate) fn build(flags: &[&str]) -> Self {
        let scratch = tempfile::tempdir().expect("a directory");
        let lib = scratch.path().join("opt/lib");
        fs::create_dir_all(&lib).expect("made");
        let (code, path) = (lib.join("a.c"), lib.join("liba.so"));
        // The directory has a name of its own, so that each library has a build id of its own.
        fs::write(&code, format!("{CODE}\nconst char *place = \"{}\";\n", code.display())).expect("written");
        let mut arguments =
            vec!["-g", "-O2", "-shared", "-fPIC", "-fno-ipa-icf", "-Wl,--build-id=sha1", "-o"];
        arguments.extend([text(&path), text(&code)]);
        arguments.extend(flags);
        run("gcc", &arguments);
        let id = build_id(&path).map_or_else(String::new, |id| id.to_string());
        Self { scratch, path, id }
    }

    pub(crate) fn root(&self) -> &Path {
        self.scratch.path()
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.root().join(name)
    }

    /// Addresses in the middle of functions, by name; to be asked before stripping.
    pub(crate) fn function(&self, name: &str) -> Svma {
        let list = run("nm", &["-S", "--defined-only", text(&self.path)]);
        let line = list.lines().find(|line| line.ends_with(&format!(" {name}"))).expect("nm lists it");
        let mut fields = line.split(' ').map(|field| u64::from_str_radix(field, 16).unwrap_or_default());
        let (start, size) = (fields.next().expect("start"), fields.next().expect("size"));
        Svma(start + size / 2)
    }

    pub(crate) fn keep_debug(&self, at: &str) -> PathBuf {
        let at = self.file(at);
        fs::create_dir_all(at.parent().expect("a folder")).expect("made");
        run("objcopy", &["--only-keep-debug", text(&self.path), text(&at)]);
        at
    }

    pub(crate) fn strip(&self) {
        run("strip", &[text(&self.path)]);
    }

    pub(crate) fn places(&self) -> DebugFileLocator {
        DebugFileLocator { process_root: Some(self.root().to_owned()), ..DebugFileLocator::default() }
    }

    pub(crate) fn build_id_path(&self) -> String {
        let (first, rest) = self.id.split_at(2);
        format!("usr/lib/debug/.build-id/{first}/{rest}.debug")
    }

    pub(crate) fn name(&self, places: &DebugFileLocator, at: Svma) -> Option<String> {
        self.name_in(&FileCache::new(FileCacheLimits::default()), places, at)
    }

    pub(crate) fn name_in(&self, cache: &FileCache, places: &DebugFileLocator, at: Svma) -> Option<String> {
        let known = cache.identify(&File::open(&self.path).expect("there"), &self.path).expect("an ELF file");
        let (inside, open) = (Path::new("/opt/lib/liba.so"), || open_regular(&self.path));
        let key = cache.names_key(&known.key, inside, places, open).expect("a key");
        cache.function_name(&key, inside, places, open, at).expect("no error")
    }

    pub(crate) fn lines(&self, places: &DebugFileLocator, at: Svma) -> Vec<(String, String, u32)> {
        self.lines_in(&FileCache::new(FileCacheLimits::default()).with_lines(true), places, at)
    }

    pub(crate) fn lines_in(
        &self,
        cache: &FileCache,
        places: &DebugFileLocator,
        at: Svma,
    ) -> Vec<(String, String, u32)> {
        let known = cache.identify(&File::open(&self.path).expect("there"), &self.path).expect("an ELF file");
        let (inside, open) = (Path::new("/opt/lib/liba.so"), || open_regular(&self.path));
        let key = cache.names_key(&known.key, inside, places, open).expect("a key");
        let lines = cache.lines(&key, inside, places, open, at).expect("lines");
        let shown = |text: &Option<std::sync::Arc<str>>| text.as_deref().unwrap_or_default().to_owned();
        lines.iter().map(|line| (shown(&line.raw_name), shown(&line.file), line.line)).collect()
    }
}

pub(crate) fn build_id(path: &Path) -> Option<BuildId> {
    let file = File::open(path).expect("there");
    let elf = ElfFile::parse(RegularFile::new(&file).expect("regular")).expect("an ELF file");
    elf.build_id()
}
