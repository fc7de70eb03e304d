//! The stack as the unwinder finds it.

use jvmprof_common::abi::Stop;
use jvmprof_common::unwind::{Cursor, row_stepper};

use super::modules::Modules;
use super::stepper::Stepper;
use super::truth::Caller;

/// Frames that are compared in each step.
const DEPTH: usize = 48;

/// A walk of some frames, innermost first.
#[derive(Debug)]
pub(crate) struct Walk {
    /// Where each step began; the last one failed, unless there were too many.
    from: Vec<Cursor>,
    callers: Vec<Caller>,
    /// Why it ended; `None` after [`DEPTH`] frames.
    end: Option<End>,
}

/// The reason why a walk ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    NoRow,
    Stopped(Stop),
}

impl Walk {
    /// From the registers, as the kernel program does.
    pub(crate) fn of(stepper: &Stepper, modules: &mut Modules) -> Self {
        let registers = stepper.registers();
        let mut target = stepper.memory(&registers);
        let mut cursor = Cursor::interrupted(registers.rip, registers.rsp, registers.rbp);
        let mut walk = Self { from: Vec::new(), callers: Vec::new(), end: None };
        while walk.callers.len() <= DEPTH {
            walk.from.push(cursor);
            let Some(rule) = modules.rule(stepper.pid(), &cursor) else {
                walk.end = Some(End::NoRow);
                break;
            };
            if let Err(stop) = row_stepper::step(&mut cursor, &rule, &mut target) {
                walk.end = Some(End::Stopped(stop));
                break;
            }
            target.leave_frame();
            walk.callers.push(Caller { pc: cursor.pc.0, sp: cursor.sp.0, interrupted: cursor.exact });
        }
        walk
    }

    pub(crate) fn len(&self) -> usize {
        self.callers.len()
    }

    /// With the callers that there are, outermost first.
    pub(crate) fn compare(&self, callers: &[Caller], modules: &Modules) -> Result<(), String> {
        for (at, expected) in callers.iter().rev().take(DEPTH).enumerate() {
            let from = || self.from.get(at).map(|from| modules.describe(from)).unwrap_or_default();
            match self.callers.get(at) {
                Some(found) if found == expected => {}
                Some(found) => {
                    let to = modules.describe(&found.cursor());
                    let off = found.sp.cast_signed() - expected.sp.cast_signed();
                    return Err(format!("{}: leads to {to}, {off:#x}, not to {:x}", from(), expected.pc));
                }
                None => return Err(format!("{}: {}", from(), self.reason())),
            }
        }
        let is_root = matches!(self.end, Some(End::Stopped(Stop::Root | Stop::ChainEnded)));
        if callers.len() > DEPTH || is_root && self.callers.len() == callers.len() {
            return Ok(());
        }
        let last = self.from.get(callers.len()).map(|last| modules.describe(last)).unwrap_or_default();
        Err(format!("{last}: the root, {}", self.reason()))
    }

    fn reason(&self) -> String {
        match self.end {
            Some(End::NoRow) => "no row".to_owned(),
            Some(End::Stopped(stop)) => format!("{stop:?}"),
            None => "it goes on".to_owned(),
        }
    }

    /// In code that removes frames, or that such code has called: the frames above it, which may be
    /// those behind the removal.
    pub(crate) fn behind_removal(mut self, callers: &[Caller], modules: &Modules) -> Option<Self> {
        let inner = self.from.iter().take(2).position(|from| modules.removes_frames(from.pc.0))?;
        let is_true = self.callers.iter().zip(callers.iter().rev()).take(inner).all(|(a, b)| a == b);
        self.from.drain(..inner);
        self.callers.drain(..inner);
        is_true.then_some(self)
    }
}
