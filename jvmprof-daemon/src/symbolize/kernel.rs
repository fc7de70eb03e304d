//! Frames of the kernel.

use std::collections::HashMap;
use std::io;
use std::ops::Range;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use super::frames::frame;
use crate::native::kallsyms::{Kallsyms, KallsymsError};
use crate::profile::model::{Frame, FrameKind, Mapping};
use crate::types::{Avma, FastHasher, FileOffset};

/// The system calls that replace a program (Linux fs/exec.c), as x86-64's table of system calls names them.
const EXEC: [&str; 2] = ["__x64_sys_execve", "__x64_sys_execveat"];

/// Frames remembered; there are not many more places in a kernel that samples hit.
const MAX_FRAMES: usize = 20_000;

type Symbols = Result<Kallsyms, KallsymsError>;

#[derive(Debug, Default)]
pub(super) struct KernelFrames {
    symbols: Arc<OnceLock<Symbols>>,
    /// Where the [`EXEC`] are.
    exec: OnceLock<Vec<Range<Avma>>>,
    mapping: OnceLock<Arc<Mapping>>,
    frames: HashMap<Avma, Arc<Frame>, FastHasher>,
    unnamed: Vec<Avma>,
}

fn load() -> Symbols {
    let began = Instant::now();
    let symbols = Kallsyms::load();
    tracing::debug!(taken = ?began.elapsed(), "the kernel's symbols were read");
    symbols.inspect_err(|error| tracing::warn!(%error, "kernel frames have no names"))
}

impl KernelFrames {
    /// Reads the kernel's symbols on a thread of its own: it takes a tenth of a second, in which samples would wait. Without it they are
    /// read when the first frames are named.
    ///
    /// # Errors
    /// The system has no thread left.
    pub(super) fn read_ahead(&self) -> io::Result<()> {
        let symbols = Arc::clone(&self.symbols);
        let read = move || _ = symbols.get_or_init(load);
        std::thread::Builder::new().name("kallsyms".to_owned()).spawn(read).map(|_| ())
    }

    /// The frame of an address that was adjusted to the call already; without a name if it is a new one.
    pub(super) fn frame(&mut self, address: Avma) -> Arc<Frame> {
        if let Some(frame) = self.frames.get(&address) {
            return Arc::clone(frame);
        }
        if self.frames.len() >= MAX_FRAMES {
            self.forget();
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
        for address in std::mem::take(&mut self.unnamed) {
            let named = self.name(address);
            self.frames.insert(address, named);
        }
    }

    /// The frame of an address with its name.
    pub(super) fn named(&mut self, address: Avma) -> Arc<Frame> {
        match self.frames.get(&address) {
            Some(frame) if !frame.lines.is_empty() => Arc::clone(frame),
            _ => self.name(address),
        }
    }

    /// Whether a stack of these return addresses lies in a system call that replaces the program.
    pub(super) fn is_in_exec(&self, stack: &[u64]) -> bool {
        let Ok(symbols) = self.symbols() else { return false };
        let exec = self.exec.get_or_init(|| symbols.places(&EXEC));
        // It is called by the first ones.
        let mut callers = stack.iter().rev().map(|address| Avma(address.saturating_sub(1)));
        callers.any(|at| exec.iter().any(|it| it.contains(&at)))
    }

    fn symbols(&self) -> &Symbols {
        self.symbols.get_or_init(load)
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

    pub(super) fn forget(&mut self) {
        self.frames = HashMap::default();
    }

    pub(super) fn error(&self) -> Option<String> {
        self.symbols.get()?.as_ref().err().map(ToString::to_string)
    }

    fn name(&self, address: Avma) -> Arc<Frame> {
        let symbol = self.symbols().as_ref().ok().and_then(|symbols| symbols.lookup(address));
        let name: Arc<str> = match symbol {
            Some(symbol) => symbol.name.into(),
            None => "[unknown kernel]".into(),
        };
        frame(FrameKind::Kernel, address, Some(Arc::clone(self.mapping())), Arc::clone(&name), name)
    }
}
