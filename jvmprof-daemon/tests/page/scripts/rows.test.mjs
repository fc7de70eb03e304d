import assert from "node:assert/strict";
import test from "node:test";
import { load, treeOf } from "./load.mjs";

const jvmprof = load("tree/tree.js", "tree/activities.js", "tree/frames.js", "tree/edits.js", "tree/rows.js");

const data = treeOf([["acme.Order.total;kernel:clear_page", 9], ["acme.Order.total", 1]]);
data.strings.push("Order.java");
data.functions.file[1] = data.strings.length - 1;
data.top = {
  function: [2, 1],
  self: [9, 1],
  attributed: [0, 10],
  total: [9, 10],
  lines: [[], [57, 1, 6, 6, 60, 0, 3, 3]],
  how: [[], [0, 2, 2, 8]],
  seen: 2,
};
const functions = jvmprof.functions(data);

test("a row has what the JVM and the kernel did on its function's behalf, and its lines", () => {
  const [kernel, order] = jvmprof.tableRows(data, functions);
  assert.deepEqual([kernel.self, kernel.attributed, kernel.lines], [9, 0, []]);
  assert.deepEqual([order.self, order.attributed, order.total], [1, 10, 10]);
  assert.deepEqual(order.lines[0], { line: 57, self: 1, attributed: 6, total: 6, base: null });
  assert.deepEqual(jvmprof.hottestLine(order, "attributed"), { place: "Order.java:57", share: 0.6 });
  assert.equal(jvmprof.hottestLine(kernel, "total"), null);
  assert.deepEqual(jvmprof.rowHows(order), [{ name: "C2", samples: 8 }, { name: "interpreted", samples: 2 }]);
});

test("rows of a drawn tree have the lines of the whole data, with what isn't shown", () => {
  const { root } = jvmprof.buildTree(data, functions, { frames: "java" });
  const [order] = jvmprof.withLines(jvmprof.functionRows(root), jvmprof.tableRows(data, functions));
  assert.deepEqual([order.name, order.self, order.total], ["acme.Order.total", 10, 10]);
  assert.deepEqual(order.lines.map(({ line, self }) => [line, self]), [[57, 6], [60, 3]]);
});

test("a wait is attributed to its Java caller, as is the kernel's time, but a method without a name is a caller", () => {
  const stacks = [["acme.Order.total;kernel:futex_wait;marker:[wait: sleep]", 7], ["acme.Order.total;marker:[unknown Java: read too late];kernel:clear_page", 2], ["marker:[not sampled]", 1]];
  const waits = treeOf(stacks);
  const { root } = jvmprof.buildTree(waits, jvmprof.functions(waits));
  const attributed = jvmprof.functionRows(root).filter((row) => row.attributed).map((row) => [row.name, row.attributed]);
  assert.deepEqual(attributed.sort(), [["[not sampled]", 1], ["[unknown Java: read too late]", 2], ["acme.Order.total", 7]]);
});

test("lines are compared by own work only where a function does some, and the table is about it", () => {
  const row = (attributed) => ({ attributed, total: 1000 });
  const weights = (column) => [0, 1, 50, 51, 1000].map((attributed) => jvmprof.lineWeight(row(attributed), column));
  assert.deepEqual(weights("total"), Array(5).fill("total"));
  for (const column of ["self", "attributed", "name"]) {
    assert.deepEqual(weights(column), ["total", "total", "total", "attributed", "attributed"], column);
  }
});

test("one sample of its own doesn't hide the call that a function spends its time in", () => {
  const lines = [{ line: 42, self: 1, attributed: 1, total: 7 }, { line: 38, self: 0, attributed: 0, total: 1007 }];
  const row = { fn: { name: "PriceCalculator.reduction", file: "PriceCalculator.java" }, self: 1, attributed: 1, total: 1315, lines };
  const hottest = jvmprof.hottestLine(row, jvmprof.lineWeight(row, "self"));
  assert.deepEqual(hottest, { place: "PriceCalculator.java:38", share: 1007 / 1315 });
});
