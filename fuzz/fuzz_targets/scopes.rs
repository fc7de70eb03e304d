//! Any bytes as a compiled method's debug information, a line table and a symbol: each is bounded,
//! and what is decoded holds together.
#![no_main]

use jvmprof_daemon::hotspot::code_cache::scope_descs::{PcDesc, chain, find};
use jvmprof_daemon::hotspot::code_cache::unsigned5::Unsigned5Encoding;
use jvmprof_daemon::hotspot::methods::class_names::{class_name, decode_symbol};
use jvmprof_daemon::hotspot::methods::line_table::LineNumberTable;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (u8, Vec<(i32, u32)>, u16, &[u8])| {
    let (version, mut descs, code_size, bytes) = input;
    let encoding = Unsigned5Encoding::of_feature(u32::from(version % 32));
    descs.sort_unstable();
    let descs: Vec<PcDesc> =
        descs.into_iter().map(|(pc_offset, scope)| PcDesc { pc_offset, scope }).collect();
    for pc in [0, 1, 100, u32::from(code_size), u32::MAX] {
        let Some(desc) = find(&descs, pc) else { continue };
        assert!(i64::from(desc.pc_offset) >= i64::from(pc));
        if let Ok(scopes) = chain(bytes, desc, encoding) {
            assert!((1..=512).contains(&scopes.len()));
        }
    }
    if let Some(table) = LineNumberTable::decode(bytes, code_size, encoding) {
        assert!(table.entries().iter().all(|(bci, _)| *bci < code_size));
        for bci in -2..300 {
            table.line(bci);
        }
    }
    if let Some(symbol) = decode_symbol(bytes) {
        assert!(class_name(&symbol).len() <= symbol.len());
    }
});
