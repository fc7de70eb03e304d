//! Frames that are named later than their sample is taken in.

use std::sync::Arc;

use jvmprof_common::frame::UserFrame;

use crate::process::ProcessKey;
use crate::profile::model::{Frame, FrameKind};
use crate::symbolize::Symbolizer;
use crate::symbolize::frames::offset_frame;
use crate::symbolize::native::mapped_files::Module;
use crate::types::Avma;

/// A native frame that waits for its name, with the file that was mapped when it was sampled,
/// whatever is mapped there later.
#[derive(Debug)]
pub(in crate::symbolize) struct DeferredFrame {
    pub(in crate::symbolize) key: ProcessKey,
    pub(in crate::symbolize) generation: u64,
    pub(in crate::symbolize) which: UserFrame,
    pub(in crate::symbolize) address: Avma,
    pub(in crate::symbolize) module: Arc<Module>,
}

impl Symbolizer {
    /// Replaces frames that had no name at the time: perf maps are written later than the code they
    /// name.
    pub(in crate::symbolize) fn finalize_names(&mut self, key: ProcessKey, frames: &mut [Arc<Frame>]) {
        let Some(symbols) = self.processes.get_mut(&key) else { return };
        for frame in frames {
            let Some(address) = frame.address else { continue };
            let named = match frame.kind {
                FrameKind::Kernel if frame.lines.is_empty() => Some(self.kernel.named(address)),
                _ if frame.lines.is_empty() => {
                    let place = frame.mapping.clone().map(|mapping| (mapping, address));
                    let named = place.and_then(|place| symbols.named.get(&place).cloned());
                    let named = named.or_else(|| self.native.is_for_server(frame).then(|| Arc::clone(frame)));
                    Some(named.unwrap_or_else(|| {
                        *self.counts.unnamed.entry("not named in time").or_default() += 1;
                        offset_frame(frame)
                    }))
                }
                _ => symbols.jit.resolved(frame),
            };
            if let Some(named) = named {
                *frame = named;
            }
        }
    }
}
