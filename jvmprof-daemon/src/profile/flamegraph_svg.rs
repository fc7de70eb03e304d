//! A flame graph as one SVG file that needs nothing else.

use std::fmt;
use std::io::{self, Write};

use inferno::flamegraph::color::{MultiPalette, Palette};
use inferno::flamegraph::{self, Options};

use super::folded_stacks::{self, Annotation};
use super::model::Batch;
use crate::event_type::EventType;

/// Draws the batch; colours distinguish Java, inlined, native and kernel frames. A picture without
/// samples says so.
///
/// # Errors
/// The writer's error.
pub fn write(batch: &Batch, title: &str, to: impl Write) -> io::Result<()> {
    let lines = folded_stacks::lines(batch, Annotation::Every);
    if lines.is_empty() {
        return write_without_samples(title, to);
    }
    let mut options = Options::default();
    options.title = title.to_owned();
    options.count_name = match batch.event {
        EventType::Cpu => "samples".to_owned(),
        EventType::Allocation => "bytes".to_owned(),
        EventType::OffCpu | EventType::Lock | EventType::Pause | EventType::LockHolder | EventType::Wall => {
            "nanoseconds".to_owned()
        }
    };
    options.colors = Palette::Multi(MultiPalette::Java);
    // The same function has the same shade in every picture.
    options.hash = true;
    flamegraph::from_lines(&mut options, lines.iter().map(String::as_str), to)
}

fn write_without_samples(title: &str, mut to: impl Write) -> io::Result<()> {
    let title = XmlText(title);
    writeln!(
        to,
        r#"<?xml version="1.0" encoding="UTF-8" standalone="no"?>
<svg version="1.1" xmlns="http://www.w3.org/2000/svg" width="1200" height="90" viewBox="0 0 1200 90">
<rect width="100%" height="100%" fill="white"/>
<g font-family="monospace" text-anchor="middle">
<text x="600" y="35" font-size="17">{title}</text>
<text x="600" y="65" font-size="12">There are no samples.</text>
</g>
</svg>"#
    )
}

/// A text within an XML element.
struct XmlText<'a>(&'a str);

impl fmt::Display for XmlText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use fmt::Write as _;
        self.0.chars().try_for_each(|char| match char {
            '<' => f.write_str("&lt;"),
            '>' => f.write_str("&gt;"),
            '&' => f.write_str("&amp;"),
            // XML has no way to write these.
            _ if char.is_control() => f.write_char(' '),
            _ => f.write_char(char),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::model::FrameKind;
    use crate::profile::testing::{batch, frame, series};

    #[test]
    fn the_picture_holds_every_name_once_escaped() {
        let frames =
            vec![frame(FrameKind::Java, "com.acme.Order.<init>"), frame(FrameKind::Native, "start_thread")];
        let mut svg = Vec::new();
        write(&batch(vec![series(&[], vec![(frames, 5)])]), "two frames", &mut svg).unwrap();
        let svg = String::from_utf8(svg).unwrap();
        assert!(svg.starts_with("<?xml") && svg.ends_with("</svg>\n") || svg.ends_with("</svg>"), "{svg}");
        assert!(svg.contains("com.acme.Order.&lt;init&gt;") && svg.contains("5 samples"), "{svg}");
    }

    #[test]
    fn no_samples_are_a_picture_that_says_so() {
        let mut svg = Vec::new();
        write(&batch(vec![]), "a <b> & c\u{1b}", &mut svg).unwrap();
        let svg = String::from_utf8(svg).unwrap();
        assert!(svg.starts_with("<?xml") && svg.ends_with("</svg>\n"), "{svg}");
        assert!(svg.contains("no samples") && svg.contains(">a &lt;b&gt; &amp; c <"), "{svg}");
    }
}
