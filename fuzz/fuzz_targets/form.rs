//! Any bytes as a form, by any content type and by a good one: its parts lie within it.
#![no_main]

use jvmprof_daemon::export::collector::pyroscope_receiver::form;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (&str, &[u8])| {
    let (content_type, body) = input;
    for content_type in [content_type, "multipart/form-data; boundary=x"] {
        let Ok(parts) = form::parts(content_type, body) else { continue };
        let bytes: usize = parts.values().map(|contents| contents.len()).sum();
        assert!(bytes <= body.len());
    }
});
