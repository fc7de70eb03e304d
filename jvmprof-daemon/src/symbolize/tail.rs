//! The end of a stack: the kernel program's walk is continued over the stack it copied, by the same steppers.
//!
//! Frame pointers end where the C library's start code begins, which keeps none. Its unwind rows lead on to the thread's
//! root, whose return address is undefined: that is what "whole" means.

use std::collections::HashMap;

use jvmprof_common::abi::{FrameWord, Stop};
use jvmprof_common::unwind::{Code, Cursor, Memory, Rule, step};

use super::Outcome;
use crate::sampler::Sample;
use crate::types::Avma;

/// Frames that fit a copied stack.
pub(super) const MAX_FRAMES: usize = 512;

/// Rules by address, since the same few return addresses end every stack.
#[derive(Debug, Default)]
pub(super) struct Rules {
    by_address: HashMap<Avma, Rule>,
}

impl Rules {
    pub(super) fn at(&mut self, cursor: &Cursor, find: impl FnOnce(Avma) -> Rule) -> Rule {
        // A return address may lie behind its function's last instruction: the call's rule applies.
        let address = Avma(if cursor.exact { cursor.pc } else { cursor.pc.saturating_sub(1) });
        *self.by_address.entry(address).or_insert_with(|| find(address))
    }
}

/// A walk over a sample's copied stack.
pub(super) struct Walk<'a> {
    cursor: Cursor,
    memory: Copied<'a>,
}

/// Why a walk ended, and by which rule.
pub(super) struct End {
    stop: Stop,
    rule: Rule,
}

impl<'a> Walk<'a> {
    /// Begins at the last frame of the sample.
    pub(super) fn new(sample: &'a Sample, last: FrameWord) -> Self {
        let header = &sample.header;
        let cursor =
            Cursor { pc: last.address(), sp: header.tail_sp, fp: header.tail_fp, exact: last.is_exact() };
        Self { cursor, memory: Copied { start: header.tail_sp, words: sample.tail() } }
    }

    pub(super) fn cursor(&self) -> Cursor {
        self.cursor
    }

    pub(super) fn step(&mut self, rule: Rule) -> Result<FrameWord, End> {
        step(&mut self.cursor, &mut self.memory, &mut Known(rule)).map_err(|stop| End { stop, rule })?;
        let pc = self.cursor.pc;
        Ok(if self.cursor.exact { FrameWord::exact(pc) } else { FrameWord::return_address(pc) })
    }
}

impl End {
    /// `kernel_stop`: why the kernel program's own walk ended.
    pub(super) fn outcome(&self, kernel_stop: Stop) -> Outcome {
        match (self.stop, self.rule) {
            (Stop::Root, _) => Outcome::Whole,
            // A zero frame pointer is the ABI's mark of the outermost frame where code keeps frame pointers. Where
            // rows say that there is a caller, it is only a zero.
            (Stop::ChainEnded, Rule::FramePointer) => Outcome::Whole,
            // The copy ended before the stack did: the first reason is the true one.
            (Stop::StackUnreadable, _) => Outcome::Truncated(kernel_stop.as_str()),
            (stop, _) => Outcome::Truncated(stop.as_str()),
        }
    }
}

struct Known(Rule);

impl Code for Known {
    fn rule(&mut self, _: &Cursor) -> Rule {
        self.0
    }
}

struct Copied<'a> {
    start: u64,
    words: &'a [u64],
}

impl Memory for Copied<'_> {
    fn read_u64(&mut self, address: u64) -> Option<u64> {
        let offset = address.checked_sub(self.start)?;
        if !offset.is_multiple_of(8) {
            return None;
        }
        self.words.get(usize::try_from(offset / 8).ok()?).copied()
    }
}
