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

use super::epoll::Waker;
use crate::clock::monotonic_ns;
use crate::sampler::error::SamplerError;
use crate::sampler::event::{Event, EventKind, NewMapping};
use crate::sampler::sample::name;
use crate::types::{Avma, BuildId, FileOffset};

/// Bytes of each CPU's ring: an exec writes about 2 KiB.
const RING_BYTES: usize = 256 << 10;
/// `PERF_RECORD_MISC_COMM_EXEC` of include/uapi/linux/perf_event.h: the name changed by exec.
const MISC_COMM_EXEC: u16 = 1 << 13;

/// The rings of all CPUs.
pub(in crate::sampler) struct Records {
    rings: BTreeMap<u32, Ring>,
    /// Where rings are waited on.
    waker: Arc<Waker>,
}

struct Ring {
    sampler: Sampler,
    config: ParseConfig<Native>,
}

impl fmt::Debug for Records {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Records").field("cpus", &self.rings.keys()).finish()
    }
}

impl Records {
    pub(in crate::sampler) fn open(cpus: &[u32], waker: Arc<Waker>) -> Result<Self, SamplerError> {
        let mut records = Self { rings: BTreeMap::new(), waker };
        records.follow(cpus)?;
        Ok(records)
    }

    /// Opens rings for CPUs that came and closes those of CPUs that went.
    pub(in crate::sampler) fn follow(&mut self, cpus: &[u32]) -> Result<(), SamplerError> {
        // An event of a CPU that went offline is dead for good, also when the CPU comes back.
        let gone: Vec<u32> = self.rings.keys().copied().filter(|cpu| !cpus.contains(cpu)).collect();
        for cpu in gone {
            self.rings.remove(&cpu);
        }
        for &cpu in cpus {
            if let Entry::Vacant(entry) = self.rings.entry(cpu) {
                let failed = |source| SamplerError::PerfEvent { event: "process records", cpu, source };
                let ring = Ring::open(cpu).map_err(failed)?;
                // A ring that is closed is no longer waited on.
                self.waker.add_records(&ring.sampler).map_err(failed)?;
                entry.insert(ring);
            }
        }
        Ok(())
    }

    /// Hands on all records.
    pub(in crate::sampler) fn drain(&mut self, handle: &mut impl FnMut(Event)) -> Drained {
        let mut drained = Drained::default();
        for ring in self.rings.values_mut() {
            while let Some(record) = ring.sampler.next_record() {
                let bytes = record.to_contiguous();
                drained.read(&ring.config, (record.ty(), record.misc()), &bytes, handle);
            }
        }
        if drained.malformed > 0 {
            // What they said isn't known: as if the kernel had dropped them.
            handle(Event { time_ns: monotonic_ns(), kind: EventKind::EventsLost });
        }
        drained
    }
}

/// What is missing of the records that were read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::sampler) struct Drained {
    /// Records that the kernel had to drop.
    pub(in crate::sampler) lost: u64,
    /// Records that could not be parsed.
    pub(in crate::sampler) malformed: u64,
}

impl Drained {
    /// Hands on a record of this type and `misc`.
    fn read(
        &mut self,
        config: &ParseConfig<Native>,
        (type_, misc): (u32, u16),
        bytes: &[u8],
        handle: &mut impl FnMut(Event),
    ) {
        let size = (bytes.len() + size_of::<perf_event_header>()) as u16;
        let header = perf_event_header { type_, misc, size };
        match Parser::new(bytes, config.clone()).parse_record_with_header(ToEvent, header) {
            Ok(Parsed::Event(event)) => handle(event),
            Ok(Parsed::Lost { count, time_ns }) => {
                self.lost += count;
                handle(Event { time_ns, kind: EventKind::EventsLost });
            }
            Ok(Parsed::Other) => {}
            Err(error) => {
                self.malformed += 1;
                tracing::warn!(%error, type_, "a perf record can't be parsed");
            }
        }
    }
}

impl Ring {
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

#[allow(clippy::large_enum_variant, reason = "handed on at once: a box would cost more")]
enum Parsed {
    Event(Event),
    Lost { count: u64, time_ns: u64 },
    Other,
}

struct ToEvent;

fn event(metadata: &RecordMetadata, kind: EventKind) -> Parsed {
    Parsed::Event(Event { time_ns: metadata.sample_id().time().unwrap_or(0), kind })
}

impl Visitor<'_> for ToEvent {
    type Output = Parsed;

    fn visit_unimplemented(self, _: RecordMetadata) -> Parsed {
        Parsed::Other
    }

    fn visit_comm(self, record: Comm<'_>, metadata: RecordMetadata) -> Parsed {
        let comm = name(&record.comm);
        let kind = if metadata.misc() & MISC_COMM_EXEC != 0 {
            EventKind::Exec { pid: record.pid, comm }
        } else {
            EventKind::ThreadName { pid: record.pid, tid: record.tid, comm }
        };
        event(&metadata, kind)
    }

    fn visit_fork(self, record: Fork, metadata: RecordMetadata) -> Parsed {
        // A new thread has its creator's pid.
        if record.pid == record.ppid {
            return Parsed::Other;
        }
        event(&metadata, EventKind::Fork { pid: record.pid, parent: record.ppid })
    }

    fn visit_exit(self, record: Exit, metadata: RecordMetadata) -> Parsed {
        event(&metadata, EventKind::Exit { pid: record.pid, tid: record.tid })
    }

    fn visit_mmap2(self, record: Mmap2<'_>, metadata: RecordMetadata) -> Parsed {
        let mapping = NewMapping {
            start: Avma(record.addr),
            length: record.len,
            offset: FileOffset(record.pgoff),
            path: name(&record.filename),
            build_id: record.build_id().and_then(BuildId::new),
        };
        event(&metadata, EventKind::Map { pid: record.pid, mapping })
    }

    fn visit_lost(self, record: Lost, metadata: RecordMetadata) -> Parsed {
        Parsed::Lost { count: record.lost, time_ns: metadata.sample_id().time().unwrap_or(0) }
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
        let mut drained = Drained::default();
        let mut events = Vec::new();
        for length in 0..=exit.len() {
            let mut handle = |event| events.push(event);
            drained.read(&config, (PERF_RECORD_EXIT, 0), &exit[..length], &mut handle);
        }
        let [Event { time_ns: 55, kind: EventKind::Exit { pid: 7, tid: 8 } }] = events[..] else {
            panic!("{events:?}")
        };
        assert_eq!(drained, Drained { lost: 0, malformed: exit.len() as u64 });
        let lost = bytes(&[0, 0, 9, 0], 66);
        drained.read(&config, (PERF_RECORD_LOST, 0), &lost, &mut |event| events.push(event));
        assert_eq!(drained.lost, 9);
        assert!(matches!(events[1], Event { time_ns: 66, kind: EventKind::EventsLost }), "{events:?}");
    }
}
