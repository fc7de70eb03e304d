import assert from "node:assert/strict";
import test from "node:test";
import { load, treeOf } from "./load.mjs";

const jvmprof = load("tree/tree.js", "tree/activities.js", "tree/frames.js", "tree/edits.js", "tree/rows.js", "tree/compare.js");

const SIDE = { period_ns: 1e7, duration_ns: 1e10, events: 1000, total: 1000 };

const close = (value, expected) => assert.ok(Math.abs(value - expected) < 1e-3, `${value}, not ${expected}`);

test("shares are compared by the two-proportion test, as in profile/comparison.rs", () => {
  const shares = new jvmprof.Comparison([SIDE, { ...SIDE, events: 2000, total: 2000 }], "share", "samples");
  assert.equal(shares.beforeAfter([100, 300]), "10.0 % → 15.0 %");
  assert.equal(shares.changeText([100, 300]), "+5.00 %");
  close(shares.z([100, 300]), 3.798);
  close(shares.z([100, 200]), 0);
  close(shares.z([0, 9]), 0);
  assert.deepEqual([shares.isNoise([100, 300]), shares.isNoise([100, 210])], [false, true]);
  close(shares.drawn([100, 300]), 250);
});

test("rates are compared in time", () => {
  const times = new jvmprof.Comparison([SIDE, { ...SIDE, duration_ns: 2e10 }], "time", "samples");
  assert.equal(times.beforeAfter([100, 100]), "0.100 → 0.050 CPUs");
  assert.equal(times.changeText([100, 100]), "−0.050 CPUs");
  assert.equal(times.beforeAfter([0, 4_000_000]), "0 → 2k CPUs");
  close(times.z([100, 200]), 0);
  assert.equal(times.changeText([100, 200]), "0");
});

test("counts that are estimates have the weight of their events", () => {
  const of = (total) => ({ ...SIDE, events: 100, total });
  const bytes = new jvmprof.Comparison([of(1e8), of(1e8)], "share", "bytes");
  const samples = new jvmprof.Comparison([of(100), of(100)], "share", "samples");
  close(bytes.z([1e7, 3e7]), samples.z([10, 30]));
  const said = (comparison) => comparison.notice().join(" ");
  assert.ok(said(bytes).includes("estimates") && !said(samples).includes("estimates"));
});

test("nothing is more than a side without samples, as in profile/comparison.rs, and the page says so", () => {
  const none = { ...SIDE, events: 0, total: 0 };
  const [shares, times] = ["share", "time"].map((by) => new jvmprof.Comparison([none, SIDE], by, "samples"));
  assert.equal(shares.notice(), "There is nothing to compare: no samples before.");
  assert.deepEqual([shares.z([0, 1000]), shares.isNoise([0, 1000])], [0, true]);
  assert.ok(times.z([0, 1000]) > 3 && times.notice()[0].startsWith("Red is more"));
  const never = new jvmprof.Comparison([SIDE, { ...none, duration_ns: 0 }], "time", "samples");
  assert.deepEqual([never.z([1000, 0]), never.notice()], [0, "There is nothing to compare: no samples after."]);
});

test("a compared tree is as wide as both sides, with what only one of them has", () => {
  const data = treeOf([["main;stays", 30], ["main;new", 10]]);
  data.nodes.parent.push(1);
  data.nodes.function.push(data.functions.kind.push(5) - 1);
  data.functions.name.push(data.strings.push("gone") - 1);
  data.functions.file.push(0);
  data.functions.module.push(0);
  data.nodes.total.push(0);
  data.nodes.lines.push([]);
  data.nodes.base = [20, 20, 15, 0, 5];
  const sides = [{ ...SIDE, events: 20, total: 20 }, { ...SIDE, events: 40, total: 40 }];
  const comparison = new jvmprof.Comparison(sides, "share", "samples");
  const { root } = jvmprof.buildTree(data, jvmprof.functions(data), { comparison });
  const [main] = root.children;
  assert.deepEqual([main.value, main.sides, main.ownSides], [40, [20, 40], [0, 0]]);
  const children = main.children.map(({ name, value, sides }) => [name, value, sides]);
  assert.deepEqual(children, [["stays", 30, [15, 30]], ["new", 5, [0, 10]], ["gone", 5, [5, 0]]]);
  const gone = jvmprof.functionRows(root).find(({ name }) => name === "gone");
  assert.deepEqual([gone.total, gone.base], [0, { self: 5, attributed: 5, total: 5 }]);
  assert.equal(comparison.relative([5, 0]), -1);
});
