//! Flags for the contexts of threads, of `record` and `daemon` alike.

use std::collections::BTreeSet;

use clap::Args;

use crate::app::args::values::attribute_name;
use crate::pipeline::labels::label_name;
use crate::pipeline::thread_contexts::ThreadContextOptions;
use crate::profile::model::label_names::{SPAN_ID, THREAD_ID, THREAD_NAME, TRACE_ID};

/// Which requests samples belong to.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Requests")]
pub struct ThreadContextArgs {
    /// Label samples with trace_id and span_id of the request that their thread works on, where its
    /// process publishes that (OpenTelemetry's thread context)
    #[arg(long)]
    pub thread_context: bool,

    /// Attribute of such a context that is a label of samples, too: http.route is http_route; means
    /// --thread-context (repeatable)
    #[arg(long, hide_short_help = true, value_name = "ATTRIBUTE", value_parser = parse_attribute)]
    pub thread_context_attributes: Vec<String>,
}

impl ThreadContextArgs {
    pub(in crate::app) fn options(&self) -> Option<ThreadContextOptions> {
        let attributes = self.thread_context_attributes.iter().map(|name| (name.clone(), label_name(name)));
        let mut attributes: Vec<(String, String)> = attributes.collect();
        let mut labels = BTreeSet::new();
        attributes.retain(|(_, label)| labels.insert(label.clone()));
        let is_wanted = self.thread_context || !attributes.is_empty();
        is_wanted.then_some(ThreadContextOptions { attributes })
    }
}

/// Labels that samples have for other reasons.
const RESERVED: [&str; 14] = [
    TRACE_ID,
    SPAN_ID,
    "wait",
    "idle",
    "blocker",
    "holder",
    "class",
    "thread_kind",
    "stw",
    THREAD_NAME,
    THREAD_ID,
    "pid",
    "comm",
    "node",
];

fn parse_attribute(text: &str) -> Result<String, String> {
    let name = attribute_name(text)?;
    let label = label_name(&name);
    if RESERVED.contains(&&*label) {
        return Err(format!("{label} is a label that samples have for other reasons"));
    }
    Ok(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_become_labels_that_samples_do_not_have_already() {
        assert_eq!(parse_attribute("http.route").as_deref(), Ok("http.route"));
        for text in ["", "1a", "trace.id", "span_id", "wait", "thread.kind"] {
            assert!(parse_attribute(text).is_err(), "{text}");
        }
        let mut args = ThreadContextArgs { thread_context: false, thread_context_attributes: Vec::new() };
        assert_eq!(args.options(), None);
        args.thread_context_attributes = vec!["http.route".to_owned(), "http_route".to_owned()];
        let attributes = vec![("http.route".to_owned(), "http_route".to_owned())];
        assert_eq!(args.options(), Some(ThreadContextOptions { attributes }));
    }
}
