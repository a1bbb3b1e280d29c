package quiesce

import (
	"testing"

	"github.com/inferscope/inferscope/internal/capture/uprobe"
)

// TestWideAsWantedLast: a gate that is wanted wide again before it was made narrow stays wide, whichever of the two
// comes first: the daemon says that it is as soon as it was asked to be.
func TestWideAsWantedLast(t *testing.T) {
	attached := 0
	g := &Gate{attach: func([]string) ([]*uprobe.Attachment, error) {
		attached++
		return []*uprobe.Attachment{}, nil
	}}
	settle := func(want bool) {
		t.Helper()
		if wide, err := g.Settle(); wide != want || err != nil {
			t.Errorf("wide %v, error %v; want %v", wide, err, want)
		}
	}
	g.Want(true)
	settle(true)
	g.Want(false)
	g.Want(true)
	settle(true) // what was to widen it
	settle(true) // what was to make it narrow, late
	if attached != 1 {
		t.Errorf("attached %d times, want once", attached)
	}
	g.Want(false)
	settle(false)
	g.Want(true)
	settle(true)
	if attached != 2 {
		t.Errorf("attached %d times, want twice", attached)
	}
}
