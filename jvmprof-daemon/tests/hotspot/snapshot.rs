//! JVMs that were recorded: the bytes that attaching and naming read, by address, and what must
//! come of them. They run without a JDK, and take mutations that no JVM would survive.
//!
//! `JVMPROF_RECORD=1 cargo test --test hotspot record -- --ignored` records them again, each frame
//! held against the class files before it is believed.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs;
use std::io::{Read as _, Write as _};
use std::path::PathBuf;
use std::time::Duration;

use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use jvmprof_daemon::hotspot::process_memory::MemoryRead;
use jvmprof_daemon::hotspot::{
    Hotspot, Image, JavaCache, JavaFrames, NamingError, PhysicalFrame, ProcessMemory, RecordedMemory,
};
use jvmprof_daemon::types::Avma;
use serde_json::{Value, json};

use crate::support::processes::own_cpu_time;

/// What is recorded at once: small, as most reads are.
const LINE: u64 = 64;

/// Passes reads on and keeps what was read.
pub(crate) struct Recorder<M> {
    pub(crate) memory: M,
    pub(crate) lines: RefCell<BTreeMap<u64, [u8; LINE as usize]>>,
}

impl<M: ProcessMemory> ProcessMemory for Recorder<M> {
    fn read_many(&self, reads: &mut [MemoryRead<'_>]) {
        for read in &*reads {
            let end = read.address.0.saturating_add(read.into.len() as u64);
            for line in (read.address.0 / LINE..end.div_ceil(LINE)).map(|line| line * LINE) {
                let mut bytes = [0; LINE as usize];
                // The first bytes that were seen count: all later reads must fit them.
                if !self.lines.borrow().contains_key(&line) && self.memory.read_into(Avma(line), &mut bytes) {
                    self.lines.borrow_mut().insert(line, bytes);
                }
            }
        }
        let lines = self.lines.borrow();
        for read in reads {
            let mut at = read.address.0;
            read.done = read.into.iter_mut().all(|byte| {
                let Some(line) = lines.get(&(at / LINE * LINE)) else { return false };
                *byte = line[(at % LINE) as usize];
                at += 1;
                true
            });
        }
    }
}

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/hotspot")
}

/// A frame as text, so that a difference reads well.
fn shown(frames: &Result<JavaFrames, NamingError>) -> Vec<String> {
    match frames {
        Ok(frames) => frames
            .iter()
            .map(|frame| {
                let file = frame.file.as_deref().unwrap_or("?");
                format!("{} {file}:{} @{} {:?}", frame.system_name, frame.line, frame.bci, frame.mode)
            })
            .collect(),
        Err(unnamed) => vec![unnamed.reason().to_owned()],
    }
}

/// The recorded texts of a physical frame. They have C1's tier, too: `C1(3)`.
fn without_tiers(recorded: &Value) -> Vec<String> {
    let text = |text: &Value| {
        let text = text.as_str().unwrap();
        text.split_once(" C1(").map_or_else(|| text.to_owned(), |(start, _)| format!("{start} C1"))
    };
    recorded.as_array().unwrap().iter().map(text).collect()
}

fn request_of(request: &Value) -> PhysicalFrame {
    let number = |index: usize| request[index].as_u64().unwrap();
    PhysicalFrame::Compiled {
        pc: Avma(number(0)),
        blob: Avma(number(1)),
        compile_id: number(2) as u32,
        osr: number(3) == 1,
    }
}

/// Writes what was read for these requests, and what came of them.
pub(crate) fn save<M>(
    recorder: &Recorder<M>,
    name: &str,
    image: Image,
    named: &[(PhysicalFrame, JavaFrames)],
) {
    let frames: Vec<Value> = named
        .iter()
        .map(|(request, frames)| match request {
            PhysicalFrame::Compiled { pc, blob, compile_id, osr } => {
                json!([pc.0, blob.0, compile_id, u8::from(*osr), shown(&Ok(frames.clone()))])
            }
            PhysicalFrame::Interpreted { .. } => panic!("only compiled frames are recorded"),
        })
        .collect();
    let head = serde_json::to_vec(&json!({ "image": image.0.0, "frames": frames })).unwrap();
    fs::create_dir_all(folder()).unwrap();
    let file = fs::File::create(folder().join(format!("{name}.gz"))).unwrap();
    let mut gz = GzEncoder::new(file, Compression::best());
    gz.write_all(&(head.len() as u32).to_le_bytes()).unwrap();
    gz.write_all(&head).unwrap();
    for (address, bytes) in recorder.lines.borrow().iter() {
        gz.write_all(&address.to_le_bytes()).unwrap();
        gz.write_all(bytes).unwrap();
    }
    gz.finish().unwrap();
}

struct Snapshot {
    name: String,
    head: Value,
    lines: Vec<(u64, [u8; LINE as usize])>,
}

fn snapshots() -> Vec<Snapshot> {
    let mut files: Vec<PathBuf> = fs::read_dir(folder()).unwrap().map(|file| file.unwrap().path()).collect();
    files.sort();
    let load = |file: PathBuf| {
        let mut bytes = Vec::new();
        GzDecoder::new(fs::File::open(&file).unwrap()).read_to_end(&mut bytes).unwrap();
        let (len, rest) = bytes.split_first_chunk::<4>().unwrap();
        let (head, lines) = rest.split_at(u32::from_le_bytes(*len) as usize);
        let line = |line: &[u8]| {
            let (address, bytes) = line.split_first_chunk::<8>().unwrap();
            (u64::from_le_bytes(*address), bytes.try_into().unwrap())
        };
        Snapshot {
            name: file.file_stem().unwrap().to_string_lossy().into_owned(),
            head: serde_json::from_slice(head).unwrap(),
            lines: lines.chunks_exact(8 + LINE as usize).map(line).collect(),
        }
    };
    let snapshots: Vec<Snapshot> = files.into_iter().map(load).collect();
    assert!(snapshots.len() >= 4, "recordings are missing from {}", folder().display());
    snapshots
}

impl Snapshot {
    fn memory(&self) -> RecordedMemory {
        let mut memory = RecordedMemory::default();
        for (address, bytes) in &self.lines {
            memory.insert(Avma(*address), bytes.as_slice());
        }
        memory
    }

    fn image(&self) -> Image {
        Image(Avma(self.head["image"].as_u64().unwrap()))
    }

    fn requests(&self) -> Vec<PhysicalFrame> {
        self.head["frames"].as_array().unwrap().iter().map(request_of).collect()
    }
}

#[test]
fn recorded_jvms_are_named_as_they_were() {
    for snapshot in snapshots() {
        let hotspot = Hotspot::attach(&[snapshot.image()], snapshot.memory()).unwrap();
        assert_eq!(format!("jdk-{}", hotspot.version().feature), snapshot.name);
        let found = hotspot.resolve(&JavaCache::default(), &snapshot.requests());
        for (found, wanted) in found.iter().zip(snapshot.head["frames"].as_array().unwrap()) {
            assert_eq!(shown(found), without_tiers(&wanted[4]), "{}", snapshot.name);
        }
    }
}

/// The next number of a sequence that is the same in every run.
fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    *state >> 33
}

/// Recorded memory that changes under its reader.
struct Changing<'m>(&'m RefCell<RecordedMemory>);

impl ProcessMemory for Changing<'_> {
    fn read_many(&self, reads: &mut [MemoryRead<'_>]) {
        self.0.borrow().read_many(reads);
    }
}

impl Snapshot {
    /// Overwrites some words with zeros, ones, addresses and noise.
    fn damage(&self, memory: &mut RecordedMemory, words: u64, state: &mut u64) {
        for _ in 0..words {
            let (address, mut bytes) = self.lines[next(state) as usize % self.lines.len()];
            let at = (next(state) as usize % 8) * 8;
            let value = match next(state) % 4 {
                0 => 0,
                1 => u64::MAX,
                2 => self.lines[next(state) as usize % self.lines.len()].0,
                _ => next(state) << 20 ^ next(state),
            };
            bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
            memory.insert(Avma(address), bytes.as_slice());
        }
    }
}

#[test]
fn torn_and_overwritten_memory_ends_in_errors_never_in_a_panic_or_a_loop() {
    let mut state = 7;
    for snapshot in snapshots() {
        let requests = snapshot.requests();
        let (mut attached, mut named, mut refused) = (0, 0, 0);
        for round in 0..30 {
            let memory = RefCell::new(snapshot.memory());
            let begin = own_cpu_time();
            if round % 3 == 0 {
                let words = 1 + next(&mut state) % 100;
                snapshot.damage(&mut memory.borrow_mut(), words, &mut state);
            }
            if let Ok(mut hotspot) = Hotspot::attach(&[snapshot.image()], Changing(&memory)) {
                attached += 1;
                snapshot.damage(&mut memory.borrow_mut(), 1 << (round % 10 + 3), &mut state);
                for found in hotspot.resolve(&JavaCache::default(), &requests) {
                    if found.is_ok() { named += 1 } else { refused += 1 }
                }
                let _ = (hotspot.refresh(), hotspot.compiled(), hotspot.codelets(), hotspot.stub_blobs());
                let _ = (hotspot.flags(), hotspot.threads(), hotspot.main_class());
                let _ = hotspot.explain(Avma(hotspot.jvm().interpreter_start));
            }
            let took = own_cpu_time() - begin;
            assert!(took < Duration::from_secs(10), "{}: {took:?}", snapshot.name);
        }
        println!("{}: {attached} attached, {named} named, {refused} refused", snapshot.name);
        assert!((20..30).contains(&attached) && refused > 100 && named > 100, "{}", snapshot.name);
    }
}
