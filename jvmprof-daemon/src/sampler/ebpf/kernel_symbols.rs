//! Symbols of kernel addresses, from the kernel itself: a kernel program formats addresses as
//! `printk` does. So the list of all symbols needn't be read (`/proc/kallsyms`: 200,000 lines), and
//! symbols of modules and BPF programs that are loaded later are found, too.

use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _};

use aya::maps::{Array, MapData};
use aya::programs::ProgramFd;
use jvmprof_common::abi::{KERNEL_NAME_BYTES, KERNEL_NAMES, KERNEL_NAMES_PROGRAM, KernelName, NAMES};
use nix::errno::Errno;

use super::object::{
    PodValue, impl_opaque_debug, impl_pod, load_program, map_error, program_error, take_map,
};
use crate::sampler::error::SamplerError;
use crate::types::Avma;

/// Prefix of the symbol of the padding before a function (Linux tools/objtool/elf.c,
/// `elf_create_prefix_symbol`). It holds code of the function on processors where calls are counted
/// (arch/x86/kernel/callthunks.c).
const PADDING: &str = "__pfx_";

/// A function of the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelSymbol {
    pub name: String,
    /// The module it belongs to (`ext4`); `None` for the kernel proper and for BPF programs.
    pub module: Option<String>,
    pub start: Avma,
    /// In bytes, up to the next symbol.
    pub size: u64,
}

impl KernelSymbol {
    /// Parses `name+0xoffset/0xsize [module]` (Linux kernel/kallsyms.c, `__sprint_symbol`) of an
    /// address. Returns `None` for anything else, such as an address without a symbol.
    pub fn parse(text: &str, address: Avma) -> Option<Self> {
        let (text, module) = match text.strip_suffix(']').and_then(|text| text.split_once(" [")) {
            Some((text, module)) => (text, Some(module.to_owned())),
            None => (text, None),
        };
        let (name, position) = text.rsplit_once('+')?;
        let (offset, size) = position.split_once('/')?;
        let (offset, size) = (hex(offset)?, hex(size)?);
        let start = Avma(address.0.checked_sub(offset)?);
        let name = name.strip_prefix(PADDING).unwrap_or(name);
        (offset < size && start.0.checked_add(size).is_some() && !name.is_empty()).then(|| Self {
            name: name.to_owned(),
            module,
            start,
            size,
        })
    }
}

fn hex(text: &str) -> Option<u64> {
    let digits = text.strip_prefix("0x")?;
    // `from_str_radix` would accept a sign.
    digits.bytes().all(|digit| digit.is_ascii_hexdigit()).then(|| u64::from_str_radix(digits, 16).ok())?
}

impl_pod!([KernelName; KERNEL_NAMES]);

/// The kernel program that symbolizes addresses, and the map of its arguments and results.
pub struct KernelSymbolizer {
    program: ProgramFd,
    names: Array<MapData, PodValue<[KernelName; KERNEL_NAMES]>>,
}

impl_opaque_debug!(KernelSymbolizer);

impl KernelSymbolizer {
    pub(super) fn of(ebpf: &mut aya::Ebpf) -> Result<Self, SamplerError> {
        let names = take_map(ebpf, NAMES)?;
        Ok(Self { program: load_program(ebpf, KERNEL_NAMES_PROGRAM)?, names })
    }

    /// Returns the functions at these addresses, in their order; `None` for an address without one.
    ///
    /// # Errors
    /// Returns an error if the kernel refused to run the program.
    pub fn symbolize(&mut self, addresses: &[Avma]) -> Result<Vec<Option<KernelSymbol>>, SamplerError> {
        let mut symbols = Vec::with_capacity(addresses.len());
        for addresses in addresses.chunks(KERNEL_NAMES) {
            let named = self.run(addresses)?;
            symbols
                .extend(named.iter().zip(addresses).map(|(name, at)| KernelSymbol::parse(text(name)?, *at)));
        }
        Ok(symbols)
    }

    /// Returns the symbol of the kernel's function that runs the program, which shows that the
    /// program works.
    ///
    /// # Errors
    /// Returns an error if the kernel refused to run the program.
    pub fn probe(&mut self) -> Result<Option<String>, SamplerError> {
        let named = self.run(&[Avma(0)])?;
        let text = text(&named[0]).filter(|text| text.contains('+'));
        Ok(text.map(str::to_owned))
    }

    /// Runs the program once.
    fn run(&mut self, addresses: &[Avma]) -> Result<[KernelName; KERNEL_NAMES], SamplerError> {
        let mut names = [KernelName { address: 0, length: 0, text: [0; KERNEL_NAME_BYTES] }; KERNEL_NAMES];
        for (name, address) in names.iter_mut().zip(addresses) {
            name.address = address.0;
        }
        self.names.set(0, PodValue(names), 0).map_err(map_error(NAMES))?;
        let ran = run(&self.program, addresses.len() as u64);
        ran.map_err(|source| program_error(KERNEL_NAMES_PROGRAM)(source.into()))?;
        Ok(self.names.get(&0, 0).map_err(map_error(NAMES))?.0)
    }
}

fn text(name: &KernelName) -> Option<&str> {
    let length = usize::try_from(name.length).ok()?;
    let text = name.text.get(..length.checked_sub(1)?)?;
    std::str::from_utf8(text).ok()
}

/// The argument of `BPF_PROG_TEST_RUN`: `union bpf_attr`, member `test`, include/uapi/linux/bpf.h;
/// what isn't named is for other programs.
#[repr(C)]
#[derive(Default)]
struct TestRun {
    program: u32,
    _returned: u32,
    _data_sizes: [u32; 2],
    _data: [u64; 2],
    _repeat_and_duration: [u32; 2],
    context_bytes: u32,
    _context_out_bytes: u32,
    context: u64,
    _context_out: u64,
    _flags_and_cpu: [u32; 2],
}

/// Runs a raw tracepoint's program with this argument. aya runs programs of the object that it
/// loaded, which another thread has.
pub(super) fn run(program: &ProgramFd, argument: u64) -> io::Result<()> {
    const BPF_PROG_TEST_RUN: u32 = 10;
    let context = [argument];
    let mut attributes = TestRun {
        program: program.as_fd().as_raw_fd() as u32,
        context_bytes: size_of_val(&context) as u32,
        context: context.as_ptr() as u64,
        ..TestRun::default()
    };
    // SAFETY: the structure is as long as is said, and it and the context live until the call is
    // over.
    let result =
        unsafe { libc::syscall(libc::SYS_bpf, BPF_PROG_TEST_RUN, &raw mut attributes, size_of::<TestRun>()) };
    Errno::result(result).map(drop).map_err(io::Error::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Option<(String, Option<String>, u64, u64)> {
        let symbol = KernelSymbol::parse(text, Avma(0xffff_ffff_8100_0040))?;
        Some((symbol.name, symbol.module, symbol.start.0, symbol.size))
    }

    #[test]
    fn a_symbol_is_parsed_as_printk_writes_it() {
        let start = 0xffff_ffff_8100_0000;
        assert_eq!(parse("do_this+0x40/0x80"), Some(("do_this".to_owned(), None, start, 0x80)));
        let in_module = Some(("first".to_owned(), Some("ext4".to_owned()), start, 0x41));
        assert_eq!(parse("first+0x40/0x41 [ext4]"), in_module);
        assert_eq!(
            parse("__pfx_do_this+0x0/0x10").unwrap().0,
            "do_this",
            "padding belongs to the function after it"
        );
        for other in [
            "",
            "0xffffffff81000040",
            "+0x40/0x80",
            "name+0x40/0x40",
            "name+0x40",
            "name+40/0x80",
            "name+0x+40/0x80",
            "name+0x40/0xffffffffffffffff",
            "name+0xffffffffffffffff/0x1",
        ] {
            assert_eq!(parse(other), None, "{other}");
        }
    }
}
