//! Any bytes as a record of the ring buffer, and others behind a good header: the thread's context
//! lies within the record, and its attributes within the context.
#![no_main]

use std::mem::{offset_of, size_of};

use jvmprof_common::abi::{FLAG_THREAD_CONTEXT, SAMPLE_MAGIC, SampleHeader};
use jvmprof_common::thread_context::{MAX_RECORD_WORDS, RECORD_HEADER_BYTES};
use jvmprof_daemon::pipeline::thread_contexts::record::ThreadContextRecord;
use jvmprof_daemon::sampler::StackSample;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (u8, [u8; 3], &[u8])| {
    let (flags, parts, rest) = input;
    check(rest);
    let mut record = vec![0; size_of::<SampleHeader>()];
    record[..8].copy_from_slice(&SAMPLE_MAGIC.to_le_bytes());
    record[offset_of!(SampleHeader, flags)] = flags | FLAG_THREAD_CONTEXT;
    let [kernel, user, tail] = parts;
    record[offset_of!(SampleHeader, head_words)] = kernel;
    record[offset_of!(SampleHeader, user_words)] = user;
    record[offset_of!(SampleHeader, tail_words)] = tail;
    record.extend_from_slice(rest);
    check(&record);
});

fn check(record: &[u8]) {
    let Ok(sample) = StackSample::parse(record) else { return };
    assert!(sample.words() * 8 <= record.len());
    let context = sample.thread_context();
    assert!(
        context.is_empty() || (RECORD_HEADER_BYTES.div_ceil(8)..=MAX_RECORD_WORDS).contains(&context.len())
    );
    assert_eq!(sample.all_words().len() + context.len(), sample.words());
    let bytes: Vec<u8> = context.iter().flat_map(|word| word.to_le_bytes()).collect();
    let Some(parsed) = ThreadContextRecord::parse(&bytes) else { return };
    assert!(parsed.size_bytes() <= bytes.len());
    let attributes: usize = parsed.attributes().map(|(_, value)| value.len() + 2).sum();
    assert!(RECORD_HEADER_BYTES + attributes <= parsed.size_bytes());
    // What follows the record has no effect: labels are kept by the record alone.
    assert_eq!(ThreadContextRecord::parse(&bytes[..parsed.size_bytes()]), Some(parsed));
}
