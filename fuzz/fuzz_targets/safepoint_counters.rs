//! Any bytes as the performance counters of a JVM, with the layout of the sources and with any
//! other: what is found lies within them and can be read again.
#![no_main]

use jvmprof_daemon::hotspot::{PerfDataLayout, SafepointEntries};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (u32, [u8; 7], &[u8])| {
    let (feature, offsets, bytes) = input;
    check(&PerfDataLayout::OF_SOURCES, feature, bytes);
    let [prologue_entries, prologue_count, entry_length, name_offset, vector_length, data_type, data_offset] =
        offsets.map(usize::from);
    let layout = PerfDataLayout {
        prologue_entries,
        prologue_count,
        entry_length,
        name_offset,
        vector_length,
        data_type,
        data_offset,
    };
    check(&layout, feature, bytes);
});

fn check(layout: &PerfDataLayout, feature: u32, bytes: &[u8]) {
    let Some(found) = SafepointEntries::find(layout, bytes) else { return };
    let entries = found.places().each_ref().map(|place| bytes.get(place.clone()));
    let [Some(count), Some(sync), Some(time)] = entries else { panic!("{found:?} of {}", bytes.len()) };
    // Negative sums are none.
    let _ = found.sums(layout, [count, sync, time], feature);
    // An entry that has been overwritten with anything since then.
    let _ = found.sums(layout, [bytes, &bytes[..bytes.len() / 2], &[]], feature);
}
