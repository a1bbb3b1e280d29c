package diagnose_test

import (
	"strings"
	"testing"

	"github.com/inferscope/inferscope/internal/analysis"
	"github.com/inferscope/inferscope/internal/analysis/diagnose"
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/event"
	"github.com/inferscope/inferscope/internal/testkit/calltest"
	"github.com/inferscope/inferscope/internal/testkit/recordtest"
)

// allReduces is a recording of ten seconds of two ranks, which make a communicator and the given number of all-reduces.
func allReduces(calls ...int) *calltest.Builder {
	b := calltest.New()
	b.Window(calltest.Start, calltest.Start+10*calltest.Second)
	b.Process(recording.Process{PID: recordtest.PID + 1, Comm: "late"})
	for r, n := range calls {
		pid := recordtest.PID + uint32(r)
		b.As(pid, pid).Do("ncclCommInitRank", 0, 10, 0x110, uint64(len(calls)))
		for i := range n {
			b.As(pid, pid).Do("ncclAllReduce", int64(i+1)*1_000_000, 4000, 16, 0x110, 0, 7<<56)
		}
	}
	return b
}

// TestHangIsTheVerdict: a rank that has not come up to the end is the verdict and the first finding, though nothing is
// known of GPUs, with the place where it is and for how long the others have waited.
func TestHangIsTheVerdict(t *testing.T) {
	b := allReduces(5, 4)
	b.Event(event.Event{
		TS: calltest.Start + 9*calltest.Second, PID: recordtest.PID + 1, TID: recordtest.PID + 1, Kind: event.Sample,
		Args: [4]uint64{b.Stack(recordtest.Python("load", "/app/data.py", 7), recordtest.Python("step", "/app/train.py", 3))},
	})
	b.Meta.RAS = &recording.RAS{Communicators: []recording.RASCommunicator{{
		Hash: "ae94", Size: 2,
		Ranks: []recording.RASRank{
			{Rank: 0, PID: recordtest.PID, Counts: map[string]uint64{"AllReduce": 5}},
			{Rank: 1, PID: 77, Host: "10.0.0.2", Counts: map[string]uint64{"AllReduce": 4}},
		},
	}}}
	b.Meta.Communicators = []recording.Communicator{{PID: recordtest.PID + 1, Address: 0x110, Rank: 1, Ranks: 2}}
	d := analysis.Run(b.Recording()).Diagnosis
	if d.Verdict != diagnose.Hung || len(d.Findings) == 0 {
		t.Fatalf("verdict %s, %d findings", d.Verdict, len(d.Findings))
	}
	f := &d.Findings[0]
	if f.Cause != "hang" || f.PID != recordtest.PID+1 || f.TID != recordtest.PID+1 || f.Place != "load (data.py:7)" ||
		f.Cost != 9_995_000_000 || f.Share < 0.999 || f.Gain != nil || f.Minor {
		t.Errorf("%+v", f)
	}
	ras := "NCCL's RAS: rank 1 (process 77 on 10.0.0.2) of communicator ae94 has launched AllReduce 4 times, " +
		"another rank 5"
	if said := f.Evidence[len(f.Evidence)-1].Text; said != ras {
		t.Errorf("the evidence ends with %q, want %q", said, ras)
	}
	for _, want := range []string{
		"rank 1 of its communicator (late, ", "has not come to AllReduce", "1 rank waits", "10.0 s", "load (data.py:7)",
	} {
		if !strings.Contains(d.Headline, want) {
			t.Errorf("the headline lacks %q: %s", want, d.Headline)
		}
	}
}

// TestNoHangNoVerdict: where all have come, and where the recording ends before a hang can be told, it is none.
func TestNoHangNoVerdict(t *testing.T) {
	short := allReduces(5, 4)
	short.Window(calltest.Start, calltest.Start+3*calltest.Second)
	for name, b := range map[string]*calltest.Builder{"all have come": allReduces(5, 5), "three seconds": short} {
		d := analysis.Run(b.Recording()).Diagnosis
		if d.Verdict == diagnose.Hung {
			t.Errorf("%s: %s", name, d.Headline)
		}
		for i := range d.Findings {
			if d.Findings[i].Cause == "hang" {
				t.Errorf("%s: %s", name, d.Findings[i].Title)
			}
		}
	}
}
