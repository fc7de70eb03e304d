import assert from "node:assert/strict";
import { readFileSync, readdirSync } from "node:fs";
import test from "node:test";
import { load } from "./load.mjs";

const jvmprof = load("tree/tree.js", "tree/frames.js", "tree/edits.js", "view/colour.js");
const style = readFileSync(new URL("../../../assets/view/style.css", import.meta.url), "utf8");

/// The colour of frames' names, as light and dark have it.
const [light, dark] = [...style.matchAll(/--frame-text: (#[0-9a-f]{6});/g)].map(([, colour]) => colour);
const THEMES = { light, dark };

const hex = (text) => [1, 3, 5].map((at) => parseInt(text.slice(at, at + 2), 16) / 255);

function rgb(text) {
  const [, hue, saturation, lightness] = /^hsl\((-?[\d.]+) ([\d.]+)% ([\d.]+)%\)$/.exec(text).map(Number);
  const chroma = (1 - Math.abs(lightness / 50 - 1)) * (saturation / 100);
  const at = (((hue % 360) + 360) % 360) / 60;
  const middle = chroma * (1 - Math.abs((at % 2) - 1));
  const parts = [[chroma, middle, 0], [middle, chroma, 0], [0, chroma, middle], [0, middle, chroma], [middle, 0, chroma], [chroma, 0, middle]];
  return parts[Math.floor(at)].map((part) => part + lightness / 100 - chroma / 2);
}

function luminance(colour) {
  const [red, green, blue] = colour.map((part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4));
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
}

function contrast(one, other) {
  const [low, high] = [luminance(one), luminance(other)].sort((a, b) => a - b);
  return (high + 0.05) / (low + 0.05);
}

/// All colours that a frame can have, `[what, colour]`.
function* frameColours() {
  const colours = new jvmprof.Colours();
  const hows = [[], ...jvmprof.HOW_NAMES.map((_, how) => [how, 5])];
  for (colours.by of Object.keys(jvmprof.COLOURINGS)) {
    for (const kind of Object.keys(jvmprof.KIND_NAMES)) {
      for (const [isJdk, how, muted] of [false, true].flatMap((isJdk) => hows.flatMap((how) => [[isJdk, how, false], [isJdk, how, true]]))) {
        for (let at = 0; at < 400; at++) {
          const fn = { name: `com.a${at}.b${7 * at}.C${at}.d`, kind, isJdk };
          yield [`${colours.by} ${kind} ${how[0] ?? ""} ${muted}`, colours.of(fn, how, muted)];
        }
      }
    }
  }
  for (let relative = -1; relative <= 1; relative += 0.05) {
    const comparison = { isNoise: () => Math.abs(relative) < 0.01, relative: () => relative };
    for (const muted of [false, true]) yield [`change ${relative} ${muted}`, jvmprof.changeColour(comparison, [1, 1], muted)];
  }
}

for (const [theme, text] of Object.entries(THEMES)) {
  test(`names of frames can be read on all of their colours in ${theme}`, () => {
    jvmprof.theme.choice = theme;
    const unreadable = new Map();
    let seen = 0;
    for (const [what, colour] of frameColours()) {
      seen += 1;
      if (contrast(rgb(colour), hex(text)) < 4.5) unreadable.set(what, colour);
    }
    jvmprof.theme.choice = "auto";
    assert.ok(seen > 100_000, `${seen} colours`);
    assert.deepEqual([...unreadable], []);
  });
}

test("a frame that was found has a name that can be read", () => {
  const flame = readFileSync(new URL("../../../assets/flame/flame.js", import.meta.url), "utf8");
  const [, found] = /const FOUND = "(#[0-9a-f]{6})";/.exec(flame);
  assert.ok(contrast(hex(found), [1, 1, 1]) >= 4.5, found);
});

test("dark differs from light by the values of properties alone, which are colours", () => {
  const [light, dark] = [...style.matchAll(/^:root[^{]*\{([^}]*)\}/gm)].map(([, body]) =>
    new Map(body.split(";").map((declaration) => declaration.split(":").map((part) => part.trim())).filter(([name]) => name)));
  for (const [name, value] of dark) {
    assert.ok(light.has(name), name);
    if (name === "color-scheme" || name === "--shadow") continue;
    assert.match(name, /^--/);
    assert.match(value, /^#[0-9a-f]{6}$/, name);
  }
  // A shadow takes no room.
  assert.deepEqual(style.match(/[\w-]+: var\(--shadow\)/g).filter((use) => use !== "box-shadow: var(--shadow)"), []);
  // The rest of the style sheet knows nothing of it.
  assert.deepEqual(style.match(/.*(?:dark|data-theme|prefers-color-scheme).*/g), [':root[data-theme="dark"] {', "  color-scheme: dark;"]);
  // Nor do scripts, but for those that have lightnesses for both.
  const assets = new URL("../../../assets/", import.meta.url);
  const scripts = readdirSync(assets, { recursive: true }).filter((name) => name.endsWith(".js") && !name.startsWith("vendor"));
  const asking = scripts.filter((name) => /isDark|dataset\.theme|data-theme/.test(readFileSync(new URL(name, assets), "utf8")));
  assert.deepEqual(asking.sort(), ["collector/timeline_lines.js", "view/base.js", "view/colour.js", "view/heatmap.js"]);
});

/// Degrees of hue; a name shades its colour by 6 at most.
const hue = (colour) => Number(/^hsl\((-?\d+)/.exec(colour)[1]);

function apart(one, other) {
  const degrees = Math.abs(hue(one) - hue(other));
  return Math.min(degrees, 360 - degrees);
}

test("causes of waits have a name of their own beside that of unknown code", () => {
  const wait = { kind: "marker", name: "[wait: sleep]" };
  const cut = { kind: "marker", name: "[truncated: x]" };
  assert.deepEqual([wait, cut].map(jvmprof.kindName), ["Cause of a wait", "Unknown or truncated"]);
  const last = (fns) => new jvmprof.Colours().legend(fns.map((fn) => ({ fn }))).at(-1).name;
  assert.deepEqual([[wait, cut], [cut], []].map(last), ["Waits, unknown or truncated", "Unknown or truncated", "Unknown or truncated"]);
});

test("what colours stand for can be told apart, and frames have those of the legend", () => {
  const colours = new jvmprof.Colours();
  for (const theme of Object.keys(THEMES)) {
    jvmprof.theme.choice = theme;
    for (const by of ["kind", "how"]) {
      colours.by = by;
      const entries = colours.legend([]);
      for (const [at, { name, colour }] of entries.entries()) {
        for (const other of entries.slice(at + 1)) {
          assert.ok(apart(colour, other.colour) > 12, `${name} and ${other.name} by ${by} in ${theme}`);
        }
        const [how, kind] = [jvmprof.HOW_NAMES.indexOf(name), Object.keys(jvmprof.KIND_NAMES).find((of) => jvmprof.KIND_NAMES[of] === name)];
        // A way in which methods ran, a kind of code, or both.
        const frames = [...(by === "how" && how >= 0 ? [["java", [how, 5]]] : []), ...(kind ? [[kind, []]] : [])];
        for (const [of, ways] of frames) {
          const shown = colours.of({ name: "acme.A.run", kind: of }, ways);
          assert.ok(apart(shown, colour) <= 6, `${name} by ${by} in ${theme}: ${shown} and ${colour}`);
        }
      }
    }
    colours.by = "package";
    const rows = ["com.acme.shop.order.Order.total", "org.postgresql.core.Query.run"].map((name) => ({ fn: { name, kind: "java" }, attributed: 1 }));
    const entries = colours.legend(rows);
    assert.deepEqual(entries.map(({ name }) => name), ["com.acme.shop", "org.postgresql.core"]);
    for (const [at, { fn }] of rows.entries()) assert.ok(apart(colours.of(fn), entries[at].colour) <= 6, fn.name);
    assert.ok(apart(entries[0].colour, entries[1].colour) > 12);
  }
  jvmprof.theme.choice = "auto";
});
