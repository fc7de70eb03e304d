//! Any bytes as a segment of the spool, and others as the ledger: opening the folder ends, and each
//! record that it says it has is handed out once or counted as damaged.
#![no_main]

mod pieces;

use std::fs;
use std::time::Duration;

use jvmprof_daemon::export::delivery::read_ledger;
use jvmprof_daemon::export::spool::{Spool, SpoolOptions};
use libfuzzer_sys::fuzz_target;

const OPTIONS: SpoolOptions =
    SpoolOptions { max_bytes: 1 << 30, max_age: Duration::from_secs(1 << 40), send_again: false };

fuzz_target!(|data: &[u8]| {
    let mut rest = data;
    let ledger = pieces::piece(&mut rest);
    let dir = tempfile::tempdir_in("/dev/shm").expect("a folder in memory");
    fs::write(dir.path().join("ledger"), ledger).expect("written");
    fs::write(dir.path().join("0000000000000001.spool"), rest).expect("written");
    if let Ok(Some(entry)) = read_ledger(dir.path()) {
        let _ = entry.total();
    }
    let Ok((mut spool, found)) = Spool::open(dir.path(), OPTIONS, &[]) else { return };
    assert_eq!(spool.samples(), found.waiting);
    while let Ok(Some(taken)) = spool.take_next() {
        assert!(taken.body.len() <= data.len());
        spool.complete(taken.id, taken.samples);
    }
    assert!(spool.samples().is_none());
});
