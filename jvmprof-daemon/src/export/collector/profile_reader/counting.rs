//! Counts the profiles of a selection in a tree, on several threads. Each has a tree of its own;
//! they are added up in an order that is always the same, which decides among equals what a page
//! has room for.

use std::num::NonZero;
use std::thread::{self, ScopedJoinHandle};

use super::counted::{Counted, Shared};
use super::decode_ahead::MAX_THREADS;
use super::plan::{Counting, Plan};
use super::{ReadError, ReadSelection, covered_time};
use crate::profile::call_tree::TreeBuilder;

impl<'a> Counting<'a> {
    /// Counts what a plan says: as the base, if it is one.
    ///
    /// # Errors
    /// See [`ReadError`].
    pub(super) fn count(
        &self,
        plan: &Plan<'a>,
        has_all_stacks: bool,
        is_base: bool,
    ) -> Result<(TreeBuilder, ReadSelection), ReadError> {
        let threads = thread::available_parallelism().map_or(1, NonZero::get).min(MAX_THREADS);
        let threads = threads.min(plan.items.len()).max(1);
        let (bounds, is_disjoint) = plan.bounds(threads);
        // The other side of a comparison may have what this one gives up.
        let is_disjoint = is_disjoint && self.query.base.is_none();
        let shared = Shared::new(self, plan, has_all_stacks, is_base, is_disjoint);
        let work = |at: usize| shared.count(&plan.items[bounds[at]..bounds[at + 1]]);
        let counted: Result<Vec<Counted>, ReadError> = thread::scope(|scope| {
            let others: Vec<_> =
                (1..threads).map(|at| thread::Builder::new().spawn_scoped(scope, move || work(at))).collect();
            let first = work(0);
            let others =
                (1..threads).zip(others).map(|(at, thread)| match thread.map(ScopedJoinHandle::join) {
                    Ok(Ok(counted)) => counted,
                    Ok(Err(panic)) => std::panic::resume_unwind(panic),
                    // Without a thread this one counts it.
                    Err(_) => work(at),
                });
            std::iter::once(first).chain(others).collect()
        });
        let mut counted = counted?.into_iter();
        let first = counted.next().unwrap_or_else(|| shared.nothing());
        let whole = counted.fold(first, Counted::add);
        let most_lacking = whole.most_lacking();
        let read = ReadSelection {
            cpu_time: whole.cpu_time,
            events: whole.events,
            duration_ns: covered_time(&plan.selected.profiles),
            profiles: whole.profiles,
            unreadable: whole.unreadable,
            series: plan.selected.series.len(),
            activities: whole.activities,
            most_lacking,
        };
        Ok((whole.builder, read))
    }
}
