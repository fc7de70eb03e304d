// A load with a dozen functions of known, different weights, for comparing two profilers: the leaves burn
// 18, 16, 14, ... units of work, and three callers lie between them and main.
//   mixed SECONDS
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static volatile uint64_t sink;

#define BURN(units) for (uint64_t i = 0; i < (units) * 2000ull; i++) sink += i ^ (i << 3)
#define LEAF(name, units) __attribute__((noinline)) static void name(void) { BURN(units); }

LEAF(parse_header, 18)
LEAF(hash_key, 16)
LEAF(compress_block, 14)
LEAF(compare_rows, 12)
LEAF(copy_page, 10)
LEAF(check_sum, 9)
LEAF(find_slot, 8)
LEAF(merge_runs, 6)
LEAF(encode_text, 4)
LEAF(free_list, 2)

// The last unit of work keeps these from being tail calls: each has its frame.
__attribute__((noinline)) static void read_part(void) { parse_header(); hash_key(); check_sum(); BURN(1); }
__attribute__((noinline)) static void write_part(void) { compress_block(); copy_page(); encode_text(); BURN(1); }
__attribute__((noinline)) static void sort_part(void) { compare_rows(); merge_runs(); find_slot(); free_list(); BURN(1); }
__attribute__((noinline)) static void round_trip(void) { read_part(); sort_part(); write_part(); BURN(1); }

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

int main(int argc, char **argv) {
    if (argc != 2) {
        fprintf(stderr, "usage: mixed SECONDS\n");
        return 64;
    }
    double until = now() + atof(argv[1]);
    do {
        for (int i = 0; i < 20; i++) round_trip();
    } while (now() < until);
    return 0;
}
