//! SIGHUP: the file is read again, and what can change while the daemon runs is changed.

use std::collections::BTreeMap;
use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

use super::cli::{Command, DaemonArgs};
use super::settings::{self, LoadError, Loaded};
use crate::config::Setting;

/// Settings that are taken over while the daemon runs. A name that ends in `-` stands for all that begin like this.
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
    "delivery",
    "spool-",
];
/// Those that decide how series are labelled.
const LABELS: &[&str] = &["external-labels", "sample-labels", "relabel-configs", "max-series", "node"];
/// Those that decide where profiles go.
const SINKS: &[&str] = &["remote-store-", "collector-address", "local-store", "delivery", "spool-"];

/// Waits for SIGHUP and knows the settings in force.
#[derive(Debug)]
pub(super) struct Reloads {
    hangup: Signal,
    settings: BTreeMap<String, Setting>,
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

    /// True if one of these settings has changed; a name that ends in `-` stands for all that begin like this.
    pub(super) fn concerns(&self, names: &[&str]) -> bool {
        self.changed.iter().any(|changed| is_one_of(changed, names))
    }
}

impl Reloads {
    /// # Errors
    /// The handler can't be installed.
    pub(super) fn new(settings: &BTreeMap<String, Setting>) -> io::Result<Self> {
        Ok(Self { hangup: signal(SignalKind::hangup())?, settings: settings.clone() })
    }

    /// Resolves once SIGHUP has arrived.
    pub(super) async fn requested(&mut self) {
        if self.hangup.recv().await.is_none() {
            std::future::pending::<()>().await;
        }
    }

    /// Reads the settings again. `None` if they are bad or if nothing has changed that can: all stays as it is, and why is
    /// logged.
    pub(super) fn load(&mut self) -> Option<Reloaded> {
        let loaded = settings::load().and_then(|loaded| settings::check_loaded(&loaded).map(|()| loaded));
        match loaded {
            Ok(loaded) => self.take(loaded),
            Err(error) => {
                for line in explain(&error).lines() {
                    tracing::error!("the configuration is kept as it was: {line}");
                }
                None
            }
        }
    }

    fn take(&mut self, loaded: Loaded) -> Option<Reloaded> {
        let Command::Daemon(args) = loaded.cli.command else { return None };
        let mut changed = Vec::new();
        let mut fixed = Vec::new();
        for (name, setting) in loaded.resolved.settings {
            if self.settings.get(&name).is_some_and(|before| before.values == setting.values) {
                continue;
            }
            if is_one_of(&name, CHANGEABLE) {
                self.settings.insert(name.clone(), setting);
                changed.push(name);
            } else {
                fixed.push(name);
            }
        }
        if !fixed.is_empty() {
            tracing::warn!(settings = ?fixed, "these settings have changed and need a restart of the daemon");
        }
        tracing::info!(?changed, "the configuration was read again");
        (!changed.is_empty()).then_some(Reloaded { args, changed })
    }
}

fn is_one_of(name: &str, names: &[&str]) -> bool {
    names.iter().any(|it| name == *it || (it.ends_with('-') && name.starts_with(it)))
}

fn explain(error: &LoadError) -> String {
    super::explain(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_to_be_changeable_is_a_setting() {
        let resolver = settings::load_from(vec!["jvmprof".into(), "daemon".into()], &BTreeMap::new());
        let settings = resolver.expect("the defaults are valid").resolved.settings;
        for name in CHANGEABLE {
            assert!(settings.keys().any(|setting| is_one_of(setting, &[name])), "{name}");
        }
        assert!(!is_one_of("node-x", &["node"]));
    }
}
