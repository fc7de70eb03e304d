//! Tests of the formats against each other and against Go's own pprof.

mod encode;
mod go_pprof;
mod merge;
mod sample_times;

use std::collections::BTreeMap;

use crate::proto::pprof::Profile;

/// The content of a profile, without ids and indices: values by labels and stack. Frames as
/// `name@system_name file:line`.
pub(super) type Content = BTreeMap<(Vec<String>, Vec<String>), Vec<i64>>;

pub(super) fn content(profile: &Profile) -> Content {
    let text = |index: i64| profile.string_table[index as usize].as_str();
    let frames = |id: &u64| {
        let location = &profile.location[*id as usize - 1];
        assert_eq!(location.id, *id);
        let path = match location.mapping_id {
            0 => "-",
            id => text(profile.mapping[id as usize - 1].filename),
        };
        let mut frames = vec![format!("{path} {} lines", location.line.len())];
        frames.extend(location.line.iter().map(|line| {
            let function = &profile.function[line.function_id as usize - 1];
            assert_eq!(function.id, line.function_id);
            let (name, system_name) = (text(function.name), text(function.system_name));
            format!("{name}@{system_name} {}:{}", text(function.filename), line.line)
        }));
        frames
    };
    let mut content = Content::new();
    for sample in &profile.sample {
        let labels =
            sample.label.iter().map(|label| format!("{}={}", text(label.key), text(label.str))).collect();
        let stack = sample.location_id.iter().flat_map(frames).collect();
        let sums = content.entry((labels, stack)).or_insert_with(|| vec![0; sample.value.len()]);
        sums.iter_mut().zip(&sample.value).for_each(|(sum, value)| *sum += value);
    }
    content
}
