//! Regular expressions in Go's syntax (RE2), which Prometheus's users write, converted for the
//! `regex` crate.
//!
//! The two syntaxes are of one family. An expression is rewritten where they differ: Go's `\w`,
//! `\d`, `\s` and `\b` are ASCII, `[` and `&&` are literal within a class, a `{` that begins no
//! repetition is literal, `\101` is octal, and `\Q...\E` quotes.

use regex::{Regex, RegexBuilder};

/// Memory limit of a compiled expression, in bytes.
const MAX_BYTES: usize = 1 << 20;
/// Largest repeat count of Go (`regexp/syntax/parse.go`).
const MAX_REPEAT: u32 = 1000;

/// Compiles an expression that matches whole texts, line breaks in them included (as Prometheus 3
/// does).
///
/// # Errors
/// The reason why it can't be compiled.
pub(super) fn anchored(expression: &str) -> Result<Regex, String> {
    let rewritten = rewrite(expression)?;
    // By itself first: `a)(b` must not become valid by what is put around it.
    build(&rewritten)?;
    build(&format!("^(?s:{rewritten})$"))
}

fn build(expression: &str) -> Result<Regex, String> {
    RegexBuilder::new(expression).size_limit(MAX_BYTES).build().map_err(|error| {
        // The last line has the reason, those above draw an arrow at the position.
        error.to_string().lines().last().unwrap_or_default().trim_start_matches("error: ").to_owned()
    })
}

fn rewrite(expression: &str) -> Result<String, String> {
    let mut rewriter = Rewriter { rest: expression, out: String::with_capacity(expression.len() + 16) };
    while let Some(char) = rewriter.take() {
        match char {
            '\\' => rewriter.escape(false),
            '[' => rewriter.class(),
            '{' => match repetition(rewriter.rest) {
                None => rewriter.out.push_str(r"\{"),
                Some(inside) if exceeds_max_repeat(inside) => {
                    return Err(format!("invalid repeat count {{{inside}}}: {MAX_REPEAT} at most"));
                }
                Some(_) => rewriter.out.push('{'),
            },
            other => rewriter.out.push(other),
        }
    }
    Ok(rewriter.out)
}

struct Rewriter<'a> {
    rest: &'a str,
    out: String,
}

impl Rewriter<'_> {
    fn take(&mut self) -> Option<char> {
        let char = self.rest.chars().next()?;
        self.rest = &self.rest[char.len_utf8()..];
        Some(char)
    }

    fn eat(&mut self, text: &str) -> bool {
        let rest = self.rest.strip_prefix(text);
        self.rest = rest.unwrap_or(self.rest);
        rest.is_some()
    }

    /// Rewrites the escape after a backslash.
    fn escape(&mut self, in_class: bool) {
        match self.take() {
            Some('Q') if !in_class => self.quote(),
            Some('d') => self.out.push_str("[0-9]"),
            Some('D') => self.out.push_str("[^0-9]"),
            Some('w') => self.out.push_str("[0-9A-Za-z_]"),
            Some('W') => self.out.push_str("[^0-9A-Za-z_]"),
            Some('s') => self.out.push_str(r"[\t\n\f\r ]"),
            Some('S') => self.out.push_str(r"[^\t\n\f\r ]"),
            Some('b') if !in_class => self.out.push_str(r"(?-u:\b)"),
            // Word boundaries here, literal there.
            Some(char @ ('<' | '>')) => self.out.push(char),
            Some('0') => self.octal('0'),
            // One digit alone is a reference to a group, which neither knows.
            Some(digit @ '1'..='7') if self.rest.starts_with(is_octal) => self.octal(digit),
            Some('p') => self.property('p'),
            Some('P') => self.property('P'),
            Some(other) => {
                self.out.push('\\');
                self.out.push(other);
                if other == 'x' {
                    self.braces();
                }
            }
            None => self.out.push('\\'),
        }
    }

    fn quote(&mut self) {
        let (quoted, rest) = self.rest.split_once(r"\E").unwrap_or((self.rest, ""));
        self.out.push_str(&regex::escape(quoted));
        self.rest = rest;
    }

    /// Rewrites an octal escape of up to three digits.
    fn octal(&mut self, first: char) {
        let more = self.rest.chars().take(2).take_while(|char| is_octal(*char)).count();
        let (digits, rest) = self.rest.split_at(more);
        let digits = std::iter::once(first).chain(digits.chars()).filter_map(|char| char.to_digit(8));
        let value = digits.fold(0, |value, digit| value * 8 + digit);
        self.out.push_str(&format!(r"\x{{{value:x}}}"));
        self.rest = rest;
    }

    fn property(&mut self, kind: char) {
        self.out.push('\\');
        self.out.push(kind);
        self.braces();
    }

    /// Copies braces that belong to an escape: `\p{Greek}`, `\x{10FFFF}`.
    fn braces(&mut self) {
        if self.rest.starts_with('{')
            && let Some(end) = self.rest.find('}')
        {
            self.out.push_str(&self.rest[..=end]);
            self.rest = &self.rest[end + 1..];
        }
    }

    /// Rewrites a class, after its opening bracket.
    fn class(&mut self) {
        self.out.push('[');
        if self.eat("^") {
            self.out.push('^');
        }
        // The first one closes nothing.
        if self.eat("]") {
            self.out.push_str(r"\]");
        }
        while let Some(char) = self.take() {
            match char {
                ']' => return self.out.push(']'),
                '\\' => self.escape(true),
                '[' => match named_class(self.rest) {
                    Some(length) => {
                        self.out.push('[');
                        self.out.push_str(&self.rest[..length]);
                        self.rest = &self.rest[length..];
                    }
                    None => self.out.push_str(r"\["),
                },
                // Set operations there, literal here.
                '&' | '~' => {
                    self.out.push('\\');
                    self.out.push(char);
                }
                '-' if self.rest.starts_with('-') => self.out.push_str(r"\-"),
                other => self.out.push(other),
            }
        }
    }
}

/// Returns the length of `:alpha:]` or `:^alpha:]` after a bracket.
fn named_class(rest: &str) -> Option<usize> {
    let name = rest.strip_prefix(':')?;
    let end = name.find(":]")?;
    let letters = name[..end].trim_start_matches('^');
    letters.bytes().all(|byte| byte.is_ascii_lowercase()).then_some(end + 3)
}

fn is_octal(char: char) -> bool {
    char.is_digit(8)
}

/// Returns `3`, `3,` or `3,5` of the text after a brace, if the brace begins a repetition.
fn repetition(rest: &str) -> Option<&str> {
    let (inside, _) = rest.split_once('}')?;
    let (low, high) = inside.split_once(',').unwrap_or((inside, ""));
    let is_number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    (!low.is_empty() && is_number(low) && is_number(high)).then_some(inside)
}

fn exceeds_max_repeat(inside: &str) -> bool {
    let numbers = inside.split(',').filter(|number| !number.is_empty());
    numbers.into_iter().any(|number| number.parse::<u32>().map_or(true, |number| number > MAX_REPEAT))
}
