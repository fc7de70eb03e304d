//! The command line of the `java` launcher: its options, and the program that the JVM runs, for the
//! label `jvm_main_class`.
//!
//! Source: openjdk src/java.base/share/native/libjli/java.c, `ParseArguments` and
//! `IsWhiteSpaceOption`.

/// Options whose value is the next argument.
const WITH_VALUE: [&str; 14] = [
    "-cp",
    "-classpath",
    "--class-path",
    "-p",
    "--module-path",
    "--upgrade-module-path",
    "--add-modules",
    "--limit-modules",
    "--add-exports",
    "--add-opens",
    "--add-reads",
    "--patch-module",
    "--enable-native-access",
    "--source",
];

/// An argument of the launcher.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LauncherArgument<'a> {
    /// An option, without the value if that is an argument of its own.
    Option(&'a str),
    /// The path of a file with further arguments.
    ArgumentFile(&'a str),
    /// The path of the jar that is run.
    Jar(&'a str),
    /// `module` or `module/class`, which is run.
    Module(&'a str),
    /// The main class or the source file that is run.
    Program(&'a str),
}

/// Parses the arguments after the launcher's own name. The program is the last item: what follows
/// are its own arguments.
pub(crate) fn launcher_arguments<'a>(
    arguments: impl IntoIterator<Item = &'a str>,
) -> impl Iterator<Item = LauncherArgument<'a>> {
    let mut arguments = arguments.into_iter();
    let mut has_ended = false;
    std::iter::from_fn(move || {
        if has_ended {
            return None;
        }
        let argument = arguments.next()?;
        let parsed = match argument {
            "-jar" => LauncherArgument::Jar(arguments.next()?),
            "-m" | "--module" => LauncherArgument::Module(arguments.next()?),
            _ if WITH_VALUE.contains(&argument) => {
                arguments.next()?;
                LauncherArgument::Option(argument)
            }
            _ => match (argument.strip_prefix("--module="), argument.strip_prefix('@')) {
                (Some(module), _) => LauncherArgument::Module(module),
                (None, Some(file)) => LauncherArgument::ArgumentFile(file),
                (None, None) if argument.starts_with('-') => LauncherArgument::Option(argument),
                (None, None) => LauncherArgument::Program(argument),
            },
        };
        has_ended = !matches!(parsed, LauncherArgument::Option(_) | LauncherArgument::ArgumentFile(_));
        Some(parsed)
    })
}

/// Returns the program of a `java` command line without the launcher's own name: the main class,
/// without its module, or the file name of a jar. `None` if the command line doesn't contain it, as
/// with `@argument-files`.
pub fn main_class_of_arguments<'a>(arguments: impl IntoIterator<Item = &'a str>) -> Option<String> {
    let program = launcher_arguments(arguments).find(|one| !matches!(one, LauncherArgument::Option(_)))?;
    match program {
        LauncherArgument::Option(_) | LauncherArgument::ArgumentFile(_) => None,
        LauncherArgument::Jar(path) => Some(file_name(path).to_owned()),
        LauncherArgument::Module(module) => Some(without_module(module)),
        // A source file is a program, too.
        LauncherArgument::Program(file) if file.ends_with(".java") => Some(file_name(file).to_owned()),
        LauncherArgument::Program(class) => Some(class.replace('/', ".")).filter(|name| !name.is_empty()),
    }
}

/// Returns the program of `sun.rt.javaCommand`: a class, `module/class`, or the path of a jar, and
/// then the arguments.
pub fn main_class_of_command(command: &str) -> Option<String> {
    // A path may hold spaces; the first `.jar` that ends a word is the most that can be known.
    let jar = command.split_inclusive(' ').scan(0, |end, word| {
        *end += word.len();
        Some(command.get(..*end).unwrap_or(command).trim_end())
    });
    let first = command.split(' ').next().filter(|first| !first.is_empty())?;
    let is_path = first.contains('/') && !first.contains('.') || command.starts_with(['/', '.']);
    if (is_path || first.ends_with(".jar"))
        && let Some(jar) = jar.into_iter().find(|path| path.ends_with(".jar"))
    {
        return Some(file_name(jar).to_owned());
    }
    Some(without_module(first))
}

fn file_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// Returns the class of `module/class`; a module alone stands for its main class.
fn without_module(name: &str) -> String {
    name.rsplit('/').next().unwrap_or(name).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_known_by_their_command_lines() {
        for (line, program) in [
            ("-cp a:b com.acme.Main x y", Some("com.acme.Main")),
            ("-Xmx1g -XX:+UseZGC -jar /opt/app/app-1.2.jar -jar other.jar", Some("app-1.2.jar")),
            ("-p mods -m acme.app/com.acme.Main arg", Some("com.acme.Main")),
            ("--module=acme.app/com.acme.Main", Some("com.acme.Main")),
            ("--add-opens java.base/java.lang=ALL-UNNAMED -Dx=y com/acme/Main", Some("com.acme.Main")),
            ("--add-opens=java.base/java.lang=ALL-UNNAMED Main", Some("Main")),
            ("--source 21 Hello.java", Some("Hello.java")),
            ("@args", None),
            ("-version", None),
            ("-cp", None),
            ("-jar", None),
            ("", None),
        ] {
            assert_eq!(main_class_of_arguments(line.split_whitespace()).as_deref(), program, "{line}");
        }
    }

    #[test]
    fn programs_are_known_by_what_the_jvm_keeps() {
        for (command, program) in [
            ("com.acme.Main x y", Some("com.acme.Main")),
            ("jdk.compiler/com.sun.tools.javac.Main -d out Hello.java", Some("com.sun.tools.javac.Main")),
            ("/opt/my app/app.jar --port 80", Some("app.jar")),
            ("app.jar other.jar", Some("app.jar")),
            ("lib/app.jar", Some("app.jar")),
            ("Main /tmp/x.jar", Some("Main")),
            ("", None),
        ] {
            assert_eq!(main_class_of_command(command).as_deref(), program, "{command}");
        }
    }
}
