// Go: goroutines that grow their stacks, garbage, maps, sorting, panics that are recovered, system calls.
package main

import (
	"fmt"
	"os"
	"sort"
	"strings"
	"sync"
)

type node struct {
	left, right *node
	name        string
}

//go:noinline
func grow(depth, seed int) *node {
	if depth == 0 {
		return &node{name: fmt.Sprint("leaf ", seed)}
	}
	return &node{grow(depth-1, seed*3), grow(depth-1, seed*5), ""}
}

//go:noinline
func (n *node) sum() int {
	if n == nil {
		return 0
	}
	return n.left.sum() + n.right.sum() + len(n.name)
}

//go:noinline
func deep(depth int, room [64]byte) int {
	if depth == 0 {
		return int(room[3])
	}
	room[depth&63]++
	return deep(depth-1, room) + 1
}

//go:noinline
func recovers(depth int) (caught any) {
	defer func() { caught = recover() }()
	if depth == 0 {
		panic("recovered")
	}
	recovers(depth - 1)
	panic(depth)
}

func work(seed int, sink chan<- int) {
	null, _ := os.OpenFile("/dev/null", os.O_WRONLY, 0)
	for round := seed; ; round++ {
		total := grow(8, round).sum()
		words := make(map[string]int)
		for i := 0; i < 300; i++ {
			words[strings.Repeat("x", i%17)+fmt.Sprint(i*round%97)]++
		}
		keys := make([]string, 0, len(words))
		for key := range words {
			keys = append(keys, key)
		}
		sort.Slice(keys, func(a, b int) bool { return keys[a] < keys[b] })
		var group sync.WaitGroup
		for i := 0; i < 4; i++ {
			group.Add(1)
			go func() { defer group.Done(); deep(200, [64]byte{}) }()
		}
		group.Wait()
		recovers(5)
		fmt.Fprintln(null, keys[0])
		sink <- total
	}
}

func main() {
	sink := make(chan int, 8)
	for i := 1; i <= 3; i++ {
		go work(i, sink)
	}
	fmt.Println("ready")
	for range sink {
	}
}
