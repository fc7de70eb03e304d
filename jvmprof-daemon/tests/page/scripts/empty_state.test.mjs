import assert from "node:assert/strict";
import test from "node:test";
import { load } from "./load.mjs";

const jvmprof = load("collector/empty_state.js");

test("a profiler of this host pushes to the collector in plaintext, one of another host by its address", () => {
  const commands = {
    "http://127.0.0.1:7070": "--collector-address 127.0.0.1:7070",
    "http://localhost:7071": "--collector-address localhost:7071",
    "http://[::1]:7070": "--collector-address [::1]:7070",
    "http://localhost": "--collector-address localhost:80",
    "https://localhost:7070": "--remote-store-address https://localhost:7070",
    "http://10.1.2.3:7070": "--remote-store-address http://10.1.2.3:7070",
    "https://collector.example": "--remote-store-address https://collector.example",
    "http://127.example:7070": "--remote-store-address http://127.example:7070",
  };
  for (const [address, to] of Object.entries(commands)) {
    assert.equal(jvmprof.daemonCommand(new URL(address)), `sudo jvmprof daemon ${to}`);
  }
});
