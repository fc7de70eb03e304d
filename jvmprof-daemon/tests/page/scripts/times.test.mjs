import assert from "node:assert/strict";
import test from "node:test";
import { load, paths, treeOf } from "./load.mjs";

const jvmprof = load("tree/tree.js", "tree/activities.js", "tree/frames.js", "tree/subtrees.js", "tree/edits.js", "tree/rows.js", "tree/compare.js", "tree/times.js", "view/time_chart.js", "view/heatmap.js");

// As in `profile/call_tree/tests/times.rs`, of the nodes below.
const TIMES = { nodes: [2, 1, 3], lines: [7, 9, 1], samples: Buffer.from([4, 1, 1, 0, 0xc3, 1, 2, 100, 0, 0xbc, 5, 0]).toString("base64") };
const DATA = treeOf([["acme.A.run;native:memcpy", 3], ["acme.A.run", 1], ["acme.A.run;acme.A.rare", 1]]);

test("times and ends of stacks are read", () => {
  const times = new jvmprof.SampleTimes(TIMES);
  assert.deepEqual([...times.times], [4, 5, 200, 300, 1000]);
  assert.deepEqual([...times.entries], [1, 0, 2, 0, 0]);
  assert.deepEqual([...times.slots(500, 3)], [4, 0, 1]);
  assert.deepEqual([...times.slots(500, 2)], [4, 1], "what is behind the last one counts in it");
  assert.deepEqual([times.from(0), times.from(5), times.from(301), times.from(2000)], [0, 1, 4, 5]);
});

test("a part has its own tree and lines", () => {
  const functions = jvmprof.functions(DATA);
  const part = new jvmprof.SampleTimes(TIMES).part(DATA, functions, [5, 301]);
  const { root } = jvmprof.buildTree(part, functions);
  assert.deepEqual(paths(root), { "acme.A.run": [3, 0], "acme.A.run;memcpy": [2, 2], "acme.A.run;acme.A.rare": [1, 1] });
  const rows = jvmprof.withPartLines(jvmprof.functionRows(root), part);
  const lines = Object.fromEntries(rows.map(({ name, lines }) => [name, lines.map(({ line, attributed }) => [line, attributed])]));
  assert.deepEqual(lines, { "acme.A.run": [[7, 2]], memcpy: [], "acme.A.rare": [[1, 1]] });
});

test("two parts are compared by the samples, lines and lengths of both", () => {
  const functions = jvmprof.functions(DATA);
  const { data, sides } = new jvmprof.SampleTimes(TIMES).compared(DATA, functions, [[0, 6], [200, 400]], 10_000_000);
  assert.deepEqual(sides, [
    { period_ns: 10_000_000, duration_ns: 6e6, events: 2, total: 2 },
    { period_ns: 10_000_000, duration_ns: 200e6, events: 2, total: 2 },
  ]);
  assert.deepEqual([data.base, data.total], [2, 2]);
  const comparison = new jvmprof.Comparison(sides, "share", "samples");
  const { root } = jvmprof.buildTree(data, functions, { comparison });
  const [run] = root.children;
  const below = run.children.map(({ name, sides }) => [name, sides]);
  assert.deepEqual([run.sides, below], [[2, 2], [["memcpy", [1, 1]], ["acme.A.rare", [0, 1]]]]);
  const rows = jvmprof.withPartLines(jvmprof.functionRows(root), data);
  const lines = Object.fromEntries(rows.map(({ name, lines }) => [name, lines.map(({ line, attributed, base }) => [line, base.attributed, attributed])]));
  assert.deepEqual(lines, { "acme.A.run": [[7, 1, 1], [9, 1, 0]], memcpy: [], "acme.A.rare": [[1, 0, 1]] });
});

test("what is below a frame of a part takes the place of what was pruned there", () => {
  const whole = treeOf([["acme.A.run;native:memcpy", 3], ["acme.A.run;pruned:[pruned]", 2]]);
  // Five samples, of which the second and the fourth end in what was pruned.
  const samples = Buffer.from([1, 0, 1, 1, 1, 0, 1, 1, 1, 0]).toString("base64");
  const times = new jvmprof.SampleTimes({ nodes: [2, 3], lines: [7, 9], samples });
  const part = times.part(whole, jvmprof.functions(whole), [1, 4]);
  const more = treeOf([["acme.A.run;native:memcpy", 2], ["acme.A.run;acme.A.rare", 1]]);
  const target = new jvmprof.PathHashes(part).hex(1);
  const merged = jvmprof.withSubtrees(part, more, [target]);
  const { root } = jvmprof.buildTree(merged, jvmprof.functions(merged));
  assert.deepEqual(paths(root), { "acme.A.run": [3, 0], "acme.A.run;memcpy": [2, 2], "acme.A.run;acme.A.rare": [1, 1] });
  // The line of what was pruned isn't one of the frame above it.
  const rows = jvmprof.withPartLines(jvmprof.functionRows(root), merged);
  const lines = Object.fromEntries(rows.map(({ name, lines }) => [name, lines.map(({ line, attributed }) => [line, attributed])]));
  assert.deepEqual(lines, { "acme.A.run": [[7, 2]], memcpy: [], "acme.A.rare": [] });
});

test("a column is a second, or so many that all fit", () => {
  assert.deepEqual([3_000, 10_000, 900_000, 3_600_000].map(jvmprof.heatStep), [100, 1_000, 1_000, 4_000]);
});
