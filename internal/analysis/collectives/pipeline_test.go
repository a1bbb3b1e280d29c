package collectives

import (
	"testing"

	"github.com/inferscope/inferscope/internal/analysis/timeline"
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/event"
	"github.com/inferscope/inferscope/internal/testkit/calltest"
	"github.com/inferscope/inferscope/internal/testkit/must"
)

// talk is an operation of NCCL of a rank, as reduce is; kernel is the number of its kernel.
func (c *crowd) talk(rank int, function string, kernel int32, from, to uint64) {
	c.As(pidOf(rank), pidOf(rank))
	at := int64(from*calltest.Microsecond) - 5000
	c.Do(function, at, 4000, 16, 0x100*uint64(rank+1), 0, 7<<56)
	c.id++
	c.Event(event.Event{
		TS: uint64(calltest.Start + at + 1000), Dur: 1000, PID: c.PID, TID: c.TID, Func: c.Fn("cuLaunchKernel"),
		Kind: event.Call, Flags: event.Correlated | event.Timed, Ret: int32(c.id),
	})
	c.Event(event.Event{
		TS: calltest.Start + from*calltest.Microsecond, Dur: (to - from) * calltest.Microsecond, PID: c.PID, TID: 1,
		Func: uint16(rank) | 1<<8, Kind: event.Kernel, Flags: event.Timed, Ret: kernel, Args: [4]uint64{uint64(c.id)},
	})
}

// pipe is a pipeline whose stages are ranks. Times are in µs.
type pipe struct {
	stages, batches, turns int
	work                   func(stage int) uint64 // a batch
	before                 uint64                 // the first stage runs nothing for so long before each batch
	transfer               uint64
	both                   bool // all transfers are kernels that send and receive
}

// run records turns of a pipeline, and returns by stage when it computed and communicated.
func (p pipe) run() (c *crowd, computes, talks []timeline.Spans) {
	c = newCrowd(p.stages)
	c.Meta.GPU.Kernels = append(c.Meta.GPU.Kernels,
		recording.Kernel{Name: "ncclDevKernel_SendRecv"}, recording.Kernel{Name: "ncclDevKernel_Broadcast_RING_LL"})
	computes, talks = make([]timeline.Spans, p.stages), make([]timeline.Spans, p.stages)
	at := make([]uint64, p.stages) // when a stage is done with what it did
	for s := range at {
		at[s] = 100
	}
	talk := func(stage int, function string, kernel int32, to uint64) {
		c.talk(stage, function, kernel, at[stage], to)
		talks[stage] = append(talks[stage], timeline.Span{From: at[stage], To: to})
		at[stage] = to + 10
	}
	send, receive := "ncclSend", "ncclRecv"
	if p.both {
		send, receive = "ncclAllToAll", "ncclAllToAll"
	}
	for range p.turns {
		for range p.batches {
			at[0] += p.before
			for s := range p.stages {
				if s > 0 {
					to := max(at[s-1], at[s]) + p.transfer
					talk(s-1, send, 3, to)
					talk(s, receive, 3, to)
				}
				c.compute(s, at[s], at[s]+p.work(s))
				computes[s] = append(computes[s], timeline.Span{From: at[s], To: at[s] + p.work(s)})
				at[s] += p.work(s) + 10
			}
		}
		to := uint64(0)
		for _, ready := range at {
			to = max(to, ready+10)
		}
		for s := range at {
			talk(s, "ncclBroadcast", 4, to)
		}
	}
	return c, computes, talks
}

// bubbled counts, µs by µs, for how long a stage communicates while another one computes.
func bubbled(computes, talks []timeline.Spans) (n uint64) {
	for s := range talks {
		for _, span := range talks[s] {
			for at := span.From; at < span.To; at++ {
				for other := range computes {
					if other != s && computes[other].Holds(at) {
						n++
						break
					}
				}
			}
		}
	}
	return n
}

func evenly(int) uint64 { return 1000 }

// TestBubbles: what stages wait for each other is found to within the gaps between kernels, with one batch at a time and
// with several, and with stages that have uneven work.
func TestBubbles(t *testing.T) {
	for name, x := range map[string]struct {
		pipe
		least, most float64 // of all time of all stages, by the number of stages and batches
	}{
		"two stages":               {pipe{2, 1, 30, evenly, 0, 5, false}, 0.46, 0.5},
		"two stages, 4 batches":    {pipe{2, 4, 20, evenly, 0, 5, false}, 0.17, 0.2},
		"four stages":              {pipe{4, 1, 20, evenly, 0, 5, false}, 0.70, 0.75},
		"four stages, 4 batches":   {pipe{4, 4, 10, evenly, 0, 5, false}, 0.38, 3.0 / 7},
		"full":                     {pipe{2, 100, 1, evenly, 0, 5, false}, 0, 0.01},
		"one has most to do":       {pipe{3, 4, 10, func(s int) uint64 { return 500 + 1000*uint64(s%2) }, 0, 5, false}, 0.3, 0.55},
		"transfers take the time":  {pipe{2, 20, 3, evenly, 0, 2000, false}, 0, 0.03},
		"the first one is waiting": {pipe{2, 4, 10, func(s int) uint64 { return 200 }, 1500, 5, false}, 0, 0.12},
	} {
		c, computes, talks := x.run()
		tl := timeline.Build(c.Recording())
		must.NoError(t, tl.Check())
		p := Stages(tl, timeline.Span{From: tl.From, To: tl.To})
		if p == nil {
			t.Errorf("%s: no stages", name)
			continue
		}
		got, wait, last := uint64(0), uint64(0), uint64(0)
		for s := range p.Members {
			got += p.Bubbles[s].Total()
			wait += p.Waits[s].Total()
			if extra := p.Bubbles[s].Without(p.Waits[s]).Total(); extra > 0 {
				t.Errorf("%s: stage %d: %d ns of bubbles are no wait", name, s, extra)
			}
			if both := p.Bubbles[s].Both(shifted(computes[s])).Total(); both > 0 {
				t.Errorf("%s: stage %d: computes for %d ns of its bubbles", name, s, both)
			}
			last = max(last, talks[s][len(talks[s])-1].To)
		}
		part := float64(got) / float64(last*1000*uint64(x.stages))
		truth := bubbled(computes, talks) * 1000
		if x.transfer < 1000 && (float64(got) < 0.9*float64(truth) || float64(got) > 1.1*float64(truth)+1e5) ||
			part < x.least || part > x.most {
			t.Errorf("%s: bubbles %d of %d ns of waiting, %.3f of the time, in truth %d", name, got, wait, part, truth)
		}
	}
}

// shifted is when something ran in a recording.
func shifted(s timeline.Spans) timeline.Spans {
	var out timeline.Spans
	for _, x := range s {
		out = append(out, timeline.Span{From: calltest.Start + x.From*1000, To: calltest.Start + x.To*1000})
	}
	return out
}

// TestNoStages: ranks that all send and receive at once, and those that only reduce, are no stages.
func TestNoStages(t *testing.T) {
	all, _, _ := pipe{2, 4, 10, evenly, 0, 5, true}.run()
	reduce := newCrowd(2)
	for i := range uint64(10) {
		reduce.reduce(0, 0x110, 1000*i+100, 1000*i+600)
		reduce.reduce(1, 0x910, 1000*i+500, 1000*i+600)
	}
	for name, c := range map[string]*crowd{"all-to-all": all, "all-reduce": reduce} {
		tl := timeline.Build(c.Recording())
		if p := Stages(tl, timeline.Span{From: tl.From, To: tl.To}); p != nil {
			t.Errorf("%s: %+v", name, p)
		}
	}
}
