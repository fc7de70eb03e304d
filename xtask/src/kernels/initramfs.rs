//! The initramfs that a kernel boots with: a cpio archive in the "newc" format (Linux
//! Documentation/driver-api/early-userspace/buffer-format.rst).

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, bail};
use cpio::newc::{self, ModeFileType};

use crate::run::stdout_text;

/// Files of this machine by their paths in the image.
#[derive(Debug, Default)]
pub(super) struct Image {
    files: BTreeMap<PathBuf, PathBuf>,
    folders: BTreeSet<PathBuf>,
}

impl Image {
    /// Adds a folder, with its parents.
    pub(super) fn add_folder(&mut self, path: &Path) {
        self.folders.extend(path.ancestors().filter(|it| it.parent().is_some()).map(Path::to_owned));
    }

    /// Adds one file with its contents; symbolic links are followed.
    pub(super) fn add_file(&mut self, from: &Path, to: &Path) {
        if let Some(folder) = to.parent() {
            self.add_folder(folder);
        }
        self.files.insert(to.to_owned(), from.to_owned());
    }

    /// Adds a program and the libraries that it needs.
    ///
    /// # Errors
    /// See [`Self::add_libraries`].
    pub(super) fn add_program(&mut self, from: &Path, to: &Path) -> anyhow::Result<()> {
        self.add_libraries(from)?;
        self.add_file(from, to);
        Ok(())
    }

    /// Adds the libraries that a program or shared library needs, at their own paths, except for
    /// those that the image already has as part of a tree.
    ///
    /// # Errors
    /// ldd can't read the file, or a library is missing.
    pub(super) fn add_libraries(&mut self, of: &Path) -> anyhow::Result<()> {
        let text = stdout_text(Command::new("ldd").arg(of))?;
        for library in libraries(&text) {
            match library {
                Library::At(path) if self.files.values().any(|from| *from == path) => {}
                Library::At(path) => self.add_file(&path, &path),
                // A JVM loads its libraries in such an order that they find each other.
                Library::NotFound(name) if self.files.keys().any(|to| to.ends_with(name)) => {}
                Library::NotFound(name) => bail!("{} needs {name}, which isn't found", of.display()),
            }
        }
        Ok(())
    }

    /// Adds a folder with all its contents except for these relative paths.
    ///
    /// # Errors
    /// A part of it can't be read.
    pub(super) fn add_tree(&mut self, from: &Path, to: &Path, except: &[&str]) -> anyhow::Result<()> {
        let entries = fs::read_dir(from).with_context(|| format!("reading {}", from.display()))?;
        for entry in entries {
            let entry = entry.with_context(|| format!("reading {}", from.display()))?;
            let (path, name) = (entry.path(), entry.file_name());
            let name = name.to_string_lossy();
            if except.contains(&name.as_ref()) {
                continue;
            }
            let nested: Vec<&str> =
                except.iter().filter_map(|it| it.strip_prefix(&*name)?.strip_prefix('/')).collect();
            let to = to.join(&*name);
            match path.metadata() {
                Ok(meta) if meta.is_dir() => self.add_tree(&path, &to, &nested)?,
                Ok(meta) if meta.is_file() => self.add_file(&path, &to),
                // Distributions link to packages that aren't installed.
                _ => {}
            }
        }
        Ok(())
    }

    /// Returns the files of this machine with one of these names that are in the image.
    pub(super) fn sources_named(&self, names: &[&str]) -> Vec<PathBuf> {
        let is = |path: &&PathBuf| names.iter().any(|name| path.ends_with(name));
        self.files.values().filter(is).cloned().collect()
    }

    /// Writes the archive; returns its size in bytes.
    ///
    /// # Errors
    /// A file can't be read, or the archive can't be written.
    pub(super) fn write(&self, archive: &Path) -> anyhow::Result<u64> {
        let to = File::create(archive).with_context(|| format!("creating {}", archive.display()))?;
        let mut to = BufWriter::with_capacity(1 << 20, to);
        for folder in &self.folders {
            entry(folder, 0o755, 0)?
                .set_mode_file_type(ModeFileType::Directory)
                .write(&mut to, 0)
                .finish()
                .with_context(|| format!("writing {}", archive.display()))?;
        }
        for (path, from) in &self.files {
            write_file(path, from, &mut to)
                .with_context(|| format!("writing {} to {}", from.display(), archive.display()))?;
        }
        newc::trailer(&mut to)
            .and_then(Write::flush)
            .with_context(|| format!("writing {}", archive.display()))?;
        Ok(archive.metadata().with_context(|| format!("reading the size of {}", archive.display()))?.len())
    }
}

fn write_file(path: &Path, from: &Path, to: &mut impl Write) -> anyhow::Result<()> {
    let mut file = File::open(from)?;
    let meta = file.metadata()?;
    let size = u32::try_from(meta.len()).context("the file is too large for a cpio archive")?;
    // A JVM takes its archive of classes only for a `modules` file of the right time.
    let mtime = u32::try_from(meta.mtime()).unwrap_or(0);
    let entry = entry(path, meta.permissions().mode() & 0o777, mtime)?;
    let mut writer = entry.set_mode_file_type(ModeFileType::Regular).write(to, size);
    std::io::copy(&mut file, &mut writer)?;
    writer.finish()?;
    Ok(())
}

fn entry(path: &Path, permissions: u32, mtime: u32) -> anyhow::Result<newc::Builder> {
    let name = path.strip_prefix("/").with_context(|| format!("{} isn't absolute", path.display()))?;
    let name = name.to_str().with_context(|| format!("{} isn't UTF-8", path.display()))?;
    Ok(newc::Builder::new(name).mode(permissions).mtime(mtime))
}

/// A shared library as printed by ldd.
#[derive(Debug, PartialEq, Eq)]
enum Library<'a> {
    At(PathBuf),
    NotFound(&'a str),
}

/// Parses lines like `libc.so.6 => /lib/libc.so.6 (0x...)`, and `/lib64/ld-linux-x86-64.so.2
/// (0x...)` for the loader.
fn libraries(ldd: &str) -> Vec<Library<'_>> {
    let one = |line| -> Option<Library<'_>> {
        if let Some(name) = str::strip_suffix(line, " => not found") {
            return Some(Library::NotFound(name));
        }
        let path = line.split_once(" => ").map_or(line, |(_, path)| path);
        let (path, _) = path.rsplit_once(" (0x").filter(|(path, _)| path.starts_with('/'))?;
        Some(Library::At(path.into()))
    };
    ldd.lines().map(str::trim).filter_map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_are_taken_from_ldd() {
        let ldd = "\tlinux-vdso.so.1 (0x00007ffd)\n\tlibc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x00007f)\n\t/lib64/ld-linux-x86-64.so.2 (0x00007f)\n";
        let at = |path: &str| Library::At(path.into());
        let expected = [at("/lib/x86_64-linux-gnu/libc.so.6"), at("/lib64/ld-linux-x86-64.so.2")];
        assert_eq!(libraries(ldd), expected);
        assert_eq!(libraries("\tlibX11.so.6 => not found\n"), [Library::NotFound("libX11.so.6")]);
        assert_eq!(libraries("\tstatically linked\n"), []);
    }

    #[test]
    fn an_archive_holds_folders_before_what_is_in_them_and_files_as_they_are() {
        let folder = tempfile::tempdir().unwrap();
        let (tree, archive) = (folder.path().join("tree"), folder.path().join("image.cpio"));
        fs::create_dir_all(tree.join("lib/deep")).unwrap();
        fs::create_dir_all(tree.join("lib/left/out")).unwrap();
        fs::write(tree.join("lib/deep/file"), "five!").unwrap();
        fs::write(tree.join("lib/left/out/file"), "no").unwrap();
        std::os::unix::fs::symlink("/no/such/package", tree.join("lib/dangling")).unwrap();
        let mut image = Image::default();
        image.add_folder(Path::new("/proc"));
        image.add_tree(&tree, Path::new("/jdk"), &["lib/left"]).unwrap();
        let size = image.write(&archive).unwrap();
        assert_eq!(size, archive.metadata().unwrap().len());

        let mut names = Vec::new();
        let mut from = File::open(&archive).unwrap();
        loop {
            let reader = newc::Reader::new(from).unwrap();
            if reader.entry().is_trailer() {
                break;
            }
            names.push((reader.entry().name().to_owned(), reader.entry().file_size()));
            from = reader.finish().unwrap();
        }
        let expected =
            [("jdk", 0), ("jdk/lib", 0), ("jdk/lib/deep", 0), ("proc", 0), ("jdk/lib/deep/file", 5)];
        assert_eq!(names, expected.map(|(name, size)| (name.to_owned(), size)));
    }
}
