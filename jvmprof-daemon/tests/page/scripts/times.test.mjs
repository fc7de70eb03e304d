import assert from "node:assert/strict";
import test from "node:test";
import { load, paths, timesOf, treeOf } from "./load.mjs";

const jvmprof = load("tree/tree.js", "tree/activities.js", "tree/frames.js", "tree/subtrees.js", "tree/edits.js", "tree/rows.js", "tree/compare.js", "tree/times.js", "view/time_chart.js", "view/heatmap.js");

// As in `profile/call_tree/tests/times.rs`, of the nodes below.
const TIMES = timesOf({ nodes: [2, 1, 3], lines: [7, 9, 1] }, [[4, 1], [5, 0], [200, 2], [300, 0], [1_000, 0]]);
const DATA = treeOf([["acme.A.run;native:memcpy", 3], ["acme.A.run", 1], ["acme.A.run;acme.A.rare", 1]]);

test("times and ends of stacks are read", () => {
  const times = new jvmprof.SampleTimes(TIMES);
  const base64 = (bytes) => Buffer.from(bytes).toString("base64");
  const [steps, entries] = [[4, 1, 0xc3, 1, 100, 0xbc, 5], [1, 0, 2, 0, 0]].map(base64);
  assert.deepEqual(TIMES, { nodes: [2, -1, 2], lines: [7, 9, 1], steps, entries });
  assert.deepEqual(times.nodes, [2, 1, 3]);
  assert.deepEqual([...times.times], [4, 5, 200, 300, 1000]);
  assert.deepEqual([...times.entries], [1, 0, 2, 0, 0]);
  assert.deepEqual([...times.slots(500, 3)], [4, 0, 1]);
  assert.deepEqual([...times.slots(500, 2)], [4, 1], "what is behind the last one counts in it");
  assert.deepEqual([times.from(0), times.from(5), times.from(301), times.from(2000)], [0, 1, 4, 5]);
});

/// The lines of each function in a part (null: in all) after edits, as the rows of the table of what
/// is drawn have them.
function linesOf(times, whole, { part = null, edits = [], drawn = part ? times.part(whole, part) : whole }) {
  const chosen = edits.map(jvmprof.parseEdit);
  const functions = jvmprof.functions(drawn);
  const edited = jvmprof.editedData(drawn, functions, chosen);
  const shown = jvmprof.ofActivities(edited, jvmprof.chosenActivities(chosen), jvmprof.chosenThreadKinds(chosen));
  const { root } = jvmprof.buildTree(shown, functions, { isMerged: jvmprof.isMerged(chosen) });
  const rows = jvmprof.withPartLines(jvmprof.functionRows(root), times.lineCounts(whole, jvmprof.functions(whole), part, chosen));
  return Object.fromEntries(rows.map(({ name, lines }) => [name, lines.map(({ line, attributed }) => [line, attributed])]));
}

test("the columns of a recording's tree are unpacked", () => {
  // As `packed` in `profile/call_tree/tests.rs` makes them.
  const lines = [[], [7], [8], [], [9, 123_456, 10, 1_234]];
  const nodes = { parent: [0, 1, 1, 2, 4], total: [1, 1, 3, 1, 124_690], lines, how: [[], [2], [0, 2, 1, 1], [], []] };
  jvmprof.unpackTree({ nodes });
  assert.deepEqual(nodes, {
    parent: [0, 0, 1, 1, 0],
    total: [124_696, 5, 3, 1, 124_690],
    lines: [[], [7, 5], [8, 3], [], [9, 123_456, 10, 1_234]],
    how: [[], [2, 5], [0, 2, 1, 1], [], []],
  });
});

test("a part has its own tree and lines", () => {
  const times = new jvmprof.SampleTimes(TIMES);
  const part = times.part(DATA, [5, 301]);
  const { root } = jvmprof.buildTree(part, jvmprof.functions(DATA));
  assert.deepEqual(paths(root), { "acme.A.run": [3, 0], "acme.A.run;memcpy": [2, 2], "acme.A.run;acme.A.rare": [1, 1] });
  assert.deepEqual(linesOf(times, DATA, { part: [5, 301] }), { "acme.A.run": [[7, 2]], memcpy: [], "acme.A.rare": [[1, 1]] });
});

test("two parts are compared by the samples, lines and lengths of both", () => {
  const functions = jvmprof.functions(DATA);
  const times = new jvmprof.SampleTimes(TIMES);
  const parts = [[0, 6], [200, 400]];
  const { data, sides } = times.compared(DATA, parts, 10_000_000);
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
  const [before, after] = parts.map((part) => times.lineCounts(DATA, functions, part));
  const rows = jvmprof.withPartLines(jvmprof.functionRows(root), after, before);
  const lines = Object.fromEntries(rows.map(({ name, lines }) => [name, lines.map(({ line, attributed, base }) => [line, base.attributed, attributed])]));
  assert.deepEqual(lines, { "acme.A.run": [[7, 1, 1], [9, 1, 0]], memcpy: [], "acme.A.rare": [[1, 0, 1]] });
});

test("what is below a frame of a part takes the place of what was pruned there", () => {
  const whole = treeOf([["acme.A.run;native:memcpy", 3], ["acme.A.run;pruned:[pruned]", 2]]);
  // Five samples, of which the second and the fourth end in what was pruned.
  const samples = [[1, 0], [2, 1], [3, 0], [4, 1], [5, 0]];
  const times = new jvmprof.SampleTimes(timesOf({ nodes: [2, 3], lines: [7, 9] }, samples));
  const part = times.part(whole, [1, 4]);
  const more = treeOf([["acme.A.run;native:memcpy", 2], ["acme.A.run;acme.A.rare", 1]]);
  const target = new jvmprof.PathHashes(part).hex(1);
  const merged = jvmprof.withSubtrees(part, more, [target]);
  const { root } = jvmprof.buildTree(merged, jvmprof.functions(merged));
  assert.deepEqual(paths(root), { "acme.A.run": [3, 0], "acme.A.run;memcpy": [2, 2], "acme.A.run;acme.A.rare": [1, 1] });
  // The line of what was pruned isn't one of the frame above it.
  const lines = linesOf(times, whole, { part: [1, 4], drawn: merged });
  assert.deepEqual(lines, { "acme.A.run": [[7, 2]], memcpy: [], "acme.A.rare": [] });
});

const [APPLICATION, KERNEL] = [0, 5];
const [JAVA, VIRTUAL] = [1 << 4, 2 << 4];

/// Samples of a method of its own and of the kernel for it, in two kinds of threads, and one of
/// another method, whose line isn't known.
function ofKernel() {
  const whole = treeOf([["acme.A.run", 2], ["acme.A.run;kernel:clear", 3], ["acme.B.idle", 1]]);
  whole.nodes.activity = [[], [JAVA + APPLICATION], [JAVA + KERNEL, 2, VIRTUAL + KERNEL, 1], [JAVA + APPLICATION]];
  const activities = [JAVA + APPLICATION, JAVA + KERNEL, VIRTUAL + KERNEL, JAVA + APPLICATION];
  const samples = [[1, 0], [2, 1], [3, 2], [4, 1], [5, 3], [6, 0]];
  const times = timesOf({ nodes: [1, 2, 2, 3], lines: [60, 57, 58, 0], activities }, samples);
  return [new jvmprof.SampleTimes(times), whole];
}

test("lines are those of the samples that edits leave", () => {
  const [times, whole] = ofKernel();
  const lines = (...edits) => linesOf(times, whole, { edits });
  assert.deepEqual(lines(), { "acme.A.run": [[60, 2], [57, 2], [58, 1]], clear: [], "acme.B.idle": [] });
  assert.deepEqual(lines("activity:application"), { "acme.A.run": [[60, 2]], "acme.B.idle": [] });
  assert.deepEqual(lines("activity:kernel"), { "acme.A.run": [[57, 2], [58, 1]], clear: [] });
  assert.deepEqual(lines("activity:application", "activity:kernel", "thread:java")["acme.A.run"], [[60, 2], [57, 2]]);
  assert.deepEqual(lines("thread:virtual"), { "acme.A.run": [[58, 1]], clear: [] });
  assert.deepEqual(lines("hide:clear"), { "acme.A.run": [[60, 2]], "acme.B.idle": [] });
  assert.deepEqual(lines("only:clear", "thread:java"), { "acme.A.run": [[57, 2]], clear: [] });
  // In a part of the time, too: here the samples at 2 and 3 ms.
  const inPart = (...edits) => linesOf(times, whole, { part: [2, 4], edits })["acme.A.run"];
  assert.deepEqual(inPart(), [[57, 1], [58, 1]]);
  assert.deepEqual(inPart("thread:java"), [[57, 1]]);
  assert.equal(inPart("activity:application"), undefined);
});

test("a function has no lines of a part of its samples that isn't known by time", () => {
  const [times, whole] = ofKernel();
  // One more than have a time, and the time of what is merged into its caller.
  whole.nodes.total = whole.nodes.total.map((samples, node) => samples + (node < 2 ? 1 : 0));
  assert.deepEqual(linesOf(times, whole, { edits: ["thread:virtual"] })["acme.A.run"], [[58, 1]]);
  assert.deepEqual(linesOf(times, whole, { edits: ["hide:clear"] })["acme.A.run"], []);
  const calls = treeOf([["acme.A.run;acme.B.step", 2], ["acme.A.run", 1], ["acme.C.idle", 1]]);
  const samples = [[1, 0], [2, 0], [3, 1], [4, 2]];
  const ofCalls = new jvmprof.SampleTimes(timesOf({ nodes: [2, 1, 3], lines: [8, 9, 3] }, samples));
  assert.deepEqual(linesOf(ofCalls, calls, { edits: ["merge:acme.B.step"] }), { "acme.A.run": [], "acme.C.idle": [[3, 1]] });
});

test("rows with all of their samples keep the lines of the whole data", () => {
  const [times, whole] = ofKernel();
  const line = { line: 60, self: 2, attributed: 5, total: 5, base: null };
  const row = { fn: jvmprof.functions(whole)[1], attributed: 5, lines: [line] };
  assert.deepEqual(jvmprof.withPartLines([row], times.lineCounts(whole, jvmprof.functions(whole)))[0].lines, [line]);
});

test("lines of a part are compared by what is attributed to them, as their total isn't known", () => {
  const row = (total) => ({ attributed: 1, total: 1000, lines: [{ line: 7, attributed: 1, total }] });
  assert.deepEqual([null, 7].map((total) => jvmprof.listWeight(row(total), "total")), ["attributed", "total"]);
  assert.equal(jvmprof.listWeight({ ...row(1), lines: [] }, "self"), "total");
});

test("a column is a second, or so many that all fit", () => {
  assert.deepEqual([3_000, 10_000, 900_000, 3_600_000].map(jvmprof.heatStep), [100, 1_000, 1_000, 4_000]);
});
