//! Scopes of compiled code: the methods inlined at a pc, innermost first.
//!
//! Layouts: openjdk src/hotspot/share/code/pcDesc.hpp, scopeDesc.cpp (`decode_body`), debugInfo.hpp
//! (`read_bci`); the search is that of nmethod.cpp, `find_pc_desc_internal`.

use std::collections::{BTreeSet, HashSet};

use super::unsigned5::{Unsigned5Encoding, Unsigned5Reader};

/// Inlining is limited by `MaxInlineLevel` (15) and recursion; Graal goes deeper.
const MAX_DEPTH: usize = 512;
/// The offset that stands for no scope:
/// `DebugInformationRecorder::serialized_null`.
const NO_SCOPE: u32 = 0;
/// `InvocationEntryBci`: numbers in the stream count from it.
pub const ENTRY_BCI: i32 = -1;

/// A place in compiled code with debug information.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PcDesc {
    /// Bytes from the code's begin. The first one has -1, the last one `i32::MAX`.
    pub pc_offset: i32,
    /// The offset of its innermost scope in the stream.
    pub scope: u32,
}

/// One method of the chain at a pc.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScopeDesc {
    /// Index into the nmethod's metadata, from 1; `None` for the nmethod's own method.
    pub method: Option<u32>,
    /// Bytecode index; negative ones stand for places before or after the code.
    pub bci: i32,
}

impl ScopeDesc {
    /// Returns true if a line may be derived from the bci. `is_caller`: the method has called one
    /// that is inlined into it, so that its bci must be 0 or more. C2 of JDK 8 records others for
    /// some callers, with `-XX:+DebugNonSafepoints`.
    pub fn has_usable_bci(&self, is_caller: bool) -> bool {
        self.method.is_some() && (self.bci >= 0 || !is_caller)
    }
}

/// The error of debug information that can't be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScopeDescError;

/// The debug information that HotSpot takes for a pc: that of the very pc, for the return address
/// of a call, else that of the next place behind it. Never that of a place before it: what has run
/// since may be another method's code.
pub fn find(descs: &[PcDesc], pc_offset: u32) -> Option<PcDesc> {
    let wanted = i32::try_from(pc_offset).ok()?;
    let index = descs.partition_point(|desc| desc.pc_offset < wanted);
    descs.get(index).copied()
}

/// Returns true if a pc is behind all places with debug information: in the stubs at the end of an
/// nmethod.
pub fn is_past_last_desc(descs: &[PcDesc], pc_offset: u32) -> bool {
    !descs.is_empty() && find(descs, pc_offset).is_none_or(|desc| desc.scope == NO_SCOPE)
}

/// Decodes the scopes from `desc` outwards.
///
/// # Errors
/// The stream ends early, is cyclic or deeper than any inlining.
pub fn chain(
    stream: &[u8],
    desc: PcDesc,
    encoding: Unsigned5Encoding,
) -> Result<Vec<ScopeDesc>, ScopeDescError> {
    if desc.scope == NO_SCOPE {
        // Behind all places with debug information: only the outermost method is sure.
        return Ok(vec![ScopeDesc { method: None, bci: ENTRY_BCI }]);
    }
    let mut scopes = Vec::new();
    let mut at = desc.scope;
    while at != NO_SCOPE {
        if scopes.len() == MAX_DEPTH {
            return Err(ScopeDescError);
        }
        let mut reader = Unsigned5Reader::new(stream, at as usize, encoding);
        let mut next = || reader.unsigned().ok_or(ScopeDescError);
        let (sender, method, bci) = (next()?, next()?, next()?);
        let bci = bci.cast_signed().wrapping_add(ENTRY_BCI);
        if method == 0 || !(-16..=i32::from(u16::MAX)).contains(&bci) {
            return Err(ScopeDescError);
        }
        scopes.push(ScopeDesc { method: Some(method), bci });
        // Senders are written before those that they call, so a chain only goes back.
        if sender >= at {
            return Err(ScopeDescError);
        }
        at = sender;
    }
    Ok(scopes)
}

/// Scopes of one nmethod that are looked through for its methods, at most.
const MAX_SCOPES: usize = 1 << 14;

/// The methods of all scopes: indices as in [`ScopeDesc::method`]. What is malformed, or too much,
/// is left out.
pub fn methods(stream: &[u8], descs: &[PcDesc], encoding: Unsigned5Encoding) -> BTreeSet<u32> {
    let mut methods = BTreeSet::new();
    let mut visited = HashSet::new();
    for desc in descs {
        let mut at = desc.scope;
        while at != NO_SCOPE && visited.len() < MAX_SCOPES && visited.insert(at) {
            let mut reader = Unsigned5Reader::new(stream, at as usize, encoding);
            let (Some(sender), Some(method)) = (reader.unsigned(), reader.unsigned()) else { break };
            methods.insert(method);
            at = sender;
        }
    }
    methods
}

#[cfg(test)]
mod tests {
    use super::*;

    fn descs() -> Vec<PcDesc> {
        [(-1, 0), (16, 1), (40, 4), (i32::MAX, 0)]
            .map(|(pc_offset, scope)| PcDesc { pc_offset, scope })
            .to_vec()
    }

    #[test]
    fn a_method_may_be_at_its_entry_but_has_called_nothing_there() {
        let scope = |method, bci| ScopeDesc { method, bci };
        assert!(scope(Some(1), ENTRY_BCI).has_usable_bci(false));
        assert!(!scope(Some(1), ENTRY_BCI).has_usable_bci(true));
        assert!(scope(Some(1), 0).has_usable_bci(true));
        assert!(!scope(None, ENTRY_BCI).has_usable_bci(false));
    }

    #[test]
    fn a_pc_takes_its_own_place_or_the_next_one_never_the_one_before() {
        let scope = |pc| find(&descs(), pc).map(|desc| desc.scope);
        assert_eq!((scope(0), scope(15), scope(16)), (Some(1), Some(1), Some(1)));
        assert_eq!((scope(17), scope(40)), (Some(4), Some(4)));
        assert_eq!(scope(41), Some(0), "behind the last safepoint only the method itself is sure");
        assert_eq!(scope(u32::MAX), None);
        assert_eq!(find(&[], 3), None);
        let is_past_last_desc = |pc| is_past_last_desc(&descs(), pc);
        assert_eq!([0, 40, 41, u32::MAX].map(is_past_last_desc), [false, false, true, true]);
        assert!(!super::is_past_last_desc(&[], 3), "a native method's wrapper has no places at all");
    }

    #[test]
    fn chains_lead_from_the_inlined_method_outwards() {
        // At 1: outermost, metadata 2, bci 7. At 7: called from there, metadata 1, bci -1.
        let stream = [0, 0, 2, 8, 0, 0, 0, 1, 1, 0, 0, 0, 0];
        let desc = PcDesc { pc_offset: 16, scope: 7 };
        assert_eq!(
            chain(&stream, desc, Unsigned5Encoding::WithZero),
            Ok(vec![ScopeDesc { method: Some(1), bci: -1 }, ScopeDesc { method: Some(2), bci: 7 }])
        );
        assert_eq!(methods(&stream, &[desc], Unsigned5Encoding::WithZero), BTreeSet::from([1, 2]));
        let sentinel = PcDesc { pc_offset: i32::MAX, scope: 0 };
        assert_eq!(
            chain(&stream, sentinel, Unsigned5Encoding::WithZero),
            Ok(vec![ScopeDesc { method: None, bci: -1 }])
        );
    }

    #[test]
    fn cycles_and_garbage_are_refused() {
        let chain =
            |stream: &[u8]| chain(stream, PcDesc { pc_offset: 0, scope: 1 }, Unsigned5Encoding::WithZero);
        assert_eq!(chain(&[0, 1, 2, 8, 0, 0, 0]), Err(ScopeDescError), "its own sender");
        assert_eq!(chain(&[0, 5, 2, 8, 0, 0, 0]), Err(ScopeDescError), "forwards");
        assert_eq!(chain(&[0, 0, 0, 8, 0, 0, 0]), Err(ScopeDescError), "no method");
        assert_eq!(chain(&[0, 0, 2]), Err(ScopeDescError), "cut short");
        assert_eq!(chain(&[]), Err(ScopeDescError));
        let descs = [PcDesc { pc_offset: 0, scope: 1 }];
        assert_eq!(
            methods(&[0, 1, 2, 8], &descs, Unsigned5Encoding::WithZero),
            BTreeSet::from([2]),
            "a cycle ends"
        );
    }
}
