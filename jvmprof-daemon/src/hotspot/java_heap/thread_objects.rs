//! Objects of threads: their names, of which the kernel keeps 15 bytes, or for the thread that runs
//! `main` another one; and which of them carry virtual threads.
//!
//! Fields: openjdk src/java.base/share/classes java/lang/Thread.java, java/lang/String.java.

use std::sync::Arc;

use jvmprof_common::blocker::{BlockerLayout, field_object, root_object};
use jvmprof_common::thread_local::ReadWord;

use super::klass::ObjectShape;
use super::{HeapLayout, JavaClass, KlassReader};
use crate::hotspot::process_memory::{ProcessMemory, field};
use crate::hotspot::vmstructs::symtab_variables::NameVariables;
use crate::types::Avma;

/// Characters of a name, at most: of a longer one there is what the kernel keeps.
const MAX_CHARACTERS: u64 = 256;
/// Objects of `java.lang.Thread` and `java.lang.String` are shorter.
const MAX_OFFSET: u32 = 1024;
/// Threads that run virtual ones (JDK 20 and later).
const CARRIER: &str = "jdk/internal/misc/CarrierThread";

/// The places where threads have their names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThreadNameLayout {
    /// `JavaThread::_threadObj`.
    thread_object: u16,
    /// `Thread.name`.
    name: u64,
    /// `String.value`.
    value: u64,
    /// `String.coder`; `None`: its value has characters of 16 bits.
    coder: Option<u64>,
}

/// The object of a thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ThreadObject {
    /// `None` if it can't be read, or isn't one to be shown.
    pub name: Option<String>,
    pub is_carrier: bool,
}

/// Reads the objects of the threads of one JVM.
#[derive(Debug)]
pub struct ThreadObjects {
    names: ThreadNameLayout,
    references: BlockerLayout,
    heap: HeapLayout,
    klasses: KlassReader,
}

/// The words of a process's memory.
struct Words<'a, M>(&'a M);

impl<M: ProcessMemory> ReadWord for Words<'_, M> {
    fn read_word(&self, address: Avma) -> Option<u64> {
        self.0.read_u64(address)
    }
}

impl ThreadNameLayout {
    /// Reads where names are; `None` while the JVM starts, or if it doesn't say that.
    pub(crate) fn read(
        thread_object: u16,
        variables: NameVariables,
        memory: &impl ProcessMemory,
    ) -> Option<Self> {
        let offset = |at: Avma| {
            let offset = field::u32(&memory.read_bytes(at, 4)?, 0)?;
            (8..MAX_OFFSET).contains(&offset).then_some(u64::from(offset))
        };
        let coder = if let Some(at) = variables.string_coder { Some(offset(at)?) } else { None };
        let (name, value) = (offset(variables.thread_name?)?, offset(variables.string_value?)?);
        Some(Self { thread_object, name, value, coder })
    }
}

impl ThreadObjects {
    /// Makes a reader of the objects of threads. `references`: how this JVM's are followed.
    pub fn new(names: ThreadNameLayout, references: BlockerLayout, heap: HeapLayout) -> Self {
        Self { names, references, heap, klasses: KlassReader::default() }
    }

    /// Returns what the object of the thread with this `JavaThread` says; `None` if it can't be
    /// read, or may have moved meanwhile.
    pub fn read(&mut self, thread: Avma, memory: &impl ProcessMemory) -> Option<ThreadObject> {
        let handle = thread.wrapping_add(self.names.thread_object.into());
        let collections = self.collections(memory);
        let object = root_object(&Words(memory), &self.references, handle)?;
        let class = self.class_of(object, memory)?;
        let name = self.name_of(object, memory);
        // What was read lay still if no collection has begun, and nothing refers to it elsewhere.
        let is_same = root_object(&Words(memory), &self.references, handle) == Some(object)
            && self.collections(memory) == collections;
        is_same.then(|| ThreadObject { name, is_carrier: &*class.internal_name == CARRIER })
    }

    /// Returns how many collections have begun, as far as the JVM says it.
    fn collections(&self, memory: &impl ProcessMemory) -> Option<u32> {
        field::u32(&memory.read_bytes(self.heap.collections_at?, 4)?, 0)
    }

    fn class_of(&mut self, object: Avma, memory: &impl ProcessMemory) -> Option<Arc<JavaClass>> {
        let [first, second] = memory.read_words(&[object, object.wrapping_add(8)])[..] else { return None };
        // A collector has left the object's new address in one that it has moved.
        const FORWARDED: u64 = 3;
        let first = first.filter(|word| word & FORWARDED != FORWARDED)?;
        self.klasses.read(self.heap.klass_of([first, second?]), &self.heap, memory)
    }

    fn name_of(&mut self, thread: Avma, memory: &impl ProcessMemory) -> Option<String> {
        let references = self.references;
        let object = |slot: Avma| field_object(&Words(memory), &references, slot);
        let name_at = thread.wrapping_add(self.names.name);
        let string = object(name_at)?;
        if &*self.class_of(string, memory)?.internal_name != "java/lang/String" {
            return None;
        }
        let value_at = string.wrapping_add(self.names.value);
        let value = object(value_at)?;
        let class = self.class_of(value, memory)?;
        let ObjectShape::Array { header, log2_element } = class.shape else { return None };
        let length = memory.read_bytes(value.wrapping_add(self.heap.array_length), 4)?;
        let length = u64::from(field::u32(&length, 0)?);
        let is_wide = match (&*class.internal_name, self.names.coder) {
            // `String.LATIN1` and `UTF16`.
            ("[B", Some(coder)) => match memory.read_bytes(string.wrapping_add(coder), 1)?[..] {
                [0] => false,
                [1] => true,
                _ => return None,
            },
            ("[C", None) => true,
            _ => return None,
        };
        let bytes = length << log2_element;
        if bytes >> u32::from(is_wide) > MAX_CHARACTERS {
            return None;
        }
        let text = memory.read_bytes(value.wrapping_add(header), usize::try_from(bytes).ok()?)?;
        let name = decode(&text, is_wide).filter(|name| is_name(name))?;
        (object(name_at) == Some(string) && object(value_at) == Some(value)).then_some(name)
    }
}

/// Decodes the characters of a string: of 16 bits, or of 8, which are Latin-1's.
fn decode(bytes: &[u8], is_wide: bool) -> Option<String> {
    if !is_wide {
        return Some(bytes.iter().map(|byte| char::from(*byte)).collect());
    }
    let (units, rest) = bytes.as_chunks::<2>();
    let units: Vec<u16> = units.iter().map(|unit| u16::from_le_bytes(*unit)).collect();
    String::from_utf16(&units).ok().filter(|_| rest.is_empty())
}

/// Returns true if a name can be shown: it isn't empty, and is one line.
fn is_name(name: &str) -> bool {
    !name.trim().is_empty() && !name.chars().any(char::is_control)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::hotspot::java_heap::heap_layout::KlassWord;
    use crate::hotspot::process_memory::{MemoryRead, RecordedMemory};

    const THREAD: Avma = Avma(0x1000);
    const HANDLE: u64 = 0x1100;
    const OBJECT: u64 = 0x2000;
    const STRING: u64 = 0x3000;
    const VALUE: u64 = 0x4000;
    const CLASSES: [(&str, u32, u32); 6] = [
        ("acme/Worker", 0x100, 32),
        (CARRIER, 0x200, 32),
        ("java/lang/String", 0x300, 24),
        ("acme/Text", 0x400, 24),
        // share/oops/klass.hpp: arrays with 16 bytes before the first element.
        ("[B", 0x500, 0xc010_0800),
        ("[C", 0x600, 0xc010_0501),
    ];

    fn heap() -> HeapLayout {
        HeapLayout {
            collections_at: None,
            allocated_bytes: 0,
            layout_helper: 8,
            klass_name: 16,
            symbol_length: 0,
            symbol_body: 6,
            klass_word: KlassWord { at: 8, right: 0, mask: 0xffff_ffff, base: 0x8000_0000, left: 0 },
            array_length: 12,
            alignment: 8,
            mirror_size: None,
            stack_chunk: None,
            has_narrow_oops: true,
        }
    }

    fn objects(coder: Option<u64>) -> ThreadObjects {
        let names = ThreadNameLayout { thread_object: 24, name: 0x14, value: 12, coder };
        let references =
            BlockerLayout { oop_shift: 3, oops_are_narrow: 1, has_handles: 1, ..BlockerLayout::default() };
        ThreadObjects::new(names, references, heap())
    }

    /// Bytes of an object of a class, with these words of 32 bits after the class.
    fn object(class: &str, words: &[u32]) -> Vec<u8> {
        let (_, klass, _) = CLASSES.into_iter().find(|(name, ..)| *name == class).expect("a class");
        let words = [&[1, 0, klass][..], words].concat();
        words.into_iter().flat_map(u32::to_le_bytes).collect()
    }

    /// A thread of a class whose name is an object of another one, with a coder and an array.
    fn memory(thread: &str, string: &str, coder: u32, array: (&str, &[u8])) -> RecordedMemory {
        let mut memory = RecordedMemory::default();
        for (name, klass, helper) in CLASSES {
            let symbol = 0x9000 + u64::from(klass);
            let mut bytes = vec![0; 32];
            bytes[8..12].copy_from_slice(&helper.to_le_bytes());
            bytes[16..24].copy_from_slice(&symbol.to_le_bytes());
            memory.insert(Avma(0x8000_0000 + u64::from(klass)), bytes);
            let length = (name.len() as u16).to_le_bytes();
            memory.insert(Avma(symbol), [&length[..], &[0; 4], name.as_bytes()].concat());
        }
        memory.insert(THREAD.wrapping_add(24), HANDLE.to_le_bytes());
        memory.insert(Avma(HANDLE), OBJECT.to_le_bytes());
        let reference = |address: u64| (address >> 3) as u32;
        memory.insert(Avma(OBJECT), object(thread, &[7, 8, reference(STRING), 9, 10]));
        memory.insert(Avma(STRING), object(string, &[reference(VALUE), coder, 0]));
        let (class, characters) = array;
        let length = characters.len() as u32 >> u32::from(class == "[C");
        memory.insert(Avma(VALUE), [&*object(class, &[length]), characters].concat());
        memory
    }

    fn utf_16(text: &str) -> Vec<u8> {
        text.encode_utf16().flat_map(u16::to_le_bytes).collect()
    }

    fn read(memory: &impl ProcessMemory) -> Option<ThreadObject> {
        objects(Some(16)).read(THREAD, memory)
    }

    fn name_of(memory: &RecordedMemory) -> Option<String> {
        read(memory).expect("it is an object").name
    }

    #[test]
    fn a_threads_name_is_that_of_its_object_however_its_characters_are_kept() {
        let name = "http-nio-8080-exec-12";
        let latin_1 = memory("acme/Worker", "java/lang/String", 0, ("[B", name.as_bytes()));
        assert_eq!(read(&latin_1), Some(ThreadObject { name: Some(name.to_owned()), is_carrier: false }));
        let umlauts = memory("acme/Worker", "java/lang/String", 0, ("[B", b"Gr\xf6\xdfe"));
        assert_eq!(name_of(&umlauts).as_deref(), Some("Größe"));
        let wide = memory("acme/Worker", "java/lang/String", 1, ("[B", &utf_16("価格-😀")));
        assert_eq!(name_of(&wide).as_deref(), Some("価格-😀"));
        let jdk_8 = memory("acme/Worker", "java/lang/String", 0, ("[C", &utf_16("main")));
        let read = objects(None).read(THREAD, &jdk_8).expect("it is an object");
        assert_eq!(read.name.as_deref(), Some("main"));
        let carrier = memory(CARRIER, "java/lang/String", 0, ("[B", b"ForkJoinPool-1-worker-1"));
        assert!(objects(Some(16)).read(THREAD, &carrier).expect("it is an object").is_carrier);
    }

    #[test]
    fn what_is_no_name_is_none() {
        let of = |string: &str, coder: u32, array: (&str, &[u8])| {
            name_of(&memory("acme/Worker", string, coder, array))
        };
        let string = "java/lang/String";
        assert_eq!(of("acme/Text", 0, ("[B", b"main")), None, "no string");
        assert_eq!(of(string, 2, ("[B", b"main")), None, "no coder");
        assert_eq!(
            of(string, 0, ("[C", &utf_16("main"))),
            None,
            "not what a string has where it has a coder"
        );
        assert_eq!(of(string, 0, ("[B", b"")), None);
        assert_eq!(of(string, 0, ("[B", b"  ")), None);
        assert_eq!(of(string, 0, ("[B", b"a\nb")), None, "two lines");
        assert_eq!(of(string, 1, ("[B", &[0x3d, 0xd8, b'a', 0])), None, "half a surrogate pair");
        assert_eq!(of(string, 1, ("[B", b"abc")), None, "half a character");
        assert_eq!(of(string, 0, ("[B", &[b'a'; 257])), None, "too long");
        assert_eq!(of(string, 0, ("[B", &[b'a'; 256])), Some("a".repeat(256)));
        assert_eq!(of(string, 1, ("[B", &utf_16(&"é".repeat(256)))), Some("é".repeat(256)));
    }

    /// Memory in which the thread's object moves after it was first referred to.
    struct Moving {
        memory: RecordedMemory,
        references: Cell<u32>,
    }

    impl ProcessMemory for Moving {
        fn read_many(&self, reads: &mut [MemoryRead<'_>]) {
            self.memory.read_many(reads);
            for read in reads.iter_mut().filter(|read| read.address == Avma(HANDLE)) {
                self.references.set(self.references.get() + 1);
                if self.references.get() > 1 {
                    read.into.copy_from_slice(&(OBJECT + 0x100).to_le_bytes());
                }
            }
        }
    }

    #[test]
    fn an_object_that_has_moved_is_not_believed() {
        let mut moved = memory("acme/Worker", "java/lang/String", 0, ("[B", b"main"));
        let memory = Moving { memory: moved.clone(), references: Cell::new(0) };
        assert_eq!((read(&memory), memory.references.get()), (None, 2));
        let forwarded = [3u64, 0x100].map(u64::to_le_bytes).concat();
        moved.insert(Avma(OBJECT), forwarded);
        assert_eq!(read(&moved), None);
        moved.insert(Avma(OBJECT), vec![0; 32]);
        assert_eq!(read(&moved), None, "no class");
    }
}
