package collectives

import (
	"math"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/inferscope/inferscope/internal/analysis/timeline"
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/testkit/calltest"
	"github.com/inferscope/inferscope/internal/testkit/recordtest"
)

const communicator = 0xc0

// exchanges adds an operation on elements of ncclFloat32 (7).
func exchanges(b *calltest.Builder, name string, at int64, dur, elements uint64) {
	b.Do(name, at, dur, elements, communicator, 0, 7<<56)
}

func summarized(t *testing.T, b *calltest.Builder) *Summary {
	t.Helper()
	s := Summarize(timeline.Build(b.Recording()), nil)
	if s == nil {
		t.Fatal("no calls of NCCL were found")
	}
	return s
}

// TestNestedCallsCountOnce: ncclBcast calls ncclBroadcast, and both are probed.
func TestNestedCallsCountOnce(t *testing.T) {
	b := calltest.New()
	b.Do("ncclCommInitRank", 0, 10, communicator, 8)
	exchanges(b, "ncclBcast", 1_000, 500, 16)
	exchanges(b, "ncclBroadcast", 1_000, 400, 16)
	exchanges(b, "ncclBroadcast", 2_000, 400, 32)
	b.Fail("ncclAllReduce", 3_000, 10, 4, 5, communicator, 0, 9<<56)
	got := summarized(t, b)
	want := &Summary{Calls: 3, Bytes: 202, Failed: 1, Communicators: []Communicator{{
		PID: recordtest.PID, Address: communicator, Rank: -1, Ranks: 8, Calls: 3, Bytes: 202, Operations: []Operation{
			{Name: "Broadcast", Type: "float32", Calls: 2, Bytes: 192, Smallest: 64, Largest: 128, Host: 900},
			{Name: "AllReduce", Type: "bfloat16", Calls: 1, Bytes: 10, Smallest: 10, Largest: 10, Host: 10},
		},
	}}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

// TestRanksThatWereNotReadAreNotKnown: a communicator that was made before the recording, one whose making failed, and
// a number that can be none.
func TestRanksThatWereNotReadAreNotKnown(t *testing.T) {
	for name, prepare := range map[string]func(*calltest.Builder){
		"made earlier": func(*calltest.Builder) {},
		"failed":       func(b *calltest.Builder) { b.Fail("ncclCommInitRank", 0, 10, 2, communicator, 8) },
		"odd":          func(b *calltest.Builder) { b.Do("ncclCommInitRank", 0, 10, communicator, math.MaxUint64) },
	} {
		b := calltest.New()
		prepare(b)
		exchanges(b, "ncclAllReduce", 1_000, 500, 16)
		if got := summarized(t, b).Communicators[0].Ranks; got != 0 {
			t.Errorf("%s: %d ranks", name, got)
		}
	}
}

// TestRanksThatCommunicatorsSay: what a communicator says of itself comes before what RAS says of its process.
func TestRanksThatCommunicatorsSay(t *testing.T) {
	b := calltest.New()
	exchanges(b, "ncclAllReduce", 1_000, 500, 16)
	b.Meta.RAS = &recording.RAS{Communicators: []recording.RASCommunicator{
		{Size: 4, Ranks: []recording.RASRank{{PID: recordtest.PID}}},
	}}
	b.Meta.Communicators = []recording.Communicator{
		{PID: recordtest.PID, Address: communicator, Hash: "ae94", Rank: 3, Ranks: 8},
		{PID: recordtest.PID, Address: communicator + 8, Rank: 1, Ranks: 2},
	}
	if got := summarized(t, b).Communicators[0]; got.Ranks != 8 || got.Rank != 3 || got.Hash != "ae94" {
		t.Errorf("%+v", got)
	}
	b.Meta.Communicators = b.Meta.Communicators[1:]
	if got := summarized(t, b).Communicators[0]; got.Ranks != 4 || got.Rank != -1 || got.Hash != "" {
		t.Errorf("%+v", got)
	}
}

// TestWhichCallLaunched: a kernel belongs to the call that it was launched in, or at the end of a group, to the calls
// of the group where they are of one operation.
func TestWhichCallLaunched(t *testing.T) {
	reduce, send, receive := key{name: "AllReduce"}, key{name: "Send"}, key{name: "Recv"}
	start := func(at uint64) call { return call{at: at, end: at, kind: groupStart} }
	end := func(at uint64) call { return call{at: at, end: at + 5, kind: groupEnd} }
	of := func(at uint64, k key) call { return call{at: at, end: at + 5, key: k} }
	for name, c := range map[string]struct {
		calls []call
		at    uint64
		want  []int
	}{
		"within a call":            {[]call{of(10, reduce), of(20, send)}, 22, []int{1}},
		"between calls":            {[]call{of(10, reduce), of(20, send)}, 17, nil},
		"before all":               {[]call{of(10, reduce)}, 5, nil},
		"a group of one kind":      {[]call{start(1), of(10, reduce), of(20, reduce), end(30)}, 32, []int{2, 1}},
		"a group of two kinds":     {[]call{start(1), of(10, send), of(20, receive), end(30)}, 32, nil},
		"a group within a group":   {[]call{start(1), of(3, reduce), start(9), of(10, reduce), end(20), end(30)}, 32, []int{3, 1}},
		"a group that ended":       {[]call{start(1), of(3, send), end(9), start(11), of(13, reduce), end(30)}, 32, []int{4}},
		"a group that had begun":   {[]call{of(10, reduce), end(30)}, 32, nil},
		"after the end of a group": {[]call{start(1), of(10, reduce), end(30)}, 40, nil},
	} {
		if diff := cmp.Diff(c.want, launched(c.calls, c.at)); diff != "" {
			t.Errorf("%s: (-want +got)\n%s", name, diff)
		}
	}
}

// TestBandwidths are the examples of nccl-tests' PERFORMANCE.md, and of what it lacks the factors of its programs.
func TestBandwidths(t *testing.T) {
	for _, c := range []struct {
		name       string
		ranks      uint64
		given, bus float64
	}{
		{"AllReduce", 8, 1, 1.75},
		{"AllReduce", 2, 1, 1},
		{"AllGather", 4, 4, 0.75},
		{"ReduceScatter", 4, 4, 0.75},
		{"AllToAll", 4, 4, 0.75},
		{"Gather", 4, 4, 0.75},
		{"Scatter", 4, 4, 0.75},
		{"Send", 4, 1, 1},
		{"Broadcast", 4, 1, 1},
		{"AllReduce", 0, 1, 0},
		{"AllReduce", 1, 1, 0},
	} {
		if g, b := given(c.name, c.ranks), busFactor(c.name, c.ranks); g != c.given || b != c.bus {
			t.Errorf("%s of %d ranks: %v and %v, want %v and %v", c.name, c.ranks, g, b, c.given, c.bus)
		}
	}
}
