import assert from "node:assert/strict";
import test from "node:test";
import { load } from "./load.mjs";

const jvmprof = load("view/pause_lane.js");

const mark = (begin_ms, to_safepoint_ms, stopped_ms) => ({ begin_ms, to_safepoint_ms, stopped_ms, what: "G1CollectFull" });
const lane = (marks, more = {}) => ({ jvm: "Shop (7)", marks, pauses: marks.length, stopped_ms: 0, to_safepoint_ms: 0, followed_from_ms: 0, followed_ms: 20_000, ...more });

test("a part has of each pause what lies within", () => {
  const marks = [mark(900, 200, 400), mark(3_000, 10, 90)];
  // Since 1 s: half of the time to the safepoint, and all of the stop.
  const sums = jvmprof.pausesWithin(lane(marks), [1_000, 3_000]);
  assert.deepEqual(sums, { pauses: 1, stopped: 400, toSafepoint: 100, time: 2_000, longest: marks[0] });
  // A pause that ends where the part begins isn't of it.
  assert.equal(jvmprof.pausesWithin(lane(marks), [1_500, 3_000]).pauses, 0);
  assert.equal(jvmprof.pausesWithin(lane(marks), [1_499, 3_001]).pauses, 2);
});

test("the time of a part is that in which the JVM was followed", () => {
  const late = lane([mark(19_000, 0, 500)], { followed_from_ms: 18_000, followed_ms: 2_000 });
  assert.equal(jvmprof.pausesWithin(late, [10_000, 20_000]).time, 2_000);
  // The last column may end behind the recording.
  assert.equal(jvmprof.pausesWithin(late, [19_000, 25_000]).time, 1_000);
  assert.equal(jvmprof.pausesWithin(late, [0, 10_000]).time, 0);
});

test("where pauses weren't kept there are no sums of a part", () => {
  const cut = lane([mark(100, 0, 50), mark(1_000, 0, 50)], { pauses: 9 });
  assert.equal(jvmprof.pausesWithin(cut, [0, 1_000]).stopped, 50);
  assert.equal(jvmprof.pausesWithin(cut, [0, 1_001]), null);
});

test("of the longest pauses the sums of a part are the least, wherever it lies", () => {
  const cut = lane([mark(100, 10, 50), mark(1_000, 10, 50)], { pauses: 9 });
  const sums = (...part) => jvmprof.pausesWithin(cut, part, true);
  assert.deepEqual([sums(0, 5_000).stopped, sums(0, 5_000).pauses, sums(2_000, 5_000).pauses], [100, 2, 0]);
  assert.equal(jvmprof.pausesWithin(lane([], { pauses: 9 }), [0, 5_000], true), null, "only the sums are known");
});

test("a JVM wasn't followed between its profiles", () => {
  const spans = { followed_ms: 15_000, followed_spans_ms: [[0, 10_000], [15_000, 20_000]] };
  const time = (from, to) => jvmprof.pausesWithin(lane([mark(1_000, 0, 50)], spans), [from, to]).time;
  assert.deepEqual([time(0, 20_000), time(9_000, 16_000), time(10_000, 15_000)], [15_000, 2_000, 0]);
});

test("what a lane says of a part has what isn't known", () => {
  const said = (words, more) => {
    const page = Object.assign(Object.create(jvmprof.PauseLane.prototype), { part: [1_000, 3_000], ...words });
    return page.sentence(lane([mark(1_200, 100, 400)], { pauses: 3, stopped_ms: 450, to_safepoint_ms: 130, ...more }));
  };
  const words = { clock: String, time: (ms) => `the ${ms} ms`, allTime: (ms) => `the ${ms} ms in all`, left: () => 0 };
  const ofLongest = said({ words: { ...words, kept: "longest" } });
  assert.match(ofLongest, /^Shop \(7\) was stopped for at least 400 ms, 20\.0 % of the 2000 ms, 1 pause whose time is known, and took at least 100 ms \(5\.00 %\) to reach safepoints; the longest /);
  const ofFirst = said({ words: { ...words, kept: "first" } });
  assert.match(ofFirst, /^Shop \(7\) was stopped for 450 ms, 2\.25 % of the 20000 ms in all, 3 pauses, .*; the lane has the first 1, /);
  assert.match(said({ words: { ...words, kept: "longest" } }, { followed_from_ms: 5_000 }), /wasn't followed in this part$/);
});
