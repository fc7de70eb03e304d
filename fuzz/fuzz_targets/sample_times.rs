//! Any bytes as the times of a profile's samples: what is kept of a time range lies in it, and is
//! no more than there was.
#![no_main]

use jvmprof_daemon::profile::pprof::sample_times::keep_within;
use jvmprof_daemon::proto::pprof::{Profile, Sample};
use libfuzzer_sys::fuzz_target;

const START: i64 = 1_700_000_000_000_000_000;
const SAMPLES: [i64; 4] = [1, 3, 200, 5];

/// Six bits each, as base64 writes them.
const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

fuzz_target!(|data: (Vec<i64>, Vec<u8>)| {
    let (mut values, bytes) = data;
    let comment: String = bytes.iter().map(|byte| char::from(DIGITS[usize::from(byte % 64)])).collect();
    values.truncate(16);
    values.extend(SAMPLES);
    let samples = values.iter().map(|events| Sample { value: vec![*events], ..Sample::default() });
    let profile = Profile {
        time_nanos: START,
        sample: samples.collect(),
        string_table: vec![String::new(), format!("jvmprof sample times: {comment}")],
        comment: vec![1],
        ..Profile::default()
    };
    let all: i128 = values.iter().filter(|events| **events > 0).map(|events| i128::from(*events)).sum();
    for (length, has_untimed) in [(1_000_000_000, false), (1_000_000_000, true), (i64::MAX - START, true)] {
        let range = START..START + length;
        let mut kept = profile.clone();
        let Ok(times) = keep_within(&mut kept, &range, has_untimed) else {
            assert_eq!(kept, profile);
            continue;
        };
        let events: i128 = kept.sample.iter().map(|sample| i128::from(sample.value[0])).sum();
        assert!(kept.sample.iter().all(|sample| sample.value[0] > 0) && events <= all);
        for at in 0..kept.sample.len() {
            let of_sample = times.of(at);
            assert!(of_sample.len() as i64 <= kept.sample[at].value[0]);
            assert!(of_sample.iter().all(|ms| i64::from(*ms) * 1_000_000 < length || *ms == u32::MAX));
        }
    }
});
