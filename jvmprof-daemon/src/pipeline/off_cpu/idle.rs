//! Idle waits: of threads that have nothing to do. What they are, rules say: those of
//! `idle_rules.toml` and those of users, in the same form.

use std::str::FromStr;
use std::sync::Arc;

use serde::Deserialize;
use serde::de::Error as _;

use super::cause::Cause;
use crate::profile::model::Frame;

const DEFAULTS: &str = include_str!("idle_rules.toml");

/// A rule by which a wait is idle.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct IdleRule {
    /// The stack has all of these, in any order: a name, whose begin or end a `*` may stand for.
    frames: Vec<String>,
    /// The causes for which it holds; none: for all in which the thread waits for others.
    #[serde(default, deserialize_with = "causes")]
    wait: Vec<Cause>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RuleFile {
    idle: Vec<IdleRule>,
}

fn causes<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Vec<Cause>, D::Error> {
    let names = Vec::<String>::deserialize(deserializer)?;
    let cause = |name: &String| {
        let found = Cause::ALL.into_iter().find(|cause| cause.as_str() == name);
        found.ok_or_else(|| D::Error::custom(format!("{name:?} is no cause of a wait")))
    };
    names.iter().map(cause).collect()
}

/// Reads a rule as it stands in a configuration file: a TOML table.
impl FromStr for IdleRule {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let read = toml::de::ValueDeserializer::parse(text.trim()).and_then(Self::deserialize);
        let rule = read.map_err(|error| error.message().to_owned())?;
        if rule.frames.iter().all(|name| name.trim_matches('*').is_empty()) {
            return Err("frames must name a function".to_owned());
        }
        Ok(rule)
    }
}

impl IdleRule {
    fn matches(&self, cause: Cause, frames: &[Arc<Frame>]) -> bool {
        let is_meant =
            if self.wait.is_empty() { waits_for_others(cause) } else { self.wait.contains(&cause) };
        let has = |pattern: &String| {
            let mut lines = frames.iter().flat_map(|frame| &frame.lines);
            lines.any(|line| is_like(&line.name, pattern))
        };
        is_meant && self.frames.iter().all(has)
    }
}

const fn waits_for_others(cause: Cause) -> bool {
    !matches!(
        cause,
        Cause::Runnable
            | Cause::CpuQuota
            | Cause::PageFault
            | Cause::Io
            | Cause::Safepoint
            | Cause::Gc
            | Cause::Monitor
    )
}

fn is_like(name: &str, pattern: &str) -> bool {
    match (pattern.strip_prefix('*'), pattern.strip_suffix('*')) {
        (Some(_), Some(_)) => name.contains(pattern.trim_matches('*')),
        (Some(end), None) => name.ends_with(end),
        (None, Some(begin)) => name.starts_with(begin),
        (None, None) => name == pattern,
    }
}

/// All rules in force.
#[derive(Debug)]
pub(super) struct IdleRules(Vec<IdleRule>);

impl IdleRules {
    /// Returns the rules of this program, and then these.
    pub(super) fn with(users: &[IdleRule]) -> Self {
        // A test reads the file, too.
        let own = toml::from_str::<RuleFile>(DEFAULTS).map(|file| file.idle).unwrap_or_default();
        Self(own.into_iter().chain(users.iter().cloned()).collect())
    }

    pub(super) fn is_idle(&self, cause: Cause, frames: &[Arc<Frame>]) -> bool {
        self.0.iter().any(|rule| rule.matches(cause, frames))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::model::{FrameKind, Line};

    fn stack(names: &[&str]) -> Vec<Arc<Frame>> {
        let frame = |name: &&str| Frame {
            kind: FrameKind::Native,
            address: None,
            mapping: None,
            lines: vec![Line::named(*name)],
        };
        names.iter().map(frame).map(Arc::new).collect()
    }

    #[test]
    fn the_rules_of_this_program_can_be_read() {
        let file: RuleFile = toml::from_str(DEFAULTS).expect("valid rules");
        assert!(file.idle.len() > 40 && file.idle.iter().all(|rule| !rule.frames.is_empty()));
        assert_eq!(IdleRules::with(&[]).0.len(), file.idle.len());
    }

    #[test]
    fn a_worker_without_a_task_is_idle_and_one_at_work_is_not() {
        let rules = IdleRules::with(&[]);
        let pool = "java.util.concurrent.ThreadPoolExecutor.runWorker";
        let waiting = stack(&["f", "java.util.concurrent.ThreadPoolExecutor.getTask", pool]);
        assert!(rules.is_idle(Cause::Park, &waiting));
        assert!(!rules.is_idle(Cause::Runnable, &waiting), "it was woken");
        assert!(!rules.is_idle(Cause::Park, &stack(&["com.acme.Job.run", pool])));
        let worker = ["PosixSemaphore::wait()", "WorkerThread::run()"];
        assert!(rules.is_idle(Cause::Futex, &stack(&worker)));
        assert!(!rules.is_idle(Cause::Futex, &stack(&worker[1..])));
    }

    #[test]
    fn users_add_rules_of_the_same_form() {
        let rule: IdleRule =
            r#"{ frames = ["com.acme.Pool.take*"], wait = ["park", "sleep"] }"#.parse().expect("valid");
        let rules = IdleRules::with(&[rule]);
        let taking = stack(&["com.acme.Pool.takeNext"]);
        assert!(rules.is_idle(Cause::Sleep, &taking) && !rules.is_idle(Cause::Socket, &taking));
        for wrong in [
            r#"{ frames = [] }"#,
            r#"{ frames = ["*"] }"#,
            r#"{ frames = ["a"], wait = ["lunch"] }"#,
            r#"{ frames = ["a"], thread = "b" }"#,
            "a",
        ] {
            assert!(wrong.parse::<IdleRule>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_star_stands_for_any_begin_or_end() {
        for (pattern, name, is_meant) in [
            ("a.b", "a.b", true),
            ("a.b", "a.bc", false),
            ("a.*", "a.b", true),
            ("*b", "a.b", true),
            ("*.*", "a.b", true),
            ("b*", "a.b", false),
        ] {
            assert_eq!(is_like(name, pattern), is_meant, "{pattern} {name}");
        }
    }
}
