"""Records a snapshot of a stopped thread: gdb -batch -p PID -ex 'source record.py' -ex 'snapshot OUT [THREAD]'.

Format, little-endian, gzipped: "JPSNAP1\\0", rip, rsp, rbp (u64 each), the number of expected return addresses (u64) and the
addresses as gdb's own unwinder gives them (leaf's caller first; none where gdb can't unwind, as in Java code), then the
stack from rsp to the end of its mapping (length in bytes as u64, bytes).
"""
import gzip
import struct

import gdb


class Snapshot(gdb.Command):
    def __init__(self):
        super().__init__("snapshot", gdb.COMMAND_USER)

    def invoke(self, arg, from_tty):
        out, *thread = arg.split()
        if thread:
            gdb.execute(f"thread {thread[0]}", to_string=True)
        frame = gdb.newest_frame()
        register = lambda name: int(frame.read_register(name)) & (1 << 64) - 1
        rip, rsp, rbp = register("rip"), register("rsp"), register("rbp")
        callers = []
        older = frame.older()
        while older is not None and not out.startswith("java"):
            callers.append(older.pc())
            older = older.older()
        pid = gdb.selected_inferior().pid
        end = next(
            int(line.split()[0].split("-")[1], 16)
            for line in open(f"/proc/{pid}/maps")
            if int(line.split()[0].split("-")[0], 16) <= rsp < int(line.split()[0].split("-")[1], 16)
        )
        # Only what the walk can reach: a main thread's stack goes on with its arguments and environment.
        length = min(end - rsp, 1 << 20)
        stack = bytes(gdb.selected_inferior().read_memory(rsp, length))
        with gzip.GzipFile(out, "wb", 9, mtime=0) as file:
            file.write(b"JPSNAP1\0" + struct.pack("<4Q", rip, rsp, rbp, len(callers)))
            file.write(struct.pack(f"<{len(callers)}Q", *callers))
            file.write(struct.pack("<Q", length) + stack)


Snapshot()
