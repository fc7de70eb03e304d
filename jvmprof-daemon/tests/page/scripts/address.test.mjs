import assert from "node:assert/strict";
import test from "node:test";
import { load } from "./load.mjs";

const jvmprof = load("vendor/d3.min.js", "tree/frames.js", "tree/edits.js", "tree/compare.js", "view/colour.js", "view/state.js", "collector/controls.js", "collector/timeline.js", "collector/compare_controls.js");

test("ranges of any length are understood, others are not", () => {
  const day = 86_400_000;
  assert.deepEqual(["7d", "90s", "2w", "36h", "400d"].map(jvmprof.rangeLength), [7 * day, 90_000, 14 * day, 1.5 * day, 400 * day]);
  for (const wrong of ["", "7", "d", "7y", "-1d", "0m", "1.5h", "7d ", "401d", "constructor"]) {
    assert.equal(jvmprof.rangeLength(wrong), null, wrong);
  }
});

test("presets are as long as their text says", () => {
  assert.deepEqual(Object.keys(jvmprof.PRESETS), ["5m", "15m", "1h", "6h", "24h", "7d", "30d"]);
  for (const [range, length] of Object.entries(jvmprof.PRESETS)) assert.equal(jvmprof.rangeLength(range), length, range);
});

test("how a profile is looked at survives its address", () => {
  const state = {
    search: 'kind:java & "x"',
    view: "both",
    rootOnTop: false,
    fold: true,
    frames: "app",
    zoom: "8249cb6c9e044f9f",
    sandwich: "acme.Shop.price",
    colour: "package",
    by: "time",
    edits: ["only:acme.Shop.*", "hide:acme.Cart.add&x=1", "expand:java.util.*", "idle:shown"],
    part: [1500, 2500],
    basePart: [0, 750],
    sort: "-total",
    sandwichZoom: "8249cb6c9e044f9f-0123456789abcdef",
  };
  const query = new URLSearchParams();
  jvmprof.writeViewState(query, state);
  assert.deepEqual(jvmprof.readViewState(new URLSearchParams(String(query))), state);
});

test("a part is compared with another one, the whole with none", () => {
  const read = (query) => jvmprof.readViewState(new URLSearchParams(query));
  assert.deepEqual(read("part=5-9&base_part=1-3").basePart, [1, 3]);
  for (const wrong of ["base_part=1-3", "part=9-5&base_part=1-3", "part=5-9&base_part=3-1", "part=5-9"]) assert.equal(read(wrong).basePart, null, wrong);
  const query = new URLSearchParams();
  jvmprof.writeViewState(query, { part: null, basePart: [1, 3] });
  assert.equal(String(query), "");
});

test("callers, callees or both may be zoomed", () => {
  const read = (query) => jvmprof.readViewState(new URLSearchParams(query)).sandwichZoom;
  const one = "8249cb6c9e044f9f";
  for (const zoom of [`${one}-`, `-${one}`, `${one}-${one}`]) assert.equal(read(`sandwich=a&szoom=${zoom}`), zoom);
  for (const wrong of ["", "-", one, "callers", `${one}-x`, `${one}-${one}-`]) assert.equal(read(`sandwich=a&szoom=${wrong}`), "", wrong);
});

test("an address without choices is empty, and wrong ones choose nothing", () => {
  const query = new URLSearchParams();
  jvmprof.writeViewState(query, jvmprof.readViewState(new URLSearchParams("frames=toString&zoom=main&view=x&colour=toString&by=x&edit=drop:x&part=9-3&sort=total-&sandwich=&szoom=-8249cb6c9e044f9f")));
  assert.equal(String(query), "");
});

test("graph and table are both shown at first where they stand beside each other", () => {
  const views = [1440, 1280, 1001, 1000, 420].map((width) => {
    globalThis.innerWidth = width;
    return jvmprof.firstViewState().view;
  });
  assert.deepEqual(views, ["both", "both", "both", "flame", "flame"]);
});

test("ticks of the timeline stand at round times", () => {
  const noon = new Date(2025, 4, 6, 12, 0, 0).getTime();
  const texts = (length, count) => jvmprof.timeTicks(noon + 61_234, noon + 61_234 + length, count).map(({ text }) => text);
  assert.deepEqual(texts(15 * 60_000, 3), ["12:05", "12:10", "12:15"]);
  assert.deepEqual(texts(60_000, 4), ["12:01:15", "12:01:30", "12:01:45", "12:02:00"]);
  assert.deepEqual(texts(3 * 86_400_000, 3), ["May 7", "May 8", "May 9"]);
});

test("what is compared with is a shift or a range", () => {
  const range = [1_000_000_000, 1_000_060_000];
  const bounds = (text) => jvmprof.baseBounds(jvmprof.parseBase(text), range);
  assert.deepEqual(bounds("before"), [999_940_000, 1_000_000_000]);
  assert.deepEqual(bounds("1d"), [1_000_000_000 - 86_400_000, 1_000_060_000 - 86_400_000]);
  assert.deepEqual(bounds("same"), range);
  assert.deepEqual(bounds("5-17"), [5, 17]);
  for (const text of ["5-17", "7d"]) assert.equal(jvmprof.baseText(jvmprof.parseBase(text)), text);
  for (const text of [null, "", "toString", "17-5", "2d"]) assert.equal(jvmprof.parseBase(text), null);
});
