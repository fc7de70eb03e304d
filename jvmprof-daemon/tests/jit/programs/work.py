"""Functions in Python, for as many seconds as are given."""
import sys
import time


def fib(n):
    return n if n < 2 else fib(n - 1) + fib(n - 2)


class Order:
    def total(self):
        total = 0
        for i in range(20000):
            total += i * i % 7
        return total


end = time.time() + float(sys.argv[1])
while time.time() < end:
    fib(16)
    Order().total()
