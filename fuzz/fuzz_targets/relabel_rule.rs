//! Any text as a relabelling rule, and others as labels, one a line: an error is one line of text,
//! a rule does the same to the same labels, and what is left of them are names of labels.
#![no_main]

mod pieces;

use jvmprof_daemon::config::relabel::{RelabelRule, is_label_name, relabel, relabel_kept, retain_public};
use jvmprof_daemon::profile::model::LabelSet;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let mut rest = data;
    let Ok(rule) = std::str::from_utf8(pieces::piece(&mut rest)) else { return };
    let rule = match rule.parse::<RelabelRule>() {
        Ok(rule) => rule,
        Err(error) => {
            assert!(!error.to_string().is_empty());
            return;
        }
    };
    let text = String::from_utf8_lossy(rest);
    let pairs = text.lines().filter_map(|line| line.split_once('='));
    let before: LabelSet = pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
    let rules = [rule];
    let (mut first, mut second, mut kept) = (before.clone(), before.clone(), before.clone());
    if relabel(&rules, &mut first) {
        assert!(relabel(&rules, &mut second));
        assert_eq!(first, second);
        relabel_kept(&rules, &mut kept);
        assert_eq!(first, kept);
    }
    retain_public(&mut first);
    assert!(first.iter().all(|(name, value)| is_label_name(name) && !value.is_empty()));
});
