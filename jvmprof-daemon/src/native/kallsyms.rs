//! The kernel's own symbols, as `/proc/kallsyms` lists them (`kernel/kallsyms.c`, `s_show`):
//! `address type name`, and behind a tab the module in brackets. There are about 60,000 functions, in less than a megabyte here, and as
//! many symbols of the padding before them.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::ops::Range;

use memchr::memchr;

use self::packed::Packed;
use crate::types::Avma;

mod packed;

/// Below this no code of the kernel is: `__START_KERNEL_map`, with the modules, trampolines and BPF programs above it
/// (Linux `Documentation/arch/x86/x86_64/mm.rst`, the same with five-level page tables and KASLR).
const CODE_BASE: u64 = 0xffff_ffff_8000_0000;
/// What the symbol of the padding before a function is called (Linux tools/objtool/elf.c, `elf_create_prefix_symbol`). It holds
/// code of the function on processors where calls are counted (arch/x86/kernel/callthunks.c).
const PADDING: &[u8] = b"__pfx_";
/// In place of such a symbol's name.
const NO_NAME: u32 = u32::MAX;
/// Longest padding (Linux arch/Kconfig, `FUNCTION_PADDING_BYTES`), in bytes.
const MAX_PADDING: u32 = 64;
/// Longest function that is believed, in bytes: the list has no sizes, and behind the last function of a section there
/// is a gap.
const MAX_FUNCTION: u32 = 1 << 20;
/// The same for a BPF program that no other one follows.
const MAX_BPF_PROGRAM: u32 = 256 << 10;
/// Text that is read at most, in bytes. A kernel 6.18 with few modules and hardly any data symbols has 5.4 MB.
const MAX_TEXT: u64 = 64 << 20;

/// Why the kernel's symbols can't be had.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KallsymsError {
    #[error("reading /proc/kallsyms: {0}")]
    Read(#[from] io::Error),
    #[error(
        "/proc/kallsyms shows no addresses: give this process CAP_SYSLOG and set sysctl kernel.kptr_restrict to 1 or 0"
    )]
    Hidden,
    #[error("/proc/kallsyms lists no functions: this kernel was built without CONFIG_KALLSYMS")]
    Empty,
}

/// A function of the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelSymbol {
    pub name: String,
    /// The module it belongs to (`ext4`; `bpf` for BPF programs); `None` for the kernel proper.
    pub module: Option<String>,
    /// With the padding before it.
    pub start: Avma,
    /// In bytes, up to the next symbol of any kind.
    pub size: u64,
}

/// The functions of the running kernel and its modules, as of loading.
#[derive(Debug)]
pub struct Kallsyms {
    /// By addresses that count from [`CODE_BASE`]: `name`, or `name`, tab and module.
    functions: Packed,
}

impl Kallsyms {
    /// Reads `/proc/kallsyms`.
    ///
    /// # Errors
    /// See [`KallsymsError`]; without CAP_SYSLOG it is usually [`KallsymsError::Hidden`].
    pub fn load() -> Result<Self, KallsymsError> {
        let read = |path| Self::parse(BufReader::with_capacity(256 << 10, File::open(path)?));
        match read("/proc/kallsyms") {
            // A service manager may have put an empty file over it, for this process alone: systemd's
            // ProtectKernelTunables=. Whether addresses are shown depends on who reads, not on where.
            Err(KallsymsError::Empty | KallsymsError::Read(_)) => read("/proc/1/root/proc/kallsyms"),
            read => read,
        }
    }

    /// Reads text in the format of `/proc/kallsyms`. Lines of another form are skipped.
    ///
    /// # Errors
    /// As [`Self::load`].
    pub fn parse(text: impl BufRead) -> Result<Self, KallsymsError> {
        let mut text = text.take(MAX_TEXT);
        let mut parser = Parser::default();
        let mut line = Vec::with_capacity(256);
        while text.read_until(b'\n', &mut line)? > 0 {
            parser.line(line.trim_ascii_end());
            line.clear();
        }
        parser.finish()
    }

    /// The function that contains `address`.
    pub fn lookup(&self, address: Avma) -> Option<KernelSymbol> {
        let found = self.functions.find(u32::try_from(address.0.checked_sub(CODE_BASE)?).ok()?)?;
        let text = String::from_utf8(found.text).ok()?;
        let (name, module) = match text.split_once('\t') {
            Some((name, module)) => (name.to_owned(), Some(module.to_owned())),
            None => (text, None),
        };
        let (start, size) = (CODE_BASE + u64::from(found.range.start), found.range.len() as u64);
        Some(KernelSymbol { name, module, start: Avma(start), size })
    }

    /// Where the kernel's own functions of these names are.
    pub fn places(&self, names: &[&str]) -> Vec<Range<Avma>> {
        let mut places = Vec::new();
        let at = |offset: u32| Avma(CODE_BASE + u64::from(offset));
        self.functions.for_each(|range, text| {
            if names.iter().any(|name| name.as_bytes() == text) {
                places.push(at(range.start)..at(range.end));
            }
        });
        places
    }

    /// How many functions there are.
    pub fn len(&self) -> usize {
        self.functions.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes of memory held.
    pub fn size_bytes(&self) -> usize {
        self.functions.size_bytes()
    }
}

#[derive(Default)]
struct Parser {
    lines: u64,
    addresses: u64,
    symbols: Vec<Symbol>,
    names: String,
    modules: HashMap<Vec<u8>, u16>,
}

/// A line of the list. Field order is sort order: of the same start the best name comes first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Symbol {
    start: u32,
    /// Not a function: it only ends the one before it.
    data: bool,
    /// `read` rather than `__read`, then global rather than local and weak, then as listed.
    underscores: u8,
    not_global: bool,
    name: u32,
    /// Zero for the kernel proper.
    module: u16,
}

impl Parser {
    fn line(&mut self, line: &[u8]) -> Option<()> {
        let (address, rest) = line.split_at_checked(memchr(b' ', line)?)?;
        let [_, kind, b' ', rest @ ..] = rest else { return None };
        let address = hex(address)?;
        self.lines += 1;
        if address == 0 {
            return None;
        }
        self.addresses += 1;
        let start = u32::try_from(address.checked_sub(CODE_BASE)?).ok()?;
        let (name, module) = match memchr(b'\t', rest) {
            Some(tab) => (&rest[..tab], rest[tab + 1..].trim_ascii()),
            None => (rest, &b""[..]),
        };
        let module = module.strip_prefix(b"[").and_then(|m| m.strip_suffix(b"]")).unwrap_or_default();
        let number = self.module_number(module);
        let is_padding = name.starts_with(PADDING);
        let data = is_padding || !matches!(kind, b't' | b'T' | b'w' | b'W');
        let offset = match data {
            true if is_padding => NO_NAME,
            true => 0,
            false => self.push_name(name, module)?,
        };
        let underscores = name.iter().take_while(|byte| **byte == b'_').count();
        self.symbols.push(Symbol {
            start,
            data,
            underscores: underscores.min(255) as u8,
            not_global: *kind != b'T',
            name: offset,
            module: number,
        });
        Some(())
    }

    fn module_number(&mut self, module: &[u8]) -> u16 {
        if module.is_empty() {
            return 0;
        }
        if let Some(number) = self.modules.get(module) {
            return *number;
        }
        let number = u16::try_from(self.modules.len() + 1).unwrap_or(u16::MAX);
        self.modules.insert(module.to_vec(), number);
        number
    }

    fn push_name(&mut self, name: &[u8], module: &[u8]) -> Option<u32> {
        let offset = u32::try_from(self.names.len()).ok()?;
        self.names.push_str(&String::from_utf8_lossy(name));
        if !module.is_empty() {
            self.names.push('\t');
            self.names.push_str(&String::from_utf8_lossy(module));
        }
        self.names.push('\n');
        Some(offset)
    }

    fn finish(mut self) -> Result<Kallsyms, KallsymsError> {
        if self.lines > 0 && self.addresses == 0 {
            return Err(KallsymsError::Hidden);
        }
        self.symbols.sort_unstable();
        self.symbols.dedup_by_key(|symbol| symbol.start);
        let bpf = self.modules.get(&b"bpf"[..]).copied();
        let mut functions = Vec::with_capacity(self.symbols.iter().filter(|symbol| !symbol.data).count());
        let mut symbols = self.symbols.iter().peekable();
        let mut padding = None;
        while let Some(symbol) = symbols.next() {
            if symbol.data {
                padding = (symbol.name == NO_NAME).then_some(symbol.start);
                continue;
            }
            let start = padding.take().filter(|start| symbol.start - start <= MAX_PADDING);
            let next = symbols.peek().copied();
            let end = next.map_or(u32::MAX, |next| next.start).min(believed_end(symbol, next, bpf));
            functions.push((start.unwrap_or(symbol.start)..end, self.name(symbol)));
        }
        if functions.is_empty() {
            return Err(KallsymsError::Empty);
        }
        Ok(Kallsyms { functions: Packed::new(&functions)? })
    }

    fn name(&self, symbol: &Symbol) -> &[u8] {
        let behind = self.names.as_bytes().get(symbol.name as usize..).unwrap_or_default();
        &behind[..memchr(b'\n', behind).unwrap_or(behind.len())]
    }
}

/// Where a function ends at most. The last one of a module is followed by whatever was allocated behind the module's
/// pages, so that it isn't believed to go beyond its last page.
fn believed_end(symbol: &Symbol, next: Option<&Symbol>, bpf: Option<u16>) -> u32 {
    const PAGE: u32 = 4096;
    if next.is_some_and(|next| next.module == symbol.module) || symbol.module == 0 {
        symbol.start.saturating_add(MAX_FUNCTION)
    } else if Some(symbol.module) == bpf {
        symbol.start.saturating_add(MAX_BPF_PROGRAM)
    } else {
        (symbol.start - symbol.start % PAGE).saturating_add(PAGE)
    }
}

fn hex(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() || digits.len() > 16 {
        return None;
    }
    digits.iter().try_fold(0, |value, digit| Some(value << 4 | u64::from(char::from(*digit).to_digit(16)?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIST: &str = "\
0000000000000000 A fixed_percpu_data
ffffffff81000000 T _stext
ffffffff81000000 T startup_64
ffffffff81000040 t helper
ffffffff81000060 W weak_one
ffffffff81000080 D some_data
ffffffff810000f0 T __pfx_last_of_text
ffffffff81000100 T last_of_text
ffffffffc0201010 t do_this\t[ext4]
ffffffffc0200ff0 T first\t[ext4]
ffffffffc0305000 t bpf_prog_6deef7357e7b4530_sd_fw_egress\t[bpf]
not a line
ffffffffc0999999 t
";

    fn at(symbols: &Kallsyms, address: u64) -> Option<(String, Option<String>)> {
        symbols.lookup(Avma(address)).map(|symbol| (symbol.name, symbol.module))
    }

    fn of(name: &str, module: Option<&str>) -> Option<(String, Option<String>)> {
        Some((name.to_owned(), module.map(str::to_owned)))
    }

    #[test]
    fn functions_end_at_the_next_symbol_or_at_their_modules_last_page() {
        let symbols = Kallsyms::parse(LIST.as_bytes()).expect("a list");
        assert_eq!(at(&symbols, 0xffff_ffff_8100_0000), of("startup_64", None));
        assert_eq!(at(&symbols, 0xffff_ffff_8100_007f), of("weak_one", None));
        assert_eq!(at(&symbols, 0xffff_ffff_8100_0080), None);
        assert_eq!(at(&symbols, 0xffff_ffff_8100_00ef), None);
        assert_eq!(at(&symbols, 0xffff_ffff_8100_00f0), of("last_of_text", None));
        assert_eq!(at(&symbols, 0xffff_ffff_8100_0100), of("last_of_text", None));
        assert_eq!(at(&symbols, 0xffff_ffff_8200_0100), None);
        assert_eq!(at(&symbols, 0xffff_ffff_c020_100f), of("first", Some("ext4")));
        assert_eq!(at(&symbols, 0xffff_ffff_c020_1fff), of("do_this", Some("ext4")));
        assert_eq!(at(&symbols, 0xffff_ffff_c020_2000), None);
        assert_eq!(
            at(&symbols, 0xffff_ffff_c030_6000).and_then(|(_, module)| module).as_deref(),
            Some("bpf")
        );
        let placed = |names: &[&str]| symbols.places(names).iter().map(|it| it.start.0).collect::<Vec<_>>();
        assert_eq!(placed(&["helper", "no", "last_of_text"]), [0xffff_ffff_8100_0040, 0xffff_ffff_8100_00f0]);
        assert_eq!(placed(&["do_this"]), [0; 0], "a module's");
        assert_eq!(at(&symbols, 0xffff_ffff_80ff_ffff), None);
        assert_eq!(at(&symbols, 0), None);
        assert_eq!(at(&symbols, u64::MAX), None);
    }

    #[test]
    fn hidden_addresses_are_told_apart_from_a_kernel_without_symbols() {
        let hidden = "0000000000000000 T _stext\n0000000000000000 t helper\n";
        assert!(matches!(Kallsyms::parse(hidden.as_bytes()), Err(KallsymsError::Hidden)));
        assert!(matches!(Kallsyms::parse(&b""[..]), Err(KallsymsError::Empty)));
    }
}
