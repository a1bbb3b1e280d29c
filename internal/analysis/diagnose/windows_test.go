package diagnose_test

import (
	"math"
	"strings"
	"testing"

	"github.com/inferscope/inferscope/internal/analysis/cause"
	"github.com/inferscope/inferscope/internal/analysis/diagnose"
	"github.com/inferscope/inferscope/internal/analysis/gap"
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/event"
	"github.com/inferscope/inferscope/internal/testkit/recordtest"
)

// windowed is a second of which windows of 60 ms are recorded every 200 ms; in window i the thread has no CPU for
// lost[i] ms of each.
func windowed(t *testing.T, id cause.ID, lost ...uint64) *scene {
	s := newScene(t)
	s.Meta.GPU.Mode, s.Meta.GPU.Windows = "windows", nil
	for i, n := range lost {
		at := uint64(i) * 200
		s.Meta.GPU.Windows = append(s.Meta.GPU.Windows, recording.GPUWindow{
			PID: recordtest.PID, From: start + at*ms, To: start + (at+60)*ms,
			Activity: true, Calls: true, End: "finalized",
		})
		s.kernel(at+1, at+59-n)
		if n > 0 {
			s.step(at+59-n, at+59, id)
			s.kernel(at+59, at+60)
		}
	}
	return s
}

func because(f *diagnose.Finding) string { return strings.Join(f.Because, "; ") }

// TestWindowsAreSamples: what few windows say, or windows that differ, is less sure.
func TestWindowsAreSamples(t *testing.T) {
	sure := func(lost ...uint64) (float64, string) {
		d := windowed(t, cause.Sleep, lost...).diagnose()
		if len(d.Findings) == 0 {
			t.Fatalf("no finding: %+v", d)
		}
		return d.Findings[0].Confidence, because(&d.Findings[0])
	}
	alike, why := sure(40, 40, 40, 40, 40)
	if alike < 0.9 || strings.Contains(why, "differs") {
		t.Errorf("five alike: %.2f, %s", alike, why)
	}
	one, why := sure(50)
	if one > 0.75*alike || !strings.Contains(why, "1 window only") {
		t.Errorf("one window: %.2f, %s", one, why)
	}
	differ, why := sure(55, 0, 0, 55, 0)
	if differ > 0.75*alike || !strings.Contains(why, "differs between 5 windows: from 0.0% to 9") {
		t.Errorf("five that differ: %.2f, %s", differ, why)
	}
}

// TestAlwaysBeatsWindows: a thread that had no CPU for half of the time is not told 90% because of the one window that
// says so.
func TestAlwaysBeatsWindows(t *testing.T) {
	s := windowed(t, cause.NoCPU, 54)
	for i := range uint64(10) {
		s.Off(recordtest.Off{TID: recordtest.PID, TS: start + i*100*ms, Dur: 50 * ms, Flags: event.Preempted})
	}
	d := s.diagnose()
	if len(d.Findings) != 1 || d.Findings[0].Share < 0.45 || d.Findings[0].Share > 0.55 ||
		!strings.Contains(because(&d.Findings[0]), "all the time") {
		t.Errorf("%+v", d.Findings)
	}
}

// TestRequestsBeatWindows: a server that has a request for four fifths of the time is not idle because of windows that
// say so, and one that has none for most of it is. All shares are of windows in which both are as they are throughout.
func TestRequestsBeatWindows(t *testing.T) {
	for _, c := range []struct {
		long  uint64 // ms: a request
		idle  bool
		share float64
	}{{199, false, 0.2}, {60, true, 0.75}} {
		s := windowed(t, cause.NoWork, 54, 54, 54, 54)
		for i := range uint64(8) {
			at := start + i%4*200*ms
			s.Meta.Requests = append(s.Meta.Requests,
				recording.Request{PID: recordtest.PID, Received: at, End: at + c.long*ms})
		}
		d := s.diagnose()
		if (d.Verdict == diagnose.Idle) != c.idle || len(d.Findings) == 0 ||
			math.Abs(d.Findings[0].Share-c.share) > 0.01 || !strings.Contains(because(&d.Findings[0]), "requests") {
			t.Errorf("verdict %s, %s, %+v", d.Verdict, d.Headline, d.Findings)
		}
		sum, shares := uint64(0), map[string]float64{}
		for _, p := range d.Breakdown.Parts {
			sum += p.Time
			shares[p.Key] = p.Share
		}
		if sum != d.Breakdown.Time || math.Abs(shares["no-work"]-c.share) > 0.01 ||
			math.Abs(shares["compute"]-(1-c.share)) > 0.01 {
			t.Errorf("parts sum to %d of %d: %v", sum, d.Breakdown.Time, shares)
		}
		if math.Abs(d.Breakdown.Share-0.24) > 0.01 {
			t.Errorf("%.2f of the time was recorded, want 0.24", d.Breakdown.Share)
		}
	}
}

// TestLateFirstRequest: nobody asked for anything before the first request either.
func TestLateFirstRequest(t *testing.T) {
	s := windowed(t, cause.NoWork, 57, 57, 57, 57, 0)
	for range 8 {
		s.Meta.Requests = append(s.Meta.Requests,
			recording.Request{PID: recordtest.PID, Received: start + 800*ms, End: start + 1000*ms})
	}
	if d := s.diagnose(); d.Verdict != diagnose.Idle || len(d.Findings) == 0 || d.Findings[0].Share < 0.7 {
		t.Errorf("verdict %s, %s, %+v", d.Verdict, d.Headline, d.Findings)
	}
}

// TestPlainCause: one synchronization in a window does not bound the clocks, and a cause that was seen for nearly all
// of the time is a verdict whatever else is missing.
func TestPlainCause(t *testing.T) {
	for _, c := range []struct {
		name string
		sure gap.Confidence
		want diagnose.Verdict
	}{{"seen", gap.Seen, diagnose.CPUBound}, {"guessed", gap.Guessed, diagnose.NotEnough}} {
		s := newScene(t)
		for i := range uint64(10) {
			s.kernel(i*100, i*100+3)
			s.step(i*100+3, i*100+100, cause.Sleep, func(x *gap.Step) { x.Sure = c.sure })
		}
		// It returns 900 ms after what it waited for.
		s.Event(event.Event{
			TS: start + 95*ms, Dur: 904 * ms, PID: recordtest.PID, TID: recordtest.PID,
			Func: s.Fn("cuStreamSynchronize"), Kind: event.Call, Flags: event.Timed, Args: [4]uint64{7},
		})
		if d := s.diagnose(); d.Verdict != c.want {
			t.Errorf("%s: %s, %q", c.name, d.Verdict, d.Reasons)
		}
	}
}

// TestWhoTookTheCPU: who lost its CPU to another program is not told to run fewer threads.
func TestWhoTookTheCPU(t *testing.T) {
	for _, c := range []struct {
		by    uint32
		fewer bool
	}{{recordtest.PID, true}, {4321, false}} {
		s := newScene(t)
		s.Off(
			recordtest.Off{
				TID:   recordtest.PID,
				TS:    start - ms,
				Dur:   ms / 2,
				Flags: event.Preempted,
				By:    [2]uint32{c.by, c.by},
			},
		) // the first event
		for i := range uint64(10) {
			s.kernel(i*100, i*100+40)
			s.step(i*100+40, i*100+100, cause.NoCPU, func(x *gap.Step) { x.Wait = 0 })
		}
		d := s.diagnose()
		fewer := false
		for _, change := range d.Findings[0].Changes {
			fewer = fewer || strings.Contains(change.Text, "fewer threads")
		}
		if fewer != c.fewer {
			t.Errorf("taken by %d: %s; %+v", c.by, d.Findings[0].Title, d.Findings[0].Changes)
		}
	}
}
