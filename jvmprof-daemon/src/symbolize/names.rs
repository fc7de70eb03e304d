//! Names of native functions by file and address, shared by all processes.
//!
//! Symbol tables of large programs push each other out of the file cache. What was named once stays known here, so that
//! a table is read again only for an address that no process has hit before.

use std::sync::Arc;

use moka::sync::Cache;

use crate::native::cache::FileKey;
use crate::native::demangle::demangle;
use crate::types::Svma;

/// Bytes that an entry takes beside its text.
const ENTRY_BYTES: usize = 300;

/// A function's names.
#[derive(Clone, Debug)]
pub(super) struct FunctionName {
    /// For people.
    pub(super) name: Arc<str>,
    /// As the linker has it.
    pub(super) raw: Arc<str>,
}

impl FunctionName {
    pub(super) fn of_raw(raw: &str) -> Self {
        let raw: Arc<str> = raw.into();
        let name = demangle(&raw).map_or_else(|| Arc::clone(&raw), Arc::from);
        Self { name, raw }
    }
}

/// The cache. `None` is remembered too: most addresses of stripped files have no name.
#[derive(Debug)]
pub(super) struct FunctionNames {
    by_address: Cache<(FileKey, Svma), Option<FunctionName>>,
}

impl FunctionNames {
    /// `bytes`: its limit.
    pub(super) fn new(bytes: u64) -> Self {
        let weigh = |_: &(FileKey, Svma), name: &Option<FunctionName>| {
            let text = name.as_ref().map_or(0, |name| name.name.len() + name.raw.len());
            u32::try_from(text + ENTRY_BYTES).unwrap_or(u32::MAX)
        };
        Self { by_address: Cache::builder().max_capacity(bytes).weigher(weigh).build() }
    }

    /// What is known of an address, found out by `find` the first time. Errors aren't remembered.
    pub(super) fn get<E>(
        &self,
        key: (FileKey, Svma),
        find: impl FnOnce() -> Result<Option<FunctionName>, E>,
    ) -> Result<Option<FunctionName>, E> {
        if let Some(known) = self.by_address.get(&key) {
            return Ok(known);
        }
        let found = find()?;
        self.by_address.insert(key, found.clone());
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;
    use crate::native::cache::FileStat;

    #[test]
    fn an_address_is_looked_up_once_also_without_a_name() {
        let names = FunctionNames::new(1 << 20);
        let file = FileKey::Stat(FileStat { device: 1, inode: 2, modified_ns: 3, size: 4 });
        let mut lookups = 0;
        for _ in 0..3 {
            let mut find = |name: Option<&str>| {
                lookups += 1;
                Ok::<_, Infallible>(name.map(FunctionName::of_raw))
            };
            let Ok(named) = names.get((file, Svma(1)), || find(Some("_RNvCs1234_7mycrate3foo")));
            assert_eq!(named.map(|name| name.name.to_string()), Some("mycrate::foo".to_owned()));
            let Ok(unnamed) = names.get((file, Svma(2)), || find(None));
            assert!(unnamed.is_none());
        }
        assert_eq!(lookups, 2);
        assert!(names.get((file, Svma(3)), || Err(())).is_err());
        assert!(names.get((file, Svma(3)), || Ok::<_, ()>(None)).is_ok(), "an error isn't remembered");
    }
}
