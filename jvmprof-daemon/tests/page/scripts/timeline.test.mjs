import assert from "node:assert/strict";
import test from "node:test";
import { load } from "./load.mjs";

const jvmprof = load("vendor/d3.min.js", "collector/timeline.js", "collector/timeline_heat.js", "collector/timeline_lines.js");

const groups = Array.from({ length: 13 }, (_, place) => ({ name: `g${place}`, samples: [place * 10, 0, 130 - place * 10] }));

test("lines of groups are a choice of the address, and have no kinds of threads", () => {
  assert.ok(jvmprof.LINES in jvmprof.HEATS && jvmprof.LINES in jvmprof.HEAT_LABELS);
  assert.deepEqual(Object.keys(jvmprof.HEATS).filter(jvmprof.isOfGroups), ["lines", "groups"]);
});

test("the eight heaviest groups have a line", () => {
  assert.deepEqual(jvmprof.groupLines(groups).map(({ name }) => name), ["g0", "g1", "g2", "g3", "g4", "g5", "g6", "g7"]);
  assert.equal(jvmprof.groupLines(groups.slice(0, 3)).length, 3);
});

test("the hint names the groups that took most at a place", () => {
  const timeline = { step: 10_000, rate: { of: (samples, ms) => (samples * 1000) / ms } };
  const said = [0, 1, 2].map((index) => jvmprof.heaviestLines(jvmprof.groupLines(groups), index, timeline));
  assert.deepEqual(said, ["g7 7, g6 6, g5 5", "idle", "g0 13, g1 12, g2 11"]);
});
