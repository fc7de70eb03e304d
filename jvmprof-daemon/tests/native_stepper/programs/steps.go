// Go: what its runtime does before the first goroutine is enough.
package main

func main() {}
