//! Any bytes as a message of OTLP profiles: what is made of it is pprof, and bounded.
#![no_main]

use jvmprof_daemon::export::otlp::received;
use jvmprof_daemon::profile::pprof::CheckedTables;
use jvmprof_daemon::profile::pprof::decode::{DecodeLimits, decode};
use libfuzzer_sys::fuzz_target;
use opentelemetry_proto::tonic::collector::profiles::v1development::ExportProfilesServiceRequest;
use prost::Message as _;

const LIMIT: usize = 1 << 20;

fuzz_target!(|data: &[u8]| {
    let Ok(message) = ExportProfilesServiceRequest::decode(data) else { return };
    let Ok(request) = received::series(&message, LIMIT) else { return };
    // Heads of profiles and series aren't counted: each takes some bytes of the message.
    assert!(request.encoded_len() <= LIMIT + 64 * data.len());
    for raw in request.series.iter().flat_map(|series| &series.samples) {
        let profile = decode(&raw.raw_profile, DecodeLimits::default()).expect("pprof");
        if !profile.sample_type.is_empty() {
            CheckedTables::new(&profile).expect("references lead somewhere");
        }
    }
});
