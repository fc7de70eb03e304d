//! The memory of a process.

use jvmprof_daemon::hotspot::process_memory::{MemoryRead, ProcessMemory};

/// A process whose memory repeats the same bytes over and over: each pointer leads somewhere.
pub struct Repeated<'a>(pub &'a [u8]);

impl ProcessMemory for Repeated<'_> {
    fn read_many(&self, reads: &mut [MemoryRead<'_>]) {
        for read in reads {
            let start = read.address.0 as usize % self.0.len();
            for (byte, index) in read.into.iter_mut().zip(0..) {
                *byte = self.0[(start + index) % self.0.len()];
            }
            read.done = true;
        }
    }
}
