//! Methods of class files, as `javap` prints it: the truth that names and lines are held against.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::{SHORT_LIVED_JVM, jdks};

/// A method of a class file.
#[derive(Debug, Default)]
pub(crate) struct ClassMethod {
    /// Bytecodes by index, as javap prints them: "invokestatic  #7  // Method step:(I)I".
    pub(crate) code: BTreeMap<i32, String>,
    /// Bytecode index and line, in the table's order.
    lines: Vec<(i32, u32)>,
}

impl ClassMethod {
    /// The line of a bytecode index, 0 if no entry holds it.
    pub(crate) fn line(&self, bci: i32) -> u32 {
        let bci = bci.max(0);
        let before = self.lines.iter().filter(|(at, _)| *at <= bci).max_by_key(|(at, _)| *at);
        before.map_or(0, |(_, line)| *line)
    }
}

fn tool(name: &str) -> PathBuf {
    let homes = jdks().into_iter().rev();
    let found = homes.map(|(_, home)| home.join("bin").join(name)).find(|tool| tool.is_file());
    found.unwrap_or_else(|| panic!("one of the JDKs needs a {name}"))
}

/// Compiles a program for the oldest JDK that is tested.
pub(crate) fn javac(source: &Path, into: &Path, flags: &[&str]) {
    let mut javac = Command::new(tool("javac"));
    javac.args(SHORT_LIVED_JVM).args(["-encoding", "UTF-8", "--release", "8", "-Xlint:-options"]).args(flags);
    let compiled = javac.arg("-d").arg(into).arg(source).status().expect("javac runs");
    assert!(compiled.success(), "javac failed");
}

/// All methods of the class files in a folder, by class, name and descriptor:
/// `Names$Box.put(Ljava/lang/Comparable;)V`.
pub(crate) fn methods(folder: &Path) -> BTreeMap<String, ClassMethod> {
    let mut methods = BTreeMap::new();
    let files = fs::read_dir(folder).expect("the folder is readable").map(|entry| entry.unwrap().path());
    for file in files.filter(|file| file.extension().is_some_and(|ending| ending == "class")) {
        let class = file.file_stem().unwrap().to_str().unwrap().to_owned();
        let mut javap = Command::new(tool("javap"));
        let output = javap.args(SHORT_LIVED_JVM).args(["-p", "-s", "-l", "-c"]).arg(&file).output().unwrap();
        parse(&class, &String::from_utf8(output.stdout).expect("javap prints UTF-8"), &mut methods);
    }
    assert!(!methods.is_empty(), "no class files in {}", folder.display());
    methods
}

fn parse(class: &str, text: &str, methods: &mut BTreeMap<String, ClassMethod>) {
    let (mut declared, mut current) = (String::new(), None);
    for line in text.lines().map(str::trim) {
        if line.ends_with(';') && !line.contains(": ") {
            declared = method_name(class, line);
        } else if let Some(descriptor) = line.strip_prefix("descriptor: ") {
            let name = format!("{class}.{declared}{descriptor}");
            current = descriptor.starts_with('(').then(|| methods.entry(name).or_default());
        } else if let (Some(method), Some((left, right))) = (current.as_mut(), line.split_once(": ")) {
            if let Some(number) = left.strip_prefix("line ") {
                method.lines.push((right.parse().unwrap(), number.parse().unwrap()));
            } else if let Ok(bci) = left.parse() {
                method.code.entry(bci).or_insert_with(|| right.trim().to_owned());
            }
        }
    }
}

/// `private static int step(int);` is `step`, a constructor is `<init>`.
fn method_name(class: &str, declaration: &str) -> String {
    let Some((before, _)) = declaration.split_once('(') else { return "<clinit>".to_owned() };
    let name = before.rsplit(' ').next().unwrap_or_default();
    if name == class { "<init>".to_owned() } else { name.to_owned() }
}
