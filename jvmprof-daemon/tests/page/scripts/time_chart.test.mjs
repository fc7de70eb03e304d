import assert from "node:assert/strict";
import test from "node:test";
import { load } from "./load.mjs";

const jvmprof = load("vendor/d3.min.js", "view/time_chart.js");

const MOST = [0.0007, 0.0126, 0.1, 0.35, 0.99, 1, 1.4, 1.5, 2, 3.3, 7, 9.99, 10, 12.5, 64, 99, 300, 1_234, 60_000, 123_456, 900_000];

test("ticks stand at the round numbers at which those of the collector's timeline do", () => {
  for (const most of MOST) {
    for (const count of [2, 3, 5, 8, 12]) {
      assert.deepEqual(jvmprof.roundTicks(most, count), d3.ticks(0, most, count), `${count} up to ${most}`);
    }
  }
  assert.deepEqual(jvmprof.roundTicks(10_000, 5), [0, 2_000, 4_000, 6_000, 8_000, 10_000]);
});

test("an upright scale ends at a round number", () => {
  for (const most of MOST) {
    const [y, expected] = [jvmprof.uprightScale(most, 44, 6), d3.scaleLinear().domain([0, most]).nice(2).range([44, 6])];
    assert.deepEqual(y.ticks(2), expected.ticks(2), String(most));
    for (const value of [0, most / 3, most]) assert.ok(Math.abs(y(value) - expected(value)) < 1e-9, `${value} of ${most}`);
  }
  assert.deepEqual([jvmprof.uprightScale(1.4, 44, 6)(0), jvmprof.uprightScale(1.4, 44, 6)(2)], [44, 6]);
});
