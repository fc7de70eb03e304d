//! Parsing of perf map lines, from pieces of the file as they are read.
//!
//! Format: Linux `tools/perf/Documentation/jit-interface.txt`: start and size in hexadecimal and
//! the name, which may have spaces, separated by one space. HotSpot writes the numbers with `0x`,
//! as `perf` accepts them, too.

use std::borrow::Cow;

use crate::jit::name_formats::printable;
use crate::types::Avma;

/// Largest size of an entry that is accepted, in bytes: one bad line must not name a whole address
/// space. HotSpot's whole code cache has 240 MB by default.
const MAX_SIZE: u64 = 256 << 20;
/// User addresses end below this, also with five-level page tables.
const MAX_ADDRESS: u64 = 1 << 56;

/// An entry as one line describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PerfMapLine<'a> {
    pub(super) start: Avma,
    /// Size in bytes, not zero; `start + size` is a user address.
    pub(super) size: u32,
    /// Name without line feeds and other control characters. Empty if the line has none.
    pub(super) name: Cow<'a, str>,
}

/// A line as it was read, without its line feed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RawLine<'a> {
    pub(super) bytes: &'a [u8],
    /// The line is longer than allowed, and this is its start.
    pub(super) is_cut: bool,
}

/// Parses one line, without its line feed.
pub(super) fn parse(line: &[u8]) -> Option<PerfMapLine<'_>> {
    let line = line.trim_ascii();
    let (start, rest) = split_at_space(line)?;
    let (size, name) = split_at_space(rest).unwrap_or((rest, b""));
    let (start, size) = (hex(start)?, hex(size)?);
    if size == 0 || size > MAX_SIZE || start.checked_add(size)? > MAX_ADDRESS {
        return None;
    }
    Some(PerfMapLine { start: Avma(start), size: u32::try_from(size).ok()?, name: printable(name) })
}

fn split_at_space(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let space = text.iter().position(|byte| *byte == b' ')?;
    Some((&text[..space], text[space..].trim_ascii_start()))
}

fn hex(digits: &[u8]) -> Option<u64> {
    let digits = digits.strip_prefix(b"0x").unwrap_or(digits);
    if digits.is_empty() || digits.len() > 16 {
        return None;
    }
    digits.iter().try_fold(0, |value, digit| Some(value << 4 | u64::from(char::from(*digit).to_digit(16)?)))
}

/// Splits a file into lines, whichever pieces it is read in.
#[derive(Debug, Default)]
pub(super) struct LineSplitter {
    /// Start of a line whose end hasn't been read.
    partial: Vec<u8>,
    state: PartialLineState,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum PartialLineState {
    /// All of the line that has been read is in `partial`.
    #[default]
    Whole,
    /// The line is longer than allowed.
    Cut,
    /// The line's start wasn't read.
    Headless,
}

impl LineSplitter {
    /// Makes a splitter for a file that is read on after this byte. If the byte ends no line, the
    /// rest of that line is skipped.
    pub(super) fn resume_after(last: Option<u8>) -> Self {
        let is_inside = last.is_some_and(|byte| byte != b'\n');
        Self {
            partial: Vec::new(),
            state: if is_inside { PartialLineState::Headless } else { PartialLineState::Whole },
        }
    }

    /// Calls `each` with every line that ends in `piece`: with `longest` bytes of it at most, and
    /// with `None` for a line whose start wasn't read. Bytes after the last line feed are kept for
    /// the next piece.
    pub(super) fn feed(&mut self, piece: &[u8], longest: usize, mut each: impl FnMut(Option<RawLine<'_>>)) {
        let mut rest = piece;
        while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
            let line = &rest[..end];
            rest = &rest[end + 1..];
            if self.is_empty() && line.len() <= longest {
                each(Some(RawLine { bytes: line, is_cut: false }));
                continue;
            }
            self.extend_partial(line, longest);
            let is_cut = self.state == PartialLineState::Cut;
            each(
                (self.state != PartialLineState::Headless)
                    .then_some(RawLine { bytes: &self.partial, is_cut }),
            );
            self.partial.clear();
            self.state = PartialLineState::Whole;
        }
        self.extend_partial(rest, longest);
    }

    /// Adds bytes of a line whose end hasn't been read.
    fn extend_partial(&mut self, more: &[u8], longest: usize) {
        if self.state != PartialLineState::Whole {
            return;
        }
        let capacity = longest - self.partial.len();
        self.partial.extend_from_slice(&more[..more.len().min(capacity)]);
        if more.len() > capacity {
            self.state = PartialLineState::Cut;
        }
    }

    /// Returns true if the bytes that were read end in a line feed.
    pub(super) fn is_empty(&self) -> bool {
        self.partial.is_empty() && self.state == PartialLineState::Whole
    }

    pub(super) fn size_bytes(&self) -> usize {
        self.partial.capacity()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Option<(u64, u32, String)> {
        parse(line.as_bytes()).map(|line| (line.start.0, line.size, line.name.into_owned()))
    }

    #[test]
    fn numbers_are_hexadecimal_with_or_without_0x_and_names_may_have_spaces() {
        let hotspot =
            "0x00007f31cced2240 0x0000000000000618 int com.acme.Order.total(int[][], java.lang.String[])";
        let name = "int com.acme.Order.total(int[][], java.lang.String[])";
        assert_eq!(parsed(hotspot), Some((0x7f31_cced_2240, 0x618, name.into())));
        assert_eq!(parsed("7f00 10 JS:~f a b.js:1:2\r"), Some((0x7f00, 0x10, "JS:~f a b.js:1:2".into())));
    }

    #[test]
    fn lines_that_cant_be_are_refused() {
        for line in [
            "",
            " ",
            "7f00",
            "7f00 ",
            "7f00 0 zero",
            "zz 10 a",
            "7f00 -1 a",
            "0x 10 a",
            "ffffffffffffffff 10 wraps",
            "00000000000000000001 10 digits",
            "fffffffffffff0 20 kernel",
            "7f00 10000001 too large",
            "7f00 ffffffffffffffff a",
        ] {
            assert_eq!(parsed(line), None, "{line:?}");
        }
    }

    #[test]
    fn a_line_without_a_name_still_shows_that_code_is_there() {
        for line in ["7f00 10", "7f00 10 ", "0x7f00 0x10\r"] {
            assert_eq!(parsed(line), Some((0x7f00, 0x10, String::new())), "{line:?}");
        }
    }

    #[test]
    fn names_are_made_fit_for_terminals() {
        assert_eq!(
            parse(b"7f00 10 a\x1b[31m\xff").map(|line| line.name.into_owned()).as_deref(),
            Some("a\u{fffd}[31m\u{fffd}")
        );
    }

    #[test]
    fn lines_are_the_same_however_the_file_is_cut() {
        let text = b"one\ntwo two\n\nthis line is too long\nexactly 10\nthree\nhalf";
        for cut in 1..text.len() {
            let (mut splitter, mut lines) = (LineSplitter::default(), Vec::new());
            for piece in text.chunks(cut) {
                splitter.feed(piece, 10, |line| lines.push(line.map(|it| (it.bytes.to_vec(), it.is_cut))));
            }
            let expected = [
                (&b"one"[..], false),
                (b"two two", false),
                (b"", false),
                (b"this line ", true),
                (b"exactly 10", false),
                (b"three", false),
            ];
            let expected = expected.map(|(line, is_cut)| Some((line.to_vec(), is_cut)));
            assert_eq!(lines, expected, "pieces of {cut}");
            assert_eq!(splitter.partial, b"half");
        }
    }

    #[test]
    fn a_line_whose_start_was_not_read_is_reported_as_such() {
        let (mut splitter, mut lines) = (LineSplitter::resume_after(Some(b'x')), Vec::new());
        splitter.feed(b"the rest\nwhole\n", 10, |line| lines.push(line.map(|it| it.bytes.to_vec())));
        assert_eq!(lines, [None, Some(b"whole".to_vec())]);
    }
}
