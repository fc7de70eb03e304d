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
        large_first: u64::from_le_bytes(fields.take()?),
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
mod tests;
