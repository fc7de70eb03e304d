//! The picture: JVMs above, functions below, keys in the last line.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Modifier, Style, Stylize as _};
use ratatui::text::Line;
use ratatui::widgets::{Block, Cell, Clear, Paragraph, Row, Table};

use super::samples::{MAX_PROCESSES, SampleSlice};
use super::state::TopState;
use crate::app::pipeline_options::node_name;
use crate::app::record::summary::hottest_functions::{RowOrder, TopRow};
use crate::app::record::summary::jvm_time::JvmTime;

/// JVMs that are listed; the others are counted.
const MAX_JVMS: usize = 6;
/// Columns of `Order.java:57 61 %`.
const LINE_COLUMNS: u16 = 32;

const HELP: [(&str, &str); 12] = [
    ("q, Ctrl-C", "quit"),
    ("space", "pause: sampling goes on"),
    ("w", "the last seconds, or all since the begin"),
    ("j", "all frames, or Java's only: time of the kernel, native code and"),
    ("", "the JVM's stubs is then its nearest Java caller's"),
    ("s, t, n", "sort by self, total, name"),
    ("/", "filter by text in names; Enter keeps it, Esc clears it"),
    ("Tab", "the next JVM alone, behind the last one all processes"),
    ("Esc", "all processes, no filter"),
    ("arrows", "scroll; Page Up, Page Down, Home"),
    ("self", "samples in which the function itself ran; its hottest line beside it"),
    ("total", "samples in which it was anywhere on the stack"),
];

/// Draws everything. Scrolling ends where the rows do.
pub(super) fn draw(state: &mut TopState, frame: &mut Frame<'_>) {
    let slice = state.shown();
    let jvms = slice.jvms();
    let listed = jvms.len().clamp(1, MAX_JVMS) + usize::from(jvms.len() > MAX_JVMS);
    let head = u16::try_from(listed + 1).unwrap_or(u16::MAX);
    let areas = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(head),
        Constraint::Min(1),
        Constraint::Length(1),
    ]);
    let [title, head, rows, keys] = areas.areas(frame.area());
    frame.render_widget(title_line(state, &slice).bold(), title);
    draw_jvms(state, &slice, &jvms, frame, head);
    draw_functions(state, &slice, frame, rows);
    frame.render_widget(key_line(state), keys);
    if state.has_help {
        draw_help(frame);
    }
}

fn title_line(state: &TopState, slice: &SampleSlice) -> Line<'static> {
    let seconds = slice.duration.as_secs_f64();
    let time = if state.is_since_begin { "since the begin" } else { "window" };
    let paused = if state.is_paused() { "  PAUSED" } else { "" };
    Line::from(format!(
        "jvmprof top  {}  {time} {seconds:.0} s  {} samples  {:.2} cores  (jvmprof itself {:.1} %){paused}",
        node_name(),
        slice.samples,
        slice.cores(slice.samples),
        state.own_cores * 100.0,
    ))
}

fn draw_jvms(state: &TopState, slice: &SampleSlice, jvms: &[&JvmTime], frame: &mut Frame<'_>, area: Rect) {
    if jvms.is_empty() {
        let text = "no JVM has used a CPU";
        frame.render_widget(Paragraph::new(text).dim(), area);
        return;
    }
    let row = |jvm: &&JvmTime| {
        let pid = jvm.pid.map_or_else(String::new, |pid| pid.to_string());
        let cores = format!("{:>5.2}", slice.cores(jvm.samples));
        let row = Row::new([format!("{pid:>8}"), cores, jvm.name.clone(), jvm.shares()]);
        let is_chosen = state.chosen.is_some() && jvm.pid == state.chosen;
        row.style(if is_chosen { Style::new().reversed() } else { Style::new() })
    };
    let mut rows: Vec<Row<'_>> = jvms.iter().take(MAX_JVMS).map(row).collect();
    if jvms.len() > MAX_JVMS {
        let more = match jvms.len() - MAX_JVMS {
            more if slice.other_jvms == 0 => format!("and {more} more"),
            more => format!("and {more} more and all beyond {MAX_PROCESSES}"),
        };
        let unlisted: u64 = jvms.iter().skip(MAX_JVMS).map(|jvm| jvm.samples).sum();
        let cores = format!("{:>5.2}", slice.cores(unlisted + slice.other_jvms));
        rows.push(Row::new([String::new(), cores, more, String::new()]));
    }
    let widths = [Constraint::Length(8), Constraint::Length(5), Constraint::Fill(2), Constraint::Fill(3)];
    let header = Row::new(["     PID", "CORES", "JVM", "THREADS"]).style(Modifier::UNDERLINED);
    frame.render_widget(Table::new(rows, widths).header(header).column_spacing(2), area);
}

fn draw_functions(state: &mut TopState, slice: &SampleSlice, frame: &mut Frame<'_>, area: Rect) {
    let height = usize::from(area.height.saturating_sub(1));
    let limit = state.scrolled.saturating_add(height);
    let (rows, samples) =
        slice.rows(state.chosen, state.java, state.order, limit, |name| state.matches_filter(name));
    state.scrolled = state.scrolled.min(rows.len().saturating_sub(height));
    let percent = |part: u64| part as f64 * 100.0 / samples.max(1) as f64;
    let row = |row: &TopRow| {
        let line = row.line_text().unwrap_or_default();
        Row::new([
            Cell::from(format!("{:>6.2} %", percent(row.own))),
            Cell::from(format!("{:>6.2} %", percent(row.total))),
            Cell::from(row.name.clone()),
            Cell::from(line),
        ])
    };
    let rows: Vec<Row<'_>> = rows.iter().skip(state.scrolled).map(row).collect();
    let widths = [
        Constraint::Length(8),
        Constraint::Length(8),
        Constraint::Fill(1),
        Constraint::Length(LINE_COLUMNS.min(area.width / 3)),
    ];
    let mark = |order, name: &str| if state.order == order { format!("{name}*") } else { name.to_owned() };
    let functions = if state.java { "FUNCTION (Java's frames only)" } else { "FUNCTION" };
    let header = Row::new([
        format!("{:>8}", mark(RowOrder::Own, "SELF")),
        format!("{:>8}", mark(RowOrder::Total, "TOTAL")),
        mark(RowOrder::Name, functions),
        "HOTTEST LINE".to_owned(),
    ]);
    let header = header.style(Modifier::UNDERLINED);
    frame.render_widget(Table::new(rows, widths).header(header).column_spacing(2), area);
}

fn key_line(state: &TopState) -> Line<'_> {
    if state.is_editing {
        return Line::from(format!("/{}_   Enter keeps it, Esc clears it", state.filter)).bold();
    }
    let filter = match state.filter.as_str() {
        "" => String::new(),
        filter => format!("   names with {filter:?}"),
    };
    Line::from(format!("q quit  space pause  w time  j Java  s t n sort  / filter  Tab JVM  ? help{filter}"))
        .dim()
}

fn draw_help(frame: &mut Frame<'_>) {
    let lines = HELP.iter().map(|(key, what)| Line::from(format!(" {key:<10} {what}")));
    let lines: Vec<Line<'_>> = lines.collect();
    let height = u16::try_from(lines.len()).unwrap_or(u16::MAX).saturating_add(2);
    let width = lines.iter().map(Line::width).max().unwrap_or(0);
    let width = u16::try_from(width).unwrap_or(u16::MAX).saturating_add(3);
    let area = frame.area().centered(Constraint::Length(width), Constraint::Length(height));
    frame.render_widget(Clear, area);
    frame.render_widget(Paragraph::new(lines).block(Block::bordered().title(" keys ")), area);
}

#[cfg(test)]
mod tests {
    use crossterm::event::{KeyCode, KeyEvent};
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::super::samples::TopSamples;
    use super::super::samples::tests::{crowd, slice};
    use super::*;
    use crate::profile::model::FrameKind;
    use crate::profile::testing::{batch, frame, series};

    fn picture(state: &mut TopState, width: u16, height: u16) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("a terminal");
        terminal.draw(|frame| draw(state, frame)).expect("drawn");
        let buffer = terminal.backend().buffer();
        let line = |y| (0..width).map(|x| buffer[(x, y)].symbol()).collect::<String>();
        (0..height).map(|y| line(y).trim_end().to_owned()).collect()
    }

    fn state() -> TopState {
        let mut state = TopState::new(TopSamples::new(10), false);
        state.add(slice(300), 0.012);
        state
    }

    fn press(state: &mut TopState, codes: &[KeyCode]) {
        codes.iter().for_each(|code| {
            state.press(KeyEvent::from(*code));
        });
    }

    #[test]
    fn jvms_and_functions_have_their_shares() {
        let lines = picture(&mut state(), 100, 12);
        assert!(
            lines[0].contains("window 10 s  450 samples  0.45 cores  (jvmprof itself 1.2 %)"),
            "{lines:#?}"
        );
        assert!(lines[2].starts_with("       7   0.40  Shop"), "{lines:#?}");
        assert!(lines[2].ends_with("75.0 % java, 25.0 % gc"), "{lines:#?}");
        assert!(lines[3].starts_with("   SELF*     TOTAL  FUNCTION"), "{lines:#?}");
        assert_eq!(lines[4], " 66.67 %   66.67 %  memcpy");
        assert_eq!(lines[5], " 22.22 %   22.22 %  mark");
        assert!(lines[11].starts_with("q quit"), "{lines:#?}");
    }

    #[test]
    fn the_java_view_of_one_jvm_gives_native_time_to_the_caller() {
        let mut state = state();
        press(&mut state, &[KeyCode::Char('j'), KeyCode::Tab]);
        let lines = picture(&mut state, 100, 12);
        assert_eq!(lines[4], " 75.00 %   75.00 %  com.acme.Order.copy");
        press(&mut state, &[KeyCode::Char('/'), KeyCode::Char('m'), KeyCode::Char('a')]);
        let lines = picture(&mut state, 100, 12);
        assert_eq!(lines[4], "  0.00 %   75.00 %  com.acme.Shop.main");
        assert_eq!(lines[5], "");
        assert!(lines[11].starts_with("/ma_"), "{lines:#?}");
    }

    #[test]
    fn scrolling_ends_with_the_rows_and_nothing_is_too_small() {
        let mut state = state();
        press(&mut state, &[KeyCode::PageDown; 9]);
        let lines = picture(&mut state, 100, 8);
        assert_eq!(state.scrolled, 5 - 3);
        assert!(lines[6].contains("com.acme.Shop.main"), "{lines:#?}");
        for (width, height) in [(1, 1), (10, 3), (20, 2), (300, 100)] {
            state.has_help = !state.has_help;
            picture(&mut state, width, height);
        }
    }

    #[test]
    fn jvms_that_are_not_listed_have_their_cores_together() {
        let mut state = TopState::new(TopSamples::new(10), false);
        state.add(crowd(), 0.012);
        let lines = picture(&mut state, 100, 12);
        // 510 samples of 10 ms in 10 s, of which six are listed.
        let expected = "           0.50  and 494 more and all beyond 500";
        assert_eq!(lines[8], expected, "{lines:#?}");
    }

    #[test]
    fn names_cannot_draw_elsewhere() {
        let mut state = state();
        let name = "evil\u{1b}[2J";
        let stacks = vec![(vec![frame(FrameKind::Native, name)], 900)];
        let mut evil = SampleSlice::default();
        evil.add(&batch(vec![series(&[("pid", "11"), ("comm", name)], stacks)]));
        state.add(evil, 0.012);
        let text = picture(&mut state, 100, 12).concat();
        assert!(text.contains("evil"), "{text}");
        assert!(!text.contains('\u{1b}'), "{text}");
    }

    #[test]
    fn the_help_names_every_key_of_the_last_line() {
        let mut state = state();
        let last = picture(&mut state, 100, 20).pop().expect("a line");
        press(&mut state, &[KeyCode::Char('?')]);
        let help = picture(&mut state, 100, 20).join("\n");
        let groups = last.split("  ").filter(|group| !group.is_empty() && !group.starts_with("? "));
        let keys = groups.flat_map(|group| {
            let (keys, _what) = group.rsplit_once(' ').expect("keys and what they do");
            keys.split(' ').collect::<Vec<_>>()
        });
        let keys: Vec<&str> = keys.collect();
        assert!(keys.len() > 6, "{last}");
        for key in keys {
            let is_named = |line: &str| line.split([' ', ',', '│']).any(|word| word == key);
            assert!(help.lines().any(is_named), "{key}\n{help}");
        }
    }
}
