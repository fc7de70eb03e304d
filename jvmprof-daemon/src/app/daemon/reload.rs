//! SIGHUP: the file is read again, and what can change while the daemon runs is changed.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

use super::{debug_file_uploads, sinks};
use crate::app::args::{Command, DaemonArgs};
use crate::app::errors::{UsageError, explain};
use crate::app::settings::Invocation;
use crate::config::{LoadError, Setting};

/// Settings that are taken over while the daemon runs. A name that ends in `-` stands for all that
/// begin like this.
const CHANGEABLE: &[&str] = &[
    "external-labels",
    "sample-labels",
    "relabel-configs",
    "max-series",
    "node",
    "push-interval",
    "frequency",
    "max-cpu",
    "remote-store-",
    "collector-address",
    "local-store",
    "local-store-",
    "delivery",
    "spool-",
];
/// Those that decide how series are labelled.
const LABELS: &[&str] = &["external-labels", "sample-labels", "relabel-configs", "max-series", "node"];
/// Those that decide where profiles go.
const SINKS: &[&str] =
    &["remote-store-", "collector-address", "local-store", "local-store-", "delivery", "spool-"];
/// Settings that name files which are read once: new contents are a new setting.
const FILES: &[&str] = &["remote-store-ca-file", "remote-store-client-cert", "remote-store-client-key"];

/// Waits for SIGHUP and knows the settings in force.
#[derive(Debug)]
pub(super) struct Reloads {
    hangup: Signal,
    in_force: InForce,
}

/// The settings that hold, and what was in their files.
#[derive(Debug)]
struct InForce {
    settings: BTreeMap<String, Setting>,
    files: BTreeMap<String, Option<u64>>,
}

/// Settings that were read anew and are good.
#[derive(Debug)]
pub(super) struct Reloaded {
    pub(super) args: Box<DaemonArgs>,
    /// Names of settings that have another value than before.
    changed: Vec<String>,
}

impl Reloaded {
    /// These settings, and the changes of earlier ones that don't hold yet.
    pub(super) fn behind(mut self, earlier: Option<Self>) -> Self {
        self.changed.extend(earlier.into_iter().flat_map(|earlier| earlier.changed));
        self
    }

    /// True if series are labelled otherwise.
    pub(super) fn concerns_labels(&self) -> bool {
        self.concerns(LABELS)
    }

    /// True if profiles go elsewhere, or on another way.
    pub(super) fn concerns_sinks(&self) -> bool {
        self.concerns(SINKS)
    }

    /// True if one of these settings has changed; a name that ends in `-` stands for all that begin
    /// like this.
    pub(super) fn concerns(&self, names: &[&str]) -> bool {
        self.changed.iter().any(|changed| is_one_of(changed, names))
    }
}

impl Reloads {
    /// # Errors
    /// The handler can't be installed.
    pub(super) fn new(settings: &BTreeMap<String, Setting>) -> io::Result<Self> {
        Ok(Self { hangup: signal(SignalKind::hangup())?, in_force: InForce::new(settings.clone()) })
    }

    /// Resolves once SIGHUP has arrived.
    pub(super) async fn requested(&mut self) {
        if self.hangup.recv().await.is_none() {
            std::future::pending::<()>().await;
        }
    }

    /// Reads the settings again. `None` if they are bad or if nothing has changed that can: all
    /// stays as it is, and why is logged.
    pub(super) fn load(&mut self) -> Option<Reloaded> {
        let loaded = Invocation::of_process().and_then(|read| check_invocation(&read).map(|()| read));
        match loaded {
            Ok(invocation) => self.take(invocation),
            Err(error) => {
                for line in explain(&error).lines() {
                    tracing::error!("the configuration is kept as it was: {line}");
                }
                None
            }
        }
    }

    fn take(&mut self, invocation: Invocation) -> Option<Reloaded> {
        let Command::Daemon(args) = invocation.cli.command else { return None };
        let (changed, fixed) = self.in_force.replace(invocation.settings.by_name);
        if !fixed.is_empty() {
            tracing::warn!(settings = ?fixed, "these settings have changed and need a restart of the daemon");
        }
        tracing::info!(?changed, "the configuration was read again");
        (!changed.is_empty()).then_some(Reloaded { args, changed })
    }

    /// These settings could not be taken over: the next SIGHUP finds them changed again.
    pub(super) fn not_taken(&mut self, reloaded: &Reloaded) {
        self.in_force.settings.retain(|name, _| !reloaded.changed.contains(name));
    }
}

impl InForce {
    fn new(settings: BTreeMap<String, Setting>) -> Self {
        Self { files: contents(&settings), settings }
    }

    /// Takes over what can change. Gives the names of settings that have, and of those that have
    /// and can't.
    fn replace(&mut self, settings: BTreeMap<String, Setting>) -> (Vec<String>, Vec<String>) {
        let files = contents(&settings);
        let is_same = |name: &String, setting: &Setting| {
            let before = self.settings.get(name);
            before.is_some_and(|before| before.values == setting.values)
                && self.files.get(name) == files.get(name)
        };
        let changed = settings.iter().filter(|(name, setting)| !is_same(name, setting));
        let (changed, fixed): (Vec<String>, Vec<String>) =
            changed.map(|(name, _)| name.clone()).partition(|name| is_one_of(name, CHANGEABLE));
        self.files = files;
        self.settings.extend(settings.into_iter().filter(|(name, _)| changed.contains(name)));
        (changed, fixed)
    }
}

/// What tells one content of a setting's file from another one: a hash, since a key should be in
/// memory no longer than needed.
fn contents(settings: &BTreeMap<String, Setting>) -> BTreeMap<String, Option<u64>> {
    let hash = |path: &String| {
        let mut hasher = DefaultHasher::new();
        std::fs::read(path).ok()?.hash(&mut hasher);
        Some(hasher.finish())
    };
    let files = settings.iter().filter(|(name, _)| is_one_of(name, FILES));
    files.map(|(name, setting)| (name.clone(), setting.values.first().and_then(hash))).collect()
}

fn is_one_of(name: &str, names: &[&str]) -> bool {
    names.iter().any(|it| name == *it || (it.ends_with('-') && name.starts_with(it)))
}

/// What [`check`] finds in settings that were read anew, from within the event loop.
///
/// # Errors
/// The first thing found.
fn check_invocation(invocation: &Invocation) -> Result<(), LoadError> {
    match &invocation.cli.command {
        Command::Daemon(args) => check(args)
            .map_err(|error| LoadError::Contradiction(invocation.settings.with_locations(&error.0))),
        _ => Ok(()),
    }
}

/// Finds what can't work although each flag by itself is right. Connects to nobody and writes
/// nothing. Must be called inside of a tokio runtime.
///
/// # Errors
/// The first thing found.
pub(super) fn check(args: &DaemonArgs) -> Result<(), UsageError> {
    sinks::clients(args)?;
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
        let mut in_force = InForce::new(settings_of(&line));
        assert_eq!(in_force.replace(settings_of(&line)), (vec![], vec![]));
        std::fs::write(file.path(), "renewed").expect("written");
        assert_eq!(in_force.replace(settings_of(&line)).0, ["remote-store-ca-file"]);
        assert_eq!(in_force.replace(settings_of(&line)).0, [""; 0]);
    }

    #[test]
    fn only_what_cannot_change_needs_a_restart() {
        let mut in_force = InForce::new(settings_of("jvmprof daemon"));
        let new = settings_of("jvmprof daemon --local-store-directory /x --symbol-cache-mib 9 -F 9");
        let (changed, fixed) = in_force.replace(new);
        assert_eq!(
            (changed, fixed),
            (
                vec!["frequency".to_owned(), "local-store-directory".to_owned()],
                vec!["symbol-cache-mib".to_owned()],
            )
        );
    }

    #[test]
    fn what_is_said_to_be_changeable_is_a_setting() {
        let settings = settings_of("jvmprof daemon");
        for name in CHANGEABLE {
            assert!(settings.keys().any(|setting| is_one_of(setting, &[name])), "{name}");
        }
        assert!(!is_one_of("node-x", &["node"]));
    }
}
