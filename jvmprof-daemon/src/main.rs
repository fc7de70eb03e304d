//! `jvmprof`: reads the command line and the configuration, sets up logging, runs the subcommand.

use std::process::ExitCode;

use jvmprof_daemon::app::settings::Invocation;
use jvmprof_daemon::app::{self, paused_command};
use jvmprof_daemon::config::ConfigError;
use jvmprof_daemon::own_process::write_stderr_line;

fn main() -> ExitCode {
    // `record -- COMMAND` starts the command through this same binary: nothing may come before.
    if let Some(gate) = paused_command::exec_gate() {
        return gate.run();
    }
    match Invocation::of_process() {
        Ok(invocation) => app::run(invocation),
        Err(ConfigError::CommandLine(error)) => {
            // Help and version are no errors.
            let usage = error.use_stderr();
            let _ = error.print();
            if usage { app::EXIT_USAGE.into() } else { ExitCode::SUCCESS }
        }
        Err(error) => {
            write_stderr_line(format_args!("jvmprof: the configuration can't be used\n{error}"));
            app::EXIT_USAGE.into()
        }
    }
}
