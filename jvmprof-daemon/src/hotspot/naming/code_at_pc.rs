//! Description of the code at an address of a JVM, for people.

use super::java_frames::{JavaFrames, PhysicalFrame};
use crate::hotspot::code_cache::code_heaps::CodeBlobDesc;
use crate::hotspot::code_cache::interpreter_codelets::InterpreterCodelet;
use crate::hotspot::code_cache::nmethod::CompiledMethod;
use crate::hotspot::error::HotspotError;
use crate::hotspot::error::NamingError;
use crate::hotspot::java_cache::JavaCache;
use crate::hotspot::jvm_reader::Hotspot;
use crate::hotspot::process_memory::ProcessMemory;
use crate::hotspot::runtime_state::java_threads::JavaThread;
use crate::hotspot::runtime_state::vm_flags::VmFlag;
use crate::process::java_launcher::main_class_of_command;
use crate::types::Avma;

/// The code that an address of the code cache belongs to.
#[derive(Clone, Debug, PartialEq)]
pub struct CodeAtPc {
    pub blob: CodeBlobDesc,
    /// The codelet, in the interpreter.
    pub codelet: Option<InterpreterCodelet>,
    /// A compiled method, and what runs at the address.
    pub compiled: Option<(CompiledMethod, Result<JavaFrames, NamingError>)>,
}

impl<M: ProcessMemory> Hotspot<M> {
    /// Returns the code at an address; `None` outside the code cache and in its gaps.
    ///
    /// # Errors
    /// As [`Self::blobs`].
    pub fn explain(&mut self, pc: Avma) -> Result<Option<CodeAtPc>, HotspotError> {
        let holds = |blob: &CodeBlobDesc| blob.address <= pc && pc < blob.code.end;
        let Some(blob) = self.blobs()?.into_iter().find(holds) else { return Ok(None) };
        let in_interpreter = (self.jvm.interpreter_start..self.jvm.interpreter_end).contains(&pc.0);
        let codelets = if in_interpreter { self.codelets()?.0 } else { Vec::new() };
        let codelet = codelets.into_iter().find(|codelet| codelet.code.contains(&pc));
        let nmethod = if blob.is_nmethod() { std::slice::from_ref(&blob) } else { &[] };
        let compiled = self.compiled_among(nmethod).pop().map(|compiled| {
            let CompiledMethod { blob, compile_id, osr, .. } = compiled;
            let request = PhysicalFrame::Compiled { pc, blob, compile_id, osr };
            let frames = self.resolve(&JavaCache::new(1 << 20), &[request]).pop();
            (compiled, frames.unwrap_or(Err(NamingError::Unreadable)))
        });
        Ok(Some(CodeAtPc { blob, codelet, compiled }))
    }

    /// Returns true if compiled methods can be named: whether this JVM says where their debug
    /// information is.
    pub fn names_compiled_code(&self) -> bool {
        self.nmethod_fields.is_some()
    }

    /// Flags that don't have their default values; empty if this JVM doesn't export them.
    pub fn flags(&self) -> Vec<VmFlag> {
        self.runtime_state_fields.flags.and_then(|fields| fields.set(&self.memory)).unwrap_or_default()
    }

    /// The Java threads there are now; empty if this JVM doesn't export them.
    pub fn threads(&self) -> Vec<JavaThread> {
        let fields = self.runtime_state_fields.threads.as_ref();
        fields.and_then(|fields| fields.threads(&self.memory)).unwrap_or_default()
    }

    /// Returns the program that runs, by what the JVM keeps of its command line: a main class, or a
    /// jar's file name. `None` while the JVM starts, and with `-XX:-UsePerfData`; then the
    /// process's arguments may have it
    /// ([`crate::process::java_launcher::main_class_of_arguments`]).
    pub fn main_class(&self) -> Option<String> {
        let command = self.runtime_state_fields.perf?.java_command(&self.memory)?;
        main_class_of_command(&command)
    }
}
