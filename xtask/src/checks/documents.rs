//! Checks that links, files, flags, metrics and settings named in documents exist.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use anyhow::Context as _;

use super::{files, relative};

const README_LINES: usize = 120;
const README_COLUMNS: usize = 100;

/// Endings by which a name in backticks is a file of the checkout.
const FILE_ENDINGS: [&str; 6] = [".rs", ".md", ".toml", ".yaml", ".proto", ".bpf.o"];
/// Suffixes that a metric's name may have in documents beyond its name in the code.
const METRIC_ENDINGS: [&str; 7] = ["_total", "_bucket", "_sum", "_count", "_seconds", "_bytes", "_info"];
/// Flags of other programs that documents name.
const FOREIGN_FLAGS: &[&str] = &[
    "attach-perfmap",
    "bench",
    "call-graph",
    "cap-add",
    "cap-drop",
    "changelog",
    "component",
    "cpu-prof",
    "create-namespace",
    "detach",
    "enable-persistence",
    "env",
    "force",
    "from-literal",
    "help",
    "ignored",
    "include-ignored",
    "install",
    "interpreted-frames",
    "interpreted-frames-native-stack",
    "jit",
    "lib",
    "list",
    "locked",
    "memory",
    "mount-proc",
    "name",
    "namespace",
    "network",
    "no-fail-fast",
    "no-run",
    "nocapture",
    "now",
    "offline",
    "package",
    "perf-basic-prof",
    "perf-prof",
    "perf-prof-delete-file",
    "pid",
    "privileged",
    "profile",
    "publish",
    "read-only",
    "release",
    "restart",
    "rm",
    "security-opt",
    "set",
    "skip",
    "storage-active-memory",
    "test",
    "tmpfs",
    "values",
    "version",
    "volume",
    "workspace",
];

/// Names that documents may use.
#[derive(Debug, Default)]
struct Inventory {
    /// Files and folders by their paths in the checkout.
    paths: BTreeSet<String>,
    flags: BTreeSet<String>,
    /// The daemon's source text.
    source: String,
}

impl Inventory {
    fn read(workspace: &Path) -> anyhow::Result<Self> {
        let mut found = Self::default();
        for file in files(workspace, &[""]) {
            let path = relative(&file, workspace)?;
            let is_ours = path.contains("/src/") && path.ends_with(".rs");
            if is_ours {
                let text = fs::read_to_string(&file).with_context(|| format!("reading {path}"))?;
                found.flags.extend(flags_of(&text));
                if path.starts_with("jvmprof-daemon/") {
                    found.source.push_str(&text);
                }
            }
            let mut below = path.as_str();
            while let Some((folder, _)) = below.rsplit_once('/') {
                found.paths.insert(folder.to_owned());
                below = folder;
            }
            found.paths.insert(path);
        }
        Ok(found)
    }

    fn has_path(&self, name: &str) -> bool {
        let name = name.trim_end_matches('/');
        let end = format!("/{name}");
        self.paths.contains(name) || self.paths.iter().any(|path| path.ends_with(&end))
    }

    fn has_flag(&self, name: &str) -> bool {
        self.flags.contains(name) || FOREIGN_FLAGS.contains(&name)
    }

    fn has_metric(&self, name: &str) -> bool {
        let quoted = |name: &str| self.source.contains(&format!("\"{name}\""));
        let mut name = name.strip_prefix("jvmprof_").unwrap_or(name);
        loop {
            if quoted(name) || quoted(&format!("jvmprof_{name}")) {
                return true;
            }
            match METRIC_ENDINGS.iter().find_map(|ending| name.strip_suffix(ending)) {
                Some(shorter) => name = shorter,
                None => return false,
            }
        }
    }

    fn has_setting(&self, key: &str) -> bool {
        self.flags.contains(key)
            || self.source.contains(&format!("\"{key}\""))
            || self.source.contains(&format!(" {}:", key.replace('-', "_")))
    }
}

/// Returns the long flags that clap makes of a file's `#[arg(...)]`.
fn flags_of(source: &str) -> Vec<String> {
    let arguments = source.split("#[arg(").skip(1).filter_map(|rest| {
        let (attribute, after) = rest.split_once(")]")?;
        if let Some((_, named)) = attribute.split_once("long = \"") {
            return Some(named.split_once('"')?.0.to_owned());
        }
        let is_long = attribute.split([',', ' ', '\n']).any(|word| word == "long");
        let declared = after
            .lines()
            .map(str::trim)
            .find(|line| !line.is_empty() && !line.starts_with("//") && !line.starts_with("#["))?;
        let (name, _) = declared.split_once(':')?;
        is_long.then(|| name.rsplit(' ').next().unwrap_or(name).replace('_', "-"))
    });
    arguments.collect()
}

/// Returns the names in a document that don't exist, with `file:line`.
fn missing(workspace: &Path, document: &str, inventory: &Inventory) -> anyhow::Result<Vec<String>> {
    let text = fs::read_to_string(workspace.join(document)).with_context(|| format!("reading {document}"))?;
    let mut found = Vec::new();
    let mut fence: Option<&str> = None;
    for (number, line) in (1..).zip(text.lines()) {
        let mut report = |what: String| found.push(format!("{document}:{number}: {what}"));
        if let Some(language) = line.trim_start().strip_prefix("```") {
            if language.contains(' ') {
                report(format!("a fence's line has its language alone: {line:.40}"));
            }
            fence = if fence.is_some() { None } else { Some(language) };
            continue;
        }
        let code: Vec<&str> = match fence {
            Some(_) => vec![line],
            None => line.split('`').skip(1).step_by(2).collect(),
        };
        for target in
            line.split("](").skip(1).filter_map(|rest| rest.split_once(')')).map(|(target, _)| target)
        {
            if fence.is_none() && !target.contains("://") && !has_target(workspace, document, target) {
                report(format!("no such link target: {target}"));
            }
        }
        for span in code {
            if fence.is_none() {
                file_names(span)
                    .iter()
                    .filter(|name| !inventory.has_path(name))
                    .for_each(|name| report(format!("no such file: {name}")));
            }
            for flag in words(span, "--", |c| c.is_ascii_alphanumeric() || c == '-') {
                if flag.len() > 1 && !inventory.has_flag(flag) {
                    report(format!("no such flag: --{flag}"));
                }
            }
            for rest in words(span, "jvmprof_", |c| c.is_ascii_alphanumeric() || c == '_') {
                let is_pattern = rest.is_empty() || rest.ends_with('_') || rest.starts_with("daemon");
                if !is_pattern && !inventory.has_metric(rest) {
                    report(format!("no such metric: jvmprof_{rest}"));
                }
            }
        }
        if fence == Some("toml")
            && let Some((key, _)) = line.split_once(" = ")
        {
            let key = key.trim_start_matches(['#', ' ', '{']);
            if key.chars().all(|c| c.is_ascii_alphanumeric() || "-_".contains(c))
                && !inventory.has_setting(key)
            {
                report(format!("no such setting: {key}"));
            }
        }
    }
    if fence.is_some() {
        found.push(format!("{document}: a fence isn't closed"));
    }
    Ok(found)
}

/// Returns the words that follow a prefix, where no word's character stands before it.
fn words<'a>(text: &'a str, prefix: &str, is_part: fn(char) -> bool) -> Vec<&'a str> {
    let starts =
        text.match_indices(prefix).filter(|(at, _)| !text[..*at].ends_with(|c: char| is_part(c) || c == '/'));
    let rests = starts.map(|(at, _)| &text[at + prefix.len()..]);
    rests.map(|rest| &rest[..rest.find(|c: char| !is_part(c)).unwrap_or(rest.len())]).collect()
}

/// Returns the names of the checkout's files in a code span; `{a,b}.rs` are two.
fn file_names(span: &str) -> Vec<String> {
    let name = span.split(':').next().unwrap_or(span);
    let is_named = FILE_ENDINGS.iter().any(|ending| name.ends_with(ending) && name.len() > ending.len());
    let below = [
        "jvmprof-common/",
        "jvmprof-daemon/",
        "jvmprof-ebpf/",
        "xtask/",
        "docs/",
        "deploy/",
        "fuzz/",
        "proto/",
    ];
    let is_ours = is_named || below.iter().any(|folder| name.starts_with(folder));
    if !is_ours
        || name.starts_with(['/', '~', '.'])
        || name.contains(|c: char| c.is_whitespace() || "<>*$=…".contains(c))
    {
        return Vec::new();
    }
    match name.split_once('{').and_then(|(head, rest)| Some((head, rest.split_once('}')?))) {
        Some((head, (group, tail))) => {
            group.split(',').map(|part| format!("{head}{}{tail}", part.trim())).collect()
        }
        None => vec![name.to_owned()],
    }
}

fn has_target(workspace: &Path, document: &str, target: &str) -> bool {
    let (path, anchor) = target.split_once('#').map_or((target, None), |(path, anchor)| (path, Some(anchor)));
    let own = workspace.join(document);
    let file = if path.is_empty() { own } else { own.parent().unwrap_or(workspace).join(path) };
    let Some(anchor) = anchor else { return file.exists() };
    fs::read_to_string(file)
        .is_ok_and(|text| text.lines().any(|line| anchor_of(line).as_deref() == Some(anchor)))
}

/// Returns the anchor that forges give a heading.
fn anchor_of(line: &str) -> Option<String> {
    let heading = line.strip_prefix('#')?.trim_start_matches('#').trim().to_lowercase();
    let kept = heading.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
    Some(kept.map(|c| if c == ' ' { '-' } else { c }).collect())
}

/// Returns the README's excess length and over-long lines.
fn too_long(readme: &str) -> Vec<String> {
    let count = readme.lines().count();
    let many = (count > README_LINES).then(|| format!("README.md: {count} lines, more than {README_LINES}"));
    let wide = (1..).zip(readme.lines()).filter(|(_, line)| {
        line.chars().count() > README_COLUMNS && !line.starts_with('|') && !line.contains("](")
    });
    let wide = wide.map(|(number, _)| format!("README.md:{number}: more than {README_COLUMNS} columns"));
    many.into_iter().chain(wide).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::paths;

    #[test]
    fn everything_that_documents_name_is_there() {
        let workspace = paths::workspace();
        let inventory = Inventory::read(&workspace).unwrap();
        let mut found = Vec::new();
        for file in files(&workspace, &[".md"]) {
            let document = file.strip_prefix(&workspace).unwrap().display().to_string();
            // A changelog names what is gone, too.
            if document != "CHANGELOG.md" {
                found.extend(missing(&workspace, &document, &inventory).unwrap());
            }
        }
        assert!(found.is_empty(), "{}", found.join("\n"));
    }

    #[test]
    fn the_readme_is_short() {
        let found = too_long(&fs::read_to_string(paths::workspace().join("README.md")).unwrap());
        assert!(found.is_empty(), "{}", found.join("\n"));
    }

    #[test]
    fn what_is_not_there_is_reported_with_its_line() {
        let folder = tempfile::tempdir().unwrap();
        let workspace = folder.path();
        fs::create_dir_all(workspace.join("jvmprof-daemon/src")).unwrap();
        let source =
            "#[arg(long, default_value = \"1\")]\npub keep_going: u32,\nconst M: &str = \"samples\";";
        fs::write(workspace.join("jvmprof-daemon/src/a.rs"), source).unwrap();
        let fine = "# A title\n[a](#a-title) `a.rs` `--keep-going` `jvmprof_samples_total`\n```toml\nkeep-going = 1\n```\n";
        fs::write(workspace.join("fine.md"), fine).unwrap();
        let wrong = "[a](none.md)\n[b](fine.md#none)\n`src/b.rs`\n`--gone`\n`jvmprof_gone_total`\n```toml\ngone = 1\n```\n```mermaid flowchart LR\n";
        fs::write(workspace.join("wrong.md"), wrong).unwrap();
        let inventory = Inventory::read(workspace).unwrap();
        assert_eq!(missing(workspace, "fine.md", &inventory).unwrap(), Vec::<String>::new());
        let expected = [
            "wrong.md:1: no such link target: none.md",
            "wrong.md:2: no such link target: fine.md#none",
            "wrong.md:3: no such file: src/b.rs",
            "wrong.md:4: no such flag: --gone",
            "wrong.md:5: no such metric: jvmprof_gone_total",
            "wrong.md:7: no such setting: gone",
            "wrong.md:9: a fence's line has its language alone: ```mermaid flowchart LR",
            "wrong.md: a fence isn't closed",
        ];
        assert_eq!(missing(workspace, "wrong.md", &inventory).unwrap(), expected);
    }

    #[test]
    fn a_long_readme_is_found() {
        assert_eq!(too_long(&"\n".repeat(121)).len(), 1);
        assert_eq!(too_long(&"x".repeat(101)), ["README.md:1: more than 100 columns"]);
        assert_eq!(too_long(&format!("| {}", "x".repeat(101))), Vec::<String>::new());
    }
}
