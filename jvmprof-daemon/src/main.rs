//! `jvmprof`: reads the command line, sets up logging, runs the subcommand.

use std::process::ExitCode;

use clap::Parser;
use jvmprof_daemon::app::{self, cli::Cli, exec_gate};

fn main() -> ExitCode {
    // `record -- COMMAND` starts the command through this same binary: nothing may come before.
    if let Some(gate) = exec_gate::requested() {
        return gate.run();
    }
    match Cli::try_parse() {
        Ok(cli) => app::run(cli),
        Err(error) => {
            // Help and version are no errors.
            let usage = error.use_stderr();
            let _ = error.print();
            if usage { app::EXIT_USAGE.into() } else { ExitCode::SUCCESS }
        }
    }
}
