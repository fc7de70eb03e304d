//! `diff -o d.html`: two pprof profiles in the trees of one page.

use std::io::Write;

use super::call_tree::{CallTree, PAGE_NODES, PprofSeries, Processes, TreeBuilder};
use super::comparison::ComparedSide;
use super::pprof::{CheckedTables, InvalidProfile, sampled_events};
use super::recording_page::{
    HtmlError, RecordedType, RecordingPageData, RecordingTitle, StackGroups, write_page,
};
use crate::event_type::ShownUnit;
use crate::proto::pprof::Profile;

/// The reason why two profiles can't be compared.
#[derive(Debug, thiserror::Error)]
pub enum DiffError {
    #[error("{which} profile's parts don't fit together: {source}")]
    Invalid { which: &'static str, source: InvalidProfile },
    #[error("{which} profile is empty: it doesn't say what it counts")]
    Empty { which: &'static str },
    #[error("the profiles count nothing that is the same: {before} and {after}")]
    NothingInCommon { before: String, after: String },
}

/// One kind of numbers of two profiles.
#[derive(Debug)]
pub struct ComparedType {
    /// pprof's name of it.
    pub name: String,
    /// The profile before is the base.
    pub tree: CallTree,
    pub sides: [ComparedSide; 2],
}

/// Returns all numbers that both profiles have, what they show by default first.
///
/// # Errors
/// See [`DiffError`].
pub fn compare(before: &Profile, after: &Profile) -> Result<Vec<ComparedType>, DiffError> {
    let names = [type_names(before, "the first")?, type_names(after, "the second")?];
    // CPU time is samples in another unit, if there are samples.
    let has_samples = |names: &[String]| names.iter().any(|name| name == "samples");
    let both_have_samples = names.iter().all(|names| has_samples(names));
    let is_shown = |name: &&String| names[1].contains(name) && !(both_have_samples && *name == "cpu");
    let common: Vec<&String> = names[0].iter().filter(is_shown).collect();
    if common.is_empty() {
        let [before, after] = names.map(|names| names.join(", "));
        return Err(DiffError::NothingInCommon { before, after });
    }
    common.into_iter().map(|name| compared_type(before, after, name)).collect()
}

fn type_names(profile: &Profile, which: &'static str) -> Result<Vec<String>, DiffError> {
    let tables = CheckedTables::new(profile).map_err(|source| DiffError::Invalid { which, source })?;
    if profile.sample_type.is_empty() {
        return Err(DiffError::Empty { which });
    }
    Ok(profile.sample_type.iter().map(|of| tables.text(of.r#type).to_owned()).collect())
}

fn compared_type(before: &Profile, after: &Profile, name: &str) -> Result<ComparedType, DiffError> {
    let mut builder = TreeBuilder::default();
    if matches!(name, "samples" | "cpu") || ShownUnit::of_sample_type(Some(name)).is_of_waits() {
        builder.count_activities();
    }
    let mut add = |profile: &Profile, which, is_base| {
        builder.count_base(is_base);
        let series = PprofSeries { sample_type: Some(name), ..PprofSeries::default() };
        builder.add_pprof(profile, &series).map_err(|source| DiffError::Invalid { which, source })
    };
    add(before, "the first", true)?;
    add(after, "the second", false)?;
    let tree = builder.finish(PAGE_NODES);
    let [base, total] = tree.totals();
    let sides = [side(before, name, base), side(after, name, total)];
    Ok(ComparedType { name: name.to_owned(), tree, sides })
}

fn side(profile: &Profile, name: &str, total: u64) -> ComparedSide {
    let positive = |number: i64| u64::try_from(number).unwrap_or(0);
    let period_ns = match name {
        // Nanoseconds are their own time.
        "cpu" => 1,
        "samples" => positive(profile.period),
        _ => 0,
    };
    ComparedSide {
        period_ns,
        duration_ns: positive(profile.duration_nanos),
        events: sampled_events(profile, name),
        total,
    }
}

/// Writes the page of compared numbers. `starts_ms`: when the profiles before and after were taken,
/// in milliseconds since 1970; 0 if that isn't known.
///
/// # Errors
/// Those of `out`.
pub fn write_diff_page(
    compared: Vec<ComparedType>,
    title: &RecordingTitle,
    starts_ms: [u64; 2],
    out: &mut impl Write,
) -> Result<(), HtmlError> {
    let (mut types, mut trees) = (Vec::new(), Vec::new());
    let duration_ns = compared.first().map_or(0, |of| of.sides[1].duration_ns);
    for (tree, ComparedType { name, tree: columns, sides }) in compared.into_iter().enumerate() {
        let period_ns = sides[1].period_ns;
        let mut add = |name: &str, unit| {
            types.push(RecordedType { name: name.to_owned(), unit, period_ns, tree, sides: Some(sides) });
        };
        match &*name {
            "samples" => {
                add("samples", ShownUnit::Samples);
                add("cpu", ShownUnit::Nanoseconds);
            }
            "cpu" => add("cpu", ShownUnit::Nanoseconds),
            _ => add(&name, ShownUnit::of_sample_type(Some(&name))),
        }
        trees.push(columns.packed(false));
    }
    let recorded = RecordingPageData {
        title,
        groups: StackGroups::Programs,
        processes: Processes::default(),
        start_ms: starts_ms[1],
        base_start_ms: Some(starts_ms[0]),
        duration_ns,
        types,
        trees,
        times: Vec::new(),
        pauses: &[],
    };
    write_page(&recorded, out)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::event_type::EventType;
    use crate::profile::model::FrameKind;
    use crate::profile::pprof::for_file;
    use crate::profile::recording_page::data;
    use crate::profile::testing::{batch, frame, series};

    fn profile(count: u64, event: EventType) -> Profile {
        let stack = vec![frame(FrameKind::Native, "leaf"), frame(FrameKind::Native, "main")];
        let mut batch = batch(vec![series(&[("comm", "java")], vec![(stack, count)])]);
        batch.event = event;
        for sample in &mut batch.series[0].samples {
            sample.value = sample.count * 1_000;
        }
        for_file(&batch)
    }

    #[test]
    fn numbers_of_both_profiles_are_compared() {
        let [before, after] = [profile(7, EventType::Cpu), profile(30, EventType::Cpu)];
        let compared = compare(&before, &after).unwrap();
        assert_eq!(compared.iter().map(|of| &*of.name).collect::<Vec<_>>(), ["samples"]);
        assert_eq!(compared[0].tree.totals(), [7, 30]);
        assert_eq!(compared[0].sides.map(|side| side.events), [7, 30]);
        let mut out = Vec::new();
        let title = RecordingTitle { title: "a and b".to_owned(), host: String::new() };
        write_diff_page(compared, &title, [5, 9], &mut out).unwrap();
        let page = String::from_utf8(out).unwrap();
        let data = data(&page);
        assert_eq!((&data["base_start_ms"], &data["start_ms"]), (&json!(5), &json!(9)));
        assert_eq!(
            (&data["types"][1]["name"], &data["types"][1]["unit"]),
            (&json!("cpu"), &json!("nanoseconds"))
        );
        assert_eq!(data["trees"][0]["nodes"]["base"], json!([7, 7, 7]));
    }

    #[test]
    fn the_weight_of_estimates_is_that_of_their_events() {
        let [before, after] = [profile(7, EventType::Allocation), profile(30, EventType::Allocation)];
        let compared = compare(&before, &after).unwrap();
        let names: Vec<_> = compared.iter().map(|of| &*of.name).collect();
        assert_eq!(names, ["alloc_objects", "alloc_space"]);
        assert_eq!((compared[1].sides[1].total, compared[1].sides[1].events), (30_000, 30));
    }

    #[test]
    fn profiles_of_different_things_are_not_compared() {
        let error = compare(&profile(7, EventType::Cpu), &profile(7, EventType::Allocation)).unwrap_err();
        let said = "the profiles count nothing that is the same: samples, cpu and alloc_objects, alloc_space";
        assert_eq!(error.to_string(), said);
        let error = compare(&profile(7, EventType::Cpu), &Profile::default()).unwrap_err();
        assert_eq!(error.to_string(), "the second profile is empty: it doesn't say what it counts");
    }
}
