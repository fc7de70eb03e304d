//! Names of Java frames: from what the kernel program recorded to methods and lines, a whole stack
//! at once.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::clock::monotonic_ns;
use crate::hotspot::code_cache::nmethod::{NmethodDebugInfo, NmethodId};
use crate::hotspot::code_cache::scope_descs::{self, ScopeDesc};
use crate::hotspot::error::NamingError;
use crate::hotspot::java_cache::{JavaCache, MethodKey};
use crate::hotspot::jvm_reader::Hotspot;
use crate::hotspot::methods::bytecodes::ExpectedBytecode;
use crate::hotspot::methods::class_unloading::ReadTimes;
use crate::hotspot::methods::method::{
    MethodInfo, MethodReads, identify, identify_again, read_names_and_lines,
};
use crate::hotspot::process_memory::ProcessMemory;
use crate::profile::model::ExecutionMode;
use crate::types::Avma;

/// A physical Java frame, as it was when the sample was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PhysicalFrame {
    /// Code of an nmethod: compiled, or a native method's wrapper.
    Compiled {
        /// The interrupted instruction, or the address that the callee returns to.
        pc: Avma,
        /// The `CodeBlob`.
        blob: Avma,
        compile_id: u32,
        /// It is an on-stack replacement: these have compile ids of their own.
        osr: bool,
    },
    Interpreted {
        /// The `Method`.
        method: Avma,
        /// [`MethodIdentity::check`](jvmprof_common::unwind::hotspot::method_identity::MethodIdentity::check)
        /// at the time of the sample.
        check: u64,
        /// The bytecode pointer, counted from the `ConstMethod`.
        bcp_offset: u32,
        /// The address in the interpreter at which the frame goes on; `None` if that isn't known.
        codelet_pc: Option<Avma>,
        /// It is the interrupted frame: its bytecode pointer may be one ahead of its code.
        leaf: bool,
    },
}

/// One method of a stack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JavaFrame {
    /// `com.acme.Order.total`.
    pub name: Arc<str>,
    /// With the signature.
    pub system_name: Arc<str>,
    pub file: Option<Arc<str>>,
    /// 0 if unknown.
    pub line: u32,
    /// Bytecode index; -1 while the method is being entered, for native methods, and where it isn't
    /// sure.
    pub bci: i32,
    pub mode: ExecutionMode,
}

/// `mov rbx, imm64; jmp rel32` (openjdk src/hotspot/cpu/x86/compiledIC_x86.cpp,
/// `emit_to_interp_stub`).
const STATIC_CALL_STUB_BYTES: u64 = 15;

/// The methods of one physical frame, innermost first.
pub type JavaFrames = Arc<[JavaFrame]>;

/// A frame that isn't resolved yet.
enum UnresolvedFrame {
    Compiled { id: NmethodId, debug: Arc<NmethodDebugInfo>, scopes: Vec<(ScopeDesc, Avma)> },
    Interpreted { method: Avma, check: u64, bcp_offset: u32, expected: ExpectedBytecode },
}

type Answers = Vec<Option<Result<JavaFrames, NamingError>>>;

impl<M: ProcessMemory> Hotspot<M> {
    /// Names frames as [`Self::resolve_as_of`] does, of a JVM that stands still.
    pub fn resolve(
        &self,
        cache: &JavaCache,
        requests: &[PhysicalFrame],
    ) -> Vec<Result<JavaFrames, NamingError>> {
        self.resolve_as_of(cache, requests, ReadTimes::STOPPED)
    }

    /// Names the physical frames of a stack. Frames of code that was named before cost no system
    /// call; all others of the stack are read together, in about twelve.
    pub fn resolve_as_of(
        &self,
        cache: &JavaCache,
        requests: &[PhysicalFrame],
        times: ReadTimes,
    ) -> Vec<Result<JavaFrames, NamingError>> {
        let mut answers: Answers = vec![None; requests.len()];
        let pending = self.pending(cache, requests, &mut answers);
        if !pending.is_empty() {
            self.finish(cache, pending, times, &mut answers);
        }
        answers.into_iter().map(|answer| answer.unwrap_or(Err(NamingError::Unreadable))).collect()
    }

    /// Returns whether a compiled method's pc lies behind all of its code that has debug
    /// information, where its stubs and handlers are. `None` of an nmethod that hasn't been named,
    /// and of what isn't compiled.
    pub fn is_past_last_desc(&self, cache: &JavaCache, code: &PhysicalFrame) -> Option<bool> {
        let PhysicalFrame::Compiled { pc, blob, compile_id, osr } = *code else { return None };
        let debug = cache.nmethods.get(&(self.key, NmethodId { blob, compile_id, osr }))?;
        let offset = pc.0.checked_sub(debug.header.code_begin.0).and_then(|it| u32::try_from(it).ok());
        Some(offset.is_some_and(|offset| scope_descs::is_past_last_desc(&debug.pcs, offset)))
    }

    /// Returns true if a leaf behind all of its nmethod's code ([`Self::is_past_last_desc`]) is in
    /// the stub of one of that nmethod's own static calls, which that call has entered: code of the
    /// caller that is no frame, between it and a callee that isn't compiled.
    pub fn is_in_static_call_stub(&self, leaf: &PhysicalFrame, caller: &PhysicalFrame) -> bool {
        let (PhysicalFrame::Compiled { pc, .. }, PhysicalFrame::Compiled { pc: returns_to, .. }) =
            (*leaf, *caller)
        else {
            return false;
        };
        // A method that calls itself may be in its exception handler, which lies there, too. The
        // call may lead elsewhere by now, the stub still looks like one.
        if self.is_in_static_call_stub_code(pc) {
            return true;
        }
        let call = returns_to.0.checked_sub(5).and_then(|at| self.memory.read_bytes(Avma(at), 5));
        let Some([0xe8, offset @ ..]) = call.as_deref().and_then(<[u8]>::first_chunk::<5>) else {
            return false;
        };
        let called = returns_to.0.wrapping_add_signed(i32::from_le_bytes(*offset).into());
        pc.0.wrapping_sub(called) < STATIC_CALL_STUB_BYTES
    }

    /// Returns true if an instruction is one of the two of a static call's stub.
    fn is_in_static_call_stub_code(&self, pc: Avma) -> bool {
        const JMP_AT: u64 = 10;
        let is_stub = |begin: u64| {
            let code = self.memory.read_bytes(Avma(begin), STATIC_CALL_STUB_BYTES as usize);
            code.is_some_and(|code| code.starts_with(&[0x48, 0xbb]) && code[JMP_AT as usize] == 0xe9)
        };
        [0, JMP_AT].into_iter().filter_map(|at| pc.0.checked_sub(at)).any(is_stub)
    }

    /// Answers what is known, and gives what each other request needs: for compiled code its debug
    /// information, read here.
    fn pending(
        &self,
        cache: &JavaCache,
        requests: &[PhysicalFrame],
        answers: &mut Answers,
    ) -> BTreeMap<usize, UnresolvedFrame> {
        let mut pending = BTreeMap::new();
        let mut compiled = Vec::new();
        for (index, request) in requests.iter().enumerate() {
            match *request {
                PhysicalFrame::Compiled { pc, blob, compile_id, osr } => {
                    compiled.push((index, NmethodId { blob, compile_id, osr }, pc));
                }
                PhysicalFrame::Interpreted { method, check, bcp_offset, codelet_pc, leaf } => {
                    let expected = codelet_pc.filter(|_| !leaf).map(|pc| self.templates.expected(pc));
                    let expected = expected.unwrap_or(ExpectedBytecode::Anything);
                    match cache.methods.get(&MethodKey { jvm: self.key, method, check }) {
                        Some(info) => {
                            answers[index] = Some(Ok(self.interpreted_frame(&info, bcp_offset, expected)));
                        }
                        None => {
                            let request =
                                UnresolvedFrame::Interpreted { method, check, bcp_offset, expected };
                            pending.insert(index, request);
                        }
                    }
                }
            }
        }
        let ids: Vec<NmethodId> = compiled.iter().map(|(_, id, _)| *id).collect();
        let debugs = self.debugs(cache, ids);
        for (index, id, pc) in compiled {
            let debug = debugs.get(&id).cloned().unwrap_or(Err(NamingError::Unreadable));
            let found = debug.and_then(|debug| Ok((self.scopes(&debug, pc)?, debug)));
            let (scopes, debug) = match found {
                Ok(found) => found,
                Err(unnamed) => {
                    answers[index] = Some(Err(unnamed));
                    continue;
                }
            };
            match self.cached_methods(cache, &debug, &scopes) {
                Some(known) => answers[index] = Some(compiled_frames(&scopes, &debug, &known)),
                None => _ = pending.insert(index, UnresolvedFrame::Compiled { id, debug, scopes }),
            }
        }
        pending
    }

    /// Debug information of these nmethods.
    fn debugs(
        &self,
        cache: &JavaCache,
        mut ids: Vec<NmethodId>,
    ) -> BTreeMap<NmethodId, Result<Arc<NmethodDebugInfo>, NamingError>> {
        ids.sort_unstable();
        ids.dedup();
        let mut debugs = BTreeMap::new();
        let mut missing = Vec::new();
        for id in ids {
            match cache.nmethods.get(&(self.key, id)) {
                Some(debug) => _ = debugs.insert(id, Ok(debug)),
                None => missing.push(id),
            }
        }
        let Some(fields) = &self.nmethod_fields else {
            debugs.extend(missing.into_iter().map(|id| (id, Err(NamingError::Layout))));
            return debugs;
        };
        let layout = &self.jvm.layout;
        let places: Vec<(Avma, usize)> = missing.iter().map(|id| fields.header_place(id.blob)).collect();
        let mut live = Vec::new();
        for (id, bytes) in missing.into_iter().zip(self.memory.read_ranges(&places)) {
            match bytes.ok_or(NamingError::Unreadable).and_then(|bytes| fields.parse(id, &bytes, layout)) {
                Ok(header) => live.push((id, header)),
                Err(unnamed) => _ = debugs.insert(id, Err(unnamed)),
            }
        }
        let read = fields.read_debug(&live, layout, &self.memory);
        for ((id, _), debug) in live.into_iter().zip(read) {
            debugs.insert(id, debug.map(Arc::new));
        }
        debugs
    }

    /// The methods at a pc and where they are.
    pub(super) fn scopes(
        &self,
        debug: &NmethodDebugInfo,
        pc: Avma,
    ) -> Result<Vec<(ScopeDesc, Avma)>, NamingError> {
        // A call may be the last instruction, so that it returns to behind the code.
        if pc < debug.header.code_begin || pc > debug.header.code_end {
            return Err(NamingError::OutsideCode);
        }
        let offset = u32::try_from(pc.0 - debug.header.code_begin.0).map_err(|_| NamingError::OutsideCode)?;
        // Native wrappers have no debug information.
        let sentinel = ScopeDesc { method: None, bci: scope_descs::ENTRY_BCI };
        let chain = match scope_descs::find(&debug.pcs, offset) {
            None => vec![sentinel],
            Some(desc) => {
                scope_descs::chain(&debug.scopes, desc, self.encoding).map_err(|_| NamingError::DebugInfo)?
            }
        };
        let with_method = |scope: ScopeDesc| Some((scope, debug.method_at(scope.method)?));
        let chain: Option<Vec<(ScopeDesc, Avma)>> = chain.into_iter().map(with_method).collect();
        // The outermost scope is the method that was compiled.
        let chain =
            chain.filter(|chain| chain.last().is_some_and(|(_, method)| *method == debug.header.method));
        chain.ok_or(NamingError::DebugInfo)
    }

    /// Returns the methods of these scopes, if they were read when the nmethod was sampled first:
    /// nothing has to be read then. The nmethod was alive when the sample was taken, and its
    /// methods are what they were as long as it is.
    fn cached_methods(
        &self,
        cache: &JavaCache,
        debug: &NmethodDebugInfo,
        scopes: &[(ScopeDesc, Avma)],
    ) -> Option<Methods> {
        let cached = |method: Avma| {
            let check = debug.method_check(method)?;
            let info = cache.methods.get(&MethodKey { jvm: self.key, method, check })?;
            Some((method, Ok((check, info))))
        };
        scopes.iter().map(|(_, method)| cached(*method)).collect()
    }

    /// Reads the methods that the pending requests need, and answers them.
    fn finish(
        &self,
        cache: &JavaCache,
        pending: BTreeMap<usize, UnresolvedFrame>,
        times: ReadTimes,
        answers: &mut Answers,
    ) {
        let mut methods = Vec::new();
        for request in pending.values() {
            match request {
                // All that the nmethod has, while it is there.
                UnresolvedFrame::Compiled { debug, .. } if !debug.has_method_checks() => {
                    methods.extend(debug.scope_methods(self.encoding));
                }
                UnresolvedFrame::Compiled { scopes, .. } => {
                    methods.extend(scopes.iter().map(|(_, method)| *method));
                }
                UnresolvedFrame::Interpreted { method, .. } => methods.push(*method),
            }
        }
        methods.sort_unstable();
        methods.dedup();
        let (known, too_late) = self.methods(cache, &methods, times);
        // Debug information that was read earlier says nothing of methods that are read now.
        let alive = self.check_nmethods(cache, &pending);
        for (index, request) in pending {
            let frames = match request {
                UnresolvedFrame::Compiled { id, scopes, debug, .. } => match alive.get(&id) {
                    Some(Ok(())) => {
                        if !debug.has_method_checks() {
                            let of_debug = debug.scope_methods(self.encoding).collect::<BTreeSet<_>>();
                            let check =
                                |method: &Avma| known.get(method)?.as_ref().ok().map(|(check, _)| *check);
                            let found =
                                of_debug.into_iter().filter_map(|method| Some((method, check(&method)?)));
                            debug.set_method_checks(found);
                        }
                        compiled_frames(&scopes, &debug, &known)
                    }
                    Some(Err(unnamed)) => Err(*unnamed),
                    None => Err(NamingError::Unreadable),
                },
                // Of compiled code it is known that it is still there, and its classes with it.
                UnresolvedFrame::Interpreted { method, .. } if too_late.contains(&method) => {
                    Err(NamingError::TooLate)
                }
                UnresolvedFrame::Interpreted { method, check, bcp_offset, expected } => {
                    same_method(&known, method, check)
                        .map(|info| self.interpreted_frame(&info, bcp_offset, expected))
                }
            };
            answers[index] = Some(frames);
        }
    }

    /// Checks that the nmethods of pending requests are still what they were. Those that are, are
    /// cached.
    fn check_nmethods(
        &self,
        cache: &JavaCache,
        pending: &BTreeMap<usize, UnresolvedFrame>,
    ) -> BTreeMap<NmethodId, Result<(), NamingError>> {
        let Some(fields) = &self.nmethod_fields else { return BTreeMap::new() };
        let debugs: BTreeMap<NmethodId, &Arc<NmethodDebugInfo>> = pending
            .values()
            .filter_map(|request| match request {
                UnresolvedFrame::Compiled { id, debug, .. } => Some((*id, debug)),
                UnresolvedFrame::Interpreted { .. } => None,
            })
            .collect();
        let places: Vec<(Avma, usize)> = debugs.keys().map(|id| fields.header_place(id.blob)).collect();
        let check = |id: NmethodId, debug: &Arc<NmethodDebugInfo>, bytes: Option<Vec<u8>>| {
            let now = fields.parse(id, &bytes.ok_or(NamingError::Unreadable)?, &self.jvm.layout)?;
            if now != debug.header {
                return Err(NamingError::Changed);
            }
            cache.nmethods.insert((self.key, id), debug.clone());
            Ok(())
        };
        let headers = self.memory.read_ranges(&places);
        debugs.into_iter().zip(headers).map(|((id, debug), bytes)| (id, check(id, debug, bytes))).collect()
    }

    /// Returns the methods that are at these addresses now, with their names. What is new is read,
    /// checked and cached; unless classes were unloaded since the sample was taken: those
    /// methods are given, too.
    fn methods(&self, cache: &JavaCache, methods: &[Avma], times: ReadTimes) -> (Methods, BTreeSet<Avma>) {
        let layout = &self.jvm.layout;
        let mut known = Methods::new();
        let mut new = Vec::new();
        let identified = identify(methods, &self.method_fields, layout, &self.memory);
        for (method, identified) in methods.iter().zip(identified) {
            match identified {
                Err(unnamed) => _ = known.insert(*method, Err(unnamed)),
                Ok((reading, identity)) => {
                    let key = MethodKey { jvm: self.key, method: *method, check: identity.check };
                    match cache.methods.get(&key) {
                        Some(info) => _ = known.insert(*method, Ok((identity.check, info))),
                        None => new.push((*method, identity, reading)),
                    }
                }
            }
        }
        if new.is_empty() {
            return (known, BTreeSet::new());
        }
        let (before, readings): (Vec<_>, Vec<MethodReads>) =
            new.into_iter().map(|(method, identity, reading)| ((method, identity), reading)).unzip();
        let described = read_names_and_lines(readings, &self.method_fields, layout, &self.memory);
        let readings: Vec<&MethodReads> = described.iter().flatten().map(|(reading, _)| reading).collect();
        let mut after = identify_again(&readings, layout, &self.memory).into_iter();
        let unloaded = self.unloaded_classes.and_then(|counter| self.memory.read_u64(counter));
        let read_ns = if times == ReadTimes::STOPPED { 0 } else { monotonic_ns() };
        let is_sure = self.unloads.are_methods_as_sampled(unloaded, times, read_ns);
        let mut too_late = BTreeSet::new();
        for ((method, identity), described) in before.into_iter().zip(described) {
            let found = described.and_then(|(_, info)| {
                if after.next().flatten() != Some(identity) {
                    return Err(NamingError::Changed);
                }
                let info = cache.share(info);
                if is_sure {
                    let key = MethodKey { jvm: self.key, method, check: identity.check };
                    cache.methods.insert(key, info.clone());
                } else {
                    too_late.insert(method);
                }
                Ok((identity.check, info))
            });
            known.insert(method, found);
        }
        (known, too_late)
    }

    fn interpreted_frame(
        &self,
        info: &MethodInfo,
        bcp_offset: u32,
        expected: ExpectedBytecode,
    ) -> JavaFrames {
        if info.native {
            return [frame(info, scope_descs::ENTRY_BCI, ExecutionMode::Native)].into();
        }
        let bci = bcp_offset.checked_sub(info.code_offset).and_then(|bci| u16::try_from(bci).ok());
        // The method is sure, where in it may not be: the pointer isn't set yet, or belongs to
        // something else.
        let running = bci.and_then(|bci| self.templates.running(expected, &info.code, bci));
        let frame = match running {
            Some(bci) => frame(info, bci.into(), ExecutionMode::Interpreted),
            None => JavaFrame { line: 0, ..frame(info, scope_descs::ENTRY_BCI, ExecutionMode::Interpreted) },
        };
        [frame].into()
    }
}

/// Returns what was read of a method, if it is the method that is meant.
fn same_method(known: &Methods, method: Avma, check: u64) -> Result<Arc<MethodInfo>, NamingError> {
    match known.get(&method) {
        Some(Ok((now, info))) if *now == check => Ok(info.clone()),
        Some(Ok(_)) => Err(NamingError::MethodReplaced),
        Some(Err(unnamed)) => Err(*unnamed),
        None => Err(NamingError::Unreadable),
    }
}

/// Methods by address: the check over its identity, and what is known.
type Methods = BTreeMap<Avma, Result<(u64, Arc<MethodInfo>), NamingError>>;

fn compiled_frames(
    scopes: &[(ScopeDesc, Avma)],
    debug: &NmethodDebugInfo,
    known: &Methods,
) -> Result<JavaFrames, NamingError> {
    let frame_of = |(index, (scope, method)): (usize, &(ScopeDesc, Avma))| {
        let (_, info) = known.get(method).cloned().unwrap_or(Err(NamingError::Unreadable))?;
        let mode = match (index + 1 == scopes.len(), debug.header.level) {
            _ if info.native => ExecutionMode::Native,
            (false, _) => ExecutionMode::Inlined,
            (true, 1..=3) => ExecutionMode::C1,
            (true, _) => ExecutionMode::C2,
        };
        if scope.bci >= 0 && scope.bci as usize >= info.code.len() {
            return Err(NamingError::BytecodeIndex);
        }
        let mut frame = frame(&info, scope.bci, mode);
        if !scope.has_usable_bci(index > 0) {
            frame.line = 0;
        }
        Ok(frame)
    };
    scopes.iter().enumerate().map(frame_of).collect()
}

fn frame(info: &MethodInfo, bci: i32, mode: ExecutionMode) -> JavaFrame {
    JavaFrame {
        name: info.name.clone(),
        system_name: info.system_name.clone(),
        file: info.file.clone(),
        line: info.lines.line(bci).unwrap_or(0),
        bci,
        mode,
    }
}
