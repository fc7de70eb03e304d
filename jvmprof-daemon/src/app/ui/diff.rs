//! `jvmprof diff`: two profiles beside each other.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::path::Path;

use anyhow::Context;

use crate::app::args::DiffArgs;
use crate::app::errors::UsageError;
use crate::app::stdout::print_report;
use crate::own_process::{one_line, stderr_line};
use crate::profile::comparison::{
    ChangedFunction, Comparison, Normalisation, SIGNIFICANT_Z, changed_functions,
};
use crate::profile::diff_page::{ComparedType, compare, write_diff_page};
use crate::profile::pprof::decode::{DecodeLimits, decode};
use crate::profile::recording_page::RecordingTitle;
use crate::proto::pprof::Profile;

/// Runs the subcommand.
pub(in crate::app) fn run(args: &DiffArgs) -> anyhow::Result<()> {
    if let Some(output) = args.output.as_ref().filter(|path| path.extension().is_none_or(|it| it != "html")) {
        let text = format!("{}: the page's name must end in .html", output.display());
        return Err(UsageError(text).into());
    }
    let (before, after) = (read(&args.before)?, read(&args.after)?);
    let compared = compare(&before, &after)?;
    let mut text = String::new();
    for of in &compared {
        describe(of, args, &mut text);
    }
    print_report(&text)?;
    let Some(output) = &args.output else { return Ok(()) };
    let title = RecordingTitle {
        title: format!("{} → {}", name(&args.before), name(&args.after)),
        host: String::new(),
    };
    let start_ms = |profile: &Profile| u64::try_from(profile.time_nanos / 1_000_000).unwrap_or(0);
    let starts_ms = [&before, &after].map(start_ms);
    let attempt = || format!("cannot write {}", output.display());
    let mut out = BufWriter::new(File::create(output).with_context(attempt)?);
    write_diff_page(compared, &title, starts_ms, &mut out).with_context(attempt)?;
    out.flush().with_context(attempt)?;
    stderr_line!("wrote {}", output.display());
    Ok(())
}

fn read(path: &Path) -> anyhow::Result<Profile> {
    let bytes = std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    if bytes.trim_ascii_start().starts_with(b"<") {
        anyhow::bail!("{} is no pprof file (.pb.gz), but a page or a picture", path.display());
    }
    decode(&bytes, DecodeLimits::default()).with_context(|| format!("{} is no pprof file", path.display()))
}

fn name(path: &Path) -> String {
    path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned()
}

/// Appends what changed in one kind of numbers.
fn describe(of: &ComparedType, args: &DiffArgs, text: &mut String) {
    let comparison = Comparison { sides: of.sides, by: args.by };
    let changed = changed_functions(of.tree.compared_functions(), &comparison);
    let mut line = |line: String| _ = writeln!(text, "{line}");
    for (which, path, side) in [("before", &args.before, 0), ("after", &args.after, 1)] {
        let of_side = &of.sides[side];
        line(format!(
            "{which:>6}: {}: {} {}, {} events in {:.1} s",
            name(path),
            of_side.total,
            of.name,
            of_side.events,
            of_side.duration_ns as f64 / 1e9
        ));
    }
    if let Some(side) = comparison.empty_sides().iter().position(|is_empty| *is_empty) {
        let which = ["before", "after"][side];
        line(format!("There is nothing to compare: no {} {which}.\n", of.name));
        return;
    }
    if changed.is_empty() {
        line("No function differs by more than chance.\n".to_owned());
        return;
    }
    line(format!("  before    after   change      z  {}", heading(args.by, &of.name)));
    for function in changed.iter().take(args.top) {
        line(row(function, args.by));
    }
    let seen = of.tree.compared_functions().count();
    line(format!(
        "{} of {seen} functions differ by more than chance: {SIGNIFICANT_Z} standard errors or more ({}).\n\
         Samples are taken as independent; the load itself varies more than that.\n",
        changed.len(),
        match args.by {
            Normalisation::Share => "two-proportion z-test",
            Normalisation::Time => "z-test of two rates",
        }
    ));
}

fn heading(by: Normalisation, name: &str) -> String {
    let of = match by {
        Normalisation::Share => format!("share of {name}"),
        Normalisation::Time if matches!(name, "samples" | "cpu") => "CPUs".to_owned(),
        Normalisation::Time => format!("{name} a second"),
    };
    format!("{of}, with the JVM's and the kernel's on the function's behalf")
}

fn row(function: &ChangedFunction<'_>, by: Normalisation) -> String {
    let ChangedFunction { name, values: [before, after], z } = function;
    let number = |value: f64, sign: &str| match by {
        Normalisation::Share => format!("{sign}{:.2} %", value * 100.0),
        Normalisation::Time => format!("{sign}{}", short(value)),
    };
    let sign = if after < before { "-" } else { "+" };
    let change = number((after - before).abs(), sign);
    format!("{:>8} {:>8} {change:>8} {z:>6.1}  {}", number(*before, ""), number(*after, ""), one_line(name))
}

/// A positive number in few characters: `0.031`, `12.5`, `3.4k`, `2.0M`.
fn short(value: f64) -> String {
    let units = [(1e9, "G"), (1e6, "M"), (1e3, "k")];
    match units.into_iter().find(|(size, _)| value >= *size) {
        Some((size, unit)) => format!("{:.1}{unit}", value / size),
        None if value >= 10.0 => format!("{value:.1}"),
        None => format!("{value:.3}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_any_size_fit_their_column() {
        let numbers = [0.0314, 2.5, 99.95, 3_400.0, 123_456_789.0, 5e12];
        assert_eq!(numbers.map(short), ["0.031", "2.500", "100.0", "3.4k", "123.5M", "5000.0G"]);
        let function = ChangedFunction { name: "acme.Order.total", values: [0.153, 0.121], z: -4.25 };
        assert_eq!(
            row(&function, Normalisation::Share),
            " 15.30 %  12.10 %  -3.20 %   -4.2  acme.Order.total"
        );
    }
}
