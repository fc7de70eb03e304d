"""CPython: recursion, callbacks from C, exceptions, garbage, a second thread."""
import json
import re
import threading


class Tree:
    def __init__(self, depth, seed):
        self.name = f"node {seed}"
        self.children = [Tree(depth - 1, seed * n) for n in (3, 5)] if depth else []

    def sum(self):
        return len(self.name) + sum(child.sum() for child in self.children)


def deep(depth):
    if not depth:
        raise ValueError(depth)
    return deep(depth - 1)


def work(seed):
    number = seed
    while True:
        number += 1
        Tree(7, number).sum()
        words = sorted((hex(i * number % 7919) for i in range(300)), key=lambda word: word[::-1])
        json.loads(json.dumps({"words": words}))
        re.sub(r"([0-9a-f])([0-9])", lambda match: match.group(2), " ".join(words))
        try:
            deep(100)
        except ValueError:
            pass


threading.Thread(target=work, args=(1,), daemon=True).start()
print("ready", flush=True)
work(2)
