"""Requests in two threads, each with a span of Datadog's tracer and one below that, and a function
of its own. Writes the number of each span's request and the ids of its trace, of itself and of its
local root to a file."""

import itertools
import os
import sys
import threading
import time

# Nobody is there who would take traces.
os.environ["DD_TRACE_AGENT_URL"] = "http://127.0.0.1:9"
os.environ["DD_INSTRUMENTATION_TELEMETRY_ENABLED"] = "false"
os.environ["DD_REMOTE_CONFIGURATION_ENABLED"] = "false"
os.dup2(os.open(os.devnull, os.O_WRONLY), 2)

from ddtrace import tracer  # noqa: E402


def work(seconds):
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        sum(range(1000))


def request_0(): work(0.005)
def request_1(): work(0.005)
def request_2(): work(0.005)
def request_3(): work(0.005)
def request_4(): work(0.005)
def request_5(): work(0.005)
def request_6(): work(0.005)
def request_7(): work(0.005)
def between(): work(0.002)


REQUESTS = [request_0, request_1, request_2, request_3, request_4, request_5, request_6, request_7]
oracle = open(sys.argv[1], "w", buffering=1)


def note(number, span, root):
    oracle.write(f"{number} {span.trace_id:032x} {span.span_id:016x} {root.span_id:016x}\n")


def serve():
    for number in itertools.cycle(range(8)):
        with tracer.trace("request") as root:
            note(number, root, root)
            REQUESTS[number]()
            with tracer.trace("child") as child:
                note(number, child, root)
                REQUESTS[number]()
        between()


for _ in range(2):
    threading.Thread(target=serve).start()
