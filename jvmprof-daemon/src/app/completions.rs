//! `jvmprof completions` and `jvmprof man-pages`: what is generated from the command line's
//! definition.

use std::fs;

use anyhow::Context;

use super::args::{CompletionsArgs, ManPagesArgs};
use super::stdout::print_report;

const PROGRAM: &str = "jvmprof";

/// Prints the completions of a shell.
pub(super) fn print(args: &CompletionsArgs) -> anyhow::Result<()> {
    let mut command = super::settings::schema().documented().clone();
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command, PROGRAM, &mut script);
    Ok(print_report(&String::from_utf8_lossy(&script))?)
}

/// Writes `jvmprof.1` and a page for each subcommand.
pub(super) fn write_man_pages(args: &ManPagesArgs) -> anyhow::Result<()> {
    let dir = &args.directory;
    fs::create_dir_all(dir).with_context(|| format!("cannot create the folder {}", dir.display()))?;
    let command = super::settings::schema().documented().clone().disable_help_subcommand(true);
    // Without it a flag that only `--help` shows has no text on the page.
    let command = command.mut_subcommands(|command| command.mut_args(|arg| arg.hide_short_help(false)));
    clap_mangen::generate_to(command, dir).with_context(|| format!("cannot write to {}", dir.display()))
}
