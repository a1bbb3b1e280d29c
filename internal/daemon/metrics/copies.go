package metrics

import (
	"github.com/inferscope/inferscope/internal/cuda"
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/event"
)

// DecodeCopies makes a CopyDecoder for a table of functions. A copy that is known
// to have failed has no bytes.
func DecodeCopies(functions []recording.Function) CopyDecoder {
	d := cuda.NewDecoder(functions)
	return func(e *event.Event) (cuda.Direction, uint64) {
		c := d.Decode(e)
		if c.Failed() {
			return c.Direction, 0
		}
		return c.Direction, c.Bytes
	}
}
