//! Programs of a fixed amount of work, some seconds each on two CPUs.

use std::fmt;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context as _;
use clap::ValueEnum;

use crate::paths;
use crate::run::run;
use crate::setup::installed_jdks::{self, InstalledJdk};

/// Files that `make` compiles, and functions in each.
const C_FILES: usize = 60;
const C_FUNCTIONS: usize = 150;
/// Methods of the class that `javac` compiles.
const JAVA_METHODS: usize = 4_000;

/// The kind of program that is slowed down.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Workload {
    /// Streams, sorting, SHA-256, maps, recursion
    Compute,
    /// Short-lived objects and arrays of many sizes
    Allocation,
    /// An HTTP server and its clients
    Requests,
    /// Virtual threads that hand items to each other (JDK 21 and later)
    VirtualThreads,
    /// The Java compiler with one large file
    Javac,
    /// A C compiler with many small files, two at once
    Make,
}

/// A program that is ready to run.
#[derive(Debug)]
pub(super) struct PreparedWorkload {
    kind: Workload,
    /// The JDK that runs it.
    jdk: InstalledJdk,
    folder: PathBuf,
}

impl PreparedWorkload {
    /// Compiles or writes what the program needs into `folder`.
    ///
    /// # Errors
    /// A compiler is missing or fails, or there is no JDK that can run it.
    pub(super) fn new(kind: Workload, jdk: &InstalledJdk, folder: &Path) -> anyhow::Result<Self> {
        let jdk = match kind {
            Workload::VirtualThreads => installed_jdks::found()
                .into_iter()
                .find(|jdk| jdk.feature >= 21)
                .context("no JDK here has virtual threads: that takes 21 or later")?,
            _ => jdk.clone(),
        };
        match kind.java_class() {
            Some(class) => {
                let compiler = jdk.program("javac").context("that JDK has no javac")?;
                let source = paths::workspace().join("xtask/bench/jvm").join(class).with_extension("java");
                run(Command::new(compiler).args(["-nowarn", "-d"]).arg(folder).arg(source))?;
            }
            None if kind == Workload::Javac => write(&folder.join("Large.java"), &java_source())?,
            None => write_c_project(&folder.join("make"))?,
        }
        Ok(Self { kind, jdk, folder: folder.into() })
    }

    /// Returns the command that does the work, with an argument that loads an agent into its JVM.
    ///
    /// # Errors
    /// The JDK has no compiler.
    pub(super) fn command(&self, agent: Option<String>) -> anyhow::Result<Command> {
        if let Some(class) = self.kind.java_class() {
            let mut java = Command::new(self.jdk.home.join("bin/java"));
            java.args(agent).arg("-XX:+UseParallelGC").arg("-cp").arg(&self.folder).arg(class);
            java.arg(self.kind.rounds());
            return Ok(java);
        }
        if self.kind == Workload::Make {
            let mut make = Command::new("make");
            make.args(["-s", "-B", "-j2", "-C"]).arg(self.folder.join("make"));
            return Ok(make);
        }
        let mut javac = Command::new(self.jdk.program("javac").context("that JDK has no javac")?);
        javac.args(agent.map(|argument| format!("-J{argument}"))).args(["-nowarn", "-d"]);
        javac.arg(&self.folder).arg(self.folder.join("Large.java"));
        Ok(javac)
    }

    pub(super) fn is_one_jvm(&self) -> bool {
        self.kind != Workload::Make
    }
}

impl Workload {
    /// Returns the class in `xtask/bench/jvm`, of one that is a Java program.
    fn java_class(self) -> Option<&'static str> {
        match self {
            Self::Compute => Some("FixedWork"),
            Self::Allocation => Some("FixedAllocation"),
            Self::Requests => Some("FixedRequests"),
            Self::VirtualThreads => Some("FixedVirtualThreads"),
            Self::Javac | Self::Make => None,
        }
    }

    /// Returns the class's argument: some five seconds of work.
    fn rounds(self) -> &'static str {
        match self {
            Self::Compute => "520",
            Self::Allocation => "1800",
            Self::Requests => "60000",
            Self::VirtualThreads => "8000",
            Self::Javac | Self::Make => "",
        }
    }
}

impl fmt::Display for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = self.to_possible_value();
        f.write_str(value.as_ref().map_or("hidden", |value| value.get_name()))
    }
}

fn write(path: &Path, text: &str) -> anyhow::Result<()> {
    fs::write(path, text).with_context(|| format!("writing {}", path.display()))
}

fn java_source() -> String {
    let mut source = String::from("class Large {\n");
    for n in 0..JAVA_METHODS {
        let _ = writeln!(
            source,
            "    static java.util.List<Integer> m{n}(java.util.Collection<String> names) {{ return \
             names.stream().filter(name -> name.length() > {n}).map(String::length).sorted((a, b) -> b - \
             a).toList(); }}"
        );
    }
    source + "}\n"
}

fn write_c_project(folder: &Path) -> anyhow::Result<()> {
    fs::create_dir_all(folder).with_context(|| format!("creating {}", folder.display()))?;
    for file in 0..C_FILES {
        let mut source = String::from("#include <stdio.h>\n#include <stdlib.h>\n#include <string.h>\n");
        for n in 0..C_FUNCTIONS {
            let _ = writeln!(
                source,
                "int f{file}_{n}(const char *text, int n) {{ int sum = {n}; for (int i = 0; i < n; i++) sum += \
                 atoi(text + i) * (i ^ {n}); printf(\"%d\\n\", sum); return sum + (int)strlen(text); }}"
            );
        }
        write(&folder.join(format!("f{file}.c")), &source)?;
    }
    let objects = "OBJECTS := $(patsubst %.c,%.o,$(wildcard *.c))\nall: $(OBJECTS)\n";
    write(&folder.join("Makefile"), &format!("{objects}%.o: %.c\n\tgcc -O2 -c -o $@ $<\n"))
}
