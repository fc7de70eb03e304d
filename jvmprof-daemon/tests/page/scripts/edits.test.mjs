import assert from "node:assert/strict";
import test from "node:test";
import { load, paths, treeOf } from "./load.mjs";

const jvmprof = load("tree/tree.js", "tree/activities.js", "tree/frames.js", "tree/edits.js", "tree/rows.js");

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
  for (const edit of ["thread:gc", "activity:gc"].map(jvmprof.parseEdit)) {
    assert.deepEqual([true, false].map((isKnown) => jvmprof.hasEffect(edit, "all", isKnown)), [true, false]);
  }
});

test("rows attribute what is native to the nearest Java caller", () => {
  const data = treeOf([["acme.Shop.serve;native:memcpy", 4], ["acme.Shop.serve", 1], ["native:gc", 2]]);
  const { root } = jvmprof.buildTree(data, jvmprof.functions(data));
  const rows = jvmprof.functionRows(root).map(({ name, self, attributed, total }) => [name, self, attributed, total]);
  assert.deepEqual(rows.sort(), [["acme.Shop.serve", 1, 5, 5], ["gc", 2, 2, 2], ["memcpy", 4, 0, 4]]);
});

test("the collector leaves out samples by the same edits, as far as it knows what these were taken in", () => {
  const edits = ["only:acme.*", "merge:acme.Cart.add", "activity:gc", "expand:java.util.*", "hide:main", "thread:gc"].map(jvmprof.parseEdit);
  const texts = (hasActivities) => jvmprof.filters(edits, hasActivities).map(({ text }) => text);
  assert.deepEqual(texts(true), ["only:acme.*", "activity:gc", "hide:main", "thread:gc"]);
  assert.deepEqual(texts(false), ["only:acme.*", "hide:main"]);
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
