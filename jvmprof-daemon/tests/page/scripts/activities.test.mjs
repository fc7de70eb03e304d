import assert from "node:assert/strict";
import test from "node:test";
import { load, paths, treeOf } from "./load.mjs";

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

test("shares are those of what other edits leave", () => {
  const tree = data();
  const left = jvmprof.editedData(tree, jvmprof.functions(tree), edits("hide:read", "activity:gc"));
  assert.deepEqual(jvmprof.activitySamples(left).main, [9, 5, 0, 0, 0, 0, 4, 0, 0]);
});

test("a part of a recording has its own", () => {
  const tree = data();
  // At 4, 5, 6 ms: run, start (GC), start (native).
  const samples = Buffer.from([4, 0, 1, 1, 1, 2]).toString("base64");
  const activities = [APPLICATION, (3 << 4) + GC, (6 << 4) + NATIVE];
  const times = new jvmprof.SampleTimes({ nodes: [1, 3, 3], lines: [0, 0, 0], activities, samples });
  const part = times.part(tree, jvmprof.functions(tree), [5, 7]);
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
