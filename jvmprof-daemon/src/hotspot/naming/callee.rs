//! The method that a frame's call leads to, by the bytecode at which the frame waits.

use super::java_frames::PhysicalFrame;
use crate::hotspot::code_cache::nmethod::NmethodId;
use crate::hotspot::java_cache::{JavaCache, MethodKey};
use crate::hotspot::jvm_reader::Hotspot;
use crate::hotspot::methods::call_operands::Callee;
use crate::hotspot::methods::method::identify;
use crate::hotspot::process_memory::{ProcessMemory, field};
use crate::types::Avma;

/// The only native method that calls Java itself (openjdk
/// src/hotspot/cpu/x86/sharedRuntime_x86_64.cpp, `gen_continuation_enter`).
const ENTER_SPECIAL: &str = "jdk.internal.vm.Continuation.enterSpecial";

impl<M: ProcessMemory> Hotspot<M> {
    /// Returns the method that a waiting frame calls; the frame was named before. Some fifteen
    /// system calls.
    pub fn called(&self, cache: &JavaCache, caller: &PhysicalFrame) -> Callee {
        self.find_called(cache, caller).unwrap_or(Callee::Anything)
    }

    fn find_called(&self, cache: &JavaCache, caller: &PhysicalFrame) -> Option<Callee> {
        let fields = self.call_fields.as_ref()?;
        let (method, check, bci) = self.place(cache, caller)?;
        let info = cache.methods.get(&MethodKey { jvm: self.key, method, check })?;
        if info.native {
            // Other native methods call Java by way of the JVM.
            return (&*info.name != ENTER_SPECIAL).then_some(Callee::Nothing);
        }
        if info.name.starts_with("java.lang.invoke.") {
            return None;
        }
        let bci = usize::from(bci?);
        let code = *info.code.get(bci)?;
        match self.templates.is_call(code) {
            None => return None,
            Some(false) => return Some(Callee::Nothing),
            Some(true) => {}
        }
        let operand = field::u16(&info.code, bci + 1)?;
        let layout = &self.jvm.layout;
        let constants = self.memory.read_u64(Avma(method.0.checked_add(layout.method_const.into())?))?;
        let pool = self.memory.read_u64(Avma(constants.checked_add(layout.const_constants.into())?))?;
        let called = fields.method(pool, operand, layout, &self.memory)?;
        // All that was that method's if it is there still.
        let (_, identity) = identify(&[method], &self.method_fields, layout, &self.memory).pop()?.ok()?;
        (identity.check == check).then_some(Callee::Method(called))
    }

    /// The innermost method of a frame, the check over it, and its bytecode index; without one it
    /// waits for no call.
    fn place(&self, cache: &JavaCache, frame: &PhysicalFrame) -> Option<(Avma, u64, Option<u16>)> {
        match *frame {
            PhysicalFrame::Compiled { pc, blob, compile_id, osr } => {
                let debug = cache.nmethods.get(&(self.key, NmethodId { blob, compile_id, osr }))?;
                let (scope, method) = self.scopes(&debug, pc).ok()?.into_iter().next()?;
                let bci = scope.method.and_then(|_| u16::try_from(scope.bci).ok());
                Some((method, debug.method_check(method)?, bci))
            }
            PhysicalFrame::Interpreted { method, check, bcp_offset, .. } => {
                let bci = bcp_offset.checked_sub(self.jvm.layout.const_bytes.into())?;
                Some((method, check, u16::try_from(bci).ok()))
            }
        }
    }
}
