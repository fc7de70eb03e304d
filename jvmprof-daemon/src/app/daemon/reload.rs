//! SIGHUP: reads the configuration again and finds the settings that have changed.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io;
use std::path::{Path, PathBuf};

use tokio::signal::unix::{Signal, SignalKind, signal};

use super::{backends, debug_file_uploads};
use crate::app::args::{BackendAddress, Command, DaemonArgs};
use crate::app::errors::{UsageError, with_causes};
use crate::app::settings::Invocation;
use crate::config::{ConfigError, Setting};

/// Settings for the labels of series.
const LABELS: &[&str] =
    &["external-labels", "sample-labels", "resource-labels", "relabel-configs", "max-series", "node"];
/// Settings for the sinks. A name that ends in `-` stands for all that begin like this.
const SINKS: &[&str] = &[
    "remote-store-",
    "pyroscope-",
    "otlp-",
    "collector-address",
    "local-store",
    "local-store-",
    "delivery",
    "spool-",
    "sample-times",
];
/// Further settings that may change while the daemon runs.
const WINDOWS: &[&str] = &["push-interval", "frequency", "max-cpu"];
/// Settings that decide whether this host is profiled.
const HOSTS: &[&str] = &["host-fraction", "host-fraction-"];
/// Settings that even a daemon without a pipeline can't change.
const PROCESS: &[&str] = &["http-address", "log-level", "log-format"];
/// Settings that name files which are read once: new contents are a new setting.
const FILES: &[&str] = &[
    "remote-store-ca-file",
    "remote-store-client-cert",
    "remote-store-client-key",
    "pyroscope-ca-file",
    "pyroscope-client-cert",
    "pyroscope-client-key",
    "otlp-ca-file",
    "otlp-client-cert",
    "otlp-client-key",
];
/// Settings whose values may be tables that name such files.
const ADDRESSES: &[&str] = &["remote-store-address", "pyroscope-address", "otlp-address"];

/// Waits for SIGHUP and compares what it reads with the settings in force.
#[derive(Debug)]
pub(super) struct SighupReloader {
    hangup: Signal,
    active: ActiveSettings,
}

/// The settings in force, with hashes of their files' contents.
#[derive(Debug)]
struct ActiveSettings {
    settings: BTreeMap<String, Setting>,
    files: BTreeMap<String, u64>,
}

/// The daemon's state when settings are read again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DaemonState {
    /// It profiles: kernel programs and pipeline stay as they are.
    Profiling,
    /// It has neither, so that almost any setting may change.
    Idle,
}

/// Valid settings that were read again.
#[derive(Debug)]
pub(super) struct ReloadedSettings {
    pub(super) args: Box<DaemonArgs>,
    /// Names of settings that have another value than before.
    changed: Vec<String>,
}

impl ReloadedSettings {
    /// Adds the changes of earlier settings that aren't applied yet.
    pub(super) fn merged_with(mut self, earlier: Option<Self>) -> Self {
        self.changed.extend(earlier.into_iter().flat_map(|earlier| earlier.changed));
        self
    }

    /// Returns true if the labels of series change.
    pub(super) fn changes_labels(&self) -> bool {
        self.changes_any(LABELS)
    }

    /// Returns true if the sinks change, or the delivery to them.
    pub(super) fn changes_sinks(&self) -> bool {
        self.changes_any(SINKS)
    }

    /// Returns true if one of these settings has changed; a name that ends in `-` stands for all
    /// that begin like this.
    pub(super) fn changes_any(&self, names: &[&str]) -> bool {
        self.changed.iter().any(|changed| is_one_of(changed, names))
    }
}

impl SighupReloader {
    /// Installs the signal's handler.
    ///
    /// # Errors
    /// The handler can't be installed.
    pub(super) fn new(settings: &BTreeMap<String, Setting>) -> io::Result<Self> {
        Ok(Self { hangup: signal(SignalKind::hangup())?, active: ActiveSettings::new(settings.clone()) })
    }

    /// Resolves once SIGHUP has arrived.
    pub(super) async fn requested(&mut self) {
        if self.hangup.recv().await.is_none() {
            std::future::pending::<()>().await;
        }
    }

    /// Reads the settings again. Returns `None` if they aren't valid, which is logged, or if none
    /// has changed that can change in this state.
    pub(super) fn load(&mut self, state: DaemonState) -> Option<ReloadedSettings> {
        let loaded = Invocation::of_process().and_then(|read| check_invocation(&read).map(|()| read));
        match loaded {
            Ok(invocation) => self.compare(invocation, state),
            Err(error) => {
                for line in with_causes(&error).lines() {
                    tracing::error!("the configuration is kept as it was: {line}");
                }
                None
            }
        }
    }

    fn compare(&mut self, invocation: Invocation, state: DaemonState) -> Option<ReloadedSettings> {
        let Command::Daemon(args) = invocation.cli.command else { return None };
        let (changed, fixed) = self.active.replace(invocation.settings.by_name, state);
        if !fixed.is_empty() {
            tracing::warn!(settings = ?fixed, "these settings have changed and need a restart of the daemon");
        }
        tracing::info!(?changed, "the configuration was read again");
        (!changed.is_empty()).then_some(ReloadedSettings { args, changed })
    }

    /// Forgets settings that could not be applied: the next SIGHUP finds them changed again.
    pub(super) fn reject(&mut self, reloaded: &ReloadedSettings) {
        self.active.settings.retain(|name, _| !reloaded.changed.contains(name));
    }
}

impl ActiveSettings {
    fn new(settings: BTreeMap<String, Setting>) -> Self {
        Self { files: contents(&settings), settings }
    }

    /// Replaces the settings that may change. Returns the names of those that have, and of settings
    /// that have changed and need a restart.
    fn replace(
        &mut self,
        settings: BTreeMap<String, Setting>,
        state: DaemonState,
    ) -> (Vec<String>, Vec<String>) {
        let files = contents(&settings);
        let is_same = |name: &String, setting: &Setting| {
            let before = self.settings.get(name);
            before.is_some_and(|before| before.values == setting.values)
                && self.files.get(name) == files.get(name)
        };
        let changed = settings.iter().filter(|(name, setting)| !is_same(name, setting));
        let (changed, fixed): (Vec<String>, Vec<String>) =
            changed.map(|(name, _)| name.clone()).partition(|name| is_changeable(name, state));
        self.files = files;
        self.settings.extend(settings.into_iter().filter(|(name, _)| changed.contains(name)));
        (changed, fixed)
    }
}

/// Returns hashes of the contents of the settings' files: a private key should be in memory no
/// longer than needed.
fn contents(settings: &BTreeMap<String, Setting>) -> BTreeMap<String, u64> {
    let hash = |(name, setting): (&String, &Setting)| {
        let files = files_of(name, setting)?;
        let mut hasher = DefaultHasher::new();
        for path in files {
            std::fs::read(path).ok().hash(&mut hasher);
        }
        Some((name.clone(), hasher.finish()))
    };
    settings.iter().filter_map(hash).collect()
}

/// Returns the files that a setting names and that are read once; `None` if it names no such files.
fn files_of(name: &str, setting: &Setting) -> Option<Vec<PathBuf>> {
    if is_one_of(name, FILES) {
        return Some(setting.values.iter().map(PathBuf::from).collect());
    }
    if !is_one_of(name, ADDRESSES) {
        return None;
    }
    let addresses = setting.values.iter().filter_map(|value| value.parse::<BackendAddress>().ok());
    let files = |address: BackendAddress| -> Vec<PathBuf> {
        address.certificate_files().map(Path::to_owned).collect()
    };
    Some(addresses.flat_map(files).collect())
}

fn is_changeable(name: &str, state: DaemonState) -> bool {
    match state {
        DaemonState::Profiling => [LABELS, SINKS, WINDOWS, HOSTS].iter().any(|names| is_one_of(name, names)),
        DaemonState::Idle => !is_one_of(name, PROCESS),
    }
}

fn is_one_of(name: &str, names: &[&str]) -> bool {
    names.iter().any(|it| name == *it || (it.ends_with('-') && name.starts_with(it)))
}

/// Does what [`check`] does, with the places of the settings in the error.
fn check_invocation(invocation: &Invocation) -> Result<(), ConfigError> {
    match &invocation.cli.command {
        Command::Daemon(args) => check(args)
            .map_err(|error| ConfigError::Contradiction(invocation.settings.with_locations(&error.0))),
        _ => Ok(()),
    }
}

/// Checks that settings which are valid by themselves can work together. Connects to nobody and
/// writes nothing. Must be called inside of a tokio runtime.
///
/// # Errors
/// The first contradiction.
pub(super) fn check(args: &DaemonArgs) -> Result<(), UsageError> {
    backends::clients(args)?;
    debug_file_uploads::check(&args.upload, &args.remote)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings_of(line: &str) -> BTreeMap<String, Setting> {
        let argv: Vec<_> = line.split(' ').map(Into::into).collect();
        Invocation::load(&argv, &BTreeMap::new()).expect("they are valid").settings.by_name
    }

    #[test]
    fn a_file_with_new_contents_is_a_setting_that_has_changed() {
        let file = tempfile::NamedTempFile::new().expect("a temporary file can be made");
        let line = format!("jvmprof daemon --remote-store-ca-file {}", file.path().display());
        let mut in_force = ActiveSettings::new(settings_of(&line));
        assert_eq!(in_force.replace(settings_of(&line), DaemonState::Profiling), (vec![], vec![]));
        std::fs::write(file.path(), "renewed").expect("written");
        assert_eq!(in_force.replace(settings_of(&line), DaemonState::Profiling).0, ["remote-store-ca-file"]);
        assert_eq!(in_force.replace(settings_of(&line), DaemonState::Profiling).0, [""; 0]);
    }

    #[test]
    fn a_certificate_of_one_address_with_new_contents_is_a_setting_that_has_changed() {
        let file = tempfile::NamedTempFile::new().expect("a temporary file can be made");
        let path = file.path().display();
        let arguments = [
            "jvmprof".to_owned(),
            "daemon".to_owned(),
            "--otlp-address=http://a:1".to_owned(),
            format!("--otlp-address={{ address = 'https://b:1', ca-file = '{path}' }}"),
        ];
        let argv: Vec<_> = arguments.iter().map(Into::into).collect();
        let settings = || Invocation::load(&argv, &BTreeMap::new()).expect("valid").settings.by_name;
        let mut in_force = ActiveSettings::new(settings());
        assert_eq!(in_force.replace(settings(), DaemonState::Profiling), (vec![], vec![]));
        std::fs::write(file.path(), "renewed").expect("written");
        assert_eq!(in_force.replace(settings(), DaemonState::Profiling).0, ["otlp-address"]);
        assert_eq!(in_force.replace(settings(), DaemonState::Profiling).0, [""; 0]);
    }

    #[test]
    fn only_what_cannot_change_needs_a_restart() {
        let mut in_force = ActiveSettings::new(settings_of("jvmprof daemon"));
        let new = settings_of("jvmprof daemon --local-store-directory /x --symbol-cache-mib 9 -F 9");
        let (changed, fixed) = in_force.replace(new, DaemonState::Profiling);
        assert_eq!(
            (changed, fixed),
            (
                vec!["frequency".to_owned(), "local-store-directory".to_owned()],
                vec!["symbol-cache-mib".to_owned()],
            )
        );
    }

    #[test]
    fn an_idle_daemon_takes_what_needs_a_restart_of_others() {
        let mut in_force = ActiveSettings::new(settings_of("jvmprof daemon"));
        let new =
            settings_of("jvmprof daemon --symbol-cache-mib 9 --http-address 127.0.0.1:1 --log-format json");
        assert_eq!(
            in_force.replace(new, DaemonState::Idle),
            (vec!["symbol-cache-mib".to_owned()], vec!["http-address".to_owned(), "log-format".to_owned()],)
        );
    }

    #[test]
    fn what_is_said_to_be_changeable_is_a_setting() {
        let settings = settings_of("jvmprof daemon");
        for name in [LABELS, SINKS, WINDOWS, HOSTS, PROCESS].iter().copied().flatten() {
            assert!(settings.keys().any(|setting| is_one_of(setting, &[name])), "{name}");
        }
        assert!(!is_one_of("node-x", &["node"]));
    }
}
