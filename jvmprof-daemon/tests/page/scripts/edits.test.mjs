import assert from "node:assert/strict";
import test from "node:test";
import { load, paths, treeOf } from "./load.mjs";

const jvmprof = load("tree/tree.js", "tree/activities.js", "tree/frames.js", "tree/edits.js", "tree/rows.js", "tree/compare.js", "view/edit_chips.js");

const DATA = treeOf([
  ["main;acme.Shop.serve;acme.Order.total", 4],
  ["main;acme.Shop.serve;acme.Cart.add;acme.Order.total", 3],
  ["main;acme.Shop.serve", 2],
  ["main;native:gc", 5],
]);

function edited(...texts) {
  const functions = jvmprof.functions(DATA);
  const edits = texts.map(jvmprof.parseEdit);
  const data = jvmprof.editedData(DATA, functions, edits);
  return paths(jvmprof.buildTree(data, functions, { isMerged: jvmprof.isMerged(edits) }).root);
}

test("only stacks with a function, or without it", () => {
  assert.deepEqual(edited("only:acme.Cart.add"), {
    main: [3, 0],
    "main;acme.Shop.serve": [3, 0],
    "main;acme.Shop.serve;acme.Cart.add": [3, 0],
    "main;acme.Shop.serve;acme.Cart.add;acme.Order.total": [3, 3],
  });
  assert.deepEqual(edited("hide:acme.Order.total"), { main: [7, 0], "main;gc": [5, 5], "main;acme.Shop.serve": [2, 2] });
  assert.deepEqual(edited("only:acme.Order.total", "hide:acme.Cart.add")["main;acme.Shop.serve"], [4, 0]);
});

test("a class or a package is all that begins with its name", () => {
  assert.deepEqual(edited("only:acme.Order.*").main, [7, 0]);
  assert.deepEqual(edited("hide:acme.*"), { main: [5, 0], "main;gc": [5, 5] });
});

test("a merged frame's time is its caller's", () => {
  assert.deepEqual(edited("merge:acme.Order.total"), {
    main: [14, 0],
    "main;acme.Shop.serve": [9, 6],
    "main;acme.Shop.serve;acme.Cart.add": [3, 3],
    "main;gc": [5, 5],
  });
});

test("an expanded package leaves nothing out", () => {
  const edits = ["expand:java.util.*"].map(jvmprof.parseEdit);
  assert.equal(edits[0].title, "java.util.* expanded");
  assert.equal(jvmprof.editedData(DATA, jvmprof.functions(DATA), edits), DATA);
  assert.deepEqual([jvmprof.isWhole(edits), jvmprof.isWhole([jvmprof.parseEdit("hide:acme.*")])], [true, false]);
  assert.deepEqual([jvmprof.isMerged(edits), jvmprof.isExpanded([])], [null, null]);
});

test("an expanded package has an effect in the application's view alone", () => {
  const [expand, hide] = ["expand:java.util.*", "hide:acme.*"].map(jvmprof.parseEdit);
  assert.deepEqual(Object.keys(jvmprof.FRAMES).map((frames) => jvmprof.hasEffect(expand, frames)), [false, false, true]);
  assert.equal(jvmprof.hasEffect(hide, "all"), true);
});

test("a kind of thread has an effect where it is known of samples", () => {
  for (const [text, known] of [["thread:gc", "hasThreadKinds"], ["activity:gc", "hasActivities"]]) {
    const edit = jvmprof.parseEdit(text);
    assert.deepEqual([true, false].map((isKnown) => jvmprof.hasEffect(edit, "all", { [known]: isKnown })), [true, false]);
  }
  const ofWaits = { hasThreadKinds: true, hasActivities: false };
  assert.deepEqual(["thread:gc", "activity:gc"].map((text) => jvmprof.hasEffect(jvmprof.parseEdit(text), "all", ofWaits)), [true, false]);
});

/// Waits of a pool's threads, of which 90 of 100 are idle: as a recording has them, and as pprof.
const waits = (kind) =>
  treeOf([
    [`java.lang.Thread.run;acme.Pool.getTask;${kind}:[wait: park, idle: acme.Queue]`, 80],
    [`java.lang.Thread.run;${kind}:[wait: poll, idle]`, 10],
    [`java.lang.Thread.run;acme.Pool.getTask;acme.Order.total;${kind}:[wait: park: acme.Lock]`, 10],
  ]);

function withoutIdle(data, ...texts) {
  const functions = jvmprof.functions(data);
  const { data: left, idle } = jvmprof.withoutIdle(data, functions, texts.map(jvmprof.parseEdit));
  return { left, idle, drawn: paths(jvmprof.buildTree(left, functions).root) };
}

test("idle waits are left out, and counted, until an edit shows them", () => {
  for (const kind of ["marker", "native"]) {
    const data = waits(kind);
    const { left, idle, drawn } = withoutIdle(data);
    assert.deepEqual(idle, { counts: [0, 90], isHidden: true }, kind);
    assert.equal(left.total, 10);
    assert.deepEqual(drawn, {
      "java.lang.Thread.run": [10, 0],
      "java.lang.Thread.run;acme.Pool.getTask": [10, 0],
      "java.lang.Thread.run;acme.Pool.getTask;acme.Order.total": [10, 0],
      "java.lang.Thread.run;acme.Pool.getTask;acme.Order.total;[wait: park: acme.Lock]": [10, 10],
    });
    const shown = withoutIdle(data, jvmprof.IDLE_SHOWN);
    assert.deepEqual([shown.left, shown.idle], [data, { counts: [0, 90], isHidden: false }]);
  }
  assert.deepEqual(withoutIdle(DATA), { left: DATA, idle: null, drawn: edited() });
});

test("nothing but the leaf of an idle wait is left out", () => {
  const names = ["[wait: park]", "[wait: park: a, idle]", "[wait: park: [wait: park, idle]]", "x[wait: park, idle]", "[wait: park, idleness]"];
  const all = [...names.map((name) => `marker:${name}`), "java:[wait: park, idle]", "native:[wait: sleep, idle]"];
  const data = treeOf(all.map((name) => [name, 1]));
  // Code of a file may be called anything.
  data.functions.module[all.length] = data.strings.push("libevil.so") - 1;
  assert.equal(withoutIdle(data).idle, null);
  data.functions.module[all.length] = 0;
  assert.deepEqual(withoutIdle(data).idle.counts, [0, 1]);
});

test("both sides of a comparison are shown without their idle waits", () => {
  const data = waits("native");
  data.base = 50;
  // The nodes: all, run, getTask, its wait, the other idle one, total, its wait.
  data.nodes.base = [50, 50, 45, 5, 5, 40, 40];
  const { left, idle } = withoutIdle(data);
  assert.deepEqual(idle.counts, [10, 90]);
  assert.deepEqual([left.base, left.total], [40, 10]);
});

test("a chip says how much is idle, as the edits leave it", () => {
  const hours = { number: (value) => `${value} h` };
  const said = (...of) => jvmprof.idleChip(...of)?.title;
  assert.equal(said({ counts: [0, 90], isHidden: true }, 100, hours, null), "Without 90 h idle (90.0 %)");
  assert.equal(said({ counts: [0, 90], isHidden: false }, 100, hours, null), "With 90 h idle (90.0 %)");
  const sides = [50, 100].map((total) => ({ period_ns: 0, duration_ns: 1e9, events: total, total }));
  const comparison = new jvmprof.Comparison(sides, "share", "waiting_time");
  assert.equal(said({ counts: [10, 90], isHidden: true }, 100, hours, comparison), "Without 20.0 % → 90.0 % idle");
  assert.equal(jvmprof.idleChip(null, 100, hours, null), null);
});

test("the edit that shows idle waits leaves nothing out, and has an effect where there are some", () => {
  const edit = jvmprof.parseEdit(jvmprof.IDLE_SHOWN);
  assert.equal(jvmprof.isWhole([edit]), true);
  assert.deepEqual([true, false].map((hasIdle) => jvmprof.hasEffect(edit, "all", { hasIdle })), [true, false]);
  assert.equal(jvmprof.parseEdit("idle:hidden"), null);
});

test("rows attribute what is native to the nearest Java caller", () => {
  const data = treeOf([["acme.Shop.serve;native:memcpy", 4], ["acme.Shop.serve", 1], ["native:gc", 2]]);
  const { root } = jvmprof.buildTree(data, jvmprof.functions(data));
  const rows = jvmprof.functionRows(root).map(({ name, self, attributed, total }) => [name, self, attributed, total]);
  assert.deepEqual(rows.sort(), [["acme.Shop.serve", 1, 5, 5], ["gc", 2, 2, 2], ["memcpy", 4, 0, 4]]);
});

test("the collector leaves out samples by the same edits, as far as it knows what these were taken in", () => {
  const edits = ["only:acme.*", "merge:acme.Cart.add", "activity:gc", "expand:java.util.*", "hide:main", "thread:gc"].map(jvmprof.parseEdit);
  const texts = (has) => jvmprof.filters(edits, has).map(({ text }) => text);
  assert.deepEqual(texts({ hasActivities: true, hasThreadKinds: true }), ["only:acme.*", "activity:gc", "hide:main", "thread:gc"]);
  assert.deepEqual(texts({ hasThreadKinds: true }), ["only:acme.*", "hide:main", "thread:gc"]);
  assert.deepEqual(texts({}), ["only:acme.*", "hide:main"]);
});

test("characters of a name that can't be seen are written out", () => {
  // As in `profile/call_tree/stack_filter.rs`.
  const names = ["acme.Größe.total", "a\u202eb\n\ufeff", ""];
  const shown = names.map((name) => {
    const data = treeOf([["main", 1]]);
    data.strings[data.functions.name[1]] = name;
    return jvmprof.functions(data)[1].name;
  });
  assert.deepEqual(shown, ["acme.Größe.total", "a\\u202eb\\u000a\\ufeff", "(no name)"]);
});

test("other texts are no edits", () => {
  for (const text of ["", "only:", "drop:x", "acme"]) assert.equal(jvmprof.parseEdit(text), null, text);
  assert.deepEqual(jvmprof.packageOf("com.acme.shop.Order$Line.total(int)"), { package: "com.acme.shop", type: "com.acme.shop.Order$Line" });
});
