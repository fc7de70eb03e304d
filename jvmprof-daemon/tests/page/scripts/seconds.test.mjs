import assert from "node:assert/strict";
import test from "node:test";
import { load } from "./load.mjs";

const jvmprof = load("vendor/d3.min.js", "tree/activities.js", "tree/times.js", "view/time_chart.js", "view/heatmap.js", "collector/timeline.js", "collector/timeline_heat.js", "collector/seconds.js");

const MINUTE = 60_000;

test("the timeline's heatmap of sub-seconds is a choice of the address", () => {
  assert.ok(jvmprof.SECONDS in jvmprof.HEATS);
});

test("sub-seconds are of CPU time, of a short time, and not compared", () => {
  const why = (state, length) => jvmprof.whyNoTimes({ type: "", base: null, ...state }, [1_000, 1_000 + length]);
  assert.equal(why({}, 15 * MINUTE), null);
  assert.equal(why({ type: "process_cpu:cpu" }, MINUTE), null);
  assert.match(why({}, 15 * MINUTE + 1), /15 minutes/);
  assert.match(why({ type: "memory:alloc_space" }, MINUTE), /CPU time alone/);
  assert.match(why({ base: { shift: MINUTE } }, MINUTE), /comparison/);
});

test("of how many samples the times aren't known is said", () => {
  assert.equal(jvmprof.untimedNotice({ nodes: [1] }, 10), null);
  const line = (times) => jvmprof.untimedNotice(times, 4)[0];
  assert.match(line({ nodes: [1], untimed: 1 }), /^When 25(\.0)? % of these samples/);
  assert.match(line({ nodes: [], untimed: 4 }), /^When these samples were taken isn't known/);
});

test("a part of a recording has seconds, one of the collector's time has those of the day", () => {
  assert.equal(jvmprof.partText([1_500, 3_000]), "1.50 s – 3 s");
  assert.equal(jvmprof.partText([1_500, 3_000], { from: 0, text: (ms) => `12:00:0${ms / 1_000}` }), "12:00:01.5 – 12:00:03");
});

test("ticks of parts of seconds say which ones", () => {
  const noon = new Date(2025, 4, 6, 12, 0, 0).getTime();
  assert.deepEqual(jvmprof.timeTicks(noon + 100, noon + 1_700, 3).map(({ text }) => text), ["12:00:00.500", "12:00:01.000", "12:00:01.500"]);
});
