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
