//! Any bytes as the memory of a process with a JVM: reading its exported symbols and its tables
//! ends.
#![no_main]

mod repeated;

use jvmprof_daemon::hotspot::vmstructs::{Image, VmStructs};
use jvmprof_daemon::types::Avma;
use libfuzzer_sys::fuzz_target;
use repeated::Repeated;

/// Where linkers put an executable that isn't relocatable: its pointers are right in its file.
const IMAGE: Image = Image(Avma(0x40_0000));

fuzz_target!(|data: &[u8]| {
    if data.is_empty() {
        return;
    }
    if let Ok((image, tables)) = VmStructs::read(&[IMAGE], &Repeated(data)) {
        assert_eq!(image, IMAGE);
        let _ = tables.field("Method::_constMethod");
    }
});
