//! Any bytes as a thread's buffer, its classes and their names: a census of it ends, and what it
//! counts is what the buffer holds.
#![no_main]

mod repeated;

use std::collections::HashMap;

use jvmprof_daemon::hotspot::java_heap::{HeapLayout, KlassReader, KlassWord, TlabCensus};
use jvmprof_daemon::hotspot::process_memory::ProcessMemory;
use jvmprof_daemon::types::Avma;
use libfuzzer_sys::fuzz_target;
use repeated::Repeated;

fuzz_target!(|input: ([u8; 12], u64, u32, &[u8])| {
    let (shape, start, used, bytes) = input;
    if bytes.is_empty() {
        return;
    }
    let memory = Repeated(bytes);
    let [at, right, left, helper, name, length, body, array, alignment, mirror, chunk, flags] =
        shape.map(u64::from);
    let has = |bit: u32| flags >> bit & 1 == 1;
    let layout = HeapLayout {
        collections_at: has(0).then_some(Avma(0)),
        allocated_bytes: 0,
        layout_helper: helper,
        klass_name: name,
        symbol_length: length,
        symbol_body: body,
        klass_word: KlassWord {
            at: at % 16,
            right: right % 64,
            mask: u64::MAX >> (left % 64),
            base: 0,
            left: left % 8,
        },
        array_length: array % 24,
        alignment: if has(1) { 8 } else { 8 << (alignment % 6) },
        mirror_size: has(2).then_some(mirror),
        stack_chunk: has(3).then_some((chunk, mirror)),
        has_narrow_oops: has(4),
    };
    let collections = u64::from(memory.read_u64(Avma(0)).unwrap_or(0) as u32);
    let used = u64::from(used % (1 << 20));
    let (mut census, mut klasses) = (TlabCensus::default(), KlassReader::default());
    if let Ok(found) = census.count(Avma(start), used, collections, &layout, &mut klasses, &memory) {
        let mut by_class: HashMap<(usize, u32), u64> = HashMap::new();
        for count in &found.counts {
            assert!(count.objects > 0 && count.bytes >= count.objects * 8);
            *by_class
                .entry((std::sync::Arc::as_ptr(&count.class) as usize, count.size_class))
                .or_default() += 1;
        }
        assert!(by_class.values().all(|rows| *rows == 1), "each class of objects has one row");
        assert_eq!(found.counts.iter().map(|count| count.bytes).sum::<u64>(), used);
    }
});
