package collectives

import (
	"slices"
	"testing"
)

// TestWhichCallCopied: copies belong to the call that they were launched in, or at the end of a group, to its calls on
// the communicator of the stream where these are of one operation.
func TestWhichCallCopied(t *testing.T) {
	of := func(at uint64, name string, comm, stream uint64) call {
		return call{at: at, end: at + 5, key: key{name: name, comm: comm}, stream: stream}
	}
	group := func(calls ...call) []call {
		list := append([]call{{at: 1, end: 1, kind: groupStart}}, calls...)
		return append(list, call{at: 90, end: 99, kind: groupEnd})
	}
	for name, c := range map[string]struct {
		calls []call
		at    uint64
		want  []int
	}{
		"a call":                     {[]call{of(10, "AllGather", 1, 7)}, 12, []int{0}},
		"a group":                    {group(of(10, "AllGather", 1, 7), of(20, "AllGather", 1, 7)), 92, []int{2, 1}},
		"a group of two operations":  {group(of(10, "AllGather", 1, 7), of(20, "Gather", 1, 7)), 92, nil},
		"a communicator per stream":  {group(of(10, "AllGather", 1, 7), of(20, "Gather", 2, 8)), 92, []int{1}},
		"two streams of one":         {group(of(10, "AllGather", 1, 7), of(20, "AllGather", 1, 8)), 92, []int{2, 1}},
		"two of one stream":          {group(of(10, "AllGather", 1, 7), of(20, "AllGather", 2, 7)), 92, nil},
		"two operations of streams":  {group(of(10, "AllGather", 1, 7), of(20, "Gather", 1, 8)), 92, nil},
		"a group that began earlier": {group(of(10, "AllGather", 1, 7))[1:], 92, nil},
	} {
		if got := copied(c.calls, c.at, 7); !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}
