//! One sample of a thread's stack, as the kernel program writes it into the ring buffer.

use jvmprof_common::abi::{
    FLAG_ALLOCATION, FLAG_KERNEL_MODE, FLAG_OFF_CPU, FLAG_THREAD_CONTEXT, RED_ZONE_WORDS, SAMPLE_MAGIC,
    SAMPLE_WORDS, SampleHeader, Stop,
};
use jvmprof_common::allocation::{ALLOCATION_WORDS, AllocationRecord, TLAB_MAGIC, TlabRecord};
use jvmprof_common::blocker::Blocker;
use jvmprof_common::frame::FrameWord;
use jvmprof_common::frame::UserFrame;
use jvmprof_common::off_cpu::{WAIT_WORDS, WaitRecord, WaitingThread};
use jvmprof_common::pause::{PAUSE_MAGIC, PauseRecord};
use jvmprof_common::thread_context::{MAX_RECORD_WORDS, RECORD_HEADER_BYTES};

use crate::event_type::EventType;
use crate::types::Avma;

/// A sample: the thread that ran, and its stack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StackSample {
    /// What it was taken of.
    pub event: SampledEvent,
    pub header: SampleHeader,
    pub stop: Stop,
    /// How many of the words, the last ones, are the thread's context.
    context_words: u8,
    words: Box<[u64]>,
}

/// The event that a sample was taken of, with what it says beside the stack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SampledEvent {
    /// A tick of a CPU's clock.
    Cpu,
    /// An allocation in a JVM's heap.
    Allocation(Box<AllocationRecord>),
    /// A wait off the CPU that has ended.
    OffCpu(Box<WaitRecord>),
}

impl SampledEvent {
    pub const fn event_type(&self) -> EventType {
        match self {
            Self::Cpu => EventType::Cpu,
            Self::Allocation(_) => EventType::Allocation,
            Self::OffCpu(_) => EventType::OffCpu,
        }
    }
}

/// A record of the ring buffer.
#[derive(Debug)]
pub(super) enum RingRecord {
    Sample(StackSample),
    Tlab(TlabRecord),
    Pause(Box<PauseRecord>),
}

impl RingRecord {
    /// Parses a record by its first word.
    ///
    /// # Errors
    /// Returns the errors of [`StackSample::parse`].
    pub(super) fn parse(record: &[u8]) -> Result<Self, MalformedSample> {
        match record.first_chunk::<8>().map(|magic| u64::from_le_bytes(*magic)) {
            Some(TLAB_MAGIC) => {
                let tlab = parse_tlab(record).map(Self::Tlab);
                tlab.ok_or(MalformedSample { event: EventType::Allocation })
            }
            Some(PAUSE_MAGIC) => {
                let pause = parse_pause(record).map(|pause| Self::Pause(Box::new(pause)));
                pause.ok_or(MalformedSample { event: EventType::Cpu })
            }
            _ => StackSample::parse(record).map(Self::Sample),
        }
    }
}

fn parse_tlab(record: &[u8]) -> Option<TlabRecord> {
    let mut fields = HeaderFields(record);
    Some(TlabRecord {
        magic: u64::from_le_bytes(fields.take()?),
        time_ns: u64::from_le_bytes(fields.take()?),
        start_ns: u64::from_le_bytes(fields.take()?),
        pid: u32::from_le_bytes(fields.take()?),
        tid: u32::from_le_bytes(fields.take()?),
        start: u64::from_le_bytes(fields.take()?),
        used: u64::from_le_bytes(fields.take()?),
        collections: u64::from_le_bytes(fields.take()?),
        interval: u64::from_le_bytes(fields.take()?),
    })
}

fn parse_pause(record: &[u8]) -> Option<PauseRecord> {
    let mut fields = HeaderFields(record);
    let mut pause = PauseRecord {
        magic: u64::from_le_bytes(fields.take()?),
        time_ns: u64::from_le_bytes(fields.take()?),
        start_ns: u64::from_le_bytes(fields.take()?),
        pid: u32::from_le_bytes(fields.take()?),
        is_over: u32::from_le_bytes(fields.take()?),
        began_ns: u64::from_le_bytes(fields.take()?),
        reached_ns: u64::from_le_bytes(fields.take()?),
        operation: u64::from_le_bytes(fields.take()?),
        ..PauseRecord::default()
    };
    for word in &mut pause.cause {
        *word = u64::from_le_bytes(fields.take()?);
    }
    Some(pause)
}

/// Error of a ring buffer record that isn't a sample of this version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MalformedSample {
    /// What its flags say, as far as they are there: else CPU time.
    pub event: EventType,
}

const HEADER_BYTES: usize = size_of::<SampleHeader>();
/// Words of a thread's context without attributes.
const RECORD_HEADER_WORDS: usize = RECORD_HEADER_BYTES.div_ceil(8);

impl StackSample {
    /// Parses a ring buffer record.
    ///
    /// # Errors
    /// Returns an error if the record is too short, of another version, or its lengths don't fit.
    pub fn parse(record: &[u8]) -> Result<Self, MalformedSample> {
        let of_cpu = MalformedSample { event: EventType::Cpu };
        let (head, rest) = record.split_at_checked(HEADER_BYTES).ok_or(of_cpu)?;
        let mut header = parse_header(head).ok_or(of_cpu)?;
        let event = event_of(header.flags);
        let malformed = MalformedSample { event };
        let stop = Stop::from_u8(header.stop).ok_or(malformed)?;
        let words = usize::from(header.head_words)
            + usize::from(header.user_words)
            + usize::from(header.tail_words)
            + usize::from(header.far_words);
        if header.magic != SAMPLE_MAGIC || words > SAMPLE_WORDS || rest.len() < words * 8 {
            return Err(malformed);
        }
        let context_words = match rest.len() / 8 - words {
            _ if header.flags & FLAG_THREAD_CONTEXT == 0 => 0,
            context @ RECORD_HEADER_WORDS..=MAX_RECORD_WORDS => context,
            _ => return Err(malformed),
        };
        let words = words + context_words;
        let context_words = context_words as u8;
        let mut words = rest[..words * 8].as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word));
        let head = usize::from(header.head_words);
        let mut next = || words.next().unwrap_or_default();
        let event = match event {
            EventType::Cpu => SampledEvent::Cpu,
            EventType::Allocation if head == ALLOCATION_WORDS => {
                header.head_words = 0;
                SampledEvent::Allocation(Box::new(AllocationRecord {
                    klass: next(),
                    object_bytes: next(),
                    tlab_bytes: next(),
                    weighed_bytes: next(),
                    interval: next(),
                    drawn_bytes: next(),
                }))
            }
            EventType::OffCpu if head >= WAIT_WORDS => {
                header.head_words -= WAIT_WORDS as u16;
                SampledEvent::OffCpu(Box::new(WaitRecord {
                    waited_ns: next(),
                    queued_ns: next(),
                    interval: next(),
                    state: next(),
                    system_call: next(),
                    blocker: Blocker { kind: next(), object: [next(), next()], monitor: next() },
                    monitor_owner: next(),
                    throttled_ns: next(),
                }))
            }
            _ => return Err(malformed),
        };
        Ok(Self { event, header, stop, context_words, words: words.collect() })
    }

    /// Returns a sample of a thread that waits: with the frame that entered the kernel, and the
    /// stack from which its callers are walked. `stack` begins [`RED_ZONE_WORDS`] below its
    /// pointer. `context`: see [`Self::thread_context`].
    pub(crate) fn of_waiting(
        thread: &WaitingThread,
        record: WaitRecord,
        time_ns: u64,
        stack: &[u64],
        context: &[u64],
    ) -> Self {
        let [r15, r14, r13, r12, rbp, rbx, r11, r10, r9, r8, rax, rcx, rdx, rsi, rdi, _, rip, _, _, rsp, _] =
            thread.registers;
        let stack = if stack.len() > RED_ZONE_WORDS { stack } else { &[] };
        let header = SampleHeader {
            magic: SAMPLE_MAGIC,
            time_ns,
            start_ns: thread.process_start_ns,
            pid: thread.pid,
            tid: thread.tid,
            comm: thread.comm,
            tail_sp: rsp,
            tail_fp: rbp,
            user_words: 1,
            tail_words: stack.len() as u16,
            stop: Stop::UnknownProcess as u8,
            flags: FLAG_KERNEL_MODE | FLAG_OFF_CPU,
            tail_below: (RED_ZONE_WORDS * 8) as u16,
            thread_pointer: thread.thread_pointer,
            registers: [rax, rcx, rdx, rbx, rsp, rbp, rsi, rdi, r8, r9, r10, r11, r12, r13, r14, r15],
            ..SampleHeader::default()
        };
        let words = std::iter::once(&FrameWord::exact(rip).0).chain(stack).chain(context).copied().collect();
        let event = SampledEvent::OffCpu(Box::new(record));
        let context_words = u8::try_from(context.len()).unwrap_or_default();
        Self { event, header, stop: Stop::UnknownProcess, context_words, words }
    }

    /// Returns the kernel addresses, leaf first. All but the first are return addresses.
    pub fn kernel(&self) -> &[u64] {
        &self.words[..usize::from(self.header.head_words)]
    }

    /// Returns the words of the user stack, leaf first: see [`jvmprof_common::frame::UserFrame`].
    pub fn user(&self) -> &[u64] {
        let begin = usize::from(self.header.head_words);
        &self.words[begin..begin + usize::from(self.header.user_words)]
    }

    /// Returns the copy of the stack, which begins at [`Self::tail_start`].
    pub fn tail(&self) -> &[u64] {
        let end = self.all_words().len() - usize::from(self.header.far_words);
        &self.words[usize::from(self.header.head_words) + usize::from(self.header.user_words)..end]
    }

    /// Returns copies of other memory of the process: start address and words of each.
    pub fn stretches(&self) -> impl Iterator<Item = (Avma, &[u64])> {
        let words = self.all_words();
        let mut words = &words[words.len() - usize::from(self.header.far_words)..];
        std::iter::from_fn(move || {
            let [start, length, rest @ ..] = words else { return None };
            let (stretch, after) = rest.split_at_checked(usize::try_from(*length).ok()?)?;
            words = after;
            Some((Avma(*start), stretch))
        })
    }

    /// Returns the address of the first word of [`Self::tail`].
    pub fn tail_start(&self) -> Avma {
        Avma(self.header.tail_sp.saturating_sub(self.header.tail_below.into()))
    }

    /// Returns the lookup addresses of the user frames, which should lie in mappings.
    pub fn addresses(&self) -> impl Iterator<Item = Avma> + '_ {
        let mut words = self.user();
        let frames = std::iter::from_fn(move || UserFrame::take(&mut words));
        frames.filter_map(|frame| frame.lookup_address()).map(Avma)
    }

    /// Returns the words of all parts, in the order kernel, user, tail, stretches.
    pub fn all_words(&self) -> &[u64] {
        &self.words[..self.words.len() - usize::from(self.context_words)]
    }

    /// Returns the context that the thread had published, as it was in memory: see
    /// [`jvmprof_common::thread_context`]. Empty if there is none.
    pub fn thread_context(&self) -> &[u64] {
        &self.words[self.all_words().len()..]
    }

    /// Returns the number of words of all parts, and of the thread's context.
    pub fn words(&self) -> usize {
        self.words.len()
    }

    pub fn in_kernel(&self) -> bool {
        self.header.flags & FLAG_KERNEL_MODE != 0
    }

    /// Returns the thread's name.
    pub fn comm(&self) -> String {
        kernel_string(&self.header.comm)
    }
}

#[cfg(test)]
impl StackSample {
    /// Returns an empty sample, for tests.
    pub(crate) fn empty() -> Self {
        let magic = SAMPLE_MAGIC.to_le_bytes();
        let record: Vec<u8> = magic.into_iter().chain(std::iter::repeat(0)).take(HEADER_BYTES).collect();
        Self::parse(&record).expect("a record of this version")
    }
}

/// Returns the event that a sample's flags say.
const fn event_of(flags: u8) -> EventType {
    if flags & FLAG_OFF_CPU != 0 {
        EventType::OffCpu
    } else if flags & FLAG_ALLOCATION != 0 {
        EventType::Allocation
    } else {
        EventType::Cpu
    }
}

/// Converts a NUL-padded name of the kernel to text.
pub(super) fn kernel_string(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}

fn parse_header(bytes: &[u8]) -> Option<SampleHeader> {
    let mut fields = HeaderFields(bytes);
    Some(SampleHeader {
        magic: u64::from_le_bytes(fields.take()?),
        time_ns: u64::from_le_bytes(fields.take()?),
        start_ns: u64::from_le_bytes(fields.take()?),
        pid: u32::from_le_bytes(fields.take()?),
        tid: u32::from_le_bytes(fields.take()?),
        comm: fields.take()?,
        tail_sp: u64::from_le_bytes(fields.take()?),
        tail_fp: u64::from_le_bytes(fields.take()?),
        cpu: u32::from_le_bytes(fields.take()?),
        head_words: u16::from_le_bytes(fields.take()?),
        user_words: u16::from_le_bytes(fields.take()?),
        tail_words: u16::from_le_bytes(fields.take()?),
        stop: fields.take::<1>()?[0],
        flags: fields.take::<1>()?[0],
        tail_below: u16::from_le_bytes(fields.take()?),
        far_words: u16::from_le_bytes(fields.take()?),
        thread_pointer: u64::from_le_bytes(fields.take()?),
        held_monitor: u64::from_le_bytes(fields.take()?),
        registers: {
            let mut registers = [0; 16];
            for register in &mut registers {
                *register = u64::from_le_bytes(fields.take()?);
            }
            registers
        },
    })
}

struct HeaderFields<'a>(&'a [u8]);

impl HeaderFields<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (field, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*field)
    }
}

#[cfg(test)]
impl StackSample {
    /// Returns a sample of these parts, for tests.
    pub(crate) fn of_parts(kernel: &[u64], user: &[u64], tail: &[u64], stop: Stop) -> Self {
        let header = SampleHeader {
            head_words: kernel.len() as u16,
            user_words: user.len() as u16,
            tail_words: tail.len() as u16,
            ..SampleHeader::default()
        };
        let words = [kernel, user, tail].concat().into();
        Self { event: SampledEvent::Cpu, header, stop, context_words: 0, words }
    }
}

#[cfg(test)]
mod tests {
    use jvmprof_common::frame::FrameWord;

    use super::*;

    fn record(kernel: u16, user: u16, tail: u16, words: &[u64]) -> Vec<u8> {
        record_with_far(kernel, user, tail, 0, words)
    }

    fn record_with_far(kernel: u16, user: u16, tail: u16, far: u16, words: &[u64]) -> Vec<u8> {
        let mut bytes = Vec::new();
        bytes.extend(SAMPLE_MAGIC.to_le_bytes());
        bytes.extend(7u64.to_le_bytes());
        bytes.extend(8u64.to_le_bytes());
        bytes.extend(9u32.to_le_bytes());
        bytes.extend(10u32.to_le_bytes());
        bytes.extend(*b"worker\0\0\0\0\0\0\0\0\0\0");
        bytes.extend(0x7000u64.to_le_bytes());
        bytes.extend(0x7010u64.to_le_bytes());
        bytes.extend(1u32.to_le_bytes());
        for length in [kernel, user, tail] {
            bytes.extend(length.to_le_bytes());
        }
        bytes.push(Stop::ChainEnded as u8);
        bytes.push(FLAG_KERNEL_MODE);
        bytes.extend(0u16.to_le_bytes());
        bytes.extend(far.to_le_bytes());
        bytes.extend(0x5000u64.to_le_bytes());
        bytes.extend(0x6000u64.to_le_bytes());
        bytes.extend((0..16u64).flat_map(u64::to_le_bytes));
        assert_eq!(bytes.len(), HEADER_BYTES);
        bytes.extend(words.iter().flat_map(|word| word.to_le_bytes()));
        bytes
    }

    #[test]
    fn a_record_is_taken_apart() {
        let user = [FrameWord::exact(0x401_000).0, FrameWord::return_address(0x402_000).0];
        let sample = StackSample::parse(&record(1, 2, 1, &[0xffff_ffff_8100_0000, user[0], user[1], 42]))
            .expect("the record is well-formed");
        assert_eq!(sample.kernel(), [0xffff_ffff_8100_0000]);
        assert_eq!(sample.user(), user);
        assert_eq!((sample.header.held_monitor, sample.header.registers[13]), (0x6000, 13));
        assert_eq!(sample.tail(), [42]);
        assert_eq!(
            (sample.comm().as_str(), sample.stop, sample.in_kernel()),
            ("worker", Stop::ChainEnded, true)
        );
        assert_eq!((sample.header.pid, sample.header.tid, sample.header.cpu), (9, 10, 1));
    }

    #[test]
    fn a_record_may_end_in_its_threads_context() {
        let with_flags = |flags: u8, context: &[u64]| {
            let words = [&[1, 2][..], context].concat();
            let mut bytes = record(0, 1, 1, &words);
            bytes[std::mem::offset_of!(SampleHeader, flags)] = flags;
            StackSample::parse(&bytes)
        };
        let sample = with_flags(FLAG_THREAD_CONTEXT, &[7, 8, 9, 10]).expect("a record");
        assert_eq!((sample.user(), sample.tail()), (&[1][..], &[2][..]));
        assert_eq!((sample.thread_context(), sample.all_words()), (&[7, 8, 9, 10][..], &[1, 2][..]));
        let sample = with_flags(0, &[]).expect("a record");
        assert!(sample.thread_context().is_empty());
        for words in [0, 3, 81] {
            let refused = with_flags(FLAG_THREAD_CONTEXT, &vec![0; words]);
            assert_eq!(refused, Err(MalformedSample { event: EventType::Cpu }), "{words} words");
        }
    }

    #[test]
    fn stretches_end_where_a_length_does_not_fit() {
        let stretches = |far: &[u64]| -> Vec<(Avma, Vec<u64>)> {
            let words = [&[1, 2], far].concat();
            let sample =
                StackSample::parse(&record_with_far(0, 1, 1, far.len() as u16, &words)).expect("a record");
            assert_eq!((sample.tail(), sample.header.thread_pointer), (&[2][..], 0x5000));
            sample.stretches().map(|(start, words)| (start, words.to_vec())).collect()
        };
        let whole = [(Avma(0x10), vec![7]), (Avma(0x20), vec![]), (Avma(0x30), vec![8, 9])];
        assert_eq!(stretches(&[0x10, 1, 7, 0x20, 0, 0x30, 2, 8, 9]), whole);
        assert_eq!(stretches(&[0x10, 1, 7, 0x20, 0, 0x30, 3, 8, 9]), whole[..2]);
        assert_eq!(stretches(&[0x10, u64::MAX, 7]), []);
        assert_eq!(stretches(&[0x10]), []);
    }

    #[test]
    fn a_thread_that_waits_has_its_own_registers_and_the_stack_as_its_tail() {
        let thread = WaitingThread {
            tid: 8,
            pid: 7,
            process_start_ns: 5,
            registers: std::array::from_fn(|index| 100 + index as u64),
            ..WaitingThread::default()
        };
        let stack: Vec<u64> = (0..40).collect();
        let sample = StackSample::of_waiting(&thread, WaitRecord::default(), 3, &stack, &[9; 4]);
        let header = &sample.header;
        assert_eq!((header.pid, header.tid, header.start_ns, header.time_ns), (7, 8, 5, 3));
        assert_eq!((header.tail_sp, header.tail_fp), (119, 104));
        // rax, rcx, rdx, rbx, rsp, rbp, rsi, rdi, r8 to r15.
        let numbered = [110, 111, 112, 105, 119, 104, 113, 114, 109, 108, 107, 106, 103, 102, 101, 100];
        assert_eq!(header.registers, numbered);
        assert_eq!((sample.user(), sample.tail()), (&[FrameWord::exact(116).0][..], &stack[..]));
        assert_eq!(sample.thread_context(), [9; 4]);
        assert_eq!(sample.tail_start(), Avma(0));
        assert_eq!(sample.event.event_type(), EventType::OffCpu);
        let unreadable = StackSample::of_waiting(&thread, WaitRecord::default(), 3, &stack[..16], &[]);
        assert!(unreadable.tail().is_empty());
    }

    #[test]
    fn a_record_cut_short_or_of_another_version_is_refused() {
        let whole = record(1, 1, 1, &[1, 2, 3]);
        for length in 0..whole.len() {
            let refused = StackSample::parse(&whole[..length]);
            assert_eq!(refused, Err(MalformedSample { event: EventType::Cpu }), "{length} bytes");
        }
        let mut other = whole;
        other[7] = 0;
        assert_eq!(StackSample::parse(&other), Err(MalformedSample { event: EventType::Cpu }));
        other[std::mem::offset_of!(SampleHeader, flags)] |= FLAG_ALLOCATION;
        assert_eq!(StackSample::parse(&other), Err(MalformedSample { event: EventType::Allocation }));
    }
}
