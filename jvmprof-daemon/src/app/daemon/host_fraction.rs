//! `--host-fraction`: whether this host is profiled, which a hash of its identity decides.

use std::fmt;
use std::fs;

use sha2::{Digest, Sha256};

use crate::app::args::{DaemonArgs, HostIdentityArg};
use crate::app::pipeline_options::node_name;
use crate::telemetry::HostStatus;

/// Paths of the machine id: that of the host first, which a container sees at its first process.
const MACHINE_ID_FILES: [&str; 2] = ["/proc/1/root/etc/machine-id", "/etc/machine-id"];

/// The identity of this host.
#[derive(Clone, Debug, PartialEq, Eq)]
enum HostIdentity {
    MachineId(String),
    Node(String),
}

/// The decision whether this host is profiled, with its reason.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct HostChoice {
    fraction: f64,
    /// Where the host is among all, from 0 to 1: it is profiled with fractions above.
    position: f64,
    identity: HostIdentity,
}

impl HostChoice {
    /// Decides by these settings. Reads the machine id.
    pub(super) fn of(args: &DaemonArgs) -> Self {
        let node = || HostIdentity::Node(args.labels.node.clone().unwrap_or_else(node_name));
        let identity = match args.hosts.host_fraction_by {
            HostIdentityArg::MachineId => machine_id().map_or_else(node, HostIdentity::MachineId),
            HostIdentityArg::Node => node(),
        };
        let salt = args.hosts.host_fraction_salt.as_deref().unwrap_or_default();
        Self::new(args.hosts.host_fraction, salt, identity)
    }

    fn new(fraction: f64, salt: &str, identity: HostIdentity) -> Self {
        Self { fraction, position: position(salt, identity.text()), identity }
    }

    pub(super) fn is_profiled(&self) -> bool {
        self.position < self.fraction
    }

    /// Returns true if not all hosts of a fleet are profiled.
    pub(super) fn is_partial(&self) -> bool {
        self.fraction < 1.0
    }

    pub(super) fn status(&self) -> HostStatus {
        HostStatus { is_profiled: self.is_profiled(), fraction: self.fraction }
    }
}

/// Writes the decision, and what decided it. Machine ids are confidential, so that theirs isn't
/// shown.
impl fmt::Display for HostChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let HostChoice { fraction, position, identity } = self;
        let by = match identity {
            HostIdentity::MachineId(_) => "machine id",
            HostIdentity::Node(_) => "node",
        };
        let is_not = if self.is_profiled() { "is" } else { "isn't" };
        write!(
            f,
            "this host {is_not} among those that are profiled: host-fraction is {fraction}, its place is \
             {position:.4} by its {by}"
        )
    }
}

impl HostIdentity {
    fn text(&self) -> &str {
        match self {
            Self::MachineId(text) | Self::Node(text) => text,
        }
    }
}

/// Returns the place of a host among all: uniform in `0.0..1.0`, and always the same.
fn position(salt: &str, identity: &str) -> f64 {
    let mut hash = Sha256::new();
    hash.update(salt);
    hash.update([0]);
    hash.update(identity);
    let [a, b, c, d, e, f, g, ..]: [u8; 32] = hash.finalize().into();
    // As many bits as a double holds: with all of 64 the largest would become 1.
    let bits = u64::from_be_bytes([0, a, b, c, d, e, f, g]) >> 3;
    bits as f64 / (1_u64 << 53) as f64
}

/// Returns the machine id of the host, if it has one that can be read.
fn machine_id() -> Option<String> {
    MACHINE_ID_FILES.iter().find_map(|file| valid_machine_id(&fs::read_to_string(file).ok()?))
}

/// Returns what is in such a file if it is an id: images of machines have empty files, or
/// `uninitialized` (machine-id(5)).
fn valid_machine_id(text: &str) -> Option<String> {
    let id = text.trim();
    let is_id = id.len() == 32 && id.bytes().all(|byte| byte.is_ascii_hexdigit());
    (is_id && id.bytes().any(|byte| byte != b'0')).then(|| id.to_ascii_lowercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(fraction: f64, salt: &str) -> Vec<usize> {
        let is_chosen = |host: &usize| {
            HostChoice::new(fraction, salt, HostIdentity::MachineId(format!("{host:032x}"))).is_profiled()
        };
        (0..10_000).filter(is_chosen).collect()
    }

    #[test]
    fn a_fraction_is_that_share_of_the_hosts() {
        assert_eq!(chosen(0.0, "").len(), 0);
        assert_eq!(chosen(1.0, "").len(), 10_000);
        for percent in [1, 10, 50, 90] {
            let share = chosen(f64::from(percent) / 100.0, "").len();
            // Five standard deviations: the hash is always the same, and so is the result.
            let wanted = percent as usize * 100;
            assert!(share.abs_diff(wanted) <= 250, "{share} of 10,000 for {percent} %");
        }
    }

    #[test]
    fn a_larger_fraction_has_the_hosts_of_a_smaller_one() {
        let mut smaller = chosen(0.0, "");
        for fraction in [0.01, 0.1, 0.5, 0.9, 1.0] {
            let larger = chosen(fraction, "");
            assert!(smaller.iter().all(|host| larger.contains(host)), "{fraction}");
            smaller = larger;
        }
    }

    #[test]
    fn another_salt_chooses_other_hosts() {
        let (some, others) = (chosen(0.1, ""), chosen(0.1, "2026"));
        let both = some.iter().filter(|host| others.contains(host)).count();
        assert!((50..150).contains(&both), "{both} of 1,000: a tenth of a tenth is chance");
    }

    /// Hosts that change with a new version of the daemon would be another fleet.
    #[test]
    fn places_never_change() {
        for (salt, identity, place) in [
            ("", "node-1", 0.91551),
            ("", "0123456789abcdef0123456789abcdef", 0.23537),
            ("salt", "node-1", 0.56371),
        ] {
            let found = position(salt, identity);
            assert!((found - place).abs() < 1e-4, "{salt:?} {identity:?}: {found:.4}");
        }
    }

    #[test]
    fn only_a_real_machine_id_is_one() {
        let id = "0123456789abcdef0123456789abcdef";
        assert_eq!(valid_machine_id(&format!("{id}\n")).as_deref(), Some(id));
        assert_eq!(valid_machine_id(&id.to_uppercase()).as_deref(), Some(id));
        for text in
            ["", "\n", "uninitialized\n", &"0".repeat(32), &id[1..], "0123456789abcdef0123456789abcdeg"]
        {
            assert_eq!(valid_machine_id(text), None, "{text:?}");
        }
    }

    #[test]
    fn what_is_decided_is_told_without_the_machine_id() {
        let id = "0123456789abcdef0123456789abcdef".to_owned();
        let text = HostChoice::new(0.0, "", HostIdentity::MachineId(id.clone())).to_string();
        assert!(text.contains("isn't among") && text.contains("machine id") && !text.contains(&id), "{text}");
    }
}
