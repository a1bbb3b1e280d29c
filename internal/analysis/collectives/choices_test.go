package collectives

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/event"
	"github.com/inferscope/inferscope/internal/testkit/calltest"
	"github.com/inferscope/inferscope/internal/testkit/recordtest"
)

// Functions of NCCL 2.28.9.
const (
	ringLL     = 258 // AllReduce Sum f32
	ringSimple = 260 // likewise
	treeBF16   = 242 // AllReduce Sum bf16 TREE LL128
)

// launches adds a launch of NCCL's on so many channels.
func launches(b *calltest.Builder, at uint64, function uint16, channels uint64) {
	b.Event(event.Event{
		TS: calltest.Start + at, Dur: 100, PID: b.PID, TID: b.TID, Func: b.Fn("cuLaunchKernelEx"), Kind: event.Call,
		Flags: event.NCCL | event.Correlated | event.Timed,
		Args:  [4]uint64{0xf, 0x10 | uint64(function)<<48, channels | 1<<32 | 1<<48},
	})
}

// TestChoices: the launch in a call tells its algorithm and protocol, but only with the process's one release of NCCL, a
// function that fits the call, and in a group where all calls are alike.
func TestChoices(t *testing.T) {
	group := func(b *calltest.Builder, elements ...uint64) {
		b.Do("ncclGroupStart", 1000, 10)
		for i, n := range elements {
			exchanges(b, "ncclAllReduce", int64(1100+100*i), 10, n)
		}
		b.Do("ncclGroupEnd", 2000, 500)
		launches(b, 2100, ringLL, 4)
	}
	for name, c := range map[string]struct {
		releases []int
		calls    func(*calltest.Builder)
		want     []choice
	}{
		"two choices": {[]int{22809}, func(b *calltest.Builder) {
			for i, f := range []uint16{ringLL, ringSimple, ringSimple} {
				exchanges(b, "ncclAllReduce", int64(1000*i), 500, 16)
				launches(b, uint64(1000*i+100), f, uint64(8*i+8))
			}
		}, []choice{{"RING", "SIMPLE", 2, 16, 24}, {"RING", "LL", 1, 8, 8}}},
		"a group of one size":  {[]int{22809}, func(b *calltest.Builder) { group(b, 16, 16) }, []choice{{"RING", "LL", 2, 4, 4}}},
		"a group of two sizes": {[]int{22809}, func(b *calltest.Builder) { group(b, 16, 32) }, nil},
		"one release twice":    {[]int{22809, 22809}, func(b *calltest.Builder) { group(b, 16) }, []choice{{"RING", "LL", 1, 4, 4}}},
		"two releases":         {[]int{22809, 23007, 22809}, func(b *calltest.Builder) { group(b, 16) }, nil},
		"no release":           {nil, func(b *calltest.Builder) { group(b, 16) }, nil},
		"an unknown release":   {[]int{99000}, func(b *calltest.Builder) { group(b, 16) }, nil},
		"another type": {[]int{22809}, func(b *calltest.Builder) {
			exchanges(b, "ncclAllReduce", 1000, 500, 16)
			launches(b, 1100, treeBF16, 4)
		}, nil},
		"outside of calls": {[]int{22809}, func(b *calltest.Builder) {
			exchanges(b, "ncclAllReduce", 1000, 500, 16)
			launches(b, 1700, ringLL, 4)
		}, nil},
		"two launches that disagree": {[]int{22809}, func(b *calltest.Builder) {
			exchanges(b, "ncclAllReduce", 1000, 500, 16)
			launches(b, 1100, ringLL, 4)
			launches(b, 1300, ringSimple, 4)
			launches(b, 1400, ringSimple, 4)
		}, nil},
	} {
		b := calltest.New()
		for _, release := range c.releases {
			b.Library(recording.Library{PID: recordtest.PID, Kind: "nccl", Release: release})
		}
		c.calls(b)
		operation := summarized(t, b).Communicators[0].Operations[0]
		if diff := cmp.Diff(c.want, operation.Choices); diff != "" {
			t.Errorf("%s (-want +got)\n%s", name, diff)
		}
	}
}

func TestChosen(t *testing.T) {
	o := Operation{Choices: []choice{{"RING", "SIMPLE", 1200, 16, 24}, {"TREE", "LL", 1, 2, 2}}}
	if choices, channels := o.Chosen(); choices != "RING SIMPLE 1,200, TREE LL 1" || channels != "2 to 24" {
		t.Errorf("%s; %s", choices, channels)
	}
	o.Copied = 3
	if choices, channels := o.Chosen(); choices != "copy engines 3, RING SIMPLE 1,200, TREE LL 1" ||
		channels != "2 to 24" {
		t.Errorf("%s; %s", choices, channels)
	}
	if choices, channels := (&Operation{Copied: 4}).Chosen(); choices != "copy engines 4" || channels != "" {
		t.Errorf("%s; %s", choices, channels)
	}
	if choices, channels := (&Operation{}).Chosen(); choices != "" || channels != "" {
		t.Errorf("%s; %s", choices, channels)
	}
}
