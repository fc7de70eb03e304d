//! A flame graph as one SVG file that needs nothing else.

use std::io::{self, Write};

use inferno::flamegraph::color::{MultiPalette, Palette};
use inferno::flamegraph::{self, Options};

use super::folded_stacks::{self, Annotation};
use super::model::Batch;
use crate::event_type::EventType;

/// A flame graph that can't be drawn.
#[derive(Debug, thiserror::Error)]
pub enum SvgError {
    #[error("drawing a flame graph of a profile without samples")]
    Empty,
    #[error("drawing a flame graph: {0}")]
    Io(#[from] io::Error),
}

/// Draws the batch; colours distinguish Java, inlined, native and kernel frames.
///
/// # Errors
/// No samples, or the writer's error.
pub fn write(batch: &Batch, title: &str, to: impl Write) -> Result<(), SvgError> {
    let lines = folded_stacks::lines(batch, Annotation::Every);
    if lines.is_empty() {
        return Err(SvgError::Empty);
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
    Ok(flamegraph::from_lines(&mut options, lines.iter().map(String::as_str), to)?)
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
    fn no_samples_are_an_error_rather_than_an_empty_picture() {
        assert!(matches!(write(&batch(vec![]), "nothing", Vec::new()), Err(SvgError::Empty)));
    }
}
