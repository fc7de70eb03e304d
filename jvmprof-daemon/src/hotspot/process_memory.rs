//! Reading another process's memory: `process_vm_readv`, many places in one call. The process isn't
//! stopped and nothing in it changes, so whatever is read may be stale or torn; whoever reads must
//! check.

use std::io::IoSliceMut;

use jvmprof_common::thread_local::ReadWord;
use nix::errno::Errno;
use nix::sys::uio::{RemoteIoVec, process_vm_readv};
use nix::unistd::Pid;

use crate::types::Avma;

/// Vectors in one `process_vm_readv` (`UIO_MAXIOV`, Linux include/uapi/linux/uio.h).
const MAX_VECTORS: usize = 1024;
/// Bytes of one [`MemoryRead`], at most. More is a sign of garbage taken for a length.
pub const MAX_READ: usize = 16 << 20;
const PAGE: u64 = 4096;

/// One place to read. Its buffer stays as it was, or partly so, if the place can't be read as a
/// whole.
#[derive(Debug)]
pub struct MemoryRead<'b> {
    pub address: Avma,
    pub into: &'b mut [u8],
    /// All of it was read.
    pub done: bool,
}

impl<'b> MemoryRead<'b> {
    pub fn new(address: Avma, into: &'b mut [u8]) -> Self {
        Self { address, into, done: false }
    }
}

/// A process's memory, live or recorded.
pub trait ProcessMemory {
    /// Reads every place that can be read, in as few system calls as possible. What fails stays
    /// [`MemoryRead::done`] = false.
    fn read_many(&self, reads: &mut [MemoryRead<'_>]);

    /// Fills `into` from `address`; false if not all of it can be read.
    fn read_into(&self, address: Avma, into: &mut [u8]) -> bool {
        let mut reads = [MemoryRead::new(address, into)];
        self.read_many(&mut reads);
        reads[0].done
    }

    /// The bytes of `len` from `address`, at most [`MAX_READ`].
    fn read_bytes(&self, address: Avma, len: usize) -> Option<Vec<u8>> {
        if len > MAX_READ {
            return None;
        }
        let mut bytes = vec![0; len];
        self.read_into(address, &mut bytes).then_some(bytes)
    }

    fn read_u64(&self, address: Avma) -> Option<u64> {
        let mut bytes = [0; 8];
        self.read_into(address, &mut bytes).then(|| u64::from_le_bytes(bytes))
    }

    /// The words at these addresses, in one batch.
    fn read_words(&self, addresses: &[Avma]) -> Vec<Option<u64>> {
        let mut words = vec![[0; 8]; addresses.len()];
        let mut reads: Vec<MemoryRead<'_>> =
            addresses.iter().zip(&mut words).map(|(address, into)| MemoryRead::new(*address, into)).collect();
        self.read_many(&mut reads);
        let done: Vec<bool> = reads.iter().map(|read| read.done).collect();
        done.into_iter().zip(words).map(|(done, word)| done.then(|| u64::from_le_bytes(word))).collect()
    }

    /// Several ranges of memory in one batch; `None` for what can't be read as a whole or is
    /// longer than [`MAX_READ`].
    fn read_ranges(&self, ranges: &[(Avma, usize)]) -> Vec<Option<Vec<u8>>> {
        let fits = |len: usize| len <= MAX_READ;
        let mut bytes: Vec<Vec<u8>> =
            ranges.iter().map(|(_, len)| vec![0; if fits(*len) { *len } else { 0 }]).collect();
        let mut reads: Vec<MemoryRead<'_>> = ranges
            .iter()
            .zip(&mut bytes)
            .map(|((address, _), into)| MemoryRead::new(*address, into.as_mut_slice()))
            .collect();
        self.read_many(&mut reads);
        let done: Vec<bool> = reads.iter().map(|read| read.done).collect();
        let lengths = ranges.iter().map(|(_, len)| *len);
        done.into_iter()
            .zip(lengths)
            .zip(bytes)
            .map(|((done, len), bytes)| (done && fits(len)).then_some(bytes))
            .collect()
    }

    /// The C strings at these addresses as [`Self::read_c_string`] reads one, in one batch but for
    /// those that lie across pages.
    fn read_c_strings(&self, addresses: &[Avma], most: usize) -> Vec<Option<String>> {
        let piece = |at: &Avma| (*at, (most + 1).min((PAGE - at.0 % PAGE) as usize));
        let pieces = self.read_ranges(&addresses.iter().map(piece).collect::<Vec<_>>());
        let text = |(at, bytes): (&Avma, Option<Vec<u8>>)| {
            let bytes = bytes?;
            match bytes.iter().position(|byte| *byte == 0) {
                Some(end) => Some(String::from_utf8_lossy(&bytes[..end]).into_owned()),
                None => self.read_c_string(*at, most),
            }
        };
        addresses.iter().zip(pieces).map(text).collect()
    }

    /// The C string at `address` without its end, lossily as UTF-8; `None` if it is longer than
    /// `most` bytes or not readable.
    fn read_c_string(&self, address: Avma, most: usize) -> Option<String> {
        let mut text = Vec::new();
        let mut at = address.0;
        while text.len() <= most {
            // Never across a page's end before the string is known to go on there.
            let to_page_end = PAGE - at % PAGE;
            let mut piece = vec![0; to_page_end.min(128) as usize];
            if !self.read_into(Avma(at), &mut piece) {
                return None;
            }
            if let Some(end) = piece.iter().position(|byte| *byte == 0) {
                text.extend_from_slice(&piece[..end]);
                return (text.len() <= most).then(|| String::from_utf8_lossy(&text).into_owned());
            }
            at = at.checked_add(piece.len() as u64)?;
            text.extend_from_slice(&piece);
        }
        None
    }
}

impl<M: ProcessMemory> ProcessMemory for &M {
    fn read_many(&self, reads: &mut [MemoryRead<'_>]) {
        (**self).read_many(reads);
    }
}

/// A running process.
#[derive(Clone, Copy, Debug)]
pub struct LiveMemory {
    pid: Pid,
}

impl ReadWord for LiveMemory {
    fn read_word(&self, address: Avma) -> Option<u64> {
        self.read_u64(address)
    }
}

impl LiveMemory {
    /// The memory of this process. Reading it takes the rights to trace the process.
    pub fn new(pid: u32) -> Self {
        Self { pid: Pid::from_raw(pid.cast_signed()) }
    }

    /// Reads what one call takes; how many of `reads` were dealt with.
    fn read_batch(self, reads: &mut [MemoryRead<'_>]) -> Result<(), Errno> {
        let mut from = 0;
        while from < reads.len() {
            let until = reads.len().min(from + MAX_VECTORS);
            let batch = &mut reads[from..until];
            let remote: Vec<RemoteIoVec> = batch
                .iter()
                .map(|read| RemoteIoVec {
                    base: usize::try_from(read.address.0).unwrap_or(usize::MAX),
                    len: read.into.len(),
                })
                .collect();
            let mut local: Vec<IoSliceMut<'_>> =
                batch.iter_mut().map(|read| IoSliceMut::new(read.into)).collect();
            let got = match process_vm_readv(self.pid, &mut local, &remote) {
                Ok(got) => got,
                // The first place isn't readable.
                Err(Errno::EFAULT) => 0,
                Err(errno) => return Err(errno),
            };
            let mut left = got;
            let mut dealt = 0;
            for read in batch.iter_mut() {
                dealt += 1;
                read.done = read.into.len() <= left;
                if !read.done {
                    break;
                }
                left -= read.into.len();
            }
            from += dealt;
        }
        Ok(())
    }
}

impl ProcessMemory for LiveMemory {
    fn read_many(&self, reads: &mut [MemoryRead<'_>]) {
        // An error other than a fault means that the process is gone or closed to us: nothing more
        // can be read.
        let _ = self.read_batch(reads);
    }
}

/// Recorded memory: ranges of bytes by address, for tests and for snapshots.
#[derive(Clone, Debug, Default)]
pub struct RecordedMemory {
    /// Ordered by address, without overlaps.
    ranges: std::collections::BTreeMap<u64, Vec<u8>>,
}

impl RecordedMemory {
    /// Adds or overwrites a range. One that overlaps another's middle hides that one's tail.
    pub fn insert(&mut self, address: Avma, bytes: impl Into<Vec<u8>>) {
        self.ranges.insert(address.0, bytes.into());
    }

    fn read(&self, address: u64, into: &mut [u8]) -> bool {
        let mut filled = 0;
        while filled < into.len() {
            let Some(at) = address.checked_add(filled as u64) else { return false };
            let Some((start, bytes)) = self.ranges.range(..=at).next_back() else { return false };
            let Some(from) = bytes.get((at - start) as usize..).filter(|from| !from.is_empty()) else {
                return false;
            };
            let count = from.len().min(into.len() - filled);
            into[filled..filled + count].copy_from_slice(&from[..count]);
            filled += count;
        }
        true
    }
}

impl ProcessMemory for RecordedMemory {
    fn read_many(&self, reads: &mut [MemoryRead<'_>]) {
        for read in reads {
            read.done = self.read(read.address.0, read.into);
        }
    }
}

/// Little-endian fields of bytes that were read as a whole.
pub(crate) mod field {
    pub(crate) fn u8(bytes: &[u8], at: usize) -> Option<u8> {
        bytes.get(at).copied()
    }

    pub(crate) fn u16(bytes: &[u8], at: usize) -> Option<u16> {
        Some(u16::from_le_bytes(bytes.get(at..at.checked_add(2)?)?.try_into().ok()?))
    }

    pub(crate) fn u32(bytes: &[u8], at: usize) -> Option<u32> {
        Some(u32::from_le_bytes(bytes.get(at..at.checked_add(4)?)?.try_into().ok()?))
    }

    pub(crate) fn i32(bytes: &[u8], at: usize) -> Option<i32> {
        u32(bytes, at).map(u32::cast_signed)
    }

    pub(crate) fn u64(bytes: &[u8], at: usize) -> Option<u64> {
        Some(u64::from_le_bytes(bytes.get(at..at.checked_add(8)?)?.try_into().ok()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn here<T>(value: &T) -> Avma {
        Avma(std::ptr::from_ref(value) as u64)
    }

    #[test]
    fn what_can_be_read_is_read_around_what_cannot() {
        let memory = LiveMemory::new(std::process::id());
        let words: [u64; 3] = [1, 2, 3];
        let at = [here(&words[0]), Avma(8), here(&words[1]), Avma(u64::MAX - 4), here(&words[2])];
        assert_eq!(memory.read_words(&at), [Some(1), None, Some(2), None, Some(3)]);
    }

    #[test]
    fn more_places_than_one_call_takes_are_all_read() {
        let memory = LiveMemory::new(std::process::id());
        let words: Vec<u64> = (0..3000).collect();
        let at: Vec<Avma> = words.iter().map(here).collect();
        assert_eq!(memory.read_words(&at), words.iter().map(|word| Some(*word)).collect::<Vec<_>>());
    }

    #[test]
    fn strings_end_where_they_end_and_too_long_ones_are_refused() {
        let text = b"a name\0and more\0";
        let memory = LiveMemory::new(std::process::id());
        let at = Avma(text.as_ptr() as u64);
        assert_eq!(memory.read_c_string(at, 100).as_deref(), Some("a name"));
        assert_eq!(memory.read_c_string(at, 6).as_deref(), Some("a name"));
        assert_eq!(memory.read_c_string(at, 5), None);
        assert_eq!(memory.read_c_string(Avma(16), 5), None);
        let texts = |most| memory.read_c_strings(&[at, Avma(16), Avma(at.0 + 7)], most);
        assert_eq!(texts(100), [Some("a name".to_owned()), None, Some("and more".to_owned())]);
        assert_eq!(texts(6), [Some("a name".to_owned()), None, None]);
    }

    #[test]
    fn strings_are_read_across_the_ends_of_pages() {
        let mut memory = RecordedMemory::default();
        memory.insert(Avma(0x1ffe), b"ab".to_vec());
        memory.insert(Avma(0x2000), [&b"cd"[..], &[0; 256]].concat());
        assert_eq!(memory.read_c_strings(&[Avma(0x1ffe)], 64), [Some("abcd".to_owned())]);
    }

    #[test]
    fn a_process_that_is_gone_reads_as_nothing() {
        assert_eq!(LiveMemory::new(0x3fff_fff0).read_u64(Avma(0x1000)), None);
    }

    #[test]
    fn recorded_memory_joins_neighbours_and_ends_at_holes() {
        let mut memory = RecordedMemory::default();
        memory.insert(Avma(0x1000), vec![1; 8]);
        memory.insert(Avma(0x1008), vec![2; 8]);
        assert_eq!(memory.read_u64(Avma(0x1004)), Some(0x0202_0202_0101_0101));
        assert_eq!(memory.read_u64(Avma(0x100c)), None);
        assert_eq!(memory.read_u64(Avma(0xff8)), None);
    }
}
