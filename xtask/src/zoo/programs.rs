//! The oracle programs, and their compilation.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, bail};

use super::expected_stacks::Expectations;
use crate::files;
use crate::paths;
use crate::run::stdout_text;
use crate::setup::installed_jdks;

/// The programs of `xtask/zoo`, by the names of their classes.
pub(super) const PROGRAMS: &[&str] = &[
    "Known",
    "Elsewhere",
    "Calls",
    "Streams",
    "Text",
    "Throws",
    "Digest",
    "Reflect",
    "Locks",
    "Garbage",
    "Upcalls",
    "Virtual",
    "Javac",
    "Redefine",
    LATE,
    "Churn",
];

/// Program compiled for JDK 22, which has the foreign-function API.
const LATE: &str = "Foreign";

/// Source compiled without debug information.
const BARE: &str = "Bare.java";

/// Number of classes of one shape.
const SHAPES: usize = 24;

/// Number of lines between one shape and the next, so that no line is in two of them.
const SHAPE_LINES: usize = 50;

/// Number of lines between the two versions of a redefined class.
const CHANGING_LINES: usize = 100;

/// Manifest of the agent's jar. The agent itself is on the class path.
const AGENT: &str =
    "Premain-Class: zoo.Redefine\nCan-Redefine-ClassPath: true\nCan-Retransform-ClassPath: true\n";

/// Paths of the compiled programs.
#[derive(Clone, Debug)]
pub(super) struct CompiledPrograms {
    /// The class path.
    pub(super) classes: PathBuf,
    /// The same as a jar: archives are of jars only.
    pub(super) jar: PathBuf,
    /// The folder of the property `zoo.shapes`.
    pub(super) shapes: PathBuf,
    /// The folder of the property `zoo.versions`.
    pub(super) versions: PathBuf,
    /// The folder of the property `zoo.sources`: the sources again, where JVMs with another root
    /// see them.
    sources: PathBuf,
    /// A jar with the manifest of an agent.
    agent: PathBuf,
}

impl CompiledPrograms {
    /// Returns the arguments of `java` that run these programs (`Known,Calls`) side by side, of
    /// [`Self::classes`] or [`Self::jar`].
    pub(super) fn arguments(
        &self,
        flags: &[OsString],
        class_path: &Path,
        seconds: f64,
        programs: &str,
    ) -> Vec<OsString> {
        let joined = |flag: &str, path: &Path| {
            let mut word = OsString::from(flag);
            word.push(path);
            word
        };
        let mut args = flags.to_vec();
        if programs.split(',').any(|program| program == "Redefine") {
            args.push(joined("-javaagent:", &self.agent));
        }
        args.push(joined("-Dzoo.shapes=", &self.shapes));
        args.push(joined("-Dzoo.versions=", &self.versions));
        args.push(joined("-Dzoo.sources=", &self.sources));
        args.extend(["-cp".into(), class_path.into(), "zoo.Zoo".into(), seconds.to_string().into()]);
        args.extend(programs.split(',').map(OsString::from));
        args
    }
}

fn sources() -> PathBuf {
    paths::workspace().join("xtask/zoo")
}

/// Returns the expectations in the sources' comments.
///
/// # Errors
/// A source can't be read or parsed.
pub(super) fn expectations() -> anyhow::Result<Expectations> {
    let mut expectations = Expectations::default();
    for source in java_files(&sources())? {
        let text = files::read_text(&source)?;
        let program = source.file_stem().unwrap_or_default().to_string_lossy();
        expectations
            .add(&program, &text)
            .with_context(|| format!("reading the comments of {}", source.display()))?;
    }
    Ok(expectations)
}

/// Compiles everything for JDK 8, so that all JDKs run the same class files; nothing, if no source
/// has changed.
///
/// # Errors
/// There is no `javac`, or it fails.
pub(super) fn compile() -> anyhow::Result<CompiledPrograms> {
    // Later ones warn of releases that they will drop, or have dropped them.
    let compilers = installed_jdks::found().into_iter().filter(|jdk| (9..=25).contains(&jdk.feature));
    let Some((javac, jar)) =
        compilers.filter_map(|jdk| Some((jdk.program("javac")?, jdk.program("jar")?))).next()
    else {
        bail!("no JDK 9 to 25 with javac here: `cargo xtask test` installs one");
    };
    let shared = paths::zoo_shared();
    let (shapes, versions) = (shared.join("shapes"), shared.join("versions"));
    let compiled = CompiledPrograms {
        classes: shared.join("classes"),
        jar: shared.join("classes.jar"),
        shapes: shapes.join("zoo/shapes"),
        versions: versions.clone(),
        sources: shared.join("sources"),
        agent: shared.join("agent.jar"),
    };
    let stamp = paths::zoo().join("compiled");
    let now = format!("{:?}", all_sources()?);
    if fs::read_to_string(&stamp).is_ok_and(|stamped| stamped == now) && compiled.jar.is_file() {
        return Ok(compiled);
    }
    for folder in [&compiled.classes, &compiled.versions, &compiled.sources] {
        fresh(folder.clone())?;
    }
    let sources = java_files(&sources())?;
    for source in &sources {
        let name = source.file_name().unwrap_or_default();
        fs::copy(source, compiled.sources.join(name))
            .with_context(|| format!("copying {}", source.display()))?;
    }
    let javac = |options: &[&str], into: &Path, files: &[PathBuf]| {
        let mut command = Command::new(&javac);
        command.args(["--release", "8", "-nowarn", "-Xlint:-options"]).args(options);
        stdout_text(command.arg("-d").arg(into).arg("-cp").arg(&compiled.classes).args(files))
    };
    eprintln!("compiling the oracle programs");
    javac(&["-g"], &compiled.classes, &sources)?;
    let bare: Vec<PathBuf> = sources.into_iter().filter(|source| source.ends_with(BARE)).collect();
    javac(&["-g:none"], &compiled.classes, &bare)?;
    compile_late(&compiled.classes)?;
    let generated = fresh(paths::zoo().join("generated"))?;
    for number in 0..SHAPES {
        let file = generated.join(format!("Shape{number}.java"));
        generate("Shape.java.in", number, number * SHAPE_LINES, &file)?;
    }
    javac(&["-g"], &fresh(shapes)?, &java_files(&generated)?)?;
    for number in 0..2 {
        let generated = fresh(paths::zoo().join("generated"))?;
        let source = generated.join("Changing.java");
        generate("Changing.java.in", number, number * CHANGING_LINES, &source)?;
        javac(&["-g"], &fresh(versions.join(number.to_string()))?, &[source])?;
    }
    let manifest = paths::zoo().join("generated/manifest");
    files::write(&manifest, AGENT)?;
    stdout_text(Command::new(&jar).arg("cfm").arg(&compiled.agent).arg(&manifest))?;
    stdout_text(Command::new(&jar).arg("cf").arg(&compiled.jar).arg("-C").arg(&compiled.classes).arg("."))?;
    files::write(&stamp, now)?;
    Ok(compiled)
}

/// Returns every source and template with its text.
fn all_sources() -> anyhow::Result<Vec<(PathBuf, String)>> {
    let mut files = Vec::new();
    for folder in [sources(), sources().join("jdk22")] {
        for entry in fs::read_dir(&folder).with_context(|| format!("reading {}", folder.display()))? {
            let path = entry.with_context(|| format!("reading {}", folder.display()))?.path();
            if path.is_file() {
                let text = files::read_text(&path)?;
                files.push((path, text));
            }
        }
    }
    files.sort();
    Ok(files)
}

/// Compiles the programs for later JDKs, if there is a compiler of one.
fn compile_late(classes: &Path) -> anyhow::Result<()> {
    let compilers = installed_jdks::found().into_iter().filter(|jdk| jdk.feature >= 22);
    let Some(javac) = compilers.filter_map(|jdk| jdk.program("javac")).next() else {
        eprintln!("no JDK 22 or later with javac here: {LATE} is left out");
        return Ok(());
    };
    let mut command = Command::new(javac);
    command.args(["--release", "22", "-nowarn", "-g", "-d"]).arg(classes).arg("-cp").arg(classes);
    stdout_text(command.arg(sources().join("jdk22").join(LATE).with_extension("java"))).map(drop)
}

/// Returns the folder, emptied.
fn fresh(folder: PathBuf) -> anyhow::Result<PathBuf> {
    files::remove_folder(&folder)?;
    files::create_folder(&folder)?;
    Ok(folder)
}

/// Writes a source from its template, with a number for each `@N@`, after this many empty lines.
fn generate(template: &str, number: usize, lines: usize, file: &Path) -> anyhow::Result<()> {
    let template = sources().join(template);
    let text = files::read_text(&template)?;
    let text = "\n".repeat(lines) + &text.replace("@N@", &number.to_string());
    files::write(file, text)
}

fn java_files(folder: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let entries = fs::read_dir(folder).with_context(|| format!("reading {}", folder.display()))?;
    let mut files: Vec<PathBuf> = entries
        .filter_map(Result::ok)
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "java"))
        .collect();
    files.sort();
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expectations_are_read_from_the_sources() {
        let text = format!("{:?}", expectations().expect("the sources are well-formed"));
        for class in ["zoo/Known$Deep", "zoo/Bare", "zoo/Elsewhere$Counted"] {
            assert!(text.contains(class), "{class}");
        }
    }

    #[test]
    fn every_program_has_its_source() {
        for program in PROGRAMS {
            let folder = if *program == LATE { sources().join("jdk22") } else { sources() };
            assert!(folder.join(format!("{program}.java")).is_file(), "{program}");
        }
    }
}
