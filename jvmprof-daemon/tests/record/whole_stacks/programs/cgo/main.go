// Go that calls C, which calls Go again, several times over, each with work of its own and stacks that grow.
package main

/*
#include <alloca.h>

extern long fromC(long depth, long seed);

__attribute__((noinline)) static long work(long seed) {
    volatile unsigned char *room = alloca(64 + (seed & 511));
    unsigned long x = seed;
    for (int i = 0; i < 2000; i++) x = x * 6364136223846793005u + (room[i & 63] = x >> 56);
    return x;
}

__attribute__((noinline)) static long down(long frames, long depth, long seed) {
    if (frames) return down(frames - 1, depth, seed + 1) + 1;
    return work(seed) + (depth ? fromC(depth - 1, seed) : 0);
}
*/
import "C"

import (
	"fmt"
	"sort"
)

//go:noinline
func grow(depth int, room [128]byte) int {
	if depth == 0 {
		return int(room[3])
	}
	room[depth&127]++
	return grow(depth-1, room) + 1
}

//go:noinline
func callC(frames, depth, seed int) int {
	numbers := make([]int, 100)
	for i := range numbers {
		numbers[i] = (i*seed + 7) % 101
	}
	sort.Ints(numbers)
	return int(C.down(C.long(frames), C.long(depth), C.long(seed))) + numbers[3]
}

func main() {
	sink := make(chan int, 8)
	for i := 1; i <= 3; i++ {
		go func() {
			for round := i; ; round++ {
				sink <- callC(round%7, 3, round)
			}
		}()
	}
	fmt.Println("ready")
	for range sink {
	}
}
