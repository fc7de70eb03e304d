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
