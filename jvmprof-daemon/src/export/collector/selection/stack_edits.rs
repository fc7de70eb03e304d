//! Edits that a request makes to the stacks, in the words of the page's address
//! (`assets/tree/edits.js`).

use crate::profile::call_tree::{FunctionPattern, MAX_WANTED, StackFilter};
use crate::profile::jvm_activity::{JvmActivity, ThreadKind};

/// Edits of one request: more than the page's address keeps.
const MAX_EDITS: usize = 32;
const _: () = assert!(MAX_EDITS <= MAX_WANTED);

/// The longest name of a function: that of a generic one of C++ may have some thousand bytes.
const MAX_NAME_BYTES: usize = 4_096;

/// An edit that means nothing.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub(in crate::export::collector) enum EditError {
    #[error("edit={0:?} isn't only:NAME, hide:NAME, activity:NAME or thread:NAME")]
    NotAnEdit(String),
    #[error("edit={edit:?} names no activity of JVMs; there are {names}")]
    NoActivity { edit: String, names: String },
    #[error("edit={edit:?} names no kind of threads; there are {names}")]
    NoThreadKind { edit: String, names: String },
    #[error("parameter through is empty: it is the name of a function")]
    NoName,
    #[error("parameter {parameter}: a name has {bytes} bytes, more than {MAX_NAME_BYTES}")]
    LongName { parameter: &'static str, bytes: usize },
    #[error("more than {MAX_EDITS} parameters edit and through")]
    TooMany,
}

/// The edits of a request so far.
#[derive(Debug, Default)]
pub(super) struct StackEdits {
    pub(super) filter: StackFilter,
    count: usize,
}

impl StackEdits {
    /// Adds `only:NAME`, `hide:NAME`, `activity:NAME` or `thread:NAME`. Activities are
    /// alternatives, and so are kinds of threads.
    pub(super) fn add_edit(&mut self, edit: &str) -> Result<(), EditError> {
        let (kind, name) = edit.split_once(':').unwrap_or((edit, ""));
        self.check("edit", if name.is_empty() { kind } else { name })?;
        let filter = &mut self.filter;
        match kind {
            "only" if !name.is_empty() => filter.wanted.push(FunctionPattern::of_code(name)),
            "hide" if !name.is_empty() => filter.unwanted.push(FunctionPattern::of_code(name)),
            "activity" => {
                let unknown =
                    || EditError::NoActivity { edit: edit.to_owned(), names: list(JvmActivity::names()) };
                filter.activities.insert(JvmActivity::of_name(name).ok_or_else(unknown)?);
            }
            "thread" => {
                let unknown =
                    || EditError::NoThreadKind { edit: edit.to_owned(), names: list(ThreadKind::names()) };
                filter.threads.insert(ThreadKind::of_name(name).ok_or_else(unknown)?);
            }
            _ => return Err(EditError::NotAnEdit(edit.to_owned())),
        }
        Ok(())
    }

    /// Adds a function or a group of stacks by its name: only stacks with it are left.
    pub(super) fn add_through(&mut self, name: &str) -> Result<(), EditError> {
        if name.is_empty() {
            return Err(EditError::NoName);
        }
        self.check("through", name)?;
        self.filter.wanted.push(FunctionPattern::of_code_or_group(name));
        Ok(())
    }

    fn check(&mut self, parameter: &'static str, name: &str) -> Result<(), EditError> {
        self.count += 1;
        if self.count > MAX_EDITS {
            return Err(EditError::TooMany);
        }
        let bytes = name.len();
        if bytes > MAX_NAME_BYTES { Err(EditError::LongName { parameter, bytes }) } else { Ok(()) }
    }
}

fn list(names: impl Iterator<Item = &'static str>) -> String {
    names.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::super::{Query, SelectionError};
    use super::*;

    fn error(rest: &str) -> EditError {
        match Query::parse(&format!("from=0&to=1{rest}")) {
            Err(SelectionError::Edit(error)) => error,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn edits_are_those_of_the_pages_address() {
        let query =
            "from=0&to=1&edit=only%3Aacme.Order.*&edit=hide:a:b&through=main&edit=activity:class-loading";
        let query = Query::parse(&format!("{query}&edit=thread:vm&edit=thread:gc")).unwrap();
        let StackFilter { under, wanted, unwanted, activities, threads } = query.stacks;
        let [order, main] =
            [FunctionPattern::of_code("acme.Order.*"), FunctionPattern::of_code_or_group("main")];
        assert_eq!((under, wanted), (Vec::new(), vec![order, main]));
        assert_eq!(unwanted, [FunctionPattern::of_code("a:b")]);
        assert_eq!(activities, BTreeSet::from([JvmActivity::ClassLoading]));
        assert_eq!(threads, BTreeSet::from([ThreadKind::Vm, ThreadKind::Gc]));
        assert!(Query::parse("from=0&to=1").unwrap().is_whole());
        for one in ["edit=only:a", "edit=hide:a", "through=a", "edit=activity:gc", "edit=thread:gc"] {
            assert!(!Query::parse(&format!("from=0&to=1&{one}")).unwrap().is_whole(), "{one}");
        }
    }

    #[test]
    fn what_is_no_edit_is_refused_with_the_reason() {
        for edit in ["", "only", "only:", "hide:", "merge:a", "expand:java.*", "drop:x", "acme.Order.total"] {
            assert_eq!(error(&format!("&edit={edit}")), EditError::NotAnEdit(edit.to_owned()));
        }
        let activity = error("&edit=activity:GC").to_string();
        let expected = "edit=\"activity:GC\" names no activity of JVMs; there are application, gc, ";
        assert!(activity.starts_with(expected), "{activity}");
        let thread = error("&edit=thread:").to_string();
        assert!(thread.ends_with("there are unknown, java, virtual, gc, compiler, vm, native"), "{thread}");
        assert_eq!(error("&through="), EditError::NoName);
    }

    #[test]
    fn names_are_bounded_in_length_and_number() {
        let longest = "x".repeat(MAX_NAME_BYTES);
        for (parameter, begin) in [("edit", "edit=only:"), ("edit", "edit=hide:"), ("through", "through=")] {
            assert!(Query::parse(&format!("from=0&to=1&{begin}{longest}")).is_ok());
            let bytes = MAX_NAME_BYTES + 1;
            assert_eq!(error(&format!("&{begin}{longest}x")), EditError::LongName { parameter, bytes });
        }
        let said = error(&format!("&edit={longest}x")).to_string();
        assert_eq!(said, "parameter edit: a name has 4097 bytes, more than 4096");
        let most = "&edit=hide:a".repeat(MAX_EDITS - 1) + "&through=a";
        assert!(Query::parse(&format!("from=0&to=1{most}")).is_ok());
        for more in ["&edit=only:a", "&edit=thread:gc", "&through=b"] {
            assert_eq!(error(&format!("{most}{more}")), EditError::TooMany);
        }
    }
}
