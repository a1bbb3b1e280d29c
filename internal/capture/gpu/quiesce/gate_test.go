package quiesce

import (
	"errors"
	"testing"

	"github.com/inferscope/inferscope/internal/capture/uprobe"
)

// TestExtentAsWantedLast: a gate whose probes are wanted again before they were removed keeps them, whichever of the two
// comes first: the daemon says that they are there as soon as it was asked for them.
func TestExtentAsWantedLast(t *testing.T) {
	attached := 0
	g := &Gate{attach: func([]string) ([]*uprobe.Attachment, error) {
		attached++
		return []*uprobe.Attachment{}, nil
	}}
	settle := func(want Extent) {
		t.Helper()
		if has, err := g.Settle(); has != want || err != nil {
			t.Errorf("it has %d, error %v; want %d", has, err, want)
		}
	}
	g.Want(All)
	settle(All)
	g.Want(Nowhere)
	g.Want(All)
	settle(All) // what was to bring the probes there
	settle(All) // what was to remove them, late
	if attached != 2 {
		t.Errorf("attached %d times, want once for each extent", attached)
	}
	g.Want(Nowhere)
	settle(Nowhere)
	g.Want(Waits)
	settle(Waits)
	g.Want(All)
	settle(All)
	if attached != 4 {
		t.Errorf("attached %d times, want twice for each extent", attached)
	}
}

// TestExtentThatCannotBeHad: a gate whose probes cannot all be attached does not say that they are there.
func TestExtentThatCannotBeHad(t *testing.T) {
	g := &Gate{attach: func(functions []string) ([]*uprobe.Attachment, error) {
		if functions[0] == "cuLaunchKernel" {
			return nil, errors.New("no room")
		}
		return []*uprobe.Attachment{}, nil
	}}
	g.Want(All)
	if has, err := g.Settle(); has != Waits || err == nil {
		t.Errorf("it has %d, error %v; want %d and an error", has, err, Waits)
	}
	if err := g.try(Calls); err == nil {
		t.Error("a gate that cannot be had was opened")
	}
}
