//! Settings of a small command: precedence, and messages about invalid ones.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::Write as _;
use std::time::Duration;

use clap::{ArgMatches, Args, CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum};
use tempfile::NamedTempFile;

use super::{ConfigError, ConfigSchema, SettingSource, Settings, SettingsScope};

const SCOPE: SettingsScope =
    SettingsScope { subcommand: "serve", file_flag: "config", command_line_only: &["check"] };

#[derive(Debug, Parser)]
#[command(version)]
struct Cli {
    #[arg(long, global = true, env = "JVMPROF_LOG")]
    log_level: Option<String>,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Serve(Serve),
    Other {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        words: Vec<String>,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Way {
    Local,
    Server,
}

#[derive(Debug, Args)]
struct Serve {
    #[arg(long)]
    config: Option<String>,
    #[arg(long)]
    check: bool,
    /// How often
    #[arg(short = 'F', long, default_value_t = 99, value_name = "HZ", value_parser = clap::value_parser!(u32).range(1..=20_000))]
    frequency: u32,
    #[arg(long, default_value = "10s", value_parser = humantime::parse_duration)]
    push_interval: Duration,
    #[arg(long)]
    store_address: Option<String>,
    #[arg(long)]
    store_insecure: bool,
    #[arg(long, conflicts_with = "store_insecure")]
    store_ca: Option<String>,
    #[arg(long, hide_env_values = true)]
    store_token: Option<u32>,
    #[arg(long, conflicts_with = "store_token")]
    store_token_file: Option<String>,
    #[arg(long, value_name = "NAME=VALUE")]
    store_headers: Vec<String>,
    #[arg(long)]
    rule: Vec<String>,
    #[arg(long, default_value = "local")]
    way: Way,
}

/// A parsed command line and its settings.
type Run = (ArgMatches, Settings);

fn load(line: &str, variables: &[(&str, &str)]) -> Result<Run, ConfigError> {
    let argv: Vec<_> = line.split(' ').map(OsString::from).collect();
    let environment: BTreeMap<OsString, OsString> =
        variables.iter().map(|(name, value)| (name.into(), value.into())).collect();
    ConfigSchema::new(Cli::command(), SCOPE).load(&argv, &environment)
}

fn serve((matches, _): &Run) -> (Serve, Option<String>) {
    let cli = Cli::from_arg_matches(matches).expect("all arguments are there");
    match cli.command {
        Command::Serve(serve) => (serve, cli.log_level),
        other @ Command::Other { .. } => panic!("{other:?}"),
    }
}

fn file(text: &str) -> NamedTempFile {
    let mut file = NamedTempFile::new().expect("a temporary file can be made");
    file.write_all(text.as_bytes()).expect("written");
    file
}

fn with_file(text: &str, more: &str, variables: &[(&str, &str)]) -> Result<Run, ConfigError> {
    let file = file(text);
    load(format!("x serve --config {}{more}", file.path().display()).as_str(), variables)
}

/// Returns the problems of a file, without its name.
fn problems(text: &str) -> Vec<String> {
    let file = file(text);
    let path = file.path().display().to_string();
    let error = load(&format!("x serve --config {path}"), &[]).expect_err("the file is bad");
    let lines: Vec<String> = error.to_string().lines().map(ToOwned::to_owned).collect();
    assert!(lines.iter().all(|line| line.starts_with(&path)), "{lines:?}");
    lines.iter().map(|line| line[path.len() + 1..].to_owned()).collect()
}

#[test]
fn a_key_below_the_wrong_table_is_told_where_it_belongs() {
    assert_eq!(
        problems("[store]\nfrequency = 5\n[way]\npush-interval = '1s'\n[times]\npush-interval = '1s'\n"),
        [
            "2:1: unknown key \"store-frequency\": \"frequency\" stands below [store] and isn't part of it: \
             write it above the first table",
            "3:2: \"way\" is a key and no table, and what follows are keys by themselves: \
             write them without a table, above the first one",
            "5:2: unknown table [times]: \"push-interval\" is a key by itself: \
             write it without a table, above the first one",
        ]
    );
}

#[test]
fn the_command_line_goes_before_the_environment_before_the_file() {
    let text = "frequency = 19\npush-interval = '3s'\nstore-address = 'file:1'\n";
    let variables = [("JVMPROF_FREQUENCY", "29"), ("JVMPROF_STORE_ADDRESS", "env:1")];
    let run = with_file(text, " --frequency 39", &variables).expect("valid");
    let (args, _) = serve(&run);
    assert_eq!((args.frequency, args.push_interval), (39, Duration::from_secs(3)));
    assert_eq!(args.store_address.as_deref(), Some("env:1"));
    let sources: Vec<SettingSource> =
        ["frequency", "store-address", "push-interval", "way"].map(|name| run.1.by_name[name].source).into();
    assert_eq!(
        sources,
        [SettingSource::CommandLine, SettingSource::Environment, SettingSource::File, SettingSource::Default]
    );
    let (args, _) = serve(&with_file(text, " -F 40", &variables).expect("valid"));
    assert_eq!(args.frequency, 40, "the short form is the same flag");
    let (args, _) = serve(&load("x serve", &[("JVMPROF_FREQUENCY", "")]).expect("valid"));
    assert_eq!(args.frequency, 99, "an empty variable says nothing");
}

#[test]
fn the_file_may_be_named_by_its_variable_and_global_flags_are_keys() {
    let file = file("log_level = 'debug'\nfrequency = 7");
    let path = file.path().to_str().expect("a temporary path is UTF-8");
    let (args, level) = serve(&load("x serve", &[("JVMPROF_CONFIG", path)]).expect("valid"));
    assert_eq!((args.frequency, level.as_deref()), (7, Some("debug")));
    let variables = [("JVMPROF_CONFIG", path), ("JVMPROF_LOG", "trace")];
    let (_, level) = serve(&load("x serve", &variables).expect("valid"));
    assert_eq!(level.as_deref(), Some("trace"), "a variable that was declared counts like the derived one");
    let (_, level) = serve(&load("x --log-level warn serve", &variables).expect("valid"));
    assert_eq!(level.as_deref(), Some("warn"));
}

#[test]
fn switches_can_be_turned_off_again() {
    let insecure = |text: &str, more: &str, variables: &[(&str, &str)]| {
        serve(&with_file(text, more, variables).expect("valid")).0.store_insecure
    };
    assert!(insecure("store-insecure = true", "", &[]));
    assert!(!insecure("store-insecure = false", "", &[]));
    assert!(!insecure("store-insecure = true", " --store-insecure=false", &[]));
    assert!(!insecure("store-insecure = true", "", &[("JVMPROF_STORE_INSECURE", "0")]));
    assert!(insecure("store-insecure = false", " --store-insecure", &[]));
    assert!(insecure("", "", &[("JVMPROF_STORE_INSECURE", "yes")]));
}

#[test]
fn tables_group_and_lists_have_many_forms() {
    let text = "
        rule = [{ source_labels = ['a', 'b'], regex = '(.*)' }, 'plain']
        [store]
        address = 'a:1'
        insecure = true
        headers = { x = '1', y = 'p=q' }
    ";
    let (args, _) = serve(&with_file(text, "", &[]).expect("valid"));
    assert_eq!(args.store_address.as_deref(), Some("a:1"));
    assert!(args.store_insecure);
    assert_eq!(args.store_headers, ["x=1", "y=p=q"]);
    assert_eq!(args.rule.len(), 2);
    let rule: toml::Table = toml::from_str(&format!("rule = {}", args.rule[0])).expect("an inline table");
    assert_eq!(rule["rule"]["source_labels"][1].as_str(), Some("b"));
    let (args, _) = serve(&with_file("[[rule]]\na = 1\n[[rule]]\na = 2\n", "", &[]).expect("valid"));
    assert_eq!(args.rule, ["{ a = 1 }", "{ a = 2 }"]);
    for (variable, expected) in [
        ("{ a = 1, b = 2 }", vec!["{ a = 1, b = 2 }"]),
        ("{ a = 1, b = 2 }, { c = 3 }", vec!["{ a = 1, b = 2 }", "{ c = 3 }"]),
        ("{ a = 1, b = 2 }\n{ c = 3 }\n", vec!["{ a = 1, b = 2 }", "{ c = 3 }"]),
        ("[{ a = 1, b = 2 }, 'x,y']", vec!["{ a = 1, b = 2 }", "x,y"]),
        // No tables: braces of a glob.
        ("{a,b}/**", vec!["{a,b}/**"]),
        ("a, b", vec!["a", "b"]),
    ] {
        let (args, _) = serve(&load("x serve", &[("JVMPROF_RULE", variable)]).expect("valid"));
        assert_eq!(args.rule, expected, "{variable}");
    }
    let list = |text: &str| {
        serve(&load("x serve", &[("JVMPROF_STORE_HEADERS", text)]).expect("valid")).0.store_headers
    };
    assert_eq!(list("a=1, b=2"), ["a=1", "b=2"]);
    assert_eq!(list("a=1\nb=2\n"), ["a=1", "b=2"]);
    assert_eq!(list("['a=1,2', 'b=3']"), ["a=1,2", "b=3"]);
    let (args, _) = serve(&with_file("store-headers = ['f=1']", " --store-headers c=1", &[]).expect("valid"));
    assert_eq!(args.store_headers, ["c=1"], "a list isn't mixed from two places");
}

#[test]
fn every_problem_is_reported_with_its_location_and_the_nearest_name() {
    assert_eq!(
        problems(
            "frequency = 0\n\n  push_intervall = '3s'\nway = 'locall'\n[store]\naddres = 'é'\nheaders = [1, [2]]\n"
        ),
        [
            "1:13: frequency: \"0\": 0 is not in 1..=20000",
            "3:3: unknown key \"push-intervall\": did you mean \"push-interval\"?",
            "4:7: way: \"locall\": must be one of local, server; did you mean \"local\"?",
            "6:1: unknown key \"store-addres\": did you mean \"store-address\"?",
            "7:15: store-headers: a value can't be of type array",
        ]
    );
    assert_eq!(
        problems("store-address = 'a'\n[store]\naddress = 'b'\n"),
        ["3:1: \"store-address\" stands in line 1 already"]
    );
    assert_eq!(problems("frequency = [1]\n"), ["1:1: frequency: takes one value, not a list"]);
    let [syntax] = problems("frequency = \n").try_into().expect("one problem");
    assert!(syntax.starts_with("1:13: "), "{syntax}");
    let [check] = problems("check = true").try_into().expect("one problem");
    assert!(check.contains("unknown key \"check\""), "what isn't a setting isn't a key: {check}");
    let error = load("x serve --config /nowhere/x.toml", &[]).expect_err("there is no such file").to_string();
    assert!(error.starts_with("/nowhere/x.toml: the configuration file can't be read"), "{error}");
}

#[test]
fn bad_variables_are_refused_by_name_and_misspelt_ones_reported() {
    let variables = [("JVMPROF_FREQUENCY", "many"), ("JVMPROF_WAY", "north")];
    let error = load("x serve", &variables).expect_err("two variables are bad").to_string();
    assert_eq!(
        error.lines().collect::<Vec<_>>(),
        [
            "environment variable JVMPROF_FREQUENCY: \"many\": invalid digit found in string",
            "environment variable JVMPROF_WAY: \"north\": must be one of local, server",
        ]
    );
    let variables = [("JVMPROF_FREQENCY", "9"), ("JVMPROF_SERVICE_HOST", "10.0.0.1"), ("JVMPROF_CONFIG", "")];
    let run = load("x serve", &variables).expect("valid");
    assert_eq!(run.1.misspelt_variables, ["JVMPROF_FREQENCY is no setting: did you mean JVMPROF_FREQUENCY?"]);
}

#[test]
fn of_two_that_exclude_each_other_the_more_explicit_one_counts() {
    let text = "store-token-file = '/run/token'";
    let (args, _) = serve(&with_file(text, "", &[("JVMPROF_STORE_TOKEN", "17")]).expect("valid"));
    assert_eq!((args.store_token, args.store_token_file), (Some(17), None));
    let (args, _) = serve(&with_file("store-token = 1", " --store-token-file /x", &[]).expect("valid"));
    assert_eq!((args.store_token, args.store_token_file.as_deref()), (None, Some("/x")));
    let both = with_file("store-token = 1\nstore-token-file = '/x'", "", &[]).expect_err("both in the file");
    let both = both.to_string();
    assert!(both.contains("cannot be used with") && both.contains(":2:1: says store-token-file"), "{both}");
    assert!(load("x serve --store-token 1 --store-token-file /x", &[]).is_err());
    // A switch that is off on purpose excludes nothing.
    let text = "store-insecure = false\nstore-ca = '/ca'";
    assert_eq!(serve(&with_file(text, "", &[]).expect("valid")).0.store_ca.as_deref(), Some("/ca"));
}

#[test]
fn secrets_are_hidden() {
    let run = with_file("store-token = 4711", "", &[]).expect("valid");
    assert_eq!(run.1.by_name["store-token"].to_string(), "(hidden)");
    assert!(!format!("{:?}", run.1).contains("4711"));
    assert_eq!(problems("store-token = 'geheim'"), ["1:15: store-token: invalid digit found in string"]);
    let help = load("x serve --help", &[]).expect_err("help is shown").to_string();
    assert!(help.contains("JVMPROF_STORE_TOKEN"), "{help}");
}

#[test]
fn other_subcommands_have_the_variables_of_global_flags_alone() {
    let variables = [("JVMPROF_FREQUENCY", "bad"), ("JVMPROF_CONFIG", "/nowhere"), ("JVMPROF_LOG", "warn")];
    let (matches, _) = load("x other a --config b", &variables).expect("valid");
    let cli = Cli::from_arg_matches(&matches).expect("all arguments are there");
    assert_eq!(cli.log_level.as_deref(), Some("warn"));
    assert!(matches!(cli.command, Command::Other { words } if words == ["a", "--config", "b"]));
}

#[test]
fn the_command_line_is_checked_first() {
    for line in ["x serve --help", "x serve --nonsense", "x --version", "x", "x serve --frequency 0"] {
        let error = load(line, &[("JVMPROF_FREQUENCY", "bad")]).expect_err(line);
        assert!(matches!(error, ConfigError::CommandLine(_)), "{line}: {error}");
    }
}

#[test]
fn the_example_holds_every_key_with_its_default() {
    let text = ConfigSchema::new(Cli::command(), SCOPE).example();
    for line in [
        "#frequency = 99",
        "#push-interval = \"10s\"",
        "#store-insecure = false",
        "#store-token = \"\"",
        "#store-headers = []",
        "#way = \"local\"",
        "# One of: local, server",
        "#log-level = \"\"",
    ] {
        assert!(text.lines().any(|it| it == line), "{line} is missing in {text}");
    }
    let uncommented: Vec<&str> = text
        .lines()
        .filter_map(|line| line.strip_prefix('#').filter(|rest| !rest.starts_with(' ')))
        .collect();
    let run = with_file(&uncommented.join("\n"), "", &[]).expect("the example is valid");
    let defaults = load("x serve", &[]).expect("valid");
    for (name, setting) in &run.1.by_name {
        assert_eq!(setting.values, defaults.1.by_name[name].values, "{name}");
    }
    assert_eq!(uncommented.len(), run.1.by_name.len());
}
