//! The name of the stub at an address.

use std::sync::Arc;

use crate::hotspot::java_cache::JavaCache;
use crate::hotspot::jvm_reader::Hotspot;
use crate::hotspot::process_memory::ProcessMemory;
use crate::hotspot::stubs::StubRows;
use crate::hotspot::stubs::stub_names::StubNames;
use crate::hotspot::vmstructs::symtab_variables::SymtabVariables;
use crate::types::Avma;

impl<M: ProcessMemory> Hotspot<M> {
    /// Finds the JVM's lists of stubs by the symbols of its file, and reads them. Without symbols
    /// stubs have the names of their blobs.
    pub fn locate_stub_names(&mut self, pid: u32, cache: &JavaCache) {
        let variables = cache.symtab_variables.locate(pid, self.image(), &self.memory);
        self.blocker_variables = variables.blockers;
        self.vm_operation = variables.vm_operation;
        self.set_stub_variables(variables);
    }

    /// Reads the lists of stubs that these variables lead to.
    pub fn set_stub_variables(&mut self, variables: SymtabVariables) {
        tracing::debug!(?variables, "where stubs are listed");
        self.stub_names = StubNames::new(variables);
        self.refresh_stub_names();
    }

    /// Reads the lists of stubs that have changed.
    pub fn refresh_stub_names(&mut self) {
        self.stub_names.refresh(&self.memory);
    }

    /// Returns what HotSpot calls the code at an address that isn't a method's: a stub's name, else
    /// that of its blob, or a codelet's description. `None` outside of what has rows.
    pub fn stub_name(&mut self, rows: &StubRows, pc: Avma) -> Option<Arc<str>> {
        let (blob, code) = rows.name(pc)?;
        let name = self.stub_names.name(pc, blob, &code, &self.memory);
        Some(name.unwrap_or_else(|| Arc::clone(blob)))
    }
}
