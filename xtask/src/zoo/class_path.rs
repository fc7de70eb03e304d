//! Class files of a JDK and of the oracle programs.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fs;
use std::ops::Range;
use std::path::Path;
use std::rc::Rc;

use anyhow::{Context as _, bail};

use super::class_file::Class;

/// Class files by internal name, parsed on first use.
#[derive(Debug, Default)]
pub(super) struct ClassPath {
    /// Contents of whole archives and of single files.
    blobs: Vec<Vec<u8>>,
    /// Position of each version of a class. A redefined class has several.
    index: HashMap<String, Vec<(usize, Range<usize>)>>,
    parsed: RefCell<HashMap<String, Rc<[Class]>>>,
}

impl ClassPath {
    /// Adds a file written by `ClassDump.java`.
    ///
    /// # Errors
    /// The file can't be read, or ends early.
    pub(super) fn add_dump(&mut self, path: &Path) -> anyhow::Result<()> {
        let bytes = fs::read(path).with_context(|| format!("reading {}", path.display()))?;
        let mut at = 0;
        while at < bytes.len() {
            let Some((name, class)) = entry(&bytes, at) else {
                bail!("{} ends in the middle of a class", path.display());
            };
            at = class.end;
            self.index.entry(name).or_default().push((self.blobs.len(), class));
        }
        self.blobs.push(bytes);
        Ok(())
    }

    /// Adds all class files below a folder.
    ///
    /// # Errors
    /// One can't be read or parsed.
    pub(super) fn add_folder(&mut self, folder: &Path) -> anyhow::Result<()> {
        for entry in fs::read_dir(folder).with_context(|| format!("reading {}", folder.display()))? {
            let path = entry.with_context(|| format!("reading {}", folder.display()))?.path();
            if path.is_dir() {
                self.add_folder(&path)?;
            } else if path.extension().is_some_and(|extension| extension == "class") {
                let bytes = fs::read(&path).with_context(|| format!("reading {}", path.display()))?;
                self.add(bytes).with_context(|| format!("parsing {}", path.display()))?;
            }
        }
        Ok(())
    }

    /// Adds one class file.
    ///
    /// # Errors
    /// It isn't well-formed.
    pub(super) fn add(&mut self, bytes: Vec<u8>) -> anyhow::Result<()> {
        let name = Class::parse(&bytes)?.name;
        self.index.entry(name).or_default().push((self.blobs.len(), 0..bytes.len()));
        self.blobs.push(bytes);
        Ok(())
    }

    /// Returns every version of a class (`java/lang/String`); none if there is no class file of
    /// that name.
    pub(super) fn get(&self, name: &str) -> Rc<[Class]> {
        if let Some(known) = self.parsed.borrow().get(name) {
            return Rc::clone(known);
        }
        let places = self.index.get(name).map_or(&[][..], Vec::as_slice);
        let bytes = |(blob, range): &(usize, Range<usize>)| self.blobs[*blob].get(range.clone());
        let parsed: Rc<[Class]> = places
            .iter()
            .filter_map(bytes)
            .filter_map(|bytes| Class::parse(bytes).inspect_err(|error| eprintln!("{name}: {error:#}")).ok())
            .collect();
        self.parsed.borrow_mut().insert(name.to_owned(), Rc::clone(&parsed));
        parsed
    }

    /// Returns whether `name` is `of`, or one of its subclasses or implementors.
    pub(super) fn is_subtype(&self, name: &str, of: &str) -> bool {
        if name == of {
            return true;
        }
        self.get(name).iter().any(|class| {
            let parents = class.super_class.iter().chain(&class.interfaces);
            parents.into_iter().any(|parent| self.is_subtype(parent, of))
        })
    }
}

/// Returns name and position of the class at an offset of a dump.
fn entry(bytes: &[u8], at: usize) -> Option<(String, Range<usize>)> {
    let size = u16::from_be_bytes(bytes.get(at..at + 2)?.try_into().ok()?);
    let name_end = at + 2 + usize::from(size);
    let name = String::from_utf8_lossy(bytes.get(at + 2..name_end)?).into_owned();
    let size = u32::from_be_bytes(bytes.get(name_end..name_end + 4)?.try_into().ok()?);
    let start = name_end + 4;
    let end = start.checked_add(usize::try_from(size).ok()?)?;
    bytes.get(start..end).map(|_| (name, start..end))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dumps_are_read_and_cut_ones_refused() {
        let bytes = [&[0, 1, b'A', 0, 0, 0, 3][..], &[1, 2, 3], &[0, 1, b'B', 0, 0, 0, 0]].concat();
        assert_eq!(entry(&bytes, 0), Some(("A".to_owned(), 7..10)));
        assert_eq!(entry(&bytes, 10), Some(("B".to_owned(), 17..17)));
        for end in 11..bytes.len() {
            assert_eq!(entry(&bytes[..end], 10), None);
        }
    }
}
