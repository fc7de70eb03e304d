//! Classes by the address of their `Klass`: name and size of their objects.

use std::collections::HashMap;
use std::sync::Arc;

use super::HeapLayout;
use crate::hotspot::methods::class_names::{class_name, decode_symbol};
use crate::hotspot::process_memory::{ProcessMemory, field};
use crate::types::{Avma, FastHasher};

/// Bytes of a class's name, at most; the JVM's limit is 65,535.
const MAX_NAME: usize = 1024;
/// Bytes of the classes that are remembered of one JVM, at most: some ten thousand.
const MAX_BYTES: usize = 2 << 20;
/// Bytes of a class without its names.
const CLASS_BYTES: usize = 120;

/// A class.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JavaClass {
    /// As the JVM calls it: `[B`, `java/util/HashMap$Node`.
    pub internal_name: Arc<str>,
    /// `byte[]`, `java.util.HashMap$Node`.
    pub name: Arc<str>,
    pub(super) shape: ObjectShape,
    /// What was read of it: another class at this address has another one.
    identity: Identity,
}

/// The length of objects of a class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ObjectShape {
    /// Bytes.
    Instance(u64),
    /// `header` bytes before the first element, and the logarithm of an element's bytes.
    Array { header: u64, log2_element: u64 },
    /// `java.lang.Class`: each object says how long it is.
    Mirror(u64),
    /// `jdk.internal.vm.StackChunk`: the same.
    StackChunk(u64),
}

/// Values that distinguish one tenant of an address from the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Identity {
    layout_helper: u32,
    symbol: u64,
    length: u16,
}

/// Reads the classes of one JVM, and remembers them.
#[derive(Debug, Default)]
pub struct KlassReader {
    known: HashMap<u64, Arc<JavaClass>, FastHasher>,
    /// What they have taken since they were forgotten last.
    bytes: usize,
}

impl KlassReader {
    /// Returns the class whose `Klass` is at an address: what is there now, since a class that was
    /// unloaded leaves its address to another; what was there last, if the memory is gone. `None`
    /// if that is no class.
    pub fn read(
        &mut self,
        klass: Avma,
        layout: &HeapLayout,
        memory: &impl ProcessMemory,
    ) -> Option<Arc<JavaClass>> {
        let Some(identity) = read_identity(klass, layout, memory) else {
            // What was there last, if the process has ended since.
            let is_gone = memory.read_bytes(klass, 8).is_none();
            return self.known.get(&klass.0).filter(|_| is_gone).cloned();
        };
        if let Some(known) = self.known.get(&klass.0).filter(|known| known.identity == identity) {
            return Some(Arc::clone(known));
        }
        let bytes = memory
            .read_bytes(Avma(identity.symbol.checked_add(layout.symbol_body)?), identity.length.into())?;
        let internal_name = decode_symbol(&bytes).filter(|name| is_class_name(name))?;
        let shape = object_shape(identity.layout_helper, &internal_name)?;
        let class = Arc::new(JavaClass {
            name: shown_name(&internal_name)?.into(),
            internal_name: internal_name.into(),
            shape,
            identity,
        });
        let bytes = CLASS_BYTES + class.name.len() + class.internal_name.len();
        self.bytes += bytes;
        if self.bytes > MAX_BYTES {
            self.known.clear();
            self.bytes = bytes;
        }
        self.known.insert(klass.0, Arc::clone(&class));
        Some(class)
    }

    /// Returns true if a class has been read from this address.
    #[inline]
    pub(super) fn is_known(&self, klass: u64) -> bool {
        self.known.contains_key(&klass)
    }
}

impl JavaClass {
    /// Returns true if an object of this class can have so many bytes.
    pub fn fits(&self, object_bytes: u64, layout: &HeapLayout) -> bool {
        match self.shape {
            ObjectShape::Instance(bytes) => bytes.next_multiple_of(layout.alignment) == object_bytes,
            ObjectShape::Array { header, .. } => {
                object_bytes >= header && object_bytes.is_multiple_of(layout.alignment)
            }
            ObjectShape::Mirror(least) | ObjectShape::StackChunk(least) => object_bytes >= least,
        }
    }
}

#[cfg(test)]
impl JavaClass {
    /// Returns a class of this name, for tests.
    pub(crate) fn named(name: &str) -> Self {
        Self {
            internal_name: name.into(),
            name: name.into(),
            shape: ObjectShape::Instance(16),
            identity: Identity { layout_helper: 16, symbol: 0, length: 1 },
        }
    }
}

fn read_identity(klass: Avma, layout: &HeapLayout, memory: &impl ProcessMemory) -> Option<Identity> {
    if klass.0 == 0 || !klass.0.is_multiple_of(8) {
        return None;
    }
    let helper_at = klass.0.checked_add(layout.layout_helper)?;
    let name_at = klass.0.checked_add(layout.klass_name)?;
    let [helper, name] = memory.read_words(&[Avma(helper_at), Avma(name_at)])[..] else { return None };
    let (layout_helper, symbol) = (helper? as u32, name?);
    let length = memory.read_bytes(Avma(symbol.checked_add(layout.symbol_length)?), 2)?;
    let length = field::u16(&length, 0)?;
    (length != 0 && usize::from(length) <= MAX_NAME).then_some(Identity { layout_helper, symbol, length })
}

/// Decodes `Klass::_layout_helper` (openjdk src/hotspot/share/oops/klass.hpp).
fn object_shape(layout_helper: u32, internal_name: &str) -> Option<ObjectShape> {
    let is_array = internal_name.starts_with('[');
    if layout_helper.cast_signed() < 0 {
        let (header, log2_element) = (u64::from(layout_helper >> 16 & 0xff), u64::from(layout_helper & 0xff));
        let is_plausible = is_array && log2_element <= 3 && (8..=64).contains(&header);
        return is_plausible.then_some(ObjectShape::Array { header, log2_element });
    }
    // The lowest bit says that the interpreter doesn't allocate it by itself.
    let bytes = u64::from(layout_helper & !7);
    if is_array || bytes < 8 {
        return None;
    }
    Some(match internal_name {
        "java/lang/Class" => ObjectShape::Mirror(bytes),
        "jdk/internal/vm/StackChunk" => ObjectShape::StackChunk(bytes),
        _ => ObjectShape::Instance(bytes),
    })
}

/// Returns true for what the JVM takes as a class's name (JVMS 4.2.1), or an array's.
fn is_class_name(name: &str) -> bool {
    match element_name(name) {
        (0, name) => is_plain_name(name),
        (_, "B" | "Z" | "C" | "S" | "I" | "J" | "F" | "D") => true,
        (_, element) => {
            element.strip_prefix('L').and_then(|element| element.strip_suffix(';')).is_some_and(is_plain_name)
        }
    }
}

fn is_plain_name(name: &str) -> bool {
    !name.is_empty() && !name.chars().any(|c| c.is_control() || matches!(c, ';' | '['))
}

/// Returns the dimensions of an array, and the name of its elements.
fn element_name(name: &str) -> (usize, &str) {
    let element = name.trim_start_matches('[');
    (name.len() - element.len(), element)
}

/// Returns the name for people: `[[J` is `long[][]`.
fn shown_name(internal: &str) -> Option<String> {
    let (dimensions, element) = element_name(internal);
    let mut name = match (dimensions, element) {
        (0, name) => class_name(name),
        (_, "B") => "byte".to_owned(),
        (_, "Z") => "boolean".to_owned(),
        (_, "C") => "char".to_owned(),
        (_, "S") => "short".to_owned(),
        (_, "I") => "int".to_owned(),
        (_, "J") => "long".to_owned(),
        (_, "F") => "float".to_owned(),
        (_, "D") => "double".to_owned(),
        (_, element) => class_name(element.strip_prefix('L')?.strip_suffix(';')?),
    };
    name.push_str(&"[]".repeat(dimensions));
    Some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_the_language() {
        for (internal, shown) in [
            ("[B", "byte[]"),
            ("[[J", "long[][]"),
            ("[Ljava/lang/String;", "java.lang.String[]"),
            ("java/util/HashMap$Node", "java.util.HashMap$Node"),
            ("com/acme/Main$$Lambda+0x00007f8c5c000400", "com.acme.Main$$Lambda"),
            ("[Lcom/acme/Main$$Lambda+0x00007f8c5c000400;", "com.acme.Main$$Lambda[]"),
        ] {
            assert!(is_class_name(internal), "{internal}");
            assert_eq!(shown_name(internal).as_deref(), Some(shown));
        }
        for garbage in ["", "[", "[V", "[Lx", "a\u{1}", "a;b", "[[L;"] {
            assert!(!is_class_name(garbage), "{garbage:?}");
        }
    }

    #[test]
    fn the_layout_helper_is_decoded() {
        assert_eq!(object_shape(24, "A"), Some(ObjectShape::Instance(24)));
        // With a finalizer.
        assert_eq!(object_shape(25, "A"), Some(ObjectShape::Instance(24)));
        assert_eq!(object_shape(112 | 1, "java/lang/Class"), Some(ObjectShape::Mirror(112)));
        let bytes = 0xc010_0800;
        assert_eq!(object_shape(bytes, "[B"), Some(ObjectShape::Array { header: 16, log2_element: 0 }));
        let references = 0x8010_0c02;
        let shape = ObjectShape::Array { header: 16, log2_element: 2 };
        assert_eq!(object_shape(references, "[Ljava/lang/String;"), Some(shape));
        for (helper, name) in [(0, "A"), (24, "[B"), (bytes, "A"), (0xc0ff_0800, "[B"), (0xc010_0809, "[B")] {
            assert_eq!(object_shape(helper, name), None, "{helper:x} {name}");
        }
    }
}
