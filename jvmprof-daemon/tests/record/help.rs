//! The program's documentation of itself: help, completions, manual pages. Needs no rights.

use std::fs;
use std::process::Command;

use crate::support::{jvmprof, scratch};

fn text_of(args: &[&str]) -> String {
    let output = jvmprof().args(args).output().unwrap();
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// The commands that the program's own help lists.
fn commands() -> Vec<String> {
    let help = text_of(&["-h"]);
    let (_, rest) = help.split_once("\nCommands:\n").expect("commands are listed");
    let (listed, _) = rest.split_once("\n\n").expect("options follow");
    // Where a description goes on in the next line, that is indented further.
    let names = listed.lines().filter_map(|line| line.strip_prefix("  ")?.split(' ').next());
    names.filter(|name| !["", "help"].contains(name)).map(str::to_owned).collect()
}

#[test]
fn options_of_all_commands_stand_apart_from_a_commands_own() {
    let commands = commands();
    for command in ["record", "top", "daemon", "collector", "ui", "diff", "doctor", "ps", "inspect"] {
        assert!(commands.iter().any(|it| it == command), "{command} isn't among {commands:?}");
    }
    for command in &commands {
        for flag in ["-h", "--help"] {
            let help = text_of(&[command, flag]);
            let (own, rest) = help.split_once("\nLogging:\n").unwrap_or_else(|| panic!("{command}: {help}"));
            assert!(!own.contains("--log-"), "{command}: {own}");
            let (logging, examples) =
                rest.split_once("\nExamples:\n").unwrap_or_else(|| panic!("{command}: {help}"));
            assert!(
                logging.contains("--log-level") && logging.contains("--log-format"),
                "{command}: {logging}"
            );
            assert!(examples.contains(&format!("jvmprof {command}")), "{command}: {examples}");
        }
    }
}

#[test]
fn the_daemons_flags_are_grouped_and_the_short_help_is_short() {
    let (short, long) = (text_of(&["daemon", "-h"]), text_of(&["daemon", "--help"]));
    let flags = |help: &str| help.lines().filter(|line| line.trim_start().starts_with("--")).count();
    assert!(flags(&short) * 2 < flags(&long), "{} of {}", flags(&short), flags(&long));
    let headings: Vec<&str> =
        long.lines().filter(|line| line.ends_with(':') && !line.starts_with([' ', '-'])).collect();
    assert_eq!(
        headings,
        [
            "Options:",
            "Settings:",
            "Remote store:",
            "Pyroscope:",
            "OpenTelemetry:",
            "Local store:",
            "Delivery and what waits:",
            "Symbols for the backend:",
            "Labels:",
            "Names of containers:",
            "Which hosts are profiled:",
            "Metrics and health:",
            "What the daemon may cost:",
            "Sampling:",
            "Profiles of allocation:",
            "Profiles of waits:",
            "Pauses of JVMs:",
            "Requests:",
            "Symbols and lines of native code:",
            "Logging:",
            "Examples:",
        ]
    );
    let (options, _) = long.split_once("\nSettings:").unwrap();
    assert!(!options.contains("--remote") && options.contains("--help"), "{options}");
}

#[test]
fn bash_completes_what_its_script_says() {
    let dir = scratch();
    let script = dir.path().join("jvmprof");
    fs::write(&script, text_of(&["completions", "bash"])).unwrap();
    let ask = "source $1; COMP_WORDS=(jvmprof record --out); COMP_CWORD=2; _jvmprof jvmprof --out record; \
               echo ${COMPREPLY[@]}";
    let output = Command::new("bash").args(["-c", ask, "ask"]).arg(&script).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), "--output", "{output:?}");
}

/// What stands between two texts, of the first one of each line.
fn between<'a>(script: &'a str, begin: &str, end: &str) -> Vec<&'a str> {
    let rests = script.lines().filter_map(|line| line.split_once(begin));
    rests.filter_map(|(_, rest)| Some(rest.split_once(end)?.0)).collect()
}

/// The names that a script offers as the program's own commands.
fn offered_commands<'a>(shell: &str, script: &'a str) -> Vec<&'a str> {
    if shell == "fish" {
        return between(script, "-n \"__fish_jvmprof_needs_command\" -f -a \"", "\"");
    }
    let (_, rest) = script.split_once("\n_jvmprof_commands() {\n").expect("zsh asks for the commands");
    let (listed, _) = rest.split_once("\n}").expect("a function ends");
    between(listed, "'", ":")
}

/// Returns whether a script offers a long option behind a command.
fn offers(shell: &str, script: &str, command: &str, option: &str) -> bool {
    if shell == "fish" {
        let of_command = format!("-n \"__fish_jvmprof_using_subcommand {command}\"");
        let options = script.lines().filter(|line| line.contains(&of_command));
        return options
            .flat_map(|line| line.split_once(" -l "))
            .any(|(_, rest)| rest == option || rest.starts_with(&format!("{option} ")));
    }
    let (_, rest) = script.split_once(&format!("({command})\n_arguments")).expect("zsh knows the command");
    let (options, _) = rest.split_once("\n;;").expect("a case ends");
    [format!("--{option}=["), format!("--{option}[")].iter().any(|text| options.contains(text))
}

#[test]
fn zsh_and_fish_are_offered_each_command_and_its_own_options() {
    let commands = commands();
    for (shell, begin) in [("zsh", "#compdef jvmprof"), ("fish", "# Print an optspec")] {
        let script = text_of(&["completions", shell]);
        assert!(script.starts_with(begin), "{shell}: {script}");
        let offered = offered_commands(shell, &script);
        for command in &commands {
            assert!(offered.contains(&command.as_str()), "{shell}: {command} isn't among {offered:?}");
            assert!(offers(shell, &script, command, "log-level"), "{shell}: {command}");
        }
        let of_one =
            [("record", "output"), ("top", "once"), ("daemon", "push-interval"), ("collector", "listen")];
        for (command, option) in of_one {
            let having: Vec<_> = commands.iter().filter(|it| offers(shell, &script, it, option)).collect();
            assert!(having.contains(&&command.to_owned()), "{shell}: {option} is one of {having:?}");
            assert!(having.len() < commands.len(), "{shell}: {option} is one of {having:?}");
        }
    }
}

#[test]
fn each_command_has_a_manual_page() {
    let dir = scratch();
    text_of(&["man-pages", dir.path().to_str().unwrap()]);
    for command in commands() {
        let page = format!("jvmprof-{command}.1");
        assert!(dir.path().join(&page).is_file(), "there is no {page}");
    }
    for (page, says) in [
        ("jvmprof.1", "jvmprof"),
        ("jvmprof-daemon.1", "JVMPROF_PUSH_INTERVAL"),
        ("jvmprof-daemon.1", "Files that are uploaded at the same time"),
        ("jvmprof-record.1", "127"),
    ] {
        let text =
            fs::read_to_string(dir.path().join(page)).unwrap_or_else(|error| panic!("{page}: {error}"));
        assert!(text.contains(".TH") && text.contains(says), "{page}: {text}");
    }
}
