//! Sections of an eBPF object: removal of DWARF, and the differences between two objects.

use anyhow::Context as _;
use object::build::elf::{Builder, SectionData};
use object::{Object as _, ObjectSection as _, elf};

/// Returns whether the section is DWARF. The kernel and aya read BTF only (`.BTF`, `.BTF.ext`).
fn is_dwarf(name: &[u8]) -> bool {
    [&b".debug_"[..], b".rel.debug_"].iter().any(|prefix| name.starts_with(prefix))
}

/// Returns the object without its DWARF sections, which are most of it and which the kernel doesn't
/// read.
///
/// # Errors
/// It can't be parsed or written as an ELF file.
pub(crate) fn without_dwarf(linked: &[u8]) -> anyhow::Result<Vec<u8>> {
    let mut builder = Builder::read(linked).context("reading the linked object")?;
    for section in &mut builder.sections {
        section.delete |= is_dwarf(&section.name);
    }
    builder.delete_orphans();
    // LLVM puts the sections' names into .strtab; the writer wants a table for them.
    if !builder.sections.iter().any(|section| matches!(section.data, SectionData::SectionString)) {
        let names = builder.sections.add();
        names.name = b".shstrtab"[..].into();
        names.sh_type = elf::SHT_STRTAB;
        names.sh_addralign = 1;
        names.data = SectionData::SectionString;
    }
    let mut stripped = Vec::new();
    builder.write(&mut stripped).context("writing the stripped object")?;
    Ok(stripped)
}

/// Returns the names of sections that only one object has or that differ, for an error message.
pub(crate) fn differing_sections(one: &[u8], other: &[u8]) -> anyhow::Result<Vec<String>> {
    let one = object::File::parse(one).context("parsing the first object")?;
    let other = object::File::parse(other).context("parsing the second object")?;
    let mut differing = Vec::new();
    for section in one.sections() {
        let name = section.name()?.to_owned();
        let same = match other.section_by_name(&name) {
            Some(twin) => section.data()? == twin.data()?,
            None => false,
        };
        if !same {
            differing.push(name);
        }
    }
    for section in other.sections() {
        let name = section.name()?;
        if one.section_by_name(name).is_none() {
            differing.push(name.to_owned());
        }
    }
    Ok(differing)
}
