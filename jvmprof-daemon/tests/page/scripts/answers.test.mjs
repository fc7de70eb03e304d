import assert from "node:assert/strict";
import test from "node:test";
import { load, paths, treeOf } from "./load.mjs";

const jvmprof = load("tree/tree.js", "tree/activities.js", "tree/frames.js", "tree/edits.js", "tree/answers.js", "view/sandwich.js", "collector/requests.js");

const classes = new Set();
const toggle = (name, is) => (is ? classes.add(name) : classes.delete(name));
globalThis.document.body = { classList: { toggle } };

/// Answers of a collector that a test answers for: `asked` are its requests.
function answers() {
  const asked = [];
  let drawn = 0;
  const fetchStacks = (stacks, signal) =>
    new Promise((resolve, reject) => {
      signal.addEventListener("abort", () => reject(signal.reason));
      asked.push({ stacks, signal, resolve, reject });
    });
  return { asked, answers: new jvmprof.Answers(fetchStacks, () => drawn++), drawn: () => drawn };
}

const settled = () => new Promise((resolve) => setImmediate(resolve));
const only = { part: null, edits: ["only:acme.Order.total"] };
const hide = { part: null, edits: ["hide:acme.Order.total"] };

test("a request has the words of the page's address", () => {
  const whole = new URLSearchParams("from=1&to=2&match=comm%3Djava&group=auto&times=1");
  const stacks = { part: [5, 70], edits: ["only:acme.Order$Line.*", "hide:a&b=c", "thread:gc"], through: "main(int)" };
  const query = jvmprof.stacksQuery(whole, stacks);
  assert.equal(String(whole), "from=1&to=2&match=comm%3Djava&group=auto&times=1", "that of the whole stays as it was");
  assert.deepEqual(query.getAll("edit"), stacks.edits);
  assert.equal(
    decodeURIComponent(query).slice(String(decodeURIComponent(whole)).length),
    "&part=5-70&edit=only:acme.Order$Line.*&edit=hide:a&b=c&edit=thread:gc&through=main(int)",
  );
  const below = jvmprof.stacksQuery(whole, { under: ["8249cb6c9e044f9f", "0"], groups: ["shop"], edits: ["hide:x"] });
  assert.deepEqual([...below].slice(5), [["edit", "hide:x"], ["under", "8249cb6c9e044f9f"], ["under", "0"], ["under_group", "shop"]]);
});

test("stacks are asked for once, and known until other data is shown", async () => {
  const { asked, answers: of, drawn } = answers();
  of.want(only);
  of.want(only);
  assert.deepEqual([asked.length, classes.has("fetching"), of.treeOf(only)], [1, true, null]);
  const tree = treeOf([["main", 1]]);
  asked[0].resolve(tree);
  await settled();
  assert.deepEqual([drawn(), classes.has("fetching"), of.treeOf(only), of.treeOf(hide)], [1, false, tree, null]);
  // The part and the function count, too.
  assert.deepEqual([of.treeOf({ ...only, part: [1, 2] }), of.treeOf({ ...only, through: "main" })], [null, null]);
  of.clear();
  assert.equal(of.treeOf(only), null);
});

test("another question ends the one before, and going back doesn't", async () => {
  const { asked, answers: of, drawn } = answers();
  of.want(only);
  of.want(null);
  of.want(only);
  assert.deepEqual([asked.length, asked[0].signal.aborted], [1, false]);
  of.want(hide);
  assert.deepEqual([asked.length, asked[0].signal.aborted], [2, true]);
  of.want(null);
  asked[1].resolve(treeOf([["main", 1]]));
  await settled();
  assert.equal(drawn(), 0, "nobody waits for it");
  assert.equal(of.treeOf(hide).total, 1, "but the way forward has it");
  of.want(only);
  of.clear();
  await settled();
  assert.deepEqual([asked[2].signal.aborted, of.error, drawn(), classes.has("fetching")], [true, null, 0, false]);
});

test("an error is said and nothing asked again until something else is wanted", async () => {
  const { asked, answers: of, drawn } = answers();
  of.want(only);
  asked[0].reject(new Error("too much"));
  await settled();
  of.want(only);
  assert.deepEqual([drawn(), of.error, asked.length], [1, "too much", 1]);
  assert.equal(jvmprof.unansweredNotice("All", of), "All couldn't be fetched; shown is what the drawn frames have of it: too much");
  of.want(null);
  assert.deepEqual([of.error, jvmprof.unansweredNotice("All", of)], [null, null]);
  of.want(only);
  assert.equal(asked.length, 2);
});

test("a few answers are kept, those of the last ones", async () => {
  const { answers: of } = answers();
  const stacks = [1, 2, 3, 4, 5].map((part) => ({ part: [0, part], edits: [] }));
  for (const [at, one] of stacks.entries()) {
    of.keep(one, treeOf([["main", at + 1]]));
    of.treeOf(stacks[0]);
  }
  assert.deepEqual(stacks.map((one) => of.treeOf(one)?.total ?? null), [1, null, 3, 4, 5]);
});

test("where nobody can be asked, nothing is", () => {
  const of = new jvmprof.Answers(null, () => assert.fail());
  of.want(only);
  assert.deepEqual([of.treeOf(only), of.pending, of.error], [null, null, null]);
});

/// What of a view the callers and callees are made from.
function viewOf(data, through, canFetch = () => true) {
  const options = { frames: "java" };
  const { root } = jvmprof.buildTree(data, jvmprof.functions(data), options);
  const state = { edits: ["hide:acme.Cart.add", "merge:acme.Tax.of"], part: [1, 2] };
  return { data, whole: data, tree: root, options, through, times: null, state, has: () => ({}), canFetch };
}

test("callers and callees are those of all stacks once these are here", async () => {
  const { asked, answers: of } = answers();
  const view = viewOf(treeOf([["acme.Shop.serve;acme.Order.total", 5], ["acme.Shop.serve;pruned:[pruned]", 4]]), of);
  assert.equal(jvmprof.treeThrough(view, "acme.Order.total"), view.tree);
  assert.deepEqual(asked[0].stacks, { part: null, edits: ["hide:acme.Cart.add"], basePart: null, through: "acme.Order.total" });
  asked[0].resolve(treeOf([["acme.Shop.serve;acme.Order.total", 5], ["acme.Shop.serve;acme.Rare.path;native:x;acme.Order.total", 3]]));
  await settled();
  const { callers, callees } = jvmprof.sandwich(jvmprof.treeThrough(view, "acme.Order.total"), "acme.Order.total");
  assert.equal(callees.value, 8);
  assert.deepEqual(paths(callers), { "acme.Shop.serve": [5, 5], "acme.Rare.path": [3, 0], "acme.Rare.path;acme.Shop.serve": [3, 3] });
  assert.equal(asked.length, 1);
});

test("of two parts that are compared nobody is asked", () => {
  const { asked, answers: of } = answers();
  const data = treeOf([["acme.Shop.serve;acme.Order.total", 5], ["acme.Shop.serve;pruned:[pruned]", 4]]);
  const view = viewOf(data, of, () => false);
  assert.equal(jvmprof.treeThrough(view, "acme.Order.total"), view.tree);
  assert.equal(asked.length, 0);
});

test("what is pruned below a function is among its callees, and nothing is asked for", () => {
  const { asked, answers: of } = answers();
  const view = viewOf(treeOf([["acme.Shop.serve;pruned:[pruned]", 4], ["acme.Shop.serve;acme.Cart.add", 2]]), of);
  for (const name of ["acme.Shop.serve", "", jvmprof.NO_JAVA_CALLER.name]) jvmprof.treeThrough(view, name);
  assert.equal(asked.length, 0);
  assert.deepEqual(["acme.Shop.serve", "acme.Cart.add"].map((name) => jvmprof.prunedOutside(view.tree, name)), [0, 4]);
});

test("what edits leave may lack stacks of a cut tree, and lines where they take out some", () => {
  const edited = (data, ...texts) => jvmprof.editedData(data, jvmprof.functions(data), texts.map(jvmprof.parseEdit));
  const lacks = (data, ...texts) => jvmprof.lacksStacks(data, edited(data, ...texts));
  const whole = treeOf([["main;a", 3], ["main;b", 1]]);
  assert.deepEqual([lacks(whole, "only:main"), lacks(whole, "only:a"), lacks(whole, "hide:a")], [false, true, true]);
  const cut = treeOf([["main;a", 3], ["main;pruned:[pruned]", 1]]);
  assert.equal(lacks(cut, "only:main"), true);
});
