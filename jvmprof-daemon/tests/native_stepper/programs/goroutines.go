// Go: goroutines that take turns without end, whose stacks grow, that panic, and are collected.
package main

import "runtime"

type empty struct{ next *empty }

//go:noinline
func grow(depth int, room [64]byte) int {
	if depth == 0 {
		return int(room[3])
	}
	room[depth&63]++
	return grow(depth-1, room) + 1
}

//go:noinline
func (e *empty) follow() *empty { return e.next }

// The access to memory that isn't there is the first instruction of `follow`.
//
//go:noinline
func recovers(depth int) (caught any) {
	defer func() { caught = recover() }()
	if depth == 0 {
		var nothing *empty
		return nothing.follow()
	}
	recovers(depth - 1)
	panic("recovered")
}

func work(seed int, in <-chan int, out chan<- int) {
	for round := seed; ; round++ {
		got := <-in
		grow(4*(round%16), [64]byte{})
		done := make(chan int)
		go func() { done <- grow(16, [64]byte{}) }()
		got += <-done
		if round%3 == 0 {
			recovers(2)
		}
		runtime.Gosched()
		out <- got
	}
}

func main() {
	first := make(chan int)
	in := first
	for i := 0; i < 3; i++ {
		out := make(chan int)
		go work(i, in, out)
		in = out
	}
	for i := 0; ; i++ {
		first <- i
		<-in
		if i%40 == 39 {
			runtime.GC()
		}
	}
}
