package main

import "C"

//export fromC
func fromC(depth, seed C.long) C.long {
	return C.long(grow(int(seed%40), [128]byte{}) + callC(int(seed%5), int(depth), int(seed)))
}
