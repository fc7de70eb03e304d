//! Process events as perf records: a dummy event on every CPU, with a small ring of its own.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fmt;
use std::sync::Arc;

use perf_event::data::endian::Native;
use perf_event::data::parse::{ParseConfig, Parser};
use perf_event::data::{Comm, Exit, Fork, Lost, Mmap2, RecordMetadata, Visitor};
use perf_event::events::Software;
use perf_event::{Builder, Clock, SampleFlag, Sampler};
use perf_event_open_sys::bindings::perf_event_header;

use super::epoll::RingEpoll;
use crate::clock::monotonic_ns;
use crate::sampler::error::SamplerError;
use crate::sampler::event::{KernelEvent, KernelEventKind, MappingEvent};
use crate::sampler::sample::kernel_string;
use crate::types::{Avma, BuildId, FileOffset};

/// Bytes of each CPU's ring: an exec writes about 2 KiB.
const RING_BYTES: usize = 256 << 10;
/// `PERF_RECORD_MISC_COMM_EXEC` of include/uapi/linux/perf_event.h: the name changed by exec.
const MISC_COMM_EXEC: u16 = 1 << 13;

/// The perf rings of all CPUs.
pub(in crate::sampler) struct PerfRecordRings {
    rings: BTreeMap<u32, CpuRing>,
    /// Epoll instance that the rings are added to.
    epoll: Arc<RingEpoll>,
}

struct CpuRing {
    sampler: Sampler,
    config: ParseConfig<Native>,
}

impl fmt::Debug for PerfRecordRings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PerfRecordRings").field("cpus", &self.rings.keys()).finish()
    }
}

impl PerfRecordRings {
    pub(in crate::sampler) fn open(cpus: &[u32], epoll: Arc<RingEpoll>) -> Result<Self, SamplerError> {
        let mut records = Self { rings: BTreeMap::new(), epoll };
        records.update_cpus(cpus)?;
        Ok(records)
    }

    /// Opens rings for CPUs that came online, and closes those of CPUs that went offline.
    pub(in crate::sampler) fn update_cpus(&mut self, cpus: &[u32]) -> Result<(), SamplerError> {
        // An event of a CPU that went offline is dead for good, also when the CPU comes back.
        let gone: Vec<u32> = self.rings.keys().copied().filter(|cpu| !cpus.contains(cpu)).collect();
        for cpu in gone {
            self.rings.remove(&cpu);
        }
        for &cpu in cpus {
            if let Entry::Vacant(entry) = self.rings.entry(cpu) {
                let failed = |source| SamplerError::PerfEvent { event: "process records", cpu, source };
                let ring = CpuRing::open(cpu).map_err(failed)?;
                // A ring that is closed is no longer waited on.
                self.epoll.add_records(&ring.sampler).map_err(failed)?;
                entry.insert(ring);
            }
        }
        Ok(())
    }

    /// Calls `handle` with the events of all records.
    pub(in crate::sampler) fn drain(&mut self, handle: &mut impl FnMut(KernelEvent)) -> DrainCounts {
        let mut drained = DrainCounts::default();
        for ring in self.rings.values_mut() {
            while let Some(record) = ring.sampler.next_record() {
                let bytes = record.to_contiguous();
                drained.read(&ring.config, (record.ty(), record.misc()), &bytes, handle);
            }
        }
        if drained.malformed > 0 {
            // Their contents are lost, as if the kernel had dropped them.
            handle(KernelEvent { time_ns: monotonic_ns(), kind: KernelEventKind::EventsLost });
        }
        drained
    }
}

/// Counters of records whose contents are lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::sampler) struct DrainCounts {
    /// Records that the kernel had to drop.
    pub(in crate::sampler) lost: u64,
    /// Records that could not be parsed.
    pub(in crate::sampler) malformed: u64,
}

impl DrainCounts {
    /// Parses a record of this type and `misc`, and calls `handle` with its event.
    fn read(
        &mut self,
        config: &ParseConfig<Native>,
        (type_, misc): (u32, u16),
        bytes: &[u8],
        handle: &mut impl FnMut(KernelEvent),
    ) {
        let size = (bytes.len() + size_of::<perf_event_header>()) as u16;
        let header = perf_event_header { type_, misc, size };
        match Parser::new(bytes, config.clone()).parse_record_with_header(EventVisitor, header) {
            Ok(ParsedRecord::KernelEvent(event)) => handle(event),
            Ok(ParsedRecord::Lost { count, time_ns }) => {
                self.lost += count;
                handle(KernelEvent { time_ns, kind: KernelEventKind::EventsLost });
            }
            Ok(ParsedRecord::Other) => {}
            Err(error) => {
                self.malformed += 1;
                tracing::warn!(%error, type_, "a perf record can't be parsed");
            }
        }
    }
}

impl CpuRing {
    fn open(cpu: u32) -> std::io::Result<Self> {
        let builder = builder(cpu);
        let config = ParseConfig::from(*builder.attrs());
        let sampler = builder.build()?.sampled(RING_BYTES)?;
        Ok(Self { sampler, config })
    }
}

fn builder(cpu: u32) -> Builder<'static> {
    let mut builder = Builder::new(Software::DUMMY);
    builder
        .any_pid()
        .one_cpu(cpu as usize)
        .include_kernel()
        .mmap(true)
        .mmap2(true)
        .build_id(true)
        .comm(true)
        .comm_exec(true)
        .task(true)
        .sample(SampleFlag::TIME)
        .sample_id_all(true)
        .clockid(Clock::MONOTONIC)
        .sample_period(1)
        .wakeup_watermark(RING_BYTES / 4)
        .enabled(true);
    builder
}

#[allow(clippy::large_enum_variant, reason = "consumed at once: a box would cost more")]
enum ParsedRecord {
    KernelEvent(KernelEvent),
    Lost { count: u64, time_ns: u64 },
    Other,
}

struct EventVisitor;

fn event(metadata: &RecordMetadata, kind: KernelEventKind) -> ParsedRecord {
    ParsedRecord::KernelEvent(KernelEvent { time_ns: metadata.sample_id().time().unwrap_or(0), kind })
}

impl Visitor<'_> for EventVisitor {
    type Output = ParsedRecord;

    fn visit_unimplemented(self, _: RecordMetadata) -> ParsedRecord {
        ParsedRecord::Other
    }

    fn visit_comm(self, record: Comm<'_>, metadata: RecordMetadata) -> ParsedRecord {
        let comm = kernel_string(&record.comm);
        let kind = if metadata.misc() & MISC_COMM_EXEC != 0 {
            KernelEventKind::Exec { pid: record.pid, comm }
        } else {
            KernelEventKind::ThreadName { pid: record.pid, tid: record.tid, comm }
        };
        event(&metadata, kind)
    }

    fn visit_fork(self, record: Fork, metadata: RecordMetadata) -> ParsedRecord {
        // A new thread has its creator's pid.
        if record.pid == record.ppid {
            return ParsedRecord::Other;
        }
        event(&metadata, KernelEventKind::Fork { pid: record.pid, parent: record.ppid })
    }

    fn visit_exit(self, record: Exit, metadata: RecordMetadata) -> ParsedRecord {
        event(&metadata, KernelEventKind::Exit { pid: record.pid, tid: record.tid })
    }

    fn visit_mmap2(self, record: Mmap2<'_>, metadata: RecordMetadata) -> ParsedRecord {
        let mapping = MappingEvent {
            start: Avma(record.addr),
            length: record.len,
            offset: FileOffset(record.pgoff),
            path: kernel_string(&record.filename),
            build_id: record.build_id().and_then(BuildId::new),
        };
        event(&metadata, KernelEventKind::Map { pid: record.pid, mapping })
    }

    fn visit_lost(self, record: Lost, metadata: RecordMetadata) -> ParsedRecord {
        ParsedRecord::Lost { count: record.lost, time_ns: metadata.sample_id().time().unwrap_or(0) }
    }
}

#[cfg(test)]
mod tests {
    use perf_event_open_sys::bindings::{PERF_RECORD_EXIT, PERF_RECORD_LOST};

    use super::*;

    /// Numbers of 32 and 64 bits as a record has them.
    fn bytes(words: &[u32], time_ns: u64) -> Vec<u8> {
        let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        bytes.extend(time_ns.to_ne_bytes());
        bytes
    }

    #[test]
    fn records_that_can_not_be_parsed_are_counted_and_the_others_handed_on() {
        let config = ParseConfig::from(*builder(0).attrs());
        // pid, ppid, tid, ptid, time (PERF_RECORD_EXIT), and the time of the sample id.
        let exit = bytes(&[7, 1, 8, 1, 55, 0], 55);
        let mut drained = DrainCounts::default();
        let mut events = Vec::new();
        for length in 0..=exit.len() {
            let mut handle = |event| events.push(event);
            drained.read(&config, (PERF_RECORD_EXIT, 0), &exit[..length], &mut handle);
        }
        let [KernelEvent { time_ns: 55, kind: KernelEventKind::Exit { pid: 7, tid: 8 } }] = events[..] else {
            panic!("{events:?}")
        };
        assert_eq!(drained, DrainCounts { lost: 0, malformed: exit.len() as u64 });
        let lost = bytes(&[0, 0, 9, 0], 66);
        drained.read(&config, (PERF_RECORD_LOST, 0), &lost, &mut |event| events.push(event));
        assert_eq!(drained.lost, 9);
        assert!(
            matches!(events[1], KernelEvent { time_ns: 66, kind: KernelEventKind::EventsLost }),
            "{events:?}"
        );
    }
}
