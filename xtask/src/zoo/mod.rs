//! `cargo xtask zoo`: the check of Java stacks. Oracle programs run on many JDKs in many modes, and
//! each sampled stack is compared with class files and with the programs' expected calls.

mod class_file;
mod class_path;
mod debian_sid;
mod expected_stacks;
mod jvm_upcalls;
mod matrix_cell;
mod modes;
mod profile;
mod programs;
mod recorder;
mod required_jdks;
mod stack_check;
#[cfg(test)]
mod stack_check_tests;
mod summary;
#[cfg(test)]
mod test_stacks;

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, bail};

use self::class_path::ClassPath;
use self::expected_stacks::Expectations;
use self::matrix_cell::MatrixCell;
use self::modes::{JvmMode, MODES};
use self::programs::{CompiledPrograms, PROGRAMS};
use self::recorder::{RecordedEvent, Recorder};
pub(crate) use self::required_jdks::{Jdk, JdkRequest};
use self::stack_check::Checker;
use crate::files;
use crate::paths;
use crate::run::{require_root, stdout_text};
use crate::setup::build;

/// Least part of one CPU's time in which the programs must be sampled. Other work may share the
/// machine, but a recording of nothing must not pass.
const LEAST: f64 = 0.15;

/// Factor by which programs run longer that were sampled too rarely, or whose shares of time are
/// wrong: other work delays the second compiler, and without its code a share is another one.
const LONGER: f64 = 3.0;

/// Length of the run that writes an archive: enough for the second compiler.
const TRAINING_SECONDS: f64 = 3.0;

#[derive(Debug, clap::Args)]
pub(crate) struct ZooArgs {
    /// A JDK to run on, installed where it is missing; with its home if it isn't where xtask looks
    /// (repeatable) [default: 8, 11, 17, 21, 25 and the newest]
    #[arg(long, value_name = "N[=HOME]")]
    jdk: Vec<JdkRequest>,
    /// A mode to run in, or `all` (repeatable)
    #[arg(long, default_value = "default", value_name = "MODE")]
    mode: Vec<String>,
    /// A program to run (repeatable); several side by side: `Known,Calls` [default: all, one after
    /// the other]
    #[arg(long, value_name = "PROGRAM")]
    program: Vec<String>,
    /// Seconds that each program runs
    #[arg(long, default_value_t = 5.0, value_name = "SECONDS")]
    seconds: f64,
    /// Samples per second and CPU
    #[arg(short = 'F', long, default_value_t = 499, value_name = "HZ")]
    frequency: u32,
    /// Begin to record a second after the program's start, by its pid, instead of at its first
    /// instruction
    #[arg(long)]
    attach: bool,
    /// What to record: CPU time, allocations, or waits off the CPU
    #[arg(short, long, value_enum, default_value_t, value_name = "EVENT")]
    event: RecordedEvent,
    /// The program under test [default: built from this checkout]
    #[arg(long, value_name = "FILE")]
    jvmprof: Option<PathBuf>,
    /// Check this profile against the classes of the first JDK, and the expected calls of the
    /// programs, instead of recording
    #[arg(long, value_name = "FILE")]
    check: Option<PathBuf>,
    /// A folder with class files of the program in that profile, such as an unpacked jar
    /// (repeatable)
    #[arg(long, value_name = "DIR", requires = "check")]
    classes: Vec<PathBuf>,
    /// Install the JDKs, compile the programs, and stop
    #[arg(long)]
    setup: bool,
    /// Print one JSON object for each cell instead of the table
    #[arg(long)]
    json: bool,
}

pub(crate) fn main(args: &ZooArgs) -> anyhow::Result<ExitCode> {
    let zoo = Zoo::new()?;
    let wanted: Vec<JdkRequest> = match args.jdk.is_empty() {
        true => required_jdks::ALL.map(JdkRequest::version).into(),
        false => args.jdk.clone(),
    };
    let jdks = wanted.iter().map(JdkRequest::ensure).collect::<anyhow::Result<Vec<Jdk>>>()?;
    for jdk in &jdks {
        eprintln!("JDK {}: {} in {}", jdk.feature, jdk.version, jdk.home.display());
    }
    if args.setup {
        return Ok(ExitCode::SUCCESS);
    }
    if let (Some(profile), Some(jdk)) = (&args.check, jdks.first()) {
        let file = profile.clone();
        let mut cell = MatrixCell {
            jdk: jdk.feature,
            program: "FILE".to_owned(),
            profile: file,
            ..MatrixCell::default()
        };
        cell.check(&zoo.checker(jdk, &args.classes)?, &zoo.expected.of(&args.program.join(",")))?;
        return Ok(finish(&[cell], args.json));
    }
    let plan = Plan { modes: modes_named(&args.mode)?, programs: programs_named(&args.program)? };
    let jvmprof = args.jvmprof.clone().map_or_else(build::release, Ok)?;
    let recorder =
        Recorder { jvmprof: &jvmprof, frequency: args.frequency, event: args.event, attach: args.attach };
    let mut cells = Vec::new();
    eprintln!("{}", summary::header());
    for jdk in &jdks {
        zoo.visit(jdk, &plan, recorder, args.seconds, &mut cells)?;
    }
    Ok(finish(&cells, args.json))
}

/// Runs few programs on the JDKs of the tests, in three modes: a short check for every commit.
///
/// # Errors
/// A stack is wrong, too many of waits are cut off, or a recording fails.
pub(crate) fn smoke(
    jdks: &[crate::setup::installed_jdks::InstalledJdk],
    jvmprof: &Path,
) -> anyhow::Result<()> {
    let zoo = Zoo::new()?;
    let modes = ["default", "int", "c1"].map(str::to_owned);
    let programs = ["Known,Elsewhere", "Churn", "Calls,Streams,Throws,Upcalls"].map(str::to_owned);
    let plan = Plan { modes: modes_named(&modes)?, programs: programs_named(&programs)? };
    let mut cells = Vec::new();
    for jdk in jdks {
        let jdk = format!("{}={}", jdk.feature, jdk.home.display());
        let wanted: JdkRequest = jdk.parse().map_err(anyhow::Error::msg)?;
        let jdk = wanted.ensure()?;
        let recorder = Recorder { jvmprof, frequency: 499, event: RecordedEvent::Cpu, attach: false };
        zoo.visit(&jdk, &plan, recorder, 3.0, &mut cells)?;
        let both = [programs[2].clone(), "Virtual".to_owned()];
        let with_locks = [format!("{},Locks", programs[2])];
        for (event, programs) in [(RecordedEvent::Alloc, &both[..]), (RecordedEvent::Offcpu, &with_locks)] {
            let plan = Plan { modes: modes_named(&modes[..1])?, programs: programs_named(programs)? };
            zoo.visit(&jdk, &plan, Recorder { event, ..recorder }, 3.0, &mut cells)?;
        }
    }
    summary::print(&cells);
    let wrong: Vec<String> = cells.iter().filter_map(MatrixCell::error_text).collect();
    if !wrong.is_empty() {
        bail!("{} of {} recordings failed:\n{}", wrong.len(), cells.len(), wrong.join("\n"));
    }
    Ok(())
}

fn finish(cells: &[MatrixCell], json: bool) -> ExitCode {
    if json {
        for cell in cells {
            match serde_json::to_string(cell) {
                Ok(line) => println!("{line}"),
                Err(error) => eprintln!("error: writing a cell: {error}"),
            }
        }
    } else {
        summary::print(cells);
    }
    if cells.iter().any(|cell| cell.error_text().is_some()) { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

/// Programs that run in a mode of a JDK, how they are recorded, and who checks their stacks.
#[derive(Clone, Copy, Debug)]
struct Run<'a> {
    jdk: &'a Jdk,
    mode: &'a JvmMode,
    flags: &'a [&'a str],
    programs: &'a str,
    recorder: Recorder<'a>,
    checker: &'a Checker,
}

/// Modes and programs to run on each JDK.
#[derive(Debug)]
struct Plan {
    modes: Vec<&'static JvmMode>,
    /// Elements are lists of programs that run side by side.
    programs: Vec<String>,
}

/// The compiled programs and their expected calls.
#[derive(Debug)]
struct Zoo {
    compiled: CompiledPrograms,
    expected: Expectations,
}

impl Zoo {
    fn new() -> anyhow::Result<Self> {
        require_root("recording loads kernel programs")?;
        Ok(Self { compiled: programs::compile()?, expected: programs::expectations()? })
    }

    /// Returns a checker with the classes of a JDK, of the programs, and below further folders.
    fn checker(&self, jdk: &Jdk, folders: &[PathBuf]) -> anyhow::Result<Checker> {
        let mut classes = ClassPath::default();
        classes.add_dump(&jdk.class_dump(&self.compiled.classes)?)?;
        classes.add_folder(&self.compiled.classes)?;
        classes.add_folder(&self.compiled.shapes)?;
        classes.add_folder(&self.compiled.versions)?;
        for folder in folders {
            classes.add_folder(folder)?;
        }
        Ok(Checker::new(classes))
    }

    /// Runs all programs in all modes on a JDK.
    fn visit(
        &self,
        jdk: &Jdk,
        plan: &Plan,
        recorder: Recorder<'_>,
        seconds: f64,
        cells: &mut Vec<MatrixCell>,
    ) -> anyhow::Result<()> {
        let checker = self.checker(jdk, &[])?;
        let folder = paths::zoo().join("profiles");
        files::create_folder(&folder)?;
        for mode in &plan.modes {
            let Some(flags) = mode.flags(jdk.feature).filter(|flags| jdk.takes(flags)) else {
                eprintln!("JDK {} has no mode {}", jdk.feature, mode.name);
                continue;
            };
            for programs in plan.programs.iter().filter(|programs| mode.allows(programs)) {
                let run = Run { jdk, mode, flags, programs, recorder, checker: &checker };
                let recorded = |seconds| self.record(run, seconds, &folder);
                let mut cell = recorded(seconds);
                if cell.as_ref().is_some_and(MatrixCell::has_too_few_samples) {
                    cell = recorded(seconds * LONGER);
                }
                let Some(cell) = cell else {
                    eprintln!("JDK {} can't run {programs}", jdk.feature);
                    continue;
                };
                eprintln!("{}", summary::row(&cell));
                cells.push(cell);
            }
        }
        Ok(())
    }

    /// Records programs once and checks their stacks. Returns `None` if the JDK can't run them.
    fn record(&self, run: Run<'_>, seconds: f64, folder: &Path) -> Option<MatrixCell> {
        let Run { jdk, mode, flags, programs, recorder, checker } = run;
        let mut cell = MatrixCell {
            jdk: jdk.feature,
            jdk_version: jdk.version.clone(),
            mode: mode.name.to_owned(),
            program: programs.to_owned(),
            least: match recorder.event {
                RecordedEvent::Cpu => (f64::from(recorder.frequency) * seconds * LEAST) as u64,
                RecordedEvent::Alloc | RecordedEvent::Offcpu => 1,
            },
            event: recorder.event,
            profile: folder.join(format!("{}-{}-{programs}.pb.gz", jdk.feature, mode.name)),
            ..MatrixCell::default()
        };
        let command = self.command(jdk, mode, flags, seconds, programs);
        let done = command.and_then(|command| recorder.record(&command, &cell.profile));
        let done = done.and_then(|losses| {
            let Some(losses) = losses else { return Ok(false) };
            cell.losses = losses;
            cell.check(checker, &self.expected.of(programs)).map(|()| true)
        });
        match done {
            Ok(true) => {}
            Ok(false) => return None,
            // The results of the others may still be useful.
            Err(error) => cell.error = Some(format!("{error:#}")),
        }
        Some(cell)
    }

    /// Returns the command that runs programs in a mode. Writes the mode's archive first.
    fn command(
        &self,
        jdk: &Jdk,
        mode: &JvmMode,
        flags: &[&str],
        seconds: f64,
        programs: &str,
    ) -> anyhow::Result<Vec<OsString>> {
        let compiled = &self.compiled;
        let mut all_flags: Vec<OsString> = flags.iter().map(OsString::from).collect();
        let Some(archive) = mode.archive else {
            return Ok(jdk.words(&compiled.arguments(&all_flags, &compiled.classes, seconds, programs)));
        };
        let file = paths::zoo_shared().join(format!("{}-{}-{programs}.archive", jdk.feature, mode.name));
        let _ = fs::remove_file(&file);
        let training = [all_flags.clone(), archive.training_flags(&file)].concat();
        let training = compiled.arguments(&training, &compiled.jar, TRAINING_SECONDS, programs);
        stdout_text(&mut jdk.command(&training)).context("training for the archive")?;
        if !file.is_file() {
            bail!("JDK {} wrote no {}", jdk.feature, file.display());
        }
        all_flags.extend(archive.flags(&file));
        Ok(jdk.words(&compiled.arguments(&all_flags, &compiled.jar, seconds, programs)))
    }
}

fn modes_named(names: &[String]) -> anyhow::Result<Vec<&'static JvmMode>> {
    if names.iter().any(|name| name == "all") {
        return Ok(MODES.iter().collect());
    }
    let known = || MODES.iter().map(|mode| mode.name).collect::<Vec<_>>().join(", ");
    let mode = |name: &String| {
        JvmMode::named(name).with_context(|| format!("there is no mode {name}: {} or all", known()))
    };
    names.iter().flat_map(|names| names.split(',')).map(|name| mode(&name.to_owned())).collect()
}

fn programs_named(names: &[String]) -> anyhow::Result<Vec<String>> {
    for name in names.iter().flat_map(|names| names.split(',')) {
        if !PROGRAMS.contains(&name) {
            bail!("there is no program {name}: {}", PROGRAMS.join(", "));
        }
    }
    Ok(if names.is_empty() {
        PROGRAMS.iter().map(|name| (*name).to_owned()).collect()
    } else {
        names.to_vec()
    })
}
