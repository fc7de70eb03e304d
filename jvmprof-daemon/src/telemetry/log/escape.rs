//! Escaping of control characters, so that each message is one line: paths and names come from
//! untrusted processes, and may contain line breaks and terminal sequences.

use std::borrow::Cow;
use std::io::{self, Stderr, Write};

use tracing_subscriber::fmt::MakeWriter;

/// Writes each message with its control characters escaped.
#[derive(Clone, Copy, Debug)]
pub(super) struct EscapedStderr {
    /// Escape characters are kept: they are the formatter's, which escapes those of messages.
    colours: bool,
}

impl EscapedStderr {
    pub(super) fn on_stderr(colours: bool) -> Self {
        Self { colours }
    }
}

impl<'a> MakeWriter<'a> for EscapedStderr {
    type Writer = EscapingWriter;

    fn make_writer(&'a self) -> EscapingWriter {
        EscapingWriter { stderr: io::stderr(), colours: self.colours }
    }
}

#[derive(Debug)]
pub(super) struct EscapingWriter {
    stderr: Stderr,
    colours: bool,
}

impl Write for EscapingWriter {
    /// Writes a message. The formatter passes a whole message at once.
    fn write(&mut self, message: &[u8]) -> io::Result<usize> {
        self.stderr.write_all(&escaped(message, self.colours))?;
        Ok(message.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stderr.flush()
    }
}

fn escaped(message: &[u8], colours: bool) -> Cow<'_, [u8]> {
    let (text, end) = match message {
        [text @ .., b'\n'] => (text, "\n"),
        text => (text, ""),
    };
    let text = String::from_utf8_lossy(text);
    // Those of Unicode (C1) as well: a terminal may take U+009B for the beginning of a sequence.
    let is_control = |char: char| char.is_control() && char != '\t' && !(colours && char == '\x1b');
    if !text.contains(is_control) {
        return Cow::Borrowed(message);
    }
    let mut line = String::with_capacity(message.len() + 16);
    for char in text.chars() {
        match u8::try_from(char) {
            _ if !is_control(char) => line.push(char),
            Ok(byte) if byte.is_ascii() => line.extend(byte.escape_ascii().map(char::from)),
            _ => line.extend(char.escape_unicode()),
        }
    }
    line.push_str(end);
    Cow::Owned(line.into_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_name_can_begin_a_line_of_its_own() {
        let forged = "WARN a file path=/tmp/x\nERROR all is lost\r\x1b[2J é\n".as_bytes();
        let line = "WARN a file path=/tmp/x\\nERROR all is lost\\r\\x1b[2J é\n".as_bytes();
        assert_eq!(&*escaped(forged, false), line);
        assert!(matches!(escaped(line, false), Cow::Borrowed(_)));
        assert_eq!(&*escaped("\u{9b}2J\n".as_bytes(), true), b"\\u{9b}2J\n");
        assert_eq!(&*escaped(b"\x1b[31mred\x1b[0m\n", true), b"\x1b[31mred\x1b[0m\n");
    }
}
