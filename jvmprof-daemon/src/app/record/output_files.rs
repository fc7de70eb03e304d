//! The files that `record` writes; the ending of a name selects the format.

use std::collections::BTreeSet;
use std::fs::{self, File, Metadata};
use std::io::{self, BufWriter, ErrorKind, Write};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use anyhow::Context;
use nix::unistd::geteuid;
use tempfile::NamedTempFile;

use crate::app::errors::UsageError;
use crate::event_type::EventType;
use crate::profile::model::Batch;
use crate::profile::recording_page::{PauseLane, RecordingTitle, StackGroups};
use crate::profile::{flamegraph_svg, folded_stacks, pprof, recording_page};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    Pprof,
    Folded,
    Svg,
    Html,
}

/// A file that is known to be writable before the recording starts.
#[derive(Debug)]
pub(super) struct OutputFile {
    path: PathBuf,
    format: Format,
    /// The event that it shows; `None`: all that are recorded.
    event: Option<EventType>,
    destination: Destination,
}

/// The destination of an output's bytes.
#[derive(Debug)]
enum Destination {
    /// A temporary file in the folder of the path that it gets: a file under its own name is always
    /// whole.
    Renamed { file: NamedTempFile, target: PathBuf },
    /// A device, or a pipe of this user: what is there is written to, not replaced.
    InPlace(File),
}

impl Destination {
    /// # Errors
    /// The folder can't be written to, or what is there can't be.
    fn open(path: &Path) -> Result<Self, UsageError> {
        // Of the path itself: where a link leads is the choice of whoever made it, in a folder such
        // as /tmp, and so is who reads a pipe. Those are replaced.
        let there = fs::symlink_metadata(path).ok();
        if there.as_ref().is_some_and(Metadata::is_dir) {
            return Err(UsageError(format!("cannot write {}: it is a folder", path.display())));
        }
        if there.is_some_and(|it| is_written_in_place(&it)) {
            // A pipe without a reader lets nobody write: this waits for one.
            let file = File::options().write(true).open(path);
            return Ok(Self::InPlace(file.map_err(|error| not_writable(path, &error))?));
        }
        let folder = folder_of(path);
        let file = NamedTempFile::with_prefix_in(".jvmprof-", folder).map_err(|error| {
            let (path, folder_name) = (path.display(), folder.display());
            // Only the kind: the error itself names a temporary file.
            UsageError(format!(
                "cannot write {path}: {}",
                match error.kind() {
                    // As `/proc` answers, which is there.
                    ErrorKind::NotFound if folder.is_dir() =>
                        format!("no files can be made in {folder_name}"),
                    ErrorKind::NotFound => format!("there is no folder {folder_name}"),
                    ErrorKind::NotADirectory => format!("{folder_name} is no folder"),
                    ErrorKind::PermissionDenied =>
                        format!("no files may be made in {folder_name} (permission denied)"),
                    kind => format!("no files can be made in {folder_name}: {kind}"),
                }
            ))
        })?;
        Ok(Self::Renamed { file, target: path.to_owned() })
    }

    fn file(&self) -> &File {
        match self {
            Self::Renamed { file, .. } => file.as_file(),
            Self::InPlace(file) => file,
        }
    }

    /// Ends the output: gives the file its name.
    fn finish(self) -> io::Result<()> {
        match self {
            Self::Renamed { file, target } => {
                readable_by_all(file.as_file())?;
                file.persist(target).map(drop).map_err(|error| error.error)
            }
            Self::InPlace(_) => Ok(()),
        }
    }
}

fn not_writable(path: &Path, error: &io::Error) -> UsageError {
    UsageError(format!("cannot write {}: {error}", path.display()))
}

fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    }
}

fn is_written_in_place(there: &Metadata) -> bool {
    let kind = there.file_type();
    kind.is_char_device() || kind.is_fifo() && there.uid() == geteuid().as_raw()
}

impl OutputFile {
    /// Creates the temporary file of an output, or opens the pipe or device that it is.
    ///
    /// # Errors
    /// Its ending is unknown, or its folder can't be written to.
    pub(super) fn prepare(path: &Path) -> Result<Self, UsageError> {
        let format = Format::of(path).ok_or_else(|| {
            UsageError(format!(
                "{}: the ending decides the format, and must be one of .pb.gz (pprof), .folded, .svg, .html",
                path.display()
            ))
        })?;
        let destination = Destination::open(path)?;
        Ok(Self { path: path.to_owned(), format, event: None, destination })
    }

    /// Creates the temporary files of an output of these events: folded stacks and SVG have one of
    /// each, named `x.cpu.svg` and `x.alloc.svg`. The stacks of holders, which come with contended
    /// locks, are in the other formats only.
    ///
    /// # Errors
    /// Those of [`OutputFile::prepare`].
    pub(super) fn prepare_each(path: &Path, events: &BTreeSet<EventType>) -> Result<Vec<Self>, UsageError> {
        let has_one_event = matches!(Format::of(path), Some(Format::Folded | Format::Svg));
        let is_pictured = |event: &EventType| *event != EventType::LockHolder;
        let events: Vec<EventType> = events.iter().copied().filter(is_pictured).collect();
        if !has_one_event || events.len() < 2 {
            return Ok(vec![Self::prepare(path)?]);
        }
        let of_event =
            |event: EventType| Ok(Self { event: Some(event), ..Self::prepare(&path_of_event(path, event))? });
        events.into_iter().map(of_event).collect()
    }

    /// Returns true if it shows when samples were taken.
    pub(super) fn shows_times(&self) -> bool {
        self.format == Format::Html
    }

    /// Writes the profiles and gives the file its name. Folded stacks and SVG, which can't be asked
    /// for other frames, are of `shown`: the same profiles with the frames to show.
    ///
    /// # Errors
    /// The disk is full, or the folder is gone.
    pub(super) fn write(
        self,
        batches: &[Batch],
        shown: &[Batch],
        pauses: &[PauseLane],
        groups: StackGroups,
        title: &RecordingTitle,
    ) -> anyhow::Result<PathBuf> {
        let is_shown = |batch: &&Batch| self.event.is_none_or(|event| batch.event == event);
        let batch = shown.iter().find(is_shown).unwrap_or(&shown[0]);
        let mut out = BufWriter::new(self.destination.file());
        match self.format {
            Format::Pprof => out.write_all(&pprof::to_bytes(&pprof::for_file_of_events(batches))?),
            Format::Folded => folded_stacks::write(batch, folded_stacks::Annotation::Kernel, &mut out),
            Format::Svg => flamegraph_svg::write(batch, &title.to_string(), &mut out),
            Format::Html => recording_page::write_html(batches, pauses, groups, title, &mut out)
                .map_err(std::io::Error::other),
        }
        .and_then(|()| out.flush())
        .with_context(|| format!("cannot write {}", self.path.display()))?;
        drop(out);
        self.destination.finish().with_context(|| format!("cannot write {}", self.path.display()))?;
        Ok(self.path)
    }
}

/// Returns the name of the file for one of several events: `x.svg` becomes `x.alloc.svg`.
fn path_of_event(path: &Path, event: EventType) -> PathBuf {
    let ending = path.extension().unwrap_or_default().to_string_lossy();
    path.with_extension(format!("{}.{ending}", event.descriptor().name))
}

/// The file of `--json=FILE`, known to be writable before the recording starts. It is written in
/// place, so that it can be a pipe or a device.
#[derive(Debug)]
pub(super) struct SummaryFile {
    path: PathBuf,
    file: File,
}

impl SummaryFile {
    /// Creates the file.
    ///
    /// # Errors
    /// It can't be written to.
    pub(super) fn prepare(path: &Path) -> Result<Self, UsageError> {
        let file = File::create(path).map_err(|error| not_writable(path, &error))?;
        Ok(Self { path: path.to_owned(), file })
    }

    /// Writes the summary.
    ///
    /// # Errors
    /// The disk is full.
    pub(super) fn write(mut self, json: &str) -> anyhow::Result<()> {
        let written = self.file.write_all(json.as_bytes());
        written.with_context(|| format!("cannot write {}", self.path.display()))
    }
}

/// Makes a file readable by all: temporary files are private, a profile is a file like any other.
fn readable_by_all(file: &File) -> std::io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    file.set_permissions(std::fs::Permissions::from_mode(0o644))
}

impl Format {
    fn of(path: &Path) -> Option<Self> {
        let name = path.file_name()?.to_str()?;
        let endings =
            [(".pb.gz", Self::Pprof), (".folded", Self::Folded), (".svg", Self::Svg), (".html", Self::Html)];
        endings.into_iter().find(|(ending, _)| name.ends_with(ending)).map(|(_, format)| format)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ending_tells_the_format() {
        assert_eq!(Format::of(Path::new("/a/x.pb.gz")), Some(Format::Pprof));
        assert_eq!(Format::of(Path::new("x.y.folded")), Some(Format::Folded));
        for unknown in ["x", "x.gz", "x.pb", "x.png", "/"] {
            assert_eq!(Format::of(Path::new(unknown)), None, "{unknown}");
        }
    }

    #[test]
    fn pictures_of_several_events_are_a_file_each() {
        let folder = tempfile::tempdir().expect("a folder");
        let both = BTreeSet::from([EventType::Cpu, EventType::Allocation]);
        let names = |name: &str, events: &BTreeSet<EventType>| -> Vec<String> {
            let files = OutputFile::prepare_each(&folder.path().join(name), events).expect("it is writable");
            let name =
                |file: &OutputFile| file.path.file_name().expect("a name").to_string_lossy().into_owned();
            files.iter().map(name).collect()
        };
        assert_eq!(names("x.y.svg", &both), ["x.y.cpu.svg", "x.y.alloc.svg"]);
        let locks = BTreeSet::from([EventType::Lock, EventType::LockHolder]);
        assert_eq!(names("x.y.svg", &locks), ["x.y.svg"]);
        assert_eq!(names("x.folded", &both), ["x.cpu.folded", "x.alloc.folded"]);
        assert_eq!(names("x.pb.gz", &both), ["x.pb.gz"]);
        assert_eq!(names("x.html", &both), ["x.html"]);
        assert_eq!(names("x.svg", &BTreeSet::from([EventType::Allocation])), ["x.svg"]);
    }

    #[test]
    fn a_link_is_replaced_and_what_it_leads_to_stays() {
        let folder = tempfile::tempdir().expect("a folder");
        let [link, target] = ["x.svg", "other"].map(|name| folder.path().join(name));
        fs::write(&target, "another's").expect("it is writable");
        std::os::unix::fs::symlink(&target, &link).expect("it is writable");
        let output = OutputFile::prepare(&link).expect("it is writable");
        output.destination.file().write_all(b"ours").expect("written");
        output.destination.finish().expect("renamed");
        assert!(!link.is_symlink());
        let read = |path| fs::read_to_string(path).expect("a file");
        assert_eq!((read(&link), read(&target)), ("ours".to_owned(), "another's".to_owned()));
    }

    #[test]
    fn pipes_and_devices_are_written_to_and_not_replaced() {
        let folder = tempfile::tempdir().expect("a folder");
        let pipe = folder.path().join("x.folded");
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).expect("it is writable");
        // Whoever opens it for both doesn't wait.
        let _reader = File::options().read(true).write(true).open(&pipe).expect("a pipe");
        for path in [&*pipe, Path::new("/dev/null")] {
            let destination = Destination::open(path).expect("it is writable");
            assert!(matches!(destination, Destination::InPlace(_)), "{destination:?}");
            destination.finish().expect("nothing to do");
            assert!(!path.is_file());
        }
    }

    #[test]
    fn a_folder_that_takes_no_files_is_there() {
        let error = OutputFile::prepare(Path::new("/proc/x.html")).expect_err("no files are made there");
        let said = error.to_string();
        assert!(said.starts_with("cannot write /proc/x.html: no files "), "{said}");
    }

    #[test]
    fn a_folder_that_is_not_there_is_named_before_anything_is_recorded() {
        let error =
            OutputFile::prepare(Path::new("/nowhere/at/all/x.svg")).expect_err("there is no such folder");
        let said = error.to_string();
        assert_eq!(said, "cannot write /nowhere/at/all/x.svg: there is no folder /nowhere/at/all");
        let error = OutputFile::prepare(Path::new("x.png")).expect_err("unknown ending");
        assert!(error.to_string().contains(".folded"), "{error}");
    }
}
