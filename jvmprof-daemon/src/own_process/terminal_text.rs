//! Text of other processes on a terminal: names and paths may have line breaks in them, sequences
//! that a terminal obeys, and characters that turn around or hide what stands beside them.

use std::borrow::Cow;

/// Returns a name with all of these characters written out (`\n`, `\u{1b}`), so that it stays on
/// its line and means nothing to a terminal.
pub fn one_line(name: &str) -> Cow<'_, str> {
    escaped(name, is_active)
}

/// Returns a text with the same characters written out, but for line breaks and tabs.
pub(super) fn lines(text: &str) -> Cow<'_, str> {
    escaped(text, |char| is_active(char) && !matches!(char, '\n' | '\t'))
}

/// Returns true for control characters, those of Unicode (C1) as well: a terminal may take U+009B
/// for the beginning of a sequence. The others are those that the page writes out (`tree.js`).
fn is_active(char: char) -> bool {
    char.is_control()
        || matches!(
            char,
            '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}'
        )
}

fn escaped(text: &str, is_escaped: impl Fn(char) -> bool) -> Cow<'_, str> {
    if !text.chars().any(&is_escaped) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 16);
    for char in text.chars() {
        if is_escaped(char) {
            out.extend(char.escape_debug());
        } else {
            out.push(char);
        }
    }
    Cow::Owned(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_stays_on_its_line_and_moves_no_cursor() {
        assert_eq!(one_line("a\u{1b}[2Jb\nERROR c\r\t"), "a\\u{1b}[2Jb\\nERROR c\\r\\t");
        assert_eq!(one_line("\u{9b}2J \u{202e}exe\u{feff}"), "\\u{9b}2J \\u{202e}exe\\u{feff}");
        let plain = "com.acme.Caf\u{e9}$Inner O'Brien C:\\x \u{65e5}\u{672c}";
        assert!(matches!(one_line(plain), Cow::Borrowed(text) if text == plain));
    }

    #[test]
    fn a_text_keeps_its_lines() {
        assert_eq!(lines("one\n\ttwo\u{1b}[2J\r\n"), "one\n\ttwo\\u{1b}[2J\\r\n");
    }
}
