package cudaapi

import (
	"fmt"
	"math"
	"slices"

	"github.com/inferscope/inferscope/internal/recording"
)

// names gives every probed function its number, which events carry. A number is
// never used again: the recorder holds events that are older than the process
// whose library brought the name.
type names struct {
	rows    []recording.Function
	numbers map[recording.Function]uint16
}

// index returns the number of f, a new one if f is new. A hostile library can
// bring made-up names, so there is an end to it.
func (n *names) index(f recording.Function) (uint16, error) {
	if i, ok := n.numbers[f]; ok {
		return i, nil
	}
	if len(n.rows) > math.MaxUint16 {
		return 0, fmt.Errorf("more than %d different functions: restart the daemon to probe %s",
			math.MaxUint16+1, f.Name)
	}
	if n.numbers == nil {
		n.numbers = map[recording.Function]uint16{}
	}
	i := uint16(len(n.rows))
	n.rows = append(n.rows, f)
	n.numbers[f] = i
	return i, nil
}

// table returns a copy of all rows, by number.
func (n *names) table() []recording.Function { return slices.Clone(n.rows) }
