//! State of the screen: the samples, and what the keys have chosen of them.

use std::rc::Rc;

use crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use super::samples::{SampleSlice, TopSamples, TopTotals};
use crate::app::record::summary::hottest_functions::RowOrder;

/// The effect of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KeyEffect {
    Nothing,
    Redraw,
    Quit,
}

/// Rows that a page key moves by.
const PAGE: usize = 10;

#[derive(Debug)]
pub(super) struct TopState {
    live: TopSamples,
    /// The samples at the time of the pause.
    paused: Option<TopTotals>,
    pub(super) is_since_begin: bool,
    pub(super) java: bool,
    pub(super) order: RowOrder,
    /// Text in the names of the rows, in lower case.
    pub(super) filter: String,
    pub(super) is_editing: bool,
    /// The JVM that is shown alone.
    pub(super) chosen: Option<u32>,
    pub(super) has_help: bool,
    /// Rows above the first one that is shown.
    pub(super) scrolled: usize,
    /// CPUs that this program took in the last second.
    pub(super) own_cores: f64,
}

impl TopState {
    pub(super) fn new(samples: TopSamples, java: bool) -> Self {
        Self {
            live: samples,
            paused: None,
            is_since_begin: false,
            java,
            order: RowOrder::default(),
            filter: String::new(),
            is_editing: false,
            chosen: None,
            has_help: false,
            scrolled: 0,
            own_cores: 0.0,
        }
    }

    /// Adds the last second's samples, and what this program took meanwhile.
    pub(super) fn add(&mut self, slice: SampleSlice, own_cores: f64) {
        self.live.push(slice);
        self.own_cores = own_cores;
    }

    pub(super) fn is_paused(&self) -> bool {
        self.paused.is_some()
    }

    /// The samples of the chosen time.
    pub(super) fn shown(&self) -> Rc<SampleSlice> {
        let totals = self.paused.as_ref().unwrap_or(self.live.totals());
        Rc::clone(if self.is_since_begin { &totals.since_begin } else { &totals.window })
    }

    /// Carries out what a key stands for.
    pub(super) fn press(&mut self, key: KeyEvent) -> KeyEffect {
        if key.kind == KeyEventKind::Release {
            return KeyEffect::Nothing;
        }
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            return if key.code == KeyCode::Char('c') { KeyEffect::Quit } else { KeyEffect::Nothing };
        }
        if self.is_editing {
            return self.edit(key.code);
        }
        if self.has_help {
            self.has_help = false;
            return if key.code == KeyCode::Char('q') { KeyEffect::Quit } else { KeyEffect::Redraw };
        }
        match key.code {
            KeyCode::Char('q') => return KeyEffect::Quit,
            // The same table: its rows stay where they are.
            KeyCode::Char(' ') => {
                self.paused = match self.paused {
                    Some(_) => None,
                    None => Some(self.live.totals().clone()),
                };
                return KeyEffect::Redraw;
            }
            KeyCode::Char('w') => self.is_since_begin = !self.is_since_begin,
            KeyCode::Char('j') => self.java = !self.java,
            KeyCode::Char('s') => self.order = RowOrder::Own,
            KeyCode::Char('t') => self.order = RowOrder::Total,
            KeyCode::Char('n') => self.order = RowOrder::Name,
            KeyCode::Char('/') => self.is_editing = true,
            KeyCode::Char('?' | 'h') => self.has_help = true,
            KeyCode::Tab => self.choose(true),
            KeyCode::BackTab => self.choose(false),
            KeyCode::Esc => (self.filter, self.chosen) = (String::new(), None),
            code => return self.scroll(code),
        }
        // Another table begins at its first row.
        self.scrolled = 0;
        KeyEffect::Redraw
    }

    fn edit(&mut self, code: KeyCode) -> KeyEffect {
        match code {
            KeyCode::Enter => self.is_editing = false,
            KeyCode::Esc => (self.filter, self.is_editing) = (String::new(), false),
            KeyCode::Backspace => {
                self.filter.pop();
            }
            KeyCode::Char(char) => self.filter.extend(char.to_lowercase()),
            _ => return KeyEffect::Nothing,
        }
        self.scrolled = 0;
        KeyEffect::Redraw
    }

    fn scroll(&mut self, code: KeyCode) -> KeyEffect {
        self.scrolled = match code {
            KeyCode::Up => self.scrolled.saturating_sub(1),
            KeyCode::Down => self.scrolled.saturating_add(1),
            KeyCode::PageUp => self.scrolled.saturating_sub(PAGE),
            KeyCode::PageDown => self.scrolled.saturating_add(PAGE),
            KeyCode::Home => 0,
            _ => return KeyEffect::Nothing,
        };
        KeyEffect::Redraw
    }

    /// Goes on to the next JVM of the list, or back; behind the last one stand all processes.
    fn choose(&mut self, is_forward: bool) {
        let shown = self.shown();
        let pids: Vec<u32> = shown.jvms().iter().filter_map(|jvm| jvm.pid).collect();
        let at = self.chosen.and_then(|chosen| pids.iter().position(|pid| *pid == chosen));
        let next = match (at, is_forward) {
            (None, true) => Some(0),
            (None, false) => pids.len().checked_sub(1),
            (Some(at), true) => Some(at + 1),
            (Some(at), false) => at.checked_sub(1),
        };
        self.chosen = next.and_then(|at| pids.get(at).copied());
    }

    /// Returns true if a name matches the filter.
    pub(super) fn matches_filter(&self, name: &str) -> bool {
        self.filter.is_empty() || name.to_lowercase().contains(&self.filter)
    }
}

#[cfg(test)]
mod tests {
    use super::super::samples::tests::slice;
    use super::*;

    fn state() -> TopState {
        let mut state = TopState::new(TopSamples::new(10), false);
        state.add(slice(300), 0.01);
        state
    }

    fn press(state: &mut TopState, codes: &[KeyCode]) -> KeyEffect {
        codes.iter().fold(KeyEffect::Nothing, |_, code| state.press(KeyEvent::from(*code)))
    }

    #[test]
    fn keys_choose_what_is_shown() {
        let mut state = state();
        press(&mut state, &['w', 'j', 't'].map(KeyCode::Char));
        assert!(state.is_since_begin && state.java && state.order == RowOrder::Total);
        press(&mut state, &[KeyCode::Char('/'), KeyCode::Char('Q'), KeyCode::Char('o'), KeyCode::Backspace]);
        assert_eq!((state.filter.as_str(), state.is_editing), ("q", true));
        assert!(state.matches_filter("com.acme.Queue") && !state.matches_filter("com.acme.Order"));
        press(&mut state, &[KeyCode::Enter, KeyCode::Tab]);
        assert_eq!((state.is_editing, state.chosen), (false, Some(7)));
        press(&mut state, &[KeyCode::Tab]);
        assert_eq!(state.chosen, None);
        press(&mut state, &[KeyCode::BackTab, KeyCode::Esc]);
        assert_eq!((state.chosen, state.filter.as_str()), (None, ""));
        assert_eq!(press(&mut state, &[KeyCode::F(5)]), KeyEffect::Nothing);
    }

    #[test]
    fn the_picture_stands_still_while_it_is_paused() {
        let mut state = state();
        state.scrolled = 2;
        press(&mut state, &[KeyCode::Char(' ')]);
        state.add(slice(300), 0.01);
        assert_eq!((state.is_paused(), state.shown().samples, state.scrolled), (true, 450, 2));
        press(&mut state, &[KeyCode::Char(' ')]);
        assert_eq!((state.is_paused(), state.shown().samples), (false, 900));
    }

    #[test]
    fn q_and_control_c_quit_even_while_a_filter_is_typed() {
        let mut state = state();
        assert_eq!(press(&mut state, &[KeyCode::Char('?'), KeyCode::Char('q')]), KeyEffect::Quit);
        press(&mut state, &[KeyCode::Char('x'), KeyCode::Char('/')]);
        assert_eq!(press(&mut state, &[KeyCode::Char('q')]), KeyEffect::Redraw);
        let control_c = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        assert_eq!(state.press(control_c), KeyEffect::Quit);
    }
}
