//! Which value a setting has: the command line before the environment before the file before the
//! default.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::path::{Path, PathBuf};

use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Command};

use super::Scope;
use super::document::{Document, text_of};
use super::error::{ConfigError, Place, Problem};
use super::keys::{Key, PREFIX, Refusal, nearest, variable_of};

/// Who said it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Source {
    Default,
    File,
    Environment,
    CommandLine,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Default => "default",
            Self::File => "file",
            Self::Environment => "environment",
            Self::CommandLine => "command line",
        })
    }
}

/// A setting as it is in the end.
#[derive(Clone, PartialEq, Eq)]
pub struct Setting {
    pub source: Source,
    /// As the command line would have them; none: unset.
    pub values: Vec<String>,
    pub is_secret: bool,
    /// Where the file or the environment says it.
    pub place: Option<Place>,
}

impl fmt::Display for Setting {
    /// The values, those of secrets hidden.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.values.as_slice() {
            [] => f.write_str("unset"),
            _ if self.is_secret => f.write_str("(hidden)"),
            [one] => f.write_str(one),
            many => write!(f, "{many:?}"),
        }
    }
}

impl fmt::Debug for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self} ({})", self.source)
    }
}

/// A command line that has everything.
#[derive(Debug)]
pub struct Resolved {
    /// What was given, and behind it what the environment and the file say.
    pub argv: Vec<OsString>,
    /// By name. Empty for other subcommands, and where the command line can't be understood.
    pub settings: BTreeMap<String, Setting>,
    /// The file that was read.
    pub file: Option<PathBuf>,
    /// Variables that look like a setting's misspelt name.
    pub suspicious: Vec<String>,
}

impl Resolved {
    /// A message that speaks of flags, with the places of those among them that weren't given as
    /// such.
    pub fn with_places(&self, message: &str) -> String {
        let is_named = |name: &str| {
            let flag = format!("--{name}");
            let mut rests = message.split(&*flag).skip(1);
            rests.any(|rest| !rest.starts_with(|char: char| char.is_alphanumeric() || char == '-'))
        };
        let named = self.settings.iter().filter(|(name, _)| is_named(name));
        let places = named.filter_map(|(name, setting)| {
            setting.place.as_ref().map(|place| format!("{place}: says {name}"))
        });
        std::iter::once(message.trim_end().to_owned()).chain(places).collect::<Vec<_>>().join("\n")
    }
}

/// Finds the settings of a command.
#[derive(Debug)]
pub struct Resolver {
    command: Command,
    scope: Scope,
    keys: Vec<Key>,
}

impl Resolver {
    /// `command`: as [`super::with_variables`] made it.
    pub fn new(command: Command, scope: Scope) -> Self {
        let keys = Key::all(&command, &scope);
        Self { command, scope, keys }
    }

    /// Completes a command line (with the program's name) by what the environment and the file say.
    ///
    /// # Errors
    /// The file can't be read, or it or the environment says what can't be.
    pub fn resolve(
        &self,
        argv: Vec<OsString>,
        environment: &BTreeMap<OsString, OsString>,
    ) -> Result<Resolved, ConfigError> {
        let unchanged =
            |argv| Resolved { argv, settings: BTreeMap::new(), file: None, suspicious: Vec::new() };
        // What can't be parsed is told by the command's own parser, and so is help.
        let Ok(matches) = self.names_only().try_get_matches_from(&argv) else { return Ok(unchanged(argv)) };
        let Some((_, given)) = matches.subcommand().filter(|(name, _)| *name == self.scope.subcommand) else {
            return Ok(unchanged(argv));
        };
        let mut settings: BTreeMap<String, Setting> =
            self.keys.iter().map(|key| default(key, given)).collect();
        let mut problems = Vec::new();
        self.read_environment(environment, &mut settings, &mut problems);
        let file = given_values(given, self.scope.file_flag)
            .pop()
            .or_else(|| variable(environment, &variable_of(self.scope.file_flag)).map(OsStr::to_owned))
            .map(PathBuf::from);
        if let Some(path) = &file {
            problems.splice(0..0, self.read_file(path, &mut settings));
        }
        // Of one mistake a parser may tell a hundred thousand times.
        problems.dedup();
        if !problems.is_empty() {
            return Err(ConfigError { problems });
        }
        self.drop_overruled(&mut settings);
        let argv = self.append(argv, &settings);
        Ok(Resolved { argv, settings, file, suspicious: self.suspicious(environment) })
    }

    /// The same flags, taking anything: tells which are given.
    fn names_only(&self) -> Command {
        let bare = |arg: &Arg| {
            let mut bare =
                Arg::new(arg.get_id().clone()).global(arg.is_global_set()).action(match arg.get_action() {
                    ArgAction::Append => ArgAction::Append,
                    ArgAction::Set => ArgAction::Set,
                    other => other.clone(),
                });
            if let Some(long) = arg.get_long() {
                bare = bare
                    .long(long.to_owned())
                    .aliases(arg.get_all_aliases().unwrap_or_default().into_iter().map(ToOwned::to_owned));
            }
            if let Some(short) = arg.get_short() {
                bare = bare.short(short);
            }
            if arg.get_action().takes_values() {
                bare = bare
                    .require_equals(arg.is_require_equals_set())
                    .value_parser(clap::value_parser!(OsString));
                if let Some(range) = arg.get_num_args() {
                    bare = bare.num_args(range).default_missing_value("true");
                }
            }
            bare
        };
        let mut subcommand = Command::new(self.scope.subcommand);
        if let Some(full) = self.command.find_subcommand(self.scope.subcommand) {
            subcommand = subcommand.args(full.get_arguments().map(bare));
        }
        Command::new("names")
            .args(self.command.get_arguments().map(bare))
            .subcommand(subcommand)
            .allow_external_subcommands(true)
    }

    fn read_environment(
        &self,
        environment: &BTreeMap<OsString, OsString>,
        settings: &mut BTreeMap<String, Setting>,
        problems: &mut Vec<Problem>,
    ) {
        for key in &self.keys {
            let Some(setting) = settings.get_mut(&key.name).filter(|it| it.source < Source::Environment)
            else {
                continue;
            };
            let set = key.variables.iter().find_map(|name| Some((name, variable(environment, name)?)));
            let Some((name, value)) = set else { continue };
            let mut refuse = |text| problems.push(Problem { place: Place::Variable(name.clone()), text });
            let Some(text) = value.to_str() else {
                refuse("is not UTF-8".to_owned());
                continue;
            };
            let values = if key.is_list() { list_of(text) } else { Ok(vec![text.to_owned()]) };
            match values {
                Ok(values) => {
                    let refusals = values.iter().filter_map(|value| key.refusal(value));
                    refusals.for_each(|refusal| refuse(refusal.text));
                    setting.values = values;
                    setting.source = Source::Environment;
                    setting.place = Some(Place::Variable(name.clone()));
                }
                Err(why) => refuse(why),
            }
        }
    }

    fn read_file(&self, path: &Path, settings: &mut BTreeMap<String, Setting>) -> Vec<Problem> {
        let text = match std::fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) => {
                let text = format!("the configuration file can't be read: {error}");
                return vec![Problem { place: Place::WholeFile(path.to_owned()), text }];
            }
        };
        let mut document = match Document::read(path, &text, &self.keys) {
            Ok(document) => document,
            Err(error) => return error.problems,
        };
        for entry in std::mem::take(&mut document.entries) {
            let Some(key) = self.keys.iter().find(|key| key.name == entry.name) else { continue };
            if entry.is_list && !key.is_list() {
                document.problem(entry.at, format!("{}: takes one value, not a list", key.name));
                continue;
            }
            let mut values = entry.values;
            // As in the environment: what has no default is unset by nothing.
            if !key.is_list() && key.defaults().is_empty() {
                values.retain(|value| !value.text.is_empty());
            }
            for (index, value) in values.iter().enumerate() {
                if let Some(Refusal { text, field }) = key.refusal(&value.text) {
                    let nth = if entry.is_list { format!("[{index}]") } else { String::new() };
                    let at = value.place_of(field.as_deref());
                    document.problem(at, format!("{}{nth}: {text}", key.name));
                }
            }
            if let Some(setting) = settings.get_mut(&key.name).filter(|it| it.source < Source::File)
                && !values.is_empty()
            {
                setting.values = values.into_iter().map(|value| value.text).collect();
                setting.source = Source::File;
                setting.place = Some(document.place(entry.at));
            }
        }
        // People read a file from its beginning.
        document.problems.sort_by_key(|problem| match problem.place {
            Place::File { line, column, .. } => (line, column),
            _ => (0, 0),
        });
        document.problems
    }

    /// Of two settings that exclude each other the one that is said more explicitly counts; if both
    /// are said in the same place, the parser refuses.
    fn drop_overruled(&self, settings: &mut BTreeMap<String, Setting>) {
        let Some(subcommand) = self.command.find_subcommand(self.scope.subcommand) else { return };
        let mut overruled = BTreeSet::new();
        for key in self.keys.iter().filter(|key| !key.arg.is_global_set()) {
            for other in subcommand.get_arg_conflicts_with(&key.arg) {
                let Some(other) = other.get_long() else { continue };
                let sources = (settings.get(&key.name), settings.get(other));
                let (Some(one), Some(two)) = sources else { continue };
                if one.source == Source::Default || two.source == Source::Default || one.source == two.source
                {
                    continue;
                }
                let loser = if one.source < two.source { &*key.name } else { other };
                overruled.insert(loser.to_owned());
            }
        }
        for key in self.keys.iter().filter(|key| overruled.contains(&key.name)) {
            if let Some(setting) = settings.get_mut(&key.name) {
                setting.values = key.defaults();
                setting.source = Source::Default;
                setting.place = None;
            }
        }
    }

    fn append(&self, mut argv: Vec<OsString>, settings: &BTreeMap<String, Setting>) -> Vec<OsString> {
        for key in &self.keys {
            let Some(setting) = settings.get(&key.name) else { continue };
            let is_said = matches!(setting.source, Source::File | Source::Environment);
            // A switch that is off on purpose doesn't exclude others.
            if is_said && setting.values != key.defaults() {
                argv.extend(setting.values.iter().map(|value| format!("--{}={value}", key.name).into()));
            }
        }
        argv
    }

    /// Service links of Kubernetes and others' variables begin with the prefix, too: only what is
    /// almost a name is told.
    fn suspicious(&self, environment: &BTreeMap<OsString, OsString>) -> Vec<String> {
        let known: Vec<&str> =
            self.keys.iter().flat_map(|key| &key.variables).map(|name| &name[PREFIX.len()..]).collect();
        let file = variable_of(self.scope.file_flag);
        environment
            .keys()
            .filter_map(|name| name.to_str())
            .filter(|name| *name != file)
            .filter_map(|name| {
                let rest = name.strip_prefix(PREFIX).filter(|rest| !known.contains(rest))?;
                let nearest = nearest(rest, known.iter().copied())?;
                let is_typo = strsim::damerau_levenshtein(rest, nearest) <= 2;
                is_typo.then(|| format!("{name} is no setting: did you mean {PREFIX}{nearest}?"))
            })
            .collect()
    }
}

/// A variable that is set to something.
fn variable<'a>(environment: &'a BTreeMap<OsString, OsString>, name: &str) -> Option<&'a OsStr> {
    environment.get(OsStr::new(name)).map(OsString::as_os_str).filter(|value| !value.is_empty())
}

fn given_values(given: &ArgMatches, flag: &str) -> Vec<OsString> {
    let id = flag.replace('-', "_");
    let values = given.try_get_raw(&id).ok().flatten();
    values.into_iter().flatten().map(OsStr::to_owned).collect()
}

/// The setting as the command line leaves it.
fn default(key: &Key, given: &ArgMatches) -> (String, Setting) {
    let id = key.arg.get_id().as_str();
    let is_given = given.value_source(id) == Some(ValueSource::CommandLine);
    let (source, values) = if is_given {
        let raw = given.try_get_raw(id).ok().flatten().into_iter().flatten();
        (Source::CommandLine, raw.map(|value| value.to_string_lossy().into_owned()).collect())
    } else {
        (Source::Default, key.defaults())
    };
    (key.name.clone(), Setting { source, values, is_secret: key.is_secret(), place: None })
}

/// A list in one variable: a TOML array, TOML tables with commas between them, or values with
/// commas or line breaks between them; where they begin with a brace only with line breaks, since
/// braces have commas inside.
fn list_of(text: &str) -> Result<Vec<String>, String> {
    if text.trim_start().starts_with('{') {
        let lines =
            || text.lines().map(str::trim).filter(|line| !line.is_empty()).map(ToOwned::to_owned).collect();
        return list_of(&format!("[{text}]")).or_else(|_| Ok(lines()));
    }
    if !text.trim_start().starts_with('[') {
        let values = text.split([',', '\n']).map(str::trim).filter(|value| !value.is_empty());
        return Ok(values.map(ToOwned::to_owned).collect());
    }
    let table: toml::Table = toml::from_str(&format!("list = {text}"))
        .map_err(|error| format!("is no list: {}", error.message()))?;
    let elements = table.get("list").and_then(toml::Value::as_array).into_iter().flatten();
    elements
        .map(|element| {
            text_of(element).ok_or_else(|| format!("a value can't be of type {}", element.type_str()))
        })
        .collect()
}
