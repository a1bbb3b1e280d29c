package profile

import (
	"github.com/cilium/ebpf"
)

// unwinder unwinds native stacks. There is one (library.go), or none.
type unwinder interface {
	// entry is the program that samples go on to.
	entry() *ebpf.Program
	// take returns the traces that have come since the last call, in no order. They are
	// good until the next one.
	take() []trace
	// err reports why it has stopped; nil while it runs.
	err() error
	close()
}
