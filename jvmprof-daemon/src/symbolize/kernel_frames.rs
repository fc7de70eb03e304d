//! Frames of the kernel, and their names.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, OnceLock};

use super::frames::frame;
use crate::profile::model::{Frame, FrameKind, Mapping};
use crate::sampler::KernelSymbolizer;
use crate::types::{Avma, FastHasher, FileOffset};

/// The system calls that replace a program (Linux fs/exec.c), as x86-64's table of system calls
/// names them.
const EXEC: [&str; 2] = ["__x64_sys_execve", "__x64_sys_execveat"];

/// The functions that change a thread's registers one by one, for a signal's handler and back
/// (Linux arch/x86/kernel/signal.c, signal_64.c); where they are inlined, those that they are part
/// of.
const SIGNAL: [&str; 7] = [
    "x64_setup_rt_frame",
    "__setup_rt_frame",
    "handle_signal",
    "arch_do_signal_or_restart",
    "restore_sigcontext",
    "__do_sys_rt_sigreturn",
    "__x64_sys_rt_sigreturn",
];

/// Returns true for the kernel's entry by an interrupt of a device or of another CPU (Linux
/// arch/x86/include/asm/idtentry.h). That by an exception, such as a page fault, is none: a
/// function that changes registers accesses user memory before or after that.
fn is_interrupt_entry(name: &str) -> bool {
    name.starts_with("asm_sysvec_") || name == "asm_common_interrupt"
}

/// Maximum number of cached frames; a kernel has not many more places that samples hit.
const MAX_FRAMES: usize = 20_000;

/// A function, without its start.
#[derive(Debug)]
struct KernelFunction {
    end: Avma,
    name: Arc<str>,
}

#[derive(Debug, Default)]
pub(super) struct KernelFrames {
    /// Source of names; `None`: nothing is sampled.
    names: Option<KernelSymbolizer>,
    error: Option<String>,
    /// Functions that were resolved, by their starts.
    functions: BTreeMap<Avma, KernelFunction>,
    mapping: OnceLock<Arc<Mapping>>,
    frames: HashMap<Avma, Arc<Frame>, FastHasher>,
    unnamed: Vec<Avma>,
}

impl KernelFrames {
    /// Sets the source of names.
    pub(super) fn set_symbolizer(&mut self, names: Option<KernelSymbolizer>) {
        self.names = names;
    }

    /// Returns the frame of an address that was adjusted to the call already; without a name if it
    /// is a new one.
    pub(super) fn frame(&mut self, address: Avma) -> Arc<Frame> {
        if let Some(frame) = self.frames.get(&address) {
            return Arc::clone(frame);
        }
        if self.frames.len() >= MAX_FRAMES {
            self.clear();
        }
        let mapping = Some(Arc::clone(self.mapping()));
        let unnamed =
            Arc::new(Frame { kind: FrameKind::Kernel, address: Some(address), mapping, lines: Vec::new() });
        self.frames.insert(address, Arc::clone(&unnamed));
        self.unnamed.push(address);
        unnamed
    }

    /// Names the frames that are new.
    pub(super) fn name_new(&mut self) {
        let unnamed = std::mem::take(&mut self.unnamed);
        self.resolve(&unnamed);
        for address in unnamed {
            let named = self.name(address);
            self.frames.insert(address, named);
        }
    }

    /// Returns the frame of an address with its name.
    pub(super) fn named(&mut self, address: Avma) -> Arc<Frame> {
        match self.frames.get(&address) {
            Some(frame) if !frame.lines.is_empty() => Arc::clone(frame),
            _ => {
                self.resolve(&[address]);
                self.name(address)
            }
        }
    }

    /// Returns whether a stack of these return addresses lies in a system call that replaces the
    /// program.
    pub(super) fn is_in_exec(&mut self, stack: &[u64]) -> bool {
        // It is called by the first ones.
        let callers: Vec<_> = stack.iter().rev().map(|address| Avma(address.saturating_sub(1))).collect();
        self.resolve(&callers);
        callers.iter().any(|at| self.function(*at).is_some_and(|it| EXEC.contains(&&*it.name)))
    }

    /// Returns whether a thread was interrupted where its registers are neither those of the code
    /// that a signal interrupted nor those of the handler.
    pub(super) fn is_in_signal_delivery(&mut self, stack: &[u64]) -> bool {
        // All but the first, and what an interrupt interrupted, are return addresses.
        let callers = stack.iter().map(|address| Avma(address.saturating_sub(1)));
        let callers: Vec<_> = callers.collect();
        self.resolve(&callers);
        // The clock may tick within the handler of another interrupt.
        let is_entry = |at: &Avma| self.function(*at).is_some_and(|it| is_interrupt_entry(&it.name));
        let interrupted = callers.iter().rposition(is_entry).and_then(|entry| stack.get(entry + 1));
        let places: Vec<_> = stack.first().into_iter().chain(interrupted).map(|at| Avma(*at)).collect();
        self.resolve(&places);
        places.iter().any(|at| self.function(*at).is_some_and(|it| SIGNAL.contains(&&*it.name)))
    }

    fn function(&self, address: Avma) -> Option<&KernelFunction> {
        let (_, function) = self.functions.range(..=address).next_back()?;
        (address < function.end).then_some(function)
    }

    /// Resolves the functions of these addresses, unless they are cached.
    fn resolve(&mut self, addresses: &[Avma]) {
        let unknown: Vec<_> = addresses.iter().copied().filter(|at| self.function(*at).is_none()).collect();
        let Some(names) = &mut self.names else { return };
        let named = match names.symbolize(&unknown) {
            Ok(named) => named,
            Err(error) => {
                if self.error.is_none() {
                    tracing::warn!(%error, "kernel frames have no names");
                }
                self.error = Some(error.to_string());
                return;
            }
        };
        for symbol in named.into_iter().flatten() {
            let end = Avma(symbol.start.0 + symbol.size);
            self.functions.insert(symbol.start, KernelFunction { end, name: symbol.name.into() });
        }
    }

    fn mapping(&self) -> &Arc<Mapping> {
        self.mapping.get_or_init(|| {
            Arc::new(Mapping {
                // The upper half of the address space: kernel text and modules.
                start: Avma(0xffff_8000_0000_0000),
                limit: Avma(u64::MAX),
                offset: FileOffset(0),
                path: "[kernel.kallsyms]".into(),
                build_id: None,
            })
        })
    }

    pub(super) fn clear(&mut self) {
        self.frames = HashMap::default();
        self.functions = BTreeMap::new();
    }

    pub(super) fn error(&self) -> Option<String> {
        self.error.clone()
    }

    fn name(&self, address: Avma) -> Arc<Frame> {
        let function = self.function(address);
        let name = function.map_or_else(|| "[unknown kernel]".into(), |it| Arc::clone(&it.name));
        frame(FrameKind::Kernel, address, Some(Arc::clone(self.mapping())), Arc::clone(&name), name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_is_being_delivered_also_where_an_interrupt_has_another_one_within() {
        let mut kernel = KernelFrames::default();
        let names = [
            "handle_softirqs",
            "sysvec_apic_timer_interrupt",
            "asm_sysvec_apic_timer_interrupt",
            "restore_sigcontext",
            "__do_sys_rt_sigreturn",
            "asm_exc_page_fault",
            "fpu__restore_sig",
        ];
        for (number, name) in (1..).zip(names) {
            let (start, end) = (Avma(number << 12), Avma((number << 12) + 0x100));
            kernel.functions.insert(start, KernelFunction { end, name: name.into() });
        }
        let stack = |numbers: &[u64]| numbers.iter().map(|number| (number << 12) + 0x10).collect::<Vec<_>>();
        let mut is_delivery = |numbers: &[u64]| kernel.is_in_signal_delivery(&stack(numbers));
        assert!(is_delivery(&[4, 5]));
        assert!(is_delivery(&[1, 2, 3, 4, 5]));
        assert!(is_delivery(&[2, 3, 1, 2, 3, 4, 5]), "an interrupt in an interrupt");
        assert!(!is_delivery(&[7, 4, 5]), "what it calls begins when all registers are there");
        assert!(!is_delivery(&[1, 2, 3, 7, 4, 5]));
        assert!(!is_delivery(&[1, 6, 4, 5]), "a page fault");
        assert!(!is_delivery(&[]));
    }
}
