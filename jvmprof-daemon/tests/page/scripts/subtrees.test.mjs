import assert from "node:assert/strict";
import test from "node:test";
import { load, paths, treeOf } from "./load.mjs";

const jvmprof = load("tree/tree.js", "tree/activities.js", "tree/frames.js", "tree/subtrees.js", "tree/edits.js", "tree/rows.js", "tree/compare.js");

const built = (data) => jvmprof.buildTree(data, jvmprof.functions(data)).root;

test("the hash of a path is the one that the collector computes", () => {
  const data = treeOf([["java.lang.Thread.run;acme.Größe.total😀", 1]]);
  // As in `profile/call_tree/path_hash.rs`.
  data.functions.file[1] = data.strings.push("Thread.java") - 1;
  data.functions.module[1] = data.functions.module[2] = data.strings.push("jvm") - 1;
  const hashes = new jvmprof.PathHashes(data);
  assert.equal(hashes.hex(2), "8249cb6c9e044f9f");
  assert.equal(hashes.indexOf("8249cb6c9e044f9f"), 2);
  assert.equal(hashes.indexOf("0000000000000000"), -1);
});

test("a node of a drawn tree has a hash by which it is found again", () => {
  const stacks = [["main;a;x", 5], ["main;b;x", 3], ["main;b;b", 1]];
  const [root, again] = [built(treeOf(stacks)), built(treeOf(stacks.toReversed()))];
  const nodes = (of) => of.children.flatMap((node) => [node, ...nodes(node)]);
  const hashes = nodes(root).map(jvmprof.drawnHash);
  assert.equal(new Set(hashes).size, 6);
  for (const node of nodes(root)) {
    const found = jvmprof.drawnNode(again, jvmprof.drawnHash(node));
    assert.deepEqual(jvmprof.drawnHash(found), jvmprof.drawnHash(node));
    assert.deepEqual([found.name, found.parent.name, found.value], [node.name, node.parent.name, node.value]);
  }
  assert.equal(jvmprof.drawnNode(root, "0000000000000000"), null);
});

test("what was pruned below a node is replaced by what is there", () => {
  const whole = treeOf([["main;a;x", 5], ["main;a;pruned:[pruned]", 4], ["main;b", 3]]);
  const below = treeOf([["main;a;x", 5], ["main;a;y;z", 3], ["main;a;w", 1]]);
  const target = new jvmprof.PathHashes(whole).hex(2);
  const merged = jvmprof.withSubtrees(whole, below, [target]);
  assert.deepEqual(paths(built(merged)), {
    main: [12, 0],
    "main;a": [9, 0],
    "main;a;x": [5, 5],
    "main;a;y": [3, 0],
    "main;a;y;z": [3, 3],
    "main;a;w": [1, 1],
    "main;b": [3, 3],
  });
  merged.nodes.parent.forEach((parent, node) => assert.ok(parent < node || node === 0, "parents come first"));
  assert.deepEqual(paths(built(whole))["main;a;[pruned]"], [4, 4], "the old data stays as it was");
});

test("a node that was pruned itself comes back with its callers", () => {
  const whole = treeOf([["main;a", 5], ["main;pruned:[pruned]", 4]]);
  const below = treeOf([["main;rare;deep;leaf", 3]]);
  const target = new jvmprof.PathHashes(below).hex(3);
  const merged = jvmprof.withSubtrees(whole, below, [target]);
  assert.deepEqual(paths(built(merged)), {
    main: [9, 0],
    "main;a": [5, 5],
    "main;[pruned]": [1, 1],
    "main;rare": [3, 0],
    "main;rare;deep": [3, 0],
    "main;rare;deep;leaf": [3, 3],
  });
});

test("a node that lacked samples gets them from what was pruned beside it and its callers", () => {
  const whole = treeOf([["main;a;b", 10], ["main;a;pruned:[pruned]", 2], ["main;pruned:[pruned]", 5], ["other", 1]]);
  const below = treeOf([["main;a;b;c", 9], ["main;a;b;d", 6]]);
  const target = new jvmprof.PathHashes(whole).hex(3);
  const merged = jvmprof.withSubtrees(whole, below, [target]);
  assert.deepEqual(paths(built(merged)), {
    main: [17, 0],
    "main;a": [15, 0],
    "main;a;b": [15, 0],
    "main;a;b;c": [9, 9],
    "main;a;b;d": [6, 6],
    "main;[pruned]": [2, 2],
    other: [1, 1],
  });
});

/// A tree that is compared: `[[path, samples, samples of the base], ...]`.
function compared(stacks) {
  const data = treeOf(stacks);
  const base = treeOf(stacks.map(([path, , samples]) => [path, samples]));
  return { ...data, base: base.total, nodes: { ...data.nodes, base: base.nodes.total } };
}

/// Nodes of a compared tree as `{"a;b": [samples of the base, samples]}`, as they are drawn.
function sides(data) {
  const side = { period_ns: 1e7, duration_ns: 1e10, events: 100, total: 100 };
  const comparison = new jvmprof.Comparison([side, side], "share", "samples");
  const { root } = jvmprof.buildTree(data, jvmprof.functions(data), { comparison });
  const all = {};
  const visit = (node, path) => {
    const at = path ? `${path};${node.name}` : node.name;
    all[at] = node.sides;
    node.children.forEach((child) => visit(child, at));
  };
  root.children.forEach((child) => visit(child, ""));
  return all;
}

test("both sides of a comparison get what was pruned of them", () => {
  const whole = compared([["main;a;x", 5, 2], ["main;a;pruned:[pruned]", 4, 9], ["main;b", 3, 0]]);
  const below = compared([["main;a;x", 5, 2], ["main;a;y;z", 3, 1], ["main;a;new", 1, 0], ["main;a;gone", 0, 8]]);
  const merged = jvmprof.withSubtrees(whole, below, [new jvmprof.PathHashes(whole).hex(2)]);
  assert.deepEqual(sides(merged), {
    main: [11, 12],
    "main;a": [11, 9],
    "main;a;x": [2, 5],
    "main;a;y": [1, 3],
    "main;a;y;z": [1, 3],
    "main;a;new": [0, 1],
    "main;a;gone": [8, 0],
    "main;b": [0, 3],
  });
  assert.deepEqual(sides(whole)["main;a;[pruned]"], [9, 4], "the old data stays as it was");
});

test("a node of which one side alone has samples comes back with its callers", () => {
  const whole = compared([["main;a", 5, 5], ["main;pruned:[pruned]", 1, 7]]);
  const below = compared([["main;gone;leaf", 0, 6]]);
  const merged = jvmprof.withSubtrees(whole, below, [new jvmprof.PathHashes(below).hex(2)]);
  const expected = { main: [12, 6], "main;a": [5, 5], "main;[pruned]": [1, 1], "main;gone": [6, 0], "main;gone;leaf": [6, 0] };
  assert.deepEqual(sides(merged), expected);
});

test("a node that lacked samples of a side gets them from what was pruned of that side", () => {
  const whole = compared([["main;a;b", 10, 4], ["main;a;pruned:[pruned]", 2, 3], ["main;pruned:[pruned]", 5, 4]]);
  const below = compared([["main;a;b;c", 9, 9], ["main;a;b;d", 2, 0]]);
  const merged = jvmprof.withSubtrees(whole, below, [new jvmprof.PathHashes(whole).hex(3)]);
  assert.deepEqual(sides(merged), {
    main: [11, 17],
    "main;a": [9, 12],
    "main;a;b": [9, 11],
    "main;a;b;c": [9, 9],
    "main;a;b;d": [0, 2],
    "main;a;[pruned]": [0, 1],
    "main;[pruned]": [2, 5],
  });
});

test("what both sides were taken in is taken from what was pruned of each", () => {
  const [application, kernel] = [16, 21];
  const whole = compared([["main;pruned:[pruned]", 9, 7], ["main", 1, 1]]);
  whole.nodes.activity = [[], [application], [application, 5, kernel, 4]];
  whole.nodes.base_activity = [[], [application], [application, 3, kernel, 4]];
  const below = compared([["main;a", 3, 2], ["main;a;clear", 1, 4]]);
  below.nodes.activity = [[], [], [application], [kernel]];
  below.nodes.base_activity = [[], [], [application], [kernel]];
  const merged = jvmprof.withSubtrees(whole, below, [new jvmprof.PathHashes(below).hex(2)]);
  const rows = [[], [application], [application, 2, kernel, 3], [application], [kernel]];
  const baseRows = [[], [application], [application, 1, kernel, 0], [application], [kernel]];
  assert.deepEqual([merged.nodes.activity, merged.nodes.base_activity], [rows, baseRows]);
  assert.deepEqual([merged.nodes.total, merged.nodes.base], [[10, 10, 5, 4, 1], [8, 8, 1, 6, 4]]);
  const { main, base } = jvmprof.activitySamples(merged);
  assert.deepEqual([main[0], main[5], base[0], base[5]], [6, 4, 4, 4]);
});

test("nodes are asked for by the groups that they are in", () => {
  const data = treeOf([["label:shop;main;a", 5], ["label:stock;main", 3], ["main", 1]]);
  const hashes = new jvmprof.PathHashes(data);
  const groups = (...nodes) => jvmprof.groupsOf(data, hashes, nodes.map((node) => hashes.hex(node)));
  assert.deepEqual(groups(3, 2), ["shop"]);
  assert.deepEqual(groups(3, 5), ["shop", "stock"]);
  assert.deepEqual(groups(3, 6), [], "one of them has no group");
  assert.deepEqual(jvmprof.groupsOf(data, hashes, ["0000000000000000"]), []);
});
