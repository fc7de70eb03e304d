//! axe-core, which looks for faults of roles, names, landmarks and contrast.

use std::path::PathBuf;

use crate::browser::Browser;

/// Reads the script of axe-core, at the version that `xtask/test-packages` has.
pub(super) fn script() -> String {
    let folder = std::env::var_os("JVMPROF_TEST_PACKAGES")
        .expect("JVMPROF_TEST_PACKAGES names the folder with npm's packages; `cargo xtask test` makes it");
    let path = PathBuf::from(folder).join("node_modules/axe-core/axe.min.js");
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// What axe-core looks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rules {
    All,
    /// Those that colours decide.
    Colours,
}

impl Rules {
    /// Returns options of `axe.run`. Only violations are described: all else would be, too, for
    /// each element of the page.
    fn options(self) -> &'static str {
        match self {
            Self::All => "{ resultTypes: ['violations'] }",
            Self::Colours => {
                "{ resultTypes: ['violations'], runOnly: { type: 'rule', values: ['color-contrast', 'link-in-text-block'] } }"
            }
        }
    }
}

/// Takes rows out of the table that differ from others in their texts, and in styles of what has no
/// text, alone: there are two hundred, shown or not, and axe-core would look at each element. Calls
/// a function with what is in their place, as high as they are, and puts them back.
const WITHOUT_LIKE_ROWS: &str = r#"(async (call) => {
  const body = document.querySelector('.top tbody');
  const rows = [...(body?.rows ?? [])];
  const isText = new Set(['title', 'aria-label']);
  const attribute = (node) => ({ name, value }) =>
    name === 'style' && !node.textContent.trim() ? name + value.replace(/:[^;]*/g, '')
      : name + (isText.has(name) ? Boolean(value.trim()) : value);
  const shape = (node) => node.nodeType === Node.TEXT_NODE ? String(Boolean(node.data.trim()))
    : `<${node.localName} ${[...node.attributes].map(attribute(node))}>${[...node.childNodes].map(shape)}</>`;
  const shapes = new Set();
  const isLike = (row) => {
    const own = shape(row);
    return shapes.has(own) || !shapes.add(own);
  };
  const others = rows.filter(isLike);
  if (!others.length) return await call([]);
  const height = others.reduce((sum, row) => sum + row.getBoundingClientRect().height, 0);
  const room = document.createElement('tbody');
  Object.assign(room.insertRow().insertCell().style, { height: `${height}px`, padding: '0', border: '0' });
  body.after(room);
  others.forEach((row) => row.remove());
  try {
    return await call([room]);
  } finally {
    // The table may have been drawn anew.
    if (rows[0].parentNode === body) body.append(...rows);
    room.remove();
  }
})"#;

/// Returns what is wrong with the page as it is now.
pub(super) fn violations(browser: &mut Browser, script: &str, rules: Rules) -> Vec<String> {
    if browser.evaluate("Boolean(globalThis.axe)") != true {
        browser.evaluate(&format!("{{ {script} }} 0"));
    }
    let violations = browser.evaluate(&format!(
        "{WITHOUT_LIKE_ROWS}((exclude) => axe.run({{ exclude }}, {})).then(({{ violations }}) => violations.map((it) => \
         `${{it.id}}: ${{it.nodes.slice(0, 4).map((node) => `${{node.html.slice(0, 120)}} (${{node.any.map((any) => any.message).join()}})`).join(' | ')}}`))",
        rules.options()
    ));
    serde_json::from_value(violations).expect("axe-core lists violations")
}
