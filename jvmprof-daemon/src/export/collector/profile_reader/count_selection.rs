//! Counts the profiles of a selection in a tree, on several threads. Each has a tree of its own;
//! they are added up in an order that is always the same, which decides among equals what a page
//! has room for.

use std::num::NonZero;
use std::thread::{self, ScopedJoinHandle};

use super::decode_ahead::MAX_THREADS;
use super::partial_answer::{PartialAnswer, SelectionContext};
use super::plan::{ReadPlan, RequestContext};
use super::{ReadError, ReadSelection, covered_time};
use crate::profile::call_tree::TreeBuilder;

impl<'a> RequestContext<'a> {
    /// Counts what a plan says: as the base, if it is one.
    ///
    /// # Errors
    /// See [`ReadError`].
    pub(super) fn count(
        &self,
        plan: &ReadPlan<'a>,
        has_all_stacks: bool,
        is_base: bool,
    ) -> Result<(TreeBuilder, ReadSelection), ReadError> {
        let threads = thread::available_parallelism().map_or(1, NonZero::get).min(MAX_THREADS);
        let threads = threads.min(plan.items.len()).max(1);
        let (bounds, is_disjoint) = plan.bounds(threads);
        // The other side of a comparison may have what this one gives up.
        let is_disjoint = is_disjoint && self.query.base.is_none();
        let context = SelectionContext::new(self, plan, has_all_stacks, is_base, is_disjoint);
        let work = |at: usize| context.count(&plan.items[bounds[at]..bounds[at + 1]]);
        let answers: Result<Vec<PartialAnswer>, ReadError> = thread::scope(|scope| {
            let others: Vec<_> =
                (1..threads).map(|at| thread::Builder::new().spawn_scoped(scope, move || work(at))).collect();
            let first = work(0);
            let others =
                (1..threads).zip(others).map(|(at, thread)| match thread.map(ScopedJoinHandle::join) {
                    Ok(Ok(answer)) => answer,
                    Ok(Err(panic)) => std::panic::resume_unwind(panic),
                    // Without a thread this one counts it.
                    Err(_) => work(at),
                });
            std::iter::once(first).chain(others).collect()
        });
        let mut answers = answers?.into_iter();
        let first = answers.next().unwrap_or_else(|| context.empty_answer());
        let whole = answers.fold(first, PartialAnswer::add);
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
