import assert from "node:assert/strict";
import test from "node:test";
import { load } from "./load.mjs";

const jvmprof = load();

test("what is counted has a name, and types of other tools have their own", () => {
  const ours = ["samples", "cpu", "alloc_space", "off_cpu", "waits", "delay", "contentions", "caused_delay", "caused_contentions", "pause", "pauses", "wall"];
  for (const type of ours) assert.notEqual(jvmprof.typeName(type), type);
  assert.equal(jvmprof.typeName("off_cpu"), "Waiting time");
  for (const type of ["inuse_space", "constructor", "toString"]) assert.equal(jvmprof.typeName(type), type);
});

test("from when to when has a date once, unless it is another one or today's", () => {
  const at = (...of) => new Date(...of).getTime();
  const { times } = jvmprof.format;
  const of = (from, to) => times.call(jvmprof.format, from, to);
  assert.equal(of(at(2025, 4, 6, 9, 5), at(2025, 4, 6, 10, 0, 7)), "2025-05-06 09:05:00 – 10:00:07");
  assert.equal(of(at(2025, 4, 6, 23, 5), at(2025, 4, 7, 0, 0)), "2025-05-06 23:05:00 – 2025-05-07 00:00:00");
  assert.equal(of(at(2025, 4, 6, 9, 5, 1, 20), at(2025, 4, 6, 9, 5, 1, 90)), "2025-05-06 09:05:01");
  const now = new Date();
  const noon = at(now.getFullYear(), now.getMonth(), now.getDate(), 12);
  assert.equal(of(noon, noon + 60_000), "12:00:00 – 12:01:00");
  // Without a date, the end would be one of the day before.
  assert.match(of(noon - 86_400_000, noon), /^\d{4}-\d\d-\d\d 1\d:00:00 – \d{4}-\d\d-\d\d 12:00:00$/);
});
