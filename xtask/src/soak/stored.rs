//! The profiles that lie in the collector's folder.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fs::{self, File};
use std::io::Read as _;
use std::path::Path;

use anyhow::Context as _;
use flate2::read::GzDecoder;
use prost::Message;

use super::events::{EVENTS, SampledEvent};

/// The label with the settings under which a sample was taken.
pub(super) const SETTINGS_LABEL: &str = "settings";
/// The label with a series's event.
const NAME_LABEL: &str = "__name__";

/// The profiles that lie in the collector's folder.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct StoredProfiles {
    /// By the name of the event.
    pub(super) events: BTreeMap<&'static str, StoredSamples>,
    /// Values of the label [`SETTINGS_LABEL`].
    pub(super) settings: BTreeSet<String>,
}

/// The samples of one event that lie there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct StoredSamples {
    pub(super) profiles: u64,
    pub(super) samples: u64,
    /// Profiles of a series and a time that another one has.
    pub(super) duplicates: u64,
}

/// The part of a pprof profile that says how many events were sampled.
#[derive(Clone, PartialEq, Message)]
struct Comments {
    #[prost(string, repeated, tag = "6")]
    string_table: Vec<String>,
    #[prost(int64, repeated, tag = "13")]
    comment: Vec<i64>,
}

impl StoredProfiles {
    /// Reads the names of the files, `<start>-<duration>-<samples>-<number>.pb.gz`, and where the
    /// values are estimates from the comments in them.
    pub(super) fn read(store: &Path) -> anyhow::Result<Self> {
        let root = store.join("series");
        let mut stored = Self::default();
        for series in fs::read_dir(&root).with_context(|| format!("reading {}", root.display()))? {
            let mut starts = HashSet::new();
            let folder = series?.path();
            let labels = fs::read(folder.join("labels.json")).context("reading a series's labels")?;
            let mut labels: BTreeMap<String, String> =
                serde_json::from_slice(&labels).context("a series's labels")?;
            stored.settings.extend(labels.remove(SETTINGS_LABEL));
            let name = labels.remove(NAME_LABEL).unwrap_or_default();
            let event = EVENTS.iter().find(|event| event.series == name);
            let event = event.with_context(|| format!("the soak knows no event of the series {name:?}"))?;
            let of_event = stored.events.entry(event.name).or_default();
            for file in fs::read_dir(folder)? {
                let path = file?.path();
                let name = path.file_name().and_then(|name| name.to_str());
                let Some(name) = name.and_then(|name| name.strip_suffix(".pb.gz")) else { continue };
                let mut parts = name.rsplitn(4, '-').skip(1);
                let samples: u64 = parts.next().context("no samples")?.parse().context("samples")?;
                let start = parts.nth(1).context("no start")?.to_owned();
                of_event.profiles += 1;
                of_event.samples += if event.is_estimated { events_in(&path, event)? } else { samples };
                of_event.duplicates += u64::from(!starts.insert(start));
            }
        }
        Ok(stored)
    }

    pub(super) fn of(&self, event: &SampledEvent) -> StoredSamples {
        self.events.get(event.name).copied().unwrap_or_default()
    }
}

/// Returns true if a series of the store, which may be written meanwhile, has samples under these
/// settings.
pub(super) fn has_settings(store: &Path, settings: &str) -> bool {
    let Ok(series) = fs::read_dir(store.join("series")) else { return false };
    series.filter_map(Result::ok).any(|series| {
        let labels = fs::read(series.path().join("labels.json")).ok();
        let labels =
            labels.and_then(|labels| serde_json::from_slice::<BTreeMap<String, String>>(&labels).ok());
        labels.is_some_and(|labels| labels.get(SETTINGS_LABEL).is_some_and(|it| it == settings))
    })
}

/// The number of sampled events by a profile's comment: `allocation events: 7`.
fn events_in(path: &Path, event: &SampledEvent) -> anyhow::Result<u64> {
    let file = File::open(path).with_context(|| format!("opening {}", path.display()))?;
    let mut bytes = Vec::new();
    GzDecoder::new(file)
        .read_to_end(&mut bytes)
        .with_context(|| format!("decompressing {}", path.display()))?;
    let profile = Comments::decode(&bytes[..]).with_context(|| format!("decoding {}", path.display()))?;
    let begin = format!("{} events: ", event.name);
    let texts =
        profile.comment.iter().filter_map(|index| profile.string_table.get(usize::try_from(*index).ok()?));
    let number = texts.filter_map(|text| text.strip_prefix(&begin)).find_map(|number| number.parse().ok());
    number.with_context(|| format!("no comment of {} says how many events it is of", path.display()))
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use flate2::{Compression, write::GzEncoder};

    use super::*;

    fn store(dir: &Path, series: &str, name: &str, file: &str, comment: &str) {
        let folder = dir.join("series").join(series);
        fs::create_dir_all(&folder).expect("a folder");
        let labels = BTreeMap::from([(NAME_LABEL, name), (SETTINGS_LABEL, series)]);
        fs::write(folder.join("labels.json"), serde_json::to_vec(&labels).expect("JSON")).expect("written");
        let string_table = vec![String::new(), "main".to_owned(), comment.to_owned()];
        let profile = Comments { string_table, comment: vec![2] };
        let mut gzip = GzEncoder::new(File::create(folder.join(file)).expect("a file"), Compression::fast());
        gzip.write_all(&profile.encode_to_vec()).expect("written");
        gzip.finish().expect("written");
    }

    #[test]
    fn estimates_are_counted_by_their_comments_and_others_by_their_names() {
        let dir = tempfile::tempdir().expect("a folder");
        store(dir.path(), "a", "process_cpu", "5-10-70-1.pb.gz", "");
        store(dir.path(), "a", "process_cpu", "5-10-30-2.pb.gz", "");
        store(dir.path(), "b", "memory", "5-10-123456-3.pb.gz", "allocation events: 9");
        let stored = StoredProfiles::read(dir.path()).expect("a store");
        let cpu = StoredSamples { profiles: 2, samples: 100, duplicates: 1 };
        let allocation = StoredSamples { profiles: 1, samples: 9, duplicates: 0 };
        assert_eq!(stored.events, BTreeMap::from([("cpu", cpu), ("allocation", allocation)]));
        assert_eq!(stored.settings, BTreeSet::from(["a".to_owned(), "b".to_owned()]));
        assert!(has_settings(dir.path(), "b") && !has_settings(dir.path(), "c"));
        store(dir.path(), "b", "memory", "15-10-123456-4.pb.gz", "of another program");
        let error = StoredProfiles::read(dir.path()).expect_err("nothing is guessed").to_string();
        assert!(error.contains("no comment"), "{error}");
    }
}
