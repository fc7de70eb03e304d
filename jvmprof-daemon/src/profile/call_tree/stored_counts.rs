//! The bytes of [`TreeCounts`]: a protobuf message of columns, for the collector's sums.
//!
//! Only the tree is stored, no base. A function is the numbers kind, name, file, module, own,
//! attributed and total samples, then by execution mode and by line what it has of them; a node is
//! its function, how far before it its parent stands, its samples, then by line, execution mode and
//! what they were taken in ([`SampledActivity`](crate::profile::jvm_activity::SampledActivity)).
//! Each of these lists begins with its length.

use prost::Message;

use super::function_samples::{ComparedCounts, FunctionSamples, SampleCounts};
use super::tree_counts::{StringList, TreeCounts};
use super::{EXECUTION_MODES, NodeKind, TreeFunction};

#[derive(Clone, PartialEq, Message)]
struct StoredCounts {
    #[prost(string, tag = "1")]
    text: String,
    /// Where each string ends in `text`.
    #[prost(uint32, repeated, tag = "2")]
    ends: Vec<u32>,
    #[prost(uint64, repeated, tag = "3")]
    functions: Vec<u64>,
    #[prost(uint64, repeated, tag = "4")]
    nodes: Vec<u64>,
    /// String and samples.
    #[prost(uint64, repeated, tag = "5")]
    truncated: Vec<u64>,
    #[prost(uint64, tag = "6")]
    pruned_nodes: u64,
    #[prost(uint64, tag = "7")]
    most_lacking: u64,
}

/// Bytes that are no stored counts.
#[derive(Debug, thiserror::Error)]
pub enum InvalidTreeCounts {
    #[error("parsing stored counts: {0}")]
    Protobuf(#[from] prost::DecodeError),
    #[error("stored counts are cut short or have a number that means nothing")]
    Numbers,
}

impl TreeCounts {
    /// Encodes the counts of a tree without a base.
    pub fn to_bytes(&self) -> Vec<u8> {
        let pruned_nodes = self.pruned_nodes as u64;
        StoredCounts {
            text: self.strings.text.clone(),
            ends: self.strings.ends.clone(),
            functions: self.function_numbers(),
            nodes: self.node_numbers(),
            truncated: self.truncated.iter().flat_map(|&(name, samples)| [name.into(), samples]).collect(),
            pruned_nodes,
            most_lacking: self.most_lacking,
        }
        .encode_to_vec()
    }

    fn function_numbers(&self) -> Vec<u64> {
        let mut numbers = Vec::new();
        for (function, samples) in self.functions.iter().zip(&self.samples) {
            let TreeFunction { kind, name, file, module } = *function;
            let SampleCounts { own, attributed, total } = samples.counts.main;
            numbers.extend([kind as u64, name.into(), file.into(), module.into(), own, attributed, total]);
            push_pairs(&mut numbers, samples.how);
            numbers.push(samples.lines.len() as u64);
            for (line, counts) in &samples.lines {
                let SampleCounts { own, attributed, total } = counts.main;
                numbers.extend([u64::from(*line), own, attributed, total]);
            }
        }
        numbers
    }

    fn node_numbers(&self) -> Vec<u64> {
        let mut ends = self.ends.clone();
        ends.sort_unstable();
        let (mut numbers, mut ends) = (Vec::new(), ends.as_slice());
        for (index, node) in (0_u32..).zip(&self.nodes) {
            numbers.extend([node.function.into(), (index - node.parent).into(), node.total]);
            numbers.push(node.lines.len() as u64);
            numbers.extend(node.lines.iter().flat_map(|&(line, count)| [line.into(), count]));
            push_pairs(&mut numbers, node.how.map(u64::from));
            let (own, rest) = ends.split_at(ends.partition_point(|(node, ..)| *node <= index));
            ends = rest;
            numbers.push(own.len() as u64);
            numbers.extend(own.iter().flat_map(|&(_, sampled_in, [count, _])| [sampled_in.number(), count]));
        }
        numbers
    }

    /// Decodes what [`Self::to_bytes`] has encoded, of its nodes the heaviest, at most `max_nodes`.
    ///
    /// # Errors
    /// The bytes are something else.
    pub fn from_bytes(bytes: &[u8], max_nodes: usize) -> Result<Self, InvalidTreeCounts> {
        let stored = StoredCounts::decode(bytes)?;
        let fits = |end: &u32| stored.text.is_char_boundary(*end as usize);
        if !stored.ends.is_sorted() || !stored.ends.iter().all(fits) {
            return Err(InvalidTreeCounts::Numbers);
        }
        let mut counts = Self {
            strings: StringList { text: stored.text, ends: stored.ends },
            pruned_nodes: usize::try_from(stored.pruned_nodes).unwrap_or(usize::MAX),
            most_lacking: stored.most_lacking,
            ..Self::default()
        };
        let strings = counts.strings.ends.len();
        for pair in stored.truncated.chunks_exact(2) {
            counts.truncated.push((below(pair[0], strings)?, pair[1]));
        }
        counts.read_functions(&mut NumberReader(&stored.functions), strings)?;
        counts.read_nodes(&stored.nodes, max_nodes)?;
        Ok(counts)
    }

    fn read_functions(
        &mut self,
        numbers: &mut NumberReader<'_>,
        strings: usize,
    ) -> Result<(), InvalidTreeCounts> {
        while !numbers.is_empty() {
            let [kind, name, file, module, own, attributed, total] = numbers.take()?;
            let kind = NodeKind::of_number(kind).ok_or(InvalidTreeCounts::Numbers)?;
            let [name, file, module] = [name, file, module].map(|index| below(index, strings));
            self.functions.push(TreeFunction { kind, name: name?, file: file?, module: module? });
            let of = |[own, attributed, total]: [u64; 3]| ComparedCounts {
                main: SampleCounts { own, attributed, total },
                ..ComparedCounts::default()
            };
            let mut samples =
                FunctionSamples { counts: of([own, attributed, total]), ..FunctionSamples::default() };
            numbers.pairs(|mode, count| {
                samples.how[below(mode, EXECUTION_MODES)? as usize] = count;
                Ok(())
            })?;
            for _ in 0..numbers.one()? {
                let [line, own, attributed, total] = numbers.take()?;
                samples.lines.push((below(line, u32::MAX as usize)?, of([own, attributed, total])));
            }
            self.samples.push(samples);
        }
        Ok(())
    }
}

/// Appends how many counts aren't 0, and each of these behind its index.
fn push_pairs<const N: usize>(numbers: &mut Vec<u64>, counts: [u64; N]) {
    numbers.push(counts.iter().filter(|count| **count > 0).count() as u64);
    let seen = (0..).zip(counts).filter(|(_, count)| *count > 0);
    numbers.extend(seen.flat_map(|(index, count)| [index, count]));
}

pub(super) fn below(number: u64, limit: usize) -> Result<u32, InvalidTreeCounts> {
    let number = u32::try_from(number).ok().filter(|number| (*number as usize) < limit);
    number.ok_or(InvalidTreeCounts::Numbers)
}

/// Numbers that are still to be read.
pub(super) struct NumberReader<'a>(pub(super) &'a [u64]);

impl NumberReader<'_> {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn take<const N: usize>(&mut self) -> Result<[u64; N], InvalidTreeCounts> {
        let (first, rest) = self.0.split_first_chunk().ok_or(InvalidTreeCounts::Numbers)?;
        self.0 = rest;
        Ok(*first)
    }

    fn one(&mut self) -> Result<u64, InvalidTreeCounts> {
        Ok(self.take::<1>()?[0])
    }

    /// Hands over pairs, whose number comes first.
    pub(super) fn pairs(
        &mut self,
        mut take: impl FnMut(u64, u64) -> Result<(), InvalidTreeCounts>,
    ) -> Result<(), InvalidTreeCounts> {
        for _ in 0..self.one()? {
            let [index, count] = self.take()?;
            take(index, count)?;
        }
        Ok(())
    }

    pub(super) fn skip_pairs(&mut self) -> Result<(), InvalidTreeCounts> {
        let pairs = usize::try_from(self.one()?).ok().and_then(|pairs| pairs.checked_mul(2));
        self.0 = pairs.and_then(|numbers| self.0.get(numbers..)).ok_or(InvalidTreeCounts::Numbers)?;
        Ok(())
    }
}
