//! Expected stacks of the oracle programs: chains of calls, and shares of time. They are written in
//! the programs' sources, beside the code that they describe.

use std::collections::HashMap;

use anyhow::{Context as _, bail};

use super::profile::{Code, CountedStack, JavaMethod};

/// Package prefix of the oracle programs.
const OWN: &str = "zoo/";

/// Share of a thread's samples that may be on their way into its last method or out of it.
const ELSEWHERE: f64 = 0.1;

/// Error of a share that is allowed beside three standard deviations: the first seconds are
/// interpreted, and other threads disturb.
const TOLERANCE: f64 = 0.04;

/// Least number of samples for a share; with fewer, the share counts as wrong.
const ENOUGH: u64 = 60;

/// A comment `//= CLASS: METHOD...`, see `Known.java`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ExpectedChain {
    /// Internal name of the class whose `run` is the thread's root.
    pub(super) root: String,
    links: Vec<Link>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Link {
    Method {
        class: String,
        name: String,
    },
    /// The comment's `...`: frames of the JDK.
    Jdk,
}

/// A comment `//% CLASS: METHOD SHARE...`, see `Elsewhere.java`.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct ExpectedShares {
    root: String,
    methods: Vec<(String, f64)>,
}

/// Expected stacks of one program or of several.
#[derive(Clone, Debug, Default)]
pub(super) struct Expectations {
    /// Chains, each with its program.
    chains: Vec<(String, ExpectedChain)>,
    shares: Vec<(String, ExpectedShares)>,
}

/// The relation between a stack and its chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ChainFit {
    /// The stack is the chain, or its beginning.
    Whole,
    /// The stack is the chain except for what is inlined at the running instruction. HotSpot
    /// records inlining at safepoints only: between them it, and whoever follows its rule, takes
    /// the next one's (unless the JVM runs with `DebugNonSafepoints`).
    ButForInlining,
    Wrong,
}

/// An expected share with the one that was measured.
#[derive(Clone, Debug)]
pub(super) struct ShareComparison {
    pub(super) what: String,
    pub(super) expected: f64,
    pub(super) seen: f64,
    pub(super) samples: u64,
    pub(super) is_right: bool,
}

impl Expectations {
    /// Parses the comments in the source of a program.
    ///
    /// # Errors
    /// A comment is malformed.
    pub(super) fn add(&mut self, program: &str, source: &str) -> anyhow::Result<()> {
        let program = || program.to_owned();
        for line in source.lines().map(str::trim) {
            if let Some(text) = line.strip_prefix("//= ") {
                let chain = ExpectedChain::parse(text).with_context(|| format!("parsing `{line}`"))?;
                self.chains.push((program(), chain));
            } else if let Some(text) = line.strip_prefix("//% ") {
                let shares = ExpectedShares::parse(text).with_context(|| format!("parsing `{line}`"))?;
                self.shares.push((program(), shares));
            }
        }
        Ok(())
    }

    /// Returns the expectations of programs that run side by side: `Known,Calls`.
    pub(super) fn of(&self, programs: &str) -> Self {
        let is_of = |program: &str| programs.split(',').any(|name| name == program);
        Self {
            chains: self.chains.iter().filter(|(program, _)| is_of(program)).cloned().collect(),
            shares: self.shares.iter().filter(|(program, _)| is_of(program)).cloned().collect(),
        }
    }

    /// Returns the chain that this stack must follow; `None` if it has frames without names, which
    /// are counted elsewhere.
    pub(super) fn chain_of(&self, stack: &CountedStack) -> Option<&ExpectedChain> {
        if stack.frames.iter().any(|frame| matches!(frame.code, Code::Unknown(_))) {
            return None;
        }
        let root = stack.frames.iter().rev().find_map(|frame| frame.java())?;
        let mut chains = self.chains.iter().map(|(_, chain)| chain);
        chains.find(|chain| root.name == "run" && root.class == chain.root)
    }

    /// Returns shares of time: those that are expected, and the share of a chain's samples at its
    /// end, which must be nine of ten.
    pub(super) fn shares(&self, stacks: &[CountedStack]) -> Vec<ShareComparison> {
        let ends = self.chains.iter().filter_map(|(_, chain)| self.end_of(chain, stacks));
        let shares = self.shares.iter().flat_map(|(_, shares)| shares.seen_in(stacks));
        ends.chain(shares).collect()
    }

    fn end_of(&self, chain: &ExpectedChain, stacks: &[CountedStack]) -> Option<ShareComparison> {
        let Some(Link::Method { class, name }) = chain.links.last() else { return None };
        let mine: Vec<&CountedStack> =
            stacks.iter().filter(|stack| self.chain_of(stack) == Some(chain)).collect();
        let samples: u64 = mine.iter().map(|stack| stack.count).sum();
        let at_end = |stack: &&&CountedStack| {
            let leaf = stack.frames.iter().find_map(|frame| frame.java());
            leaf.is_some_and(|leaf| leaf.class == *class && leaf.name == *name)
        };
        let ended: u64 = mine.iter().filter(at_end).map(|stack| stack.count).sum();
        let seen = part(ended, samples);
        let is_right = samples >= ENOUGH && seen >= 1.0 - ELSEWHERE;
        Some(ShareComparison {
            what: format!("{}: {name}", chain.root),
            expected: 1.0,
            seen,
            samples,
            is_right,
        })
    }
}

fn part(some: u64, all: u64) -> f64 {
    some as f64 / all.max(1) as f64
}

impl ExpectedChain {
    fn parse(text: &str) -> anyhow::Result<Self> {
        let (root, rest) = text.split_once(": ").context("the class is missing before `: `")?;
        let mut links = Vec::new();
        for word in rest.split_whitespace() {
            let (method, times) = word.split_once('*').unwrap_or((word, "1"));
            let link = match method.rsplit_once('.') {
                _ if method == "..." => Link::Jdk,
                Some((class, name)) => Link::Method { class: class.replace('.', "/"), name: name.to_owned() },
                None => Link::Method { class: root.replace('.', "/"), name: method.to_owned() },
            };
            let times: usize =
                times.parse().with_context(|| format!("parsing the number of repetitions {times}"))?;
            links.extend(std::iter::repeat_n(link, times));
        }
        if links.is_empty() {
            bail!("the chain has no methods");
        }
        Ok(Self { root: root.replace('.', "/"), links })
    }

    /// Compares a stack with this chain.
    pub(super) fn compare(&self, stack: &CountedStack) -> ChainFit {
        let methods: Vec<&JavaMethod> = stack.frames.iter().rev().filter_map(|frame| frame.java()).collect();
        if self.fits(&methods) {
            return ChainFit::Whole;
        }
        let mut above = stack.frames.iter().take_while(|frame| frame.java().is_none());
        let is_running = above.all(|frame| matches!(frame.code, Code::Kernel(_)));
        let java = stack.frames.iter().filter(|frame| frame.java().is_some());
        let guessed = java.take_while(|frame| frame.is_inlined).count();
        match is_running && guessed > 0 && self.fits(&methods[..methods.len() - guessed]) {
            true => ChainFit::ButForInlining,
            false => ChainFit::Wrong,
        }
    }

    /// Returns whether methods (root first) are this chain or its beginning. Calls that the JDK
    /// makes on behalf of a method may follow: class loading, linking.
    fn fits(&self, methods: &[&JavaMethod]) -> bool {
        let mut rest = methods;
        for link in &self.links {
            match (link, rest.first()) {
                (_, None) => return true,
                (Link::Jdk, _) => {
                    let own = rest.iter().position(|method| method.class.starts_with(OWN));
                    rest = &rest[own.unwrap_or(rest.len())..];
                }
                (Link::Method { class, name }, Some(method)) => {
                    if method.class != *class || method.name != *name {
                        break;
                    }
                    rest = &rest[1..];
                }
            }
        }
        rest.first().is_none_or(|next| !next.class.starts_with(OWN))
    }
}

impl ExpectedShares {
    fn parse(text: &str) -> anyhow::Result<Self> {
        let (root, rest) = text.split_once(": ").context("the class is missing before `: `")?;
        let words: Vec<&str> = rest.split_whitespace().collect();
        let pair = |pair: &[&str]| match pair {
            [method, share] => Ok((
                (*method).to_owned(),
                share.parse().with_context(|| format!("parsing the share {share}"))?,
            )),
            _ => bail!("the last method has no share"),
        };
        let methods: anyhow::Result<Vec<(String, f64)>> = words.chunks(2).map(pair).collect();
        Ok(Self { root: root.replace('.', "/"), methods: methods? })
    }

    fn seen_in(&self, stacks: &[CountedStack]) -> Vec<ShareComparison> {
        let mut counts: HashMap<&str, u64> = HashMap::new();
        let mut total = 0;
        for stack in stacks {
            let root = stack.frames.iter().rev().find_map(|frame| frame.java());
            if !root.is_some_and(|root| root.class == self.root && root.name == "run") {
                continue;
            }
            total += stack.count;
            let mut methods = stack.frames.iter().filter_map(|frame| frame.java());
            let innermost = methods.find(|method| method.class == self.root || is_sleep(method));
            if let Some(method) = innermost.filter(|method| !is_sleep(method)) {
                *counts.entry(&method.name).or_default() += stack.count;
            }
        }
        let share = |(method, expected): &(String, f64)| {
            let count = counts.get(method.as_str()).copied().unwrap_or(0);
            let seen = part(count, total);
            let deviation = (expected * (1.0 - expected) / total.max(1) as f64).sqrt();
            let is_right = total >= ENOUGH && (seen - expected).abs() <= TOLERANCE + 3.0 * deviation;
            ShareComparison {
                what: format!("{}: {method}", self.root),
                expected: *expected,
                seen,
                samples: total,
                is_right,
            }
        };
        self.methods.iter().map(share).collect()
    }
}

fn is_sleep(method: &JavaMethod) -> bool {
    method.class == "java/lang/Thread" && method.name.starts_with("sleep")
}

#[cfg(test)]
mod tests {
    use super::super::profile::ReportedFrame;
    use super::super::test_stacks::{java, other, stack};
    use super::*;

    fn chain() -> ExpectedChain {
        ExpectedChain::parse("zoo.K$D: run deep*3 ... zoo.A.run spin").expect("it is well-formed")
    }

    /// Compares methods, root first.
    fn fits(methods: &[(&str, &str)]) -> bool {
        let frames = methods.iter().rev().map(|(class, name)| java(class, name, "()V", 1));
        chain().compare(&stack(frames, 1)) == ChainFit::Whole
    }

    const D: &str = "zoo/K$D";

    #[test]
    fn a_chain_and_its_beginnings_fit() {
        let all = [
            (D, "run"),
            (D, "deep"),
            (D, "deep"),
            (D, "deep"),
            ("java/security/AccessController", "doPrivileged"),
            ("zoo/A", "run"),
            (D, "spin"),
        ];
        for end in 0..=all.len() {
            assert!(fits(&all[..end]), "{end}");
        }
        assert!(fits(&[(D, "run"), (D, "deep"), ("java/lang/ClassLoader", "loadClass")]));
    }

    #[test]
    fn a_lost_a_doubled_and_a_foreign_frame_do_not_fit() {
        assert!(!fits(&[(D, "run"), (D, "deep"), (D, "deep"), ("zoo/A", "run")]));
        assert!(!fits(&[(D, "run"), (D, "deep"), (D, "deep"), (D, "deep"), (D, "deep")]));
        assert!(!fits(&[(D, "run"), (D, "spin")]));
        assert!(!fits(&[(D, "deep")]));
        let beyond = [(D, "deep"), (D, "deep"), (D, "deep"), ("zoo/A", "run"), (D, "spin"), (D, "spin")];
        assert!(!fits(&[&[(D, "run")], &beyond[..]].concat()));
    }

    #[test]
    fn inlining_at_the_running_instruction_may_be_that_of_the_next_safepoint() {
        let compared = |above: Option<ReportedFrame>, inlined: bool| {
            let spin = ReportedFrame { is_inlined: inlined, ..java(D, "spin", "()V", 1) };
            let below = [java(D, "deep", "()V", 1), java(D, "run", "()V", 1)];
            chain().compare(&stack(above.into_iter().chain([spin]).chain(below), 1))
        };
        assert_eq!(compared(None, true), ChainFit::ButForInlining);
        assert_eq!(compared(Some(other(Code::Kernel("irq".to_owned()))), true), ChainFit::ButForInlining);
        assert_eq!(compared(None, false), ChainFit::Wrong);
        // It called something, so this is a safepoint.
        assert_eq!(compared(Some(other(Code::Native("f".to_owned()))), true), ChainFit::Wrong);
    }

    #[test]
    fn time_of_another_method_is_noticed() {
        let mut expectations = Expectations::default();
        expectations.add("E", "  //% zoo.E: work 1.0\n//= zoo.F: run spin\n").expect("it is well-formed");
        let of = |method: JavaMethodName, count| {
            let frames = [java(method.0, method.1, "()V", 1), java("zoo/E", "run", "()V", 1)];
            stack(frames, count)
        };
        // The chain's end first, then the share.
        let verdicts = |stacks: &[CountedStack]| -> Vec<bool> {
            expectations.of("D,E").shares(stacks).iter().map(|share| share.is_right).collect()
        };
        let right = [of(("zoo/E", "work"), 980), of(("java/lang/Thread", "sleep0"), 20)];
        let wrong = [of(("zoo/E", "work"), 600), of(("java/lang/Thread", "sleep0"), 400)];
        assert_eq!(verdicts(&right), [false, true], "the chain was never seen");
        assert_eq!(verdicts(&wrong), [false, false]);
        let chain = |leaf: &str| stack([java("zoo/F", leaf, "()V", 1), java("zoo/F", "run", "()V", 1)], 300);
        assert_eq!(verdicts(&[chain("spin")]), [true, false]);
        assert_eq!(verdicts(&[chain("early")]), [false, false]);
        assert!(expectations.of("D").shares(&right).is_empty());
    }

    type JavaMethodName = (&'static str, &'static str);
}
