//! Any bytes as a process's context: the header, and the payload.
#![no_main]

use jvmprof_daemon::process::process_context::{ContextHeader, decode};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    if let Some(header) = data.first_chunk()
        && let Ok(header) = ContextHeader::parse(header)
    {
        assert!(header.published_at != 0 && (1..=64 << 10).contains(&header.payload_size));
    }
    if let Ok(context) = decode(data) {
        let attributes: Vec<_> = context.service.attributes.iter().collect();
        assert!(attributes.len() <= 64);
        assert!(attributes.iter().map(|(name, value)| name.len() + value.len()).sum::<usize>() <= 16 << 10);
    }
});
