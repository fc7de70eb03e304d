// A load at a known depth: recurses DEPTH frames and works at the bottom for SECONDS.
//   recurse DEPTH SECONDS
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static volatile uint64_t sink;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

__attribute__((noinline)) static void work(double until) {
    do {
        for (uint64_t i = 0; i < 200000; i++) sink += i * i;
    } while (now() < until);
}

__attribute__((noinline)) static void descend(int depth, double until) {
    if (depth <= 0)
        work(until);
    else
        descend(depth - 1, until);
    sink++;  // no tail call: each call keeps its frame
}

int main(int argc, char **argv) {
    if (argc != 3) {
        fprintf(stderr, "usage: recurse DEPTH SECONDS\n");
        return 64;
    }
    int depth = atoi(argv[1]);
    double until = now() + atof(argv[2]);
    descend(depth, until);
    return 0;
}
