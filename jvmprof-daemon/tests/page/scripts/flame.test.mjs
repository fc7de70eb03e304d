import assert from "node:assert/strict";
import test from "node:test";
import { load, treeOf } from "./load.mjs";

const jvmprof = load("tree/tree.js", "tree/activities.js", "tree/frames.js", "tree/edits.js", "flame/flame_layout.js");

function layoutOf(stacks) {
  const data = treeOf(stacks);
  return new jvmprof.FlameLayout(jvmprof.buildTree(data, jvmprof.functions(data)).root);
}

const places = (layout) => layout.rows.map((row) => row.map((box) => [box.data.name, box.x0, box.x1]));
const named = (layout, name) => layout.root.descendants().find((box) => box.data.name === name);

test("boxes are as wide as their samples, the heaviest first", () => {
  const layout = layoutOf([["a;b", 2], ["a;c", 4], ["d", 2]]);
  assert.deepEqual(places(layout), [
    [["all", 0, 1]],
    [["a", 0, 0.75], ["d", 0.75, 1]],
    [["c", 0, 0.5], ["b", 0.5, 0.75]],
  ]);
});

test("a zoomed box, its callers and what it calls have the width; others none", () => {
  const layout = layoutOf([["a;b", 2], ["a;c;e", 1], ["a;c", 3], ["d", 2]]);
  layout.zoom(named(layout, "c"));
  const wide = layout.wide(0.001).map((row) => row.map((box) => [box.data.name, box.x0, box.x1, box.isCaller]));
  assert.deepEqual(wide, [[["all", 0, 1, true]], [["a", 0, 1, true]], [["c", 0, 1, false]], [["e", 0, 0.25, false]]]);
  layout.zoom(layout.root);
  assert.equal(named(layout, "d").x0, 0.75);
});

test("the box at a place is found, and that there is none", () => {
  const layout = layoutOf([["a;b", 2], ["a;c", 4], ["d;e", 2]]);
  const row = layout.rows[2].filter((box) => box.data.name !== "b");
  const at = (x) => jvmprof.boxAt(row, x)?.data.name;
  assert.deepEqual([0, 0.49, 0.5, 0.6, 0.75, 0.99, 1].map(at), ["c", "c", undefined, undefined, "e", "e", undefined]);
});

test("a stack of 50,000 frames has a box each", () => {
  const layout = layoutOf([[Array.from({ length: 50_000 }, (_, at) => `f${at}`).join(";"), 1]]);
  assert.equal(layout.rows.length, 50_001);
  layout.zoom(layout.rows[40_000][0]);
  assert.equal(layout.wide(0.5).flat().length, 50_001);
});
