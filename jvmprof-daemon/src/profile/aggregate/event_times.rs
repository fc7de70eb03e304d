//! The times of a window's events, as far as there is room for them.

use crate::profile::stack_budget::StackBudget;

/// Times that are kept in a window, at most.
const MAX_TIMES: usize = 2 << 20;

/// Times that a stack has room for at first; then twice as many, and so on.
const FIRST_TIMES: usize = 4;

/// The time of the events that are counted now, if it is to be kept.
#[derive(Debug, Default)]
pub(super) struct EventTimes {
    pub(super) now_ms: Option<i32>,
    kept: usize,
}

impl EventTimes {
    /// Keeps the time, if there is room for it in the window's budget.
    pub(super) fn push(&mut self, times: &mut Vec<i32>, budget: &mut StackBudget) {
        let Some(now) = self.now_ms else { return };
        if self.kept >= MAX_TIMES {
            return;
        }
        if times.len() == times.capacity() {
            let more = times.capacity().max(FIRST_TIMES);
            if !budget.allocate_times(more) {
                return;
            }
            times.reserve_exact(more);
        }
        times.push(now);
        self.kept += 1;
    }

    /// Empties it for the next window.
    pub(super) fn clear(&mut self) {
        self.kept = 0;
    }
}
