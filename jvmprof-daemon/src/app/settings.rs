//! The invocation of this program: the command line, completed by the environment and the
//! configuration file.

use std::collections::BTreeMap;
use std::ffi::OsString;

use clap::{CommandFactory, FromArgMatches};

use super::args::Cli;
use crate::config::{ConfigError, ConfigSchema, Settings, SettingsScope};

/// A command line that was understood.
#[derive(Debug)]
pub struct Invocation {
    pub cli: Cli,
    pub settings: Settings,
}

/// Returns the command line, on which the flags of the daemon are settings.
pub(super) fn schema() -> ConfigSchema {
    let scope = SettingsScope {
        subcommand: "daemon",
        file_flag: "config",
        command_line_only: &["check-config", "example-config"],
    };
    ConfigSchema::new(Cli::command(), scope)
}

impl Invocation {
    /// Reads this process's command line and environment and the file that they name.
    ///
    /// # Errors
    /// One of them isn't valid, or all that is asked for is help.
    pub fn of_process() -> Result<Self, ConfigError> {
        Self::load(&std::env::args_os().collect::<Vec<_>>(), &std::env::vars_os().collect())
    }

    pub(super) fn load(
        argv: &[OsString],
        environment: &BTreeMap<OsString, OsString>,
    ) -> Result<Self, ConfigError> {
        let (matches, settings) = schema().load(argv, environment)?;
        Ok(Self { cli: Cli::from_arg_matches(&matches)?, settings })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::{Path, PathBuf};

    use super::*;
    use crate::app::args::{Command, DaemonArgs};
    use crate::app::pipeline_options::options;
    use crate::pipeline::allocation::{AllocationOptions, ClassPlace};
    use crate::symbolize::NativeOptions;

    fn load(line: &str) -> Result<Invocation, ConfigError> {
        Invocation::load(&line.split(' ').map(OsString::from).collect::<Vec<_>>(), &BTreeMap::new())
    }

    fn deployed() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/jvmprof.toml")
    }

    #[test]
    fn the_deployed_example_is_current() {
        let deployed = std::fs::read_to_string(deployed()).expect("deploy/jvmprof.toml is there");
        assert_eq!(
            deployed,
            schema().example(),
            "`jvmprof daemon --example-config > deploy/jvmprof.toml` brings it up to date"
        );
    }

    /// Returns the daemon's flags with these settings.
    fn daemon_with(settings: &str) -> Box<DaemonArgs> {
        let file = tempfile::NamedTempFile::new().expect("a temporary file can be made");
        std::fs::write(file.path(), settings).expect("written");
        let invocation = load(&format!("jvmprof daemon --config {}", file.path().display()));
        match invocation.expect("it is valid").cli.command {
            Command::Daemon(args) => args,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn allocation_may_be_a_table() {
        let table = "[alloc]\nenabled = true\ninterval = '1MiB'\nmax-events = 7\ncensus-cpu = 0.5\n\
            class = 'off'\n";
        let args = daemon_with(table);
        assert!(args.alloc_enabled);
        let expected = AllocationOptions {
            interval: 1 << 20,
            max_events: 7,
            census_cpu_ppm: 5000,
            class: ClassPlace::Off,
        };
        let options = options(&args.sampling, None, NativeOptions::default(), &BTreeSet::new());
        assert_eq!(options.allocation, expected);
        assert!(!daemon_with("[alloc]\nclass = 'label'\n").alloc_enabled);
    }

    #[test]
    fn the_deployed_example_says_the_defaults() {
        let text = std::fs::read_to_string(deployed()).expect("deploy/jvmprof.toml is there");
        let settings: String = text
            .lines()
            .filter_map(|line| line.strip_prefix('#').filter(|rest| !rest.starts_with(' ')))
            .map(|line| format!("{line}\n"))
            .collect();
        let file = tempfile::NamedTempFile::new().expect("a temporary file can be made");
        std::fs::write(file.path(), &settings).expect("written");
        let said = load(&format!("jvmprof daemon --config {}", file.path().display())).expect("it is valid");
        let defaults = load("jvmprof daemon").expect("it is valid");
        assert_eq!(said.settings.by_name.len(), settings.lines().count());
        for (name, setting) in &said.settings.by_name {
            assert_eq!(setting.values, defaults.settings.by_name[name].values, "{name}");
        }
        let arguments = |invocation: Invocation| {
            let mut cli = invocation.cli;
            if let Command::Daemon(args) = &mut cli.command {
                args.config.config = None;
            }
            format!("{cli:?}")
        };
        assert_eq!(arguments(said), arguments(defaults));
    }
}
