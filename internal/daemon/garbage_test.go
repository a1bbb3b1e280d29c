package daemon

import (
	"runtime/debug"
	"testing"
)

// However much the recorder holds, the heap grows by no more than headroom before garbage is collected, and not by much less.
func TestCollector(t *testing.T) {
	before := debug.SetGCPercent(100)
	defer debug.SetGCPercent(before)
	var c collector
	for _, used := range []int64{0, 1_000_000, 30_000_000, 88_000_000, 400_000_000} {
		c.follow(used)
		percent := int64(debug.SetGCPercent(100))
		c = collector{}
		if grows := (rest + used) * percent / 100; grows > headroom || grows < headroom*3/4 {
			t.Errorf("with %d bytes recorded the heap may grow by %d%%, which is %d bytes, not %d", used, percent, grows, headroom)
		}
	}
}
