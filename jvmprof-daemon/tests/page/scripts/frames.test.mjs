import assert from "node:assert/strict";
import test from "node:test";
import { load, paths, treeOf } from "./load.mjs";

const jvmprof = load("tree/tree.js", "tree/activities.js", "tree/frames.js", "tree/edits.js", "tree/rows.js", "view/sandwich.js", "view/menu.js");

function build(stacks, options) {
  const data = treeOf(stacks);
  return jvmprof.buildTree(data, jvmprof.functions(data), options).root;
}

const START = "native:clone3;native:start_thread;stub:[call_stub];java.lang.Thread.run";
const STACKS = [
  [`${START};acme.Shop.serve;acme.Shop.price`, 4],
  [`${START};acme.Shop.serve;java.util.HashMap.get;java.util.HashMap.hash;acme.Key.hashCode`, 3],
  [`${START};acme.Shop.serve;stub:[arraycopy]`, 2],
  [`${START};acme.Shop.serve;native:send;kernel:do_syscall_64;kernel:tcp_sendmsg`, 5],
  ["native:clone3;native:start_thread;native:GCTask::run", 6],
];

test("all frames are shown as they are", () => {
  const all = paths(build(STACKS));
  assert.deepEqual(all.clone3, [20, 0]);
  assert.equal(Object.keys(all).length, 14);
});

test("Java's frames have the time of kernel, native and stub frames that they called", () => {
  assert.deepEqual(paths(build(STACKS, { frames: "java" })), {
    "acme.Shop.serve": [14, 7],
    "acme.Shop.serve;acme.Shop.price": [4, 4],
    "acme.Shop.serve;java.util.HashMap.get": [3, 0],
    "acme.Shop.serve;java.util.HashMap.get;java.util.HashMap.hash": [3, 0],
    "acme.Shop.serve;java.util.HashMap.get;java.util.HashMap.hash;acme.Key.hashCode": [3, 3],
    "[no Java caller]": [6, 6],
  });
});

test("calls within the JDK are one frame of the application's view", () => {
  const app = paths(build(STACKS, { frames: "app" }));
  assert.deepEqual(app["acme.Shop.serve;java.util.*"], [3, 0]);
  assert.deepEqual(app["acme.Shop.serve;java.util.*;acme.Key.hashCode"], [3, 3]);
  assert.equal(Object.keys(app).length, 5);
});

test("an expanded package of the JDK is shown like the application's", () => {
  const stacks = [
    ["acme.Shop.serve;java.util.HashMap.get;java.util.HashMap.hash;java.lang.String.hashCode", 3],
    ["acme.Shop.serve;java.lang.Iterable.forEach;java.util.ArrayList.forEach;acme.Shop.price", 2],
  ];
  const isExpanded = jvmprof.isExpanded([jvmprof.parseEdit("expand:java.util.*")]);
  assert.deepEqual(paths(build(stacks, { frames: "app", isExpanded })), {
    "acme.Shop.serve": [5, 0],
    "acme.Shop.serve;java.util.HashMap.get": [3, 0],
    "acme.Shop.serve;java.util.HashMap.get;java.util.HashMap.hash": [3, 0],
    "acme.Shop.serve;java.util.HashMap.get;java.util.HashMap.hash;java.lang.*": [3, 3],
    "acme.Shop.serve;java.lang.*": [2, 0],
    "acme.Shop.serve;java.lang.*;java.util.ArrayList.forEach": [2, 0],
    "acme.Shop.serve;java.lang.*;java.util.ArrayList.forEach;acme.Shop.price": [2, 2],
  });
});

test("every choice of frames keeps all samples", () => {
  for (const frames of Object.keys(jvmprof.FRAMES)) {
    const root = build(STACKS, { frames, fold: true });
    const own = Object.values(paths(root)).reduce((sum, [, self]) => sum + self, root.self);
    assert.equal(own, 20, frames);
  }
});

test("groups and truncated stacks keep their nodes", () => {
  const root = build(
    [
      [`label:java;${START};acme.Shop.serve`, 1],
      ["label:java;marker:[truncated: depth];acme.Shop.serve", 2],
    ],
    { frames: "java" },
  );
  assert.deepEqual(Object.keys(paths(root)).sort(), [
    "java",
    "java;[truncated: depth]",
    "java;[truncated: depth];acme.Shop.serve",
    "java;acme.Shop.serve",
  ]);
});

test("the share without a Java caller is that of all groups, and unnamed Java frames are callers", () => {
  const root = build(
    [
      ["label:a;native:clone3", 1],
      ["label:b;marker:[truncated: depth];native:work", 2],
      ["label:b;native:clone3;marker:[unknown Java: moved];native:memcpy", 4],
      ["label:b;acme.Shop.serve", 13],
    ],
    { frames: "java" },
  );
  const [line] = jvmprof.framesNotice("java", root, (samples) => `<${samples}>`);
  assert.match(line, /nearest Java caller; <3> of the samples have none\.$/);
  assert.deepEqual(paths(root)["b;[unknown Java: moved]"], [4, 4]);
  assert.equal(jvmprof.framesNotice("all", root, String), null);
});

test("recursion is folded, also where frames between were left out", () => {
  const stacks = [["acme.Tree.walk;native:JNI_call;acme.Tree.walk;acme.Leaf.visit", 3]];
  assert.deepEqual(paths(build(stacks, { frames: "java", fold: true })), {
    "acme.Tree.walk": [3, 0],
    "acme.Tree.walk;acme.Leaf.visit": [3, 3],
  });
});

test("the table of a tree counts recursion once", () => {
  const root = build([["a.A.a;b.B.b;a.A.a", 3], ["a.A.a", 2]], { frames: "java" });
  const rows = jvmprof.functionRows(root).map(({ name, self, total }) => [name, self, total]);
  assert.deepEqual(rows.sort(), [["a.A.a", 5, 5], ["b.B.b", 0, 3]]);
});

test("callers and callees are those of every call", () => {
  const root = build([["main;a;f;x", 1], ["main;b;f;x", 2], ["main;b;f;f;y", 4], ["main;g", 8]]);
  const { callers, callees } = jvmprof.sandwich(root, "f");
  assert.deepEqual([callers.value, callees.value, callees.self], [7, 7, 0]);
  assert.deepEqual(paths(callers), { b: [6, 0], "b;main": [6, 6], a: [1, 0], "a;main": [1, 1] });
  assert.deepEqual(paths(callees), { f: [4, 0], "f;y": [4, 4], x: [3, 3] });
  assert.equal(jvmprof.sandwich(root, "nobody"), null);
});

test("a text is copied, and said where the browser lets no page copy", async () => {
  const copied = [];
  const clipboard = { writeText: async (text) => copied.push(text) };
  Object.defineProperty(globalThis, "navigator", { value: { clipboard }, configurable: true });
  assert.equal(await jvmprof.copyText("acme.Shop.serve"), "Copied.");
  assert.deepEqual(copied, ["acme.Shop.serve"]);
  // Without TLS on another machine there is none.
  const field = { focus() {}, select() {}, remove() {}, setAttribute() {}, append() {} };
  const commands = [];
  let isAllowed = true;
  const execCommand = (command) => commands.push([command, field.value]) && isAllowed;
  Object.assign(document, { createElement: () => field, body: { append() {} }, execCommand });
  Object.defineProperty(globalThis, "navigator", { value: {}, configurable: true });
  assert.equal(await jvmprof.copyText("acme.Cart.add"), "Copied.");
  assert.deepEqual(commands, [["copy", "acme.Cart.add"]]);
  isAllowed = false;
  for (const refusing of [{}, { clipboard: { writeText: async () => Promise.reject(new Error("denied")) } }]) {
    Object.defineProperty(globalThis, "navigator", { value: refusing, configurable: true });
    assert.match(await jvmprof.copyText("acme.Shop.serve"), /doesn't let this page copy: acme\.Shop\.serve$/);
  }
});

test("a copied stack begins with the innermost frame, among callers, too", () => {
  const root = build([["main;a;f;x", 1]]);
  const { callers, callees } = jvmprof.sandwich(root, "f");
  const innermost = (node) => (node.children.length ? innermost(node.children[0]) : node);
  assert.deepEqual(jvmprof.stackOf(innermost(root)), ["x", "f", "a", "main"]);
  assert.deepEqual(jvmprof.stackOf(innermost(callers)), ["f", "a", "main"]);
  assert.deepEqual(jvmprof.stackOf(innermost(callees)), ["x", "f"]);
});
