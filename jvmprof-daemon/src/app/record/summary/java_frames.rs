//! The Java view of a recording (`--java`), and what the summary says of it.

use serde::Serialize;

use crate::event_type::EventType;
use crate::own_process::stderr_line;
use crate::profile::java_view::JavaView;
use crate::profile::model::Batch;

/// Profiles as the summary's table, folded stacks and SVG show them.
pub(in crate::app::record) struct ShownBatches {
    pub(in crate::app::record) batches: Vec<Batch>,
    /// `None` where all frames are shown.
    pub(in crate::app::record) java: Option<JavaAttribution>,
}

/// Counts of the samples of CPU time that were attributed to Java methods. Names of the fields are
/// an interface.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(in crate::app::record) struct JavaAttribution {
    /// Samples that ended in the kernel, in native code or in a stub of the JVM, and are counted as
    /// their nearest Java caller's own.
    attributed: u64,
    /// Samples without a Java caller.
    without_caller: u64,
}

impl ShownBatches {
    pub(in crate::app::record) fn new(batches: &[Batch], java: bool) -> Self {
        if !java {
            return Self { batches: batches.to_vec(), java: None };
        }
        let mut frames = JavaAttribution::default();
        let views = batches.iter().map(JavaView::new).map(|view| {
            if view.batch.event == EventType::Cpu {
                frames = JavaAttribution { attributed: view.attributed, without_caller: view.without_caller };
            }
            view.batch
        });
        Self { batches: views.collect(), java: Some(frames) }
    }
}

impl JavaAttribution {
    /// Says it, with the share that `percent` makes of a number of samples.
    pub(in crate::app::record) fn print(self, percent: impl Fn(u64) -> f64) {
        stderr_line!(
            "Java's frames only: {:.2} % of the samples ended in the kernel, native code or the JVM's stubs, and\n\
             are their nearest Java caller's; {:.2} % have no Java caller",
            percent(self.attributed),
            percent(self.without_caller)
        );
    }
}
