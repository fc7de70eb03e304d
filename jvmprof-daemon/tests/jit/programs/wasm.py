"""Two functions in WebAssembly, one that calls itself and one that loops, for as many seconds of CPU time as are given,
told by a perf map or a jitdump. The time of both is written to a file at the end."""
import sys
import time

from wasmtime import Config, Engine, Instance, Module, Store

TEXT = """
(module
  (func $fib (export "fib") (param $n i32) (result i32)
    (if (result i32) (i32.lt_s (local.get $n) (i32.const 2))
      (then (local.get $n))
      (else (i32.add
        (call $fib (i32.sub (local.get $n) (i32.const 1)))
        (call $fib (i32.sub (local.get $n) (i32.const 2)))))))
  (func $mix (export "mix") (param $n i32) (result i32)
    (local $sum i32)
    (loop $again
      (local.set $sum (i32.rotl (i32.add (i32.mul (local.get $sum) (i32.const 31)) (local.get $n)) (i32.const 7)))
      (br_if $again (local.tee $n (i32.sub (local.get $n) (i32.const 1)))))
    (local.get $sum)))
"""

config = Config()
config.profiler = sys.argv[1]
store = Store(Engine(config))
exports = Instance(store, Module(store.engine, TEXT), []).exports(store)
spent = {"fib": 0, "mix": 0}
while sum(spent.values()) < float(sys.argv[2]) * 1e9:
    for name, argument in ("fib", 30), ("mix", 5_000_000):
        begin = time.process_time_ns()
        exports[name](store, argument)
        spent[name] += time.process_time_ns() - begin
with open("spent", "w") as file:
    print(spent["fib"], spent["mix"], file=file)
