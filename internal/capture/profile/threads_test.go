package profile

import (
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/inferscope/inferscope/bpf"
	"github.com/inferscope/inferscope/internal/capture/proc"
	"github.com/inferscope/inferscope/internal/recording/event"
	"github.com/inferscope/inferscope/internal/testkit/child"
	"github.com/inferscope/inferscope/internal/testkit/must"
	"github.com/inferscope/inferscope/internal/testkit/needs"
)

// A thread that inherited an event and has one of its own, and one that inherited both, are
// sampled as those that have one.
func TestTwoEvents(t *testing.T) {
	needs.Root(t, "it samples other processes")
	s, err := New(PerThread(Options{Hz: 499, OwnOnly: true}))
	must.NoError(t, err)
	defer s.Close()
	g := newGenerations(t)
	q, err := s.proc(g.process)
	must.NoError(t, err)
	must.NoError(t, s.programs.follow(g.process.PID, nil))
	tids := [3]uint32{g.born("first")}
	q.threads.openThread(tids[0])
	g.tell()
	tids[1] = g.born("second") // has inherited
	if left, err := q.threads.open(); err != nil || left.threads > 0 || len(q.threads.events) != 2 {
		t.Fatalf("%d threads have events: %v, %v", len(q.threads.events), left, err)
	}
	g.tell()
	tids[2] = g.born("third")
	counts := map[uint32]int{}
	for counts[tids[0]] < 200 || counts[tids[1]] < 200 || counts[tids[2]] < 200 {
		s.Feed(0, func(batch []event.Event) {
			for _, e := range batch {
				counts[e.TID]++
			}
		})
		if time.Since(g.since) > time.Minute {
			t.Fatalf("samples: %v", counts)
		}
		time.Sleep(20 * time.Millisecond)
	}
	double, both := int(s.programs.counts(bpf.SampleSampleCountSAMPLE_COUNT_DOUBLE)), counts[tids[1]]+counts[tids[2]]
	if double < both*3/4 || double > both*4/3 {
		t.Errorf("%d samples of second events were dropped; the first ones gave %d", double, both)
	}
}

// generations is busy.c, whose threads start one another when they are told to.
type generations struct {
	t       *testing.T
	process *proc.Process
	victim  *child.Child
	since   time.Time
}

func newGenerations(t *testing.T) *generations {
	t.Helper()
	name := filepath.Join(t.TempDir(), "busy")
	if out, err := exec.Command(
		"cc", "-O2", "-pthread", "-o", name, "testdata/busy.c", "testdata/libbusy.c",
	).CombinedOutput(); err != nil {
		t.Skipf("cc: %v\n%s", err, out)
	}
	victim := child.Start(t, exec.Command(name, "generations"))
	p, err := proc.Describe(victim.PID)
	must.NoError(t, err)
	t.Cleanup(func() { _ = p.Close() })
	return &generations{t: t, process: p, victim: victim, since: time.Now()}
}

func (g *generations) tell() {
	g.t.Helper()
	_, err := io.WriteString(g.victim.In, "\n")
	must.NoError(g.t, err)
}

// born reads which thread the next one is.
func (g *generations) born(name string) (tid uint32) {
	g.t.Helper()
	line := g.victim.Line()
	if _, err := fmt.Sscanf(line, name+" %d", &tid); err != nil {
		g.t.Fatalf("%q does not name %s: %v", line, name, err)
	}
	return tid
}
