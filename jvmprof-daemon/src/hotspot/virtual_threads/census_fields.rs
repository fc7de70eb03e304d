//! Fields in which a JVM keeps its virtual threads: the sets of openjdk
//! src/java.base/share/classes/jdk/internal/vm/ThreadContainers.java (JDK 21 and later), which have
//! every virtual thread that was started and hasn't ended, unless the program says otherwise.
//!
//! None of these classes is among what a JVM says of itself. They are found by their names among
//! the classes of the boot loader, and their fields by the lists that the classes have.

use std::collections::HashMap;

use jvmprof_common::jvm::JvmLayout;

use super::field_lists::{FieldLists, texts};
use crate::hotspot::code_cache::unsigned5::Unsigned5Encoding;
use crate::hotspot::process_memory::ProcessMemory;
use crate::hotspot::vmstructs::field_offsets::FieldLookup;
use crate::types::Avma;

/// Classes of the boot loader that are looked at, at most; a large program has 6,000.
const MAX_CLASSES: usize = 1 << 17;
/// Objects of these classes and mirrors are shorter.
const MAX_OFFSET: u32 = 4096;

/// Addresses and offsets that lead to a [`CensusLayout`], and say if objects were moved meanwhile.
#[derive(Clone, Debug)]
pub(crate) struct CensusFields {
    /// The variable that holds the class `Object`, which is the boot loader's.
    object_class: Avma,
    loader: u64,
    first_class: u64,
    next_class: u64,
    mirror: u64,
    lists: FieldLists,
    collected_heap: Avma,
    total_collections: u64,
    is_collecting: u64,
}

/// Progress of the collector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Collections {
    begun: u32,
    is_running: bool,
}

/// Classes and fields of one JVM.
#[derive(Clone, Debug)]
pub(super) struct CensusLayout {
    pub(super) virtual_thread: Avma,
    pub(super) state: u64,
    pub(super) cont: u64,
    pub(super) park_blocker: u64,
    /// Where the numbers of states are: static fields.
    pub(super) states: Vec<(&'static str, StaticField)>,
    /// The static field that refers to the set of the threads that are in no group; `None`: this
    /// program only counts them, with `-Djdk.trackAllThreads=false`.
    pub(super) root_set: Option<StaticField>,
    /// The static field that refers to the set of references to groups of threads.
    pub(super) groups: StaticField,
    /// `java.lang.ref.Reference.referent`.
    pub(super) referent: u64,
    /// Classes of groups, and where their sets of threads are.
    pub(super) group_sets: Vec<(Avma, u64)>,
    pub(super) maps: MapLayout,
}

/// A static field: the slot with the reference to its class's mirror, and the offset in that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct StaticField {
    pub(super) mirror: Avma,
    pub(super) offset: u64,
}

/// Classes and fields of `ConcurrentHashMap`.
#[derive(Clone, Copy, Debug)]
pub(super) struct MapLayout {
    /// Of the view of a map's keys that a set is.
    pub(super) key_set: Avma,
    pub(super) map_of_view: u64,
    pub(super) map: Avma,
    pub(super) table: u64,
    pub(super) node: Avma,
    pub(super) tree_node: Option<Avma>,
    pub(super) key: u64,
    pub(super) next: u64,
    /// A bucket that is a tree, and its first node.
    pub(super) tree: Option<(Avma, u64)>,
    /// What stands for a bucket that was moved to a larger table.
    pub(super) moved: Option<Avma>,
}

/// The names of the states that mean something here; each JDK has some of them.
const STATES: [&str; 19] = [
    "STARTED",
    "RUNNABLE",
    "RUNNING",
    "PARKING",
    "PARKED",
    "PINNED",
    "TIMED_PARKING",
    "TIMED_PARKED",
    "TIMED_PINNED",
    "UNPARKED",
    "YIELDING",
    "YIELDED",
    "BLOCKING",
    "BLOCKED",
    "UNBLOCKED",
    "WAITING",
    "WAIT",
    "TIMED_WAITING",
    "TIMED_WAIT",
];

impl CensusFields {
    /// `None` for JVMs without virtual threads, and for those that don't say enough.
    pub(crate) fn new(lookup: FieldLookup<'_>) -> Option<Self> {
        let offset = |names: &[&'static str]| lookup.optional_offset(names).map(u64::from);
        Some(Self {
            object_class: lookup
                .optional_address("vmClasses::_klasses[static_cast<int>(vmClassID::Object_klass_knum)]")?,
            loader: offset(&["Klass::_class_loader_data"])?,
            first_class: offset(&["ClassLoaderData::_klasses"])?,
            next_class: offset(&["Klass::_next_link"])?,
            mirror: offset(&["Klass::_java_mirror"])?,
            lists: FieldLists::new(lookup)?,
            collected_heap: lookup.optional_address("Universe::_collectedHeap")?,
            total_collections: offset(&["CollectedHeap::_total_collections"])?,
            is_collecting: offset(&["CollectedHeap::_is_stw_gc_active", "CollectedHeap::_is_gc_active"])?,
        })
    }

    /// Reads how many collections have begun, and whether one runs in which threads stand still.
    ///
    /// Collectors say that they run before they count, so that reading the count first misses none.
    pub(super) fn collections(&self, memory: &impl ProcessMemory) -> Option<Collections> {
        let heap = memory.read_u64(self.collected_heap).filter(|heap| *heap != 0)?;
        let at = |offset: u64| Avma(heap.wrapping_add(offset));
        let begun = memory.read_u64(at(self.total_collections))? as u32;
        let is_running = memory.read_bytes(at(self.is_collecting), 1)? != [0];
        Some(Collections { begun, is_running })
    }

    /// Finds classes and fields; `None` if a JVM has none of the sets yet, or doesn't say enough.
    pub(super) fn find(
        &self,
        layout: &JvmLayout,
        encoding: Unsigned5Encoding,
        memory: &impl ProcessMemory,
    ) -> Option<CensusLayout> {
        let classes = self.boot_classes(layout, memory)?;
        let class = |name: &str| classes.get(name).copied();
        let offsets =
            |klass: Avma, names: &[&str]| self.lists.offsets(klass, names, layout, encoding, memory);
        let fields = |klass: Avma, names: &[&str]| -> Option<Vec<u64>> {
            let offset = |offset: Option<u32>| offset.filter(|it| *it < MAX_OFFSET).map(u64::from);
            offsets(klass, names)?.into_iter().map(offset).collect()
        };
        let field = |klass: Avma, name: &str| Some(fields(klass, &[name])?[0]);
        let static_of = |klass: Avma, offset| StaticField { mirror: Avma(klass.0 + self.mirror), offset };
        let static_field = |klass: Avma, name: &str| Some(static_of(klass, field(klass, name)?));

        let virtual_thread = class("java/lang/VirtualThread")?;
        let [state, cont] = fields(virtual_thread, &["state", "cont"])?[..] else { return None };
        let states = offsets(virtual_thread, &STATES)?;
        let states = STATES.into_iter().zip(states);
        let states = states.filter_map(|(name, at)| Some((name, static_of(virtual_thread, at?.into()))));
        let root = class("jdk/internal/vm/ThreadContainers$RootContainer$TrackingRootContainer");
        let root_set =
            root.and_then(|root| static_field(root, "VTHREADS").or_else(|| static_field(root, "THREADS")));
        let group_sets = [
            ("java/util/concurrent/ThreadPerTaskExecutor", "threads"),
            ("jdk/internal/vm/SharedThreadContainer", "virtualThreads"),
        ];
        let group_sets = group_sets.into_iter().filter_map(|(name, set)| {
            let klass = class(name)?;
            Some((klass, field(klass, set)?))
        });
        Some(CensusLayout {
            virtual_thread,
            state,
            cont,
            park_blocker: field(class("java/lang/Thread")?, "parkBlocker")?,
            states: states.collect(),
            root_set,
            groups: static_field(class("jdk/internal/vm/ThreadContainers")?, "CONTAINER_REGISTRY")?,
            referent: field(class("java/lang/ref/Reference")?, "referent")?,
            group_sets: group_sets.collect(),
            maps: {
                let of_map = |name: &str| class(&format!("java/util/concurrent/ConcurrentHashMap{name}"));
                let [map, node] = [of_map("")?, of_map("$Node")?];
                let [key, next] = fields(node, &["key", "next"])?[..] else { return None };
                MapLayout {
                    key_set: of_map("$KeySetView")?,
                    map_of_view: field(of_map("$CollectionView")?, "map")?,
                    map,
                    table: field(map, "table")?,
                    node,
                    tree_node: of_map("$TreeNode"),
                    key,
                    next,
                    tree: of_map("$TreeBin").and_then(|tree| Some((tree, field(tree, "first")?))),
                    moved: of_map("$ForwardingNode"),
                }
            },
        })
    }

    /// Returns the classes of the boot loader by their names.
    fn boot_classes(&self, layout: &JvmLayout, memory: &impl ProcessMemory) -> Option<HashMap<String, Avma>> {
        let word = |object: u64, offset: u64| memory.read_u64(Avma(object.wrapping_add(offset)));
        let loader = word(memory.read_u64(self.object_class)?, self.loader)?;
        let mut klass = word(loader, self.first_class)?;
        let (mut klasses, mut symbols) = (Vec::new(), Vec::new());
        while klass != 0 && klasses.len() < MAX_CLASSES {
            let fields = [u64::from(layout.klass_name), self.next_class];
            let [name, next] = memory.read_words(&fields.map(|field| Avma(klass.wrapping_add(field))))[..]
            else {
                return None;
            };
            klasses.push(Avma(klass));
            symbols.push(name?);
            klass = next?;
        }
        let names = texts(&symbols, layout, memory).into_iter();
        let named =
            names.zip(klasses).filter_map(|(name, klass)| Some((String::from_utf8(name?).ok()?, klass)));
        Some(named.collect())
    }
}

impl Collections {
    /// Returns true if no object was moved from the earlier reading until this one.
    pub(super) fn has_moved_nothing_since(self, earlier: Self) -> bool {
        self == earlier && !self.is_running
    }
}
