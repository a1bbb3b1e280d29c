package request

import (
	"slices"
	"testing"

	"github.com/inferscope/inferscope/internal/capture/request/exchange"
)

// TestRetriesOfOneBody: what is sent again after failures alone is a retry, not what several clients ask at a time, nor
// what comes much later.
func TestRetriesOfOneBody(t *testing.T) {
	const s = 1e9
	failed := func(from, to uint64) exchange.Exchange {
		return exchange.Exchange{Received: from, End: to, Status: 503, Outcome: exchange.Complete, Digest: 7}
	}
	answered := func(from, to uint64) exchange.Exchange {
		return exchange.Exchange{Received: from, End: to, Status: 200, Outcome: exchange.Complete, Digest: 7}
	}
	late := failed(1*s, 9*s) // the server noticed late that the client had left
	late.Outcome, late.Status, late.Left = exchange.Aborted, 0, 2*s
	other := answered(4*s, 5*s)
	other.Digest = 8
	for name, c := range map[string]struct {
		ended []exchange.Exchange // in this order
		want  []uint32
	}{
		"errors": {[]exchange.Exchange{failed(1*s, 2*s), failed(3*s, 4*s), answered(5*s, 6*s)}, []uint32{0, 1, 2}},
		"after an answer": {
			[]exchange.Exchange{failed(1*s, 2*s), answered(3*s, 4*s), answered(5*s, 6*s)},
			[]uint32{0, 1, 0},
		},
		"at a time":      {[]exchange.Exchange{failed(1*s, 4*s), failed(2*s, 5*s), answered(6*s, 7*s)}, []uint32{0, 0, 0}},
		"much later":     {[]exchange.Exchange{failed(1*s, 2*s), answered(90*s, 91*s)}, []uint32{0, 0}},
		"disconnect":     {[]exchange.Exchange{late, answered(3*s, 10*s)}, []uint32{0, 1}},
		"something else": {[]exchange.Exchange{failed(1*s, 2*s), other}, []uint32{0, 0}},
		"answered before": {
			[]exchange.Exchange{answered(1*s, 2*s), failed(3*s, 4*s), answered(5*s, 6*s)},
			[]uint32{0, 0, 0},
		},
	} {
		r := newRetries()
		var got []uint32
		for i := range c.ended {
			got = append(got, r.ended(&c.ended[i]))
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
	r := newRetries()
	for i := range 3 * maxAsked {
		x := failed(1, 2)
		x.Digest = uint64(i + 1)
		r.ended(&x)
	}
	if len(r.asked) > maxAsked {
		t.Errorf("%d questions are remembered", len(r.asked))
	}
}
