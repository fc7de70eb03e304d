//! Every view of both pages, at the widths of a desktop, half of one, and a telephone, in light and
//! dark: axe-core finds nothing wrong with it, and all controls can be reached.

mod axe;
mod collector;
mod recorded;

use self::axe::Rules;
use crate::browser::Browser;
use crate::widths::{WIDTHS, unreachable_controls};
use crate::{DRAWN, IDLE, picture};

const HEIGHT: u32 = 900;

const METHOD: &str = "com.acme.shop.order.OrderService.total";

/// True of a page with samples, however few.
const LOADED: &str = "globalThis.jvmprof?.view?.tree?.value > 0";

/// What stands above the rest of a page.
const DIALOG: &str = "document.querySelector('dialog.help')";
const MENU: &str = "document.querySelector('.frame-menu')";
const POPOVER: &str = "document.querySelector('.popover.menu:not([hidden])')";
const TIP: &str = "document.querySelector('.tip:not([hidden])')";
const TAPPED: &str = "document.querySelector('.tip.tapped:not([hidden])')";
const WHOLE_STACKS: &str = "document.querySelector('details.figure[open] > .popover')";

/// A promise of the time at which what changed has been drawn.
const TWO_FRAMES: &str = "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))";

/// A view of a page, and how one comes to it.
struct View {
    /// Its name in messages and of pictures.
    name: String,
    /// Its address behind that of the page.
    address: String,
    /// An expression that is true once the page has been opened there.
    opened: &'static str,
    /// An expression that then does the rest, at each width.
    act: String,
    /// An expression that is true once that is done.
    shown: String,
    /// What has the controls: the document, or what stands above it.
    part: &'static str,
}

impl View {
    fn new(name: impl Into<String>, address: impl Into<String>) -> Self {
        let (act, shown) = ("0".to_owned(), "true".to_owned());
        let (name, address) = (name.into(), address.into());
        Self { name, address, opened: DRAWN, act, shown, part: "document" }
    }

    fn opened_when(self, opened: &'static str) -> Self {
        Self { opened, ..self }
    }

    fn shown_when(self, shown: impl Into<String>) -> Self {
        Self { shown: shown.into(), ..self }
    }

    fn after(self, act: impl Into<String>) -> Self {
        Self { act: act.into(), ..self }
    }

    /// What it is about stands above the rest.
    fn above(self, part: &'static str) -> Self {
        let shown = format!("{part}?.checkVisibility() ?? false");
        Self { part, shown, ..self }
    }

    /// Opens the page, and returns what is wrong with it in each window.
    fn check(&self, browser: &mut Browser, url: &str, axe: &str) -> Vec<String> {
        browser.resize(WIDTHS[0], HEIGHT);
        browser.open("about:blank");
        browser.open(&format!("{url}{}", self.address));
        browser.wait_for(self.opened);
        browser.wait_for(IDLE);
        let mut wrong = Vec::new();
        // The schemes differ by their colours alone (`style.css`): the places of controls, and what
        // axe-core says of roles and names, are the same in both.
        let mut schemes = [("light", Rules::All), ("dark", Rules::Colours)];
        for width in WIDTHS {
            browser.resize(width, HEIGHT);
            browser.evaluate(&format!("(async () => {{ await {TWO_FRAMES}; await ({}) }})()", self.act));
            browser.wait_for(IDLE);
            for (scheme, rules) in schemes {
                browser.prefer(scheme);
                browser.wait_for(&format!("document.documentElement.dataset.theme === '{scheme}'"));
                browser.wait_for(&self.shown);
                let mut found = axe::violations(browser, axe, rules);
                if rules == Rules::All {
                    found.extend(unreachable_controls(browser, self.part, width));
                }
                browser.wait_for(&self.shown);
                let window = format!("{} at {width} in {scheme}", self.name);
                wrong.extend(found.into_iter().map(|found| format!("{window}: {found}")));
                picture(browser, &format!("views-{}-{width}-{scheme}", self.name));
            }
            // The next width begins with the scheme that the page has: to draw it in another one
            // takes as long as to look at it.
            schemes.reverse();
        }
        wrong
    }
}

/// Checks all views of the page at this address.
fn check_all(browser: &mut Browser, url: &str, views: &[View]) {
    let axe = axe::script();
    let wrong: Vec<String> = views.iter().flat_map(|view| view.check(browser, url, &axe)).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// What can be opened in both pages, of the one with samples at this address.
fn opened_parts(page: &str, address: &str) -> [View; 6] {
    let view = |name: &str| View::new(format!("{page}-{name}"), address);
    let node = format!("jvmprof.view.flame.root.descendants().find((d) => d.data.name === '{METHOD}').data");
    // On a telephone the graph is further down.
    let at_frame = |what: &str| {
        format!(
            "(async () => {{ const {{ flame }} = jvmprof.view; flame.scroller.scrollIntoView({{ block: 'center' }}); await {TWO_FRAMES}; \
             const box = flame.root.descendants().find((d) => d.data.name === 'start_thread'); \
             const {{ x, y }} = flame.place(box); flame.{what}(box, x + 9, y + 9) }})()"
        )
    };
    [
        view("row")
            .after(
                "document.querySelector('.top tr.detail') ?? document.querySelector('button.opener').click()",
            )
            .shown_when("Boolean(document.querySelector('.top tr.detail'))"),
        view("menu").after(format!("jvmprof.view.menu({node}, innerWidth, innerHeight)")).above(MENU),
        view("tip").after(at_frame("showTip")).above(TIP),
        view("tapped").after(at_frame("showTapped")).above(TAPPED),
        view("help").after(format!("{DIALOG} ?? jvmprof.help()")).above(DIALOG),
        view("stacks").after("document.querySelector('details.figure').open = true").above(WHOLE_STACKS),
    ]
}
