import assert from "node:assert/strict";
import test from "node:test";
import { load, paths, timesOf, treeOf } from "./load.mjs";

const jvmprof = load("tree/tree.js", "tree/activities.js", "tree/frames.js", "tree/subtrees.js", "tree/edits.js", "tree/rows.js", "tree/times.js");

const [APPLICATION, GC, KERNEL, NATIVE] = [0, 1, 5, 6];
/// The nodes: all, run, read, start, mark.
function data() {
  const data = treeOf([["acme.A.run", 9], ["acme.A.run;kernel:read", 5], ["native:start", 7], ["native:start;native:mark", 2]]);
  data.nodes.activity = [[], [APPLICATION], [KERNEL], [GC, 3, NATIVE, 4], [GC]];
  return data;
}
const drawn = (data) => paths(jvmprof.buildTree(data, jvmprof.functions(data)).root);
const edits = (...texts) => texts.map(jvmprof.parseEdit);

test("samples are summed up by what they were taken in", () => {
  assert.deepEqual(jvmprof.activitySamples(data()).main, [9, 5, 0, 0, 0, 5, 4, 0, 0]);
  assert.equal(jvmprof.activitySamples(treeOf([["acme.A.run", 9]])), null);
});

test("data of a part says what all of it was taken in", () => {
  const part = jvmprof.ofActivities(data(), new Set([GC]));
  part.unfiltered = [[(1 << 4) + APPLICATION, [9, 2]], [(3 << 4) + GC, [5, 0]], [8, [1, 4]]];
  assert.deepEqual(jvmprof.activitySamples(part), { main: [9, 5, 0, 0, 0, 0, 0, 0, 1], base: null });
  assert.deepEqual(jvmprof.threadKindSamples(part).main, [0, 9, 0, 5, 0, 0, 0]);
  part.nodes.base = part.nodes.total.map(() => 0);
  assert.deepEqual(jvmprof.activitySamples(part).base, [2, 0, 0, 0, 0, 0, 0, 0, 4]);
  // Nothing is left of it.
  const none = { ...treeOf([]), unfiltered: [[8, [3, 0]]] };
  assert.deepEqual(jvmprof.activitySamples(none).main, [0, 0, 0, 0, 0, 0, 0, 0, 3]);
});

test("a part of it is shown alone, and parts together", () => {
  const chosen = (...texts) => jvmprof.chosenActivities(edits(...texts));
  assert.deepEqual(drawn(jvmprof.ofActivities(data(), chosen("activity:gc"))), { start: [5, 3], "start;mark": [2, 2] });
  const two = jvmprof.ofActivities(data(), chosen("activity:gc", "activity:kernel"));
  assert.deepEqual(drawn(two), { "acme.A.run": [5, 0], "acme.A.run;read": [5, 5], start: [5, 3], "start;mark": [2, 2] });
  assert.deepEqual(jvmprof.activitySamples(two).main, [0, 5, 0, 0, 0, 5, 0, 0, 0]);
  assert.equal(chosen("hide:acme.A.run"), null);
  assert.equal(jvmprof.parseEdit("activity:sleeping"), null, "an address may say anything");
});

test("a kind of threads is shown alone, and with an activity what both have", () => {
  const [java, virtual] = [1, 2].map((kind) => kind << 4);
  const tree = data();
  tree.nodes.activity = [[], [java + APPLICATION, 8, virtual + APPLICATION, 1], [virtual + KERNEL], [(3 << 4) + GC, 3, (6 << 4) + NATIVE, 4], [8]];
  assert.deepEqual(jvmprof.activitySamples(tree).main, [9, 3, 0, 0, 0, 5, 4, 0, 2]);
  // Samples of other processes are of no kind.
  assert.deepEqual(jvmprof.threadKindSamples(tree).main, [0, 8, 6, 3, 0, 0, 4]);
  const chosen = edits("thread:virtual", "thread:gc");
  assert.deepEqual(chosen.map(({ title }) => title), ["Only threads: virtual", "Only threads: gc"]);
  const kinds = jvmprof.chosenThreadKinds(chosen);
  const both = { "acme.A.run": [6, 1], "acme.A.run;read": [5, 5], start: [3, 3] };
  assert.deepEqual(drawn(jvmprof.ofActivities(tree, null, kinds)), both);
  const kernel = jvmprof.chosenActivities(edits("activity:kernel"));
  assert.deepEqual(drawn(jvmprof.ofActivities(tree, kernel, kinds)), { "acme.A.run": [5, 0], "acme.A.run;read": [5, 5] });
  const unknown = jvmprof.chosenThreadKinds(edits("thread:unknown"));
  assert.equal(jvmprof.ofActivities(tree, null, unknown).total, 0);
  assert.equal(jvmprof.parseEdit("thread:main"), null);
});

/// Of the process A and another one that is no JVM.
function processes() {
  const tree = treeOf([["label:A;acme.A.run", 9], ["label:A;acme.A.run;kernel:read", 5], ["label:A;native:mark", 4], ["label:cat;kernel:read", 2]]);
  const [java, virtual, gc] = [1, 2, 3].map((kind) => kind << 4);
  // The nodes: all, A, run, read, mark, cat, read.
  tree.nodes.activity = [[], [], [java + APPLICATION, 6, virtual + APPLICATION, 3], [virtual + KERNEL], [gc + GC], [], [8]];
  tree.nodes.lines = [[], [], [57, 9], [], [], [], []];
  return tree;
}

test("kinds of threads are groups in place of processes, and no sample is lost", () => {
  const tree = processes();
  const { data: grouped, nodeOf } = jvmprof.byThreadKind(tree);
  assert.deepEqual(drawn(grouped), {
    virtual: [8, 0],
    "virtual;acme.A.run": [8, 3],
    "virtual;acme.A.run;read": [5, 5],
    java: [6, 0],
    "java;acme.A.run": [6, 6],
    gc: [4, 0],
    "gc;mark": [4, 4],
    "(no thread_kind)": [2, 0],
    "(no thread_kind);read": [2, 2],
  });
  assert.deepEqual(jvmprof.activitySamples(grouped), jvmprof.activitySamples(tree));
  assert.deepEqual(jvmprof.threadKindSamples(grouped), jvmprof.threadKindSamples(tree));
  const name = (node) => grouped.strings[grouped.functions.name[grouped.nodes.function[node]]];
  const above = (node) => name(grouped.nodes.parent[node]);
  const moved = [nodeOf(2, 1 << 4), nodeOf(2, 2 << 4), nodeOf(6, 8)];
  assert.deepEqual(moved.map((node) => [above(node), name(node)]), [["java", "acme.A.run"], ["virtual", "acme.A.run"], ["(no thread_kind)", "read"]]);
  const lines = grouped.nodes.lines.filter((of) => of.length);
  assert.deepEqual(lines, [], "how a method's lines divide among kinds isn't known");
  assert.equal(jvmprof.byThreadKind(grouped).data.nodes.parent.length, grouped.nodes.parent.length, "groups don't nest");
});

/// Of three processes of two programs, the last one no JVM.
function ofProcesses() {
  const tree = treeOf([["label:Shop;acme.A.run", 9], ["label:Shop;acme.A.run;kernel:read", 5], ["label:Shop;acme.A.idle", 1], ["label:cat;kernel:read", 2]]);
  const [java, first, second, cat] = [1 << 4, 1 << 8, 2 << 8, 3 << 8];
  // The nodes: all, Shop, run, read, idle, cat, read.
  tree.nodes.activity = [[], [], [first + java, 6, second + java, 3], [second + java + KERNEL], [first + java], [], [cat + 8]];
  tree.nodes.lines = [[], [], [57, 9], [], [60, 1], [], []];
  return tree;
}
const PROCESSES = ["Shop (7)", "Shop (8)", "cat (9)"];

test("processes are groups in place of programs, and no sample is lost", () => {
  const tree = ofProcesses();
  assert.deepEqual(jvmprof.activitySamples(tree).main, [10, 0, 0, 0, 0, 5, 0, 0, 2]);
  assert.deepEqual(jvmprof.threadKindSamples(tree).main, [0, 15, 0, 0, 0, 0, 0], "beside the process");
  const { data: grouped, nodeOf } = jvmprof.byProcess(tree, PROCESSES);
  assert.deepEqual(drawn(grouped), {
    "Shop (8)": [8, 0],
    "Shop (8);acme.A.run": [8, 3],
    "Shop (8);acme.A.run;read": [5, 5],
    "Shop (7)": [7, 0],
    "Shop (7);acme.A.run": [6, 6],
    "Shop (7);acme.A.idle": [1, 1],
    "cat (9)": [2, 0],
    "cat (9);read": [2, 2],
  });
  assert.deepEqual(jvmprof.activitySamples(grouped), jvmprof.activitySamples(tree));
  assert.deepEqual(grouped.nodes.lines.filter((of) => of.length), [[60, 1]], "how run's divide isn't known");
  const name = (node) => grouped.strings[grouped.functions.name[grouped.nodes.function[node]]];
  const moved = [nodeOf(2, (1 << 8) + 16), nodeOf(2, (2 << 8) + 16), nodeOf(6, (3 << 8) + 8)];
  assert.deepEqual(moved.map((node) => [name(grouped.nodes.parent[node]), name(node)]), [["Shop (7)", "acme.A.run"], ["Shop (8)", "acme.A.run"], ["cat (9)", "read"]]);
  const kernel = jvmprof.ofActivities(grouped, jvmprof.chosenActivities(edits("activity:kernel")));
  assert.deepEqual(drawn(kernel), { "Shop (8)": [5, 0], "Shop (8);acme.A.run": [5, 0], "Shop (8);acme.A.run;read": [5, 5] });
});

test("where nothing is known of JVMs, samples and their times have processes all the same", () => {
  const tree = treeOf([["class:byte[]", 9], ["class:int[]", 1]]);
  assert.equal(jvmprof.hasProcesses(tree), false);
  tree.nodes.process = [[], [(1 << 8) + 8, 7, (2 << 8) + 8, 2], [8]];
  assert.equal(jvmprof.hasProcesses(tree), true);
  const { data: grouped, nodeOf } = jvmprof.byProcess(tree, PROCESSES);
  assert.deepEqual(drawn(grouped), {
    "Shop (7)": [7, 0],
    "Shop (7);byte[]": [7, 7],
    "Shop (8)": [2, 0],
    "Shop (8);byte[]": [2, 2],
    "(no process)": [1, 0],
    "(no process);int[]": [1, 1],
  });
  assert.equal(jvmprof.activitySamples(grouped), null);
  const processes = [(1 << 8) + 8, (2 << 8) + 8];
  const times = new jvmprof.SampleTimes(timesOf({ nodes: [1, 1], lines: [0, 0], processes }, [[4, 0], [5, 1]]));
  const part = times.movedTo(nodeOf).part(grouped, [5, 6]);
  assert.deepEqual(drawn(part), { "Shop (8)": [1, 0], "Shop (8);byte[]": [1, 1] });
  assert.equal(jvmprof.activitySamples(part), null, "nor is it of a part");
});

test("of more nodes than are drawn the lightest of all groups are cut, and no sample is lost", () => {
  const tree = treeOf([["acme.A.run", 20], ["acme.A.run;acme.B.step", 4], ["acme.A.run;acme.B.step;acme.C.leaf", 3], ["acme.A.run;acme.D.rare", 1]]);
  const [java, first, second] = [1 << 4, 1 << 8, 2 << 8];
  tree.nodes.activity = [[], [first + java, 12, second + java, 8], [second + java], [first + java], [first + java + KERNEL]];
  const { data: grouped, nodeOf } = jvmprof.byProcess(tree, PROCESSES, 4);
  // Of the first: run with 16 samples, step and its leaf with 3, rare with 1; of the second: run with
  // 12, step with 4.
  assert.deepEqual(drawn(grouped), {
    "Shop (7)": [16, 0],
    "Shop (7);acme.A.run": [16, 12],
    "Shop (7);acme.A.run;[pruned]": [4, 4],
    "Shop (8)": [12, 0],
    "Shop (8);acme.A.run": [12, 8],
    "Shop (8);acme.A.run;[pruned]": [4, 4],
  });
  assert.deepEqual(jvmprof.activitySamples(grouped).main, [27, 0, 0, 0, 0, 1, 0, 0, 0]);
  assert.equal(jvmprof.prunedSamples(grouped), 8);
  const pruned = [nodeOf(3, first + java), nodeOf(4, first + java + KERNEL)];
  assert.equal(pruned[0], pruned[1]);
  assert.equal(jvmprof.KINDS[grouped.functions.kind[grouped.nodes.function[pruned[0]]]], "pruned");
});

test("both sides of a comparison are grouped by kind of thread", () => {
  const tree = processes();
  tree.nodes.base = [3, 3, 1, 0, 2, 0, 0];
  tree.base = 3;
  tree.nodes.base_activity = [[], [], [1 << 4], [], [(3 << 4) + GC], [], []];
  const { nodes, strings, functions } = jvmprof.byThreadKind(tree).data;
  const sides = nodes.parent.map((parent, node) => [strings[functions.name[nodes.function[node]]], nodes.base[node], nodes.total[node]]);
  assert.deepEqual(sides.filter((_, node) => nodes.parent[node] === 0), [["all", 3, 20], ["java", 1, 6], ["virtual", 0, 8], ["gc", 2, 4], ["(no thread_kind)", 0, 2]]);
  assert.deepEqual(nodes.base_activity.flat(), [16, 1, 16 * 3 + GC, 2]);
});

test("a recording without kinds of threads has no such groups", () => {
  assert.deepEqual([data(), treeOf([["acme.A.run", 9]])].map(jvmprof.hasThreadKinds), [false, false]);
  assert.equal(jvmprof.hasThreadKinds(processes()), true);
});

test("a timeline of kinds of threads has their samples alone, by activity", () => {
  const [java, gc] = [1 << 4, 3 << 4];
  const rows = [{ number: java + KERNEL, samples: [1, 2] }, { number: gc + GC, samples: [4, 0] }, { number: java + GC, samples: [0, 0.5] }, { number: 8, samples: [7, 7] }];
  const { samples, activities } = jvmprof.threadTimeline(rows, new Set([1]), 2);
  assert.deepEqual(samples, [1, 2.5]);
  assert.deepEqual([activities[KERNEL], activities[GC], activities[8]], [[1, 2], [0, 0.5], [0, 0]]);
  assert.deepEqual(jvmprof.threadTimeline(rows, new Set([1, 3]), 2).samples, [5, 2.5]);
  assert.deepEqual(jvmprof.threadTimeline([], new Set([0]), 2).samples, [0, 0]);
});

test("the times of samples are those of the nodes that theirs became", () => {
  const tree = processes();
  const columns = { nodes: [2, 2], lines: [0, 0], activities: [1 << 4, 2 << 4] };
  const times = new jvmprof.SampleTimes(timesOf(columns, [[4, 0], [5, 1]]));
  const { data: grouped, nodeOf } = jvmprof.byThreadKind(tree);
  const part = times.movedTo(nodeOf).part(grouped, [5, 6]);
  assert.deepEqual(drawn(part), { virtual: [1, 0], "virtual;acme.A.run": [1, 1] });
});

test("shares are those of what other edits leave", () => {
  const tree = data();
  const left = jvmprof.editedData(tree, jvmprof.functions(tree), edits("hide:read", "activity:gc"));
  assert.deepEqual(jvmprof.activitySamples(left).main, [9, 5, 0, 0, 0, 0, 4, 0, 0]);
});

test("a part of a recording has its own", () => {
  const tree = data();
  // At 4, 5, 6 ms: run, start (GC), start (native).
  const activities = [APPLICATION, (3 << 4) + GC, (6 << 4) + NATIVE];
  const times = new jvmprof.SampleTimes(timesOf({ nodes: [1, 3, 3], lines: [0, 0, 0], activities }, [[4, 0], [5, 1], [6, 2]]));
  const part = times.part(tree, [5, 7]);
  assert.deepEqual(jvmprof.activitySamples(part).main, [0, 1, 0, 0, 0, 0, 1, 0, 0]);
  assert.deepEqual([...times.slots(2, 4, new Set([GC]))], [0, 0, 1, 0]);
  assert.deepEqual([...times.slots(2, 4, null, new Set([6]))], [0, 0, 0, 1]);
});

test("what is fetched below a cut node takes its part from it", () => {
  const cut = treeOf([["native:start;pruned:[pruned]", 9], ["native:start", 1]]);
  cut.nodes.activity = [[], [NATIVE], [GC, 4, NATIVE, 5]];
  const more = treeOf([["native:start;native:mark", 3], ["native:start;native:mark;native:copy", 1]]);
  more.nodes.activity = [[], [], [GC], [NATIVE]];
  const hash = "0123456789abcdef";
  const whole = jvmprof.withSubtrees(cut, more, [hash]);
  assert.deepEqual(jvmprof.activitySamples(whole).main, [0, 4, 0, 0, 0, 0, 6, 0, 0]);
  assert.deepEqual(whole.nodes.activity, [[], [NATIVE], [GC, 1, NATIVE, 4], [GC], [NATIVE]]);
});

test("what is fetched of other processes is theirs", () => {
  const tree = treeOf([["acme.A.run", 9], ["native:cat", 7], ["native:cat;pruned:[pruned]", 7]]);
  tree.nodes.activity = [[], [APPLICATION], [], [8]];
  const more = treeOf([["native:cat", 7], ["native:cat;native:read", 7]]);
  const cat = new jvmprof.PathHashes(tree).hex(2);
  const whole = jvmprof.withSubtrees(tree, more, [cat]);
  assert.deepEqual(jvmprof.activitySamples(whole).main, [9, 0, 0, 0, 0, 0, 0, 0, 7]);
});
