package diagnosis

import (
	"encoding/binary"
	"math"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/inferscope/inferscope/internal/testkit/must"
)

// TestTurns: what drifts cancels, and one disturbed pair does not count.
func TestTurns(t *testing.T) {
	m := turns{Blocks: [][]pair{{{100, 200}, {80, 160}, {50, 102}}, {{100, 20}, {70, 140}}}, Recorded: []float64{80}}
	if s := m.speedup(); s != 2 {
		t.Errorf("the twin is %v times as fast", s)
	}
	if least, most := m.spread(); least != 0.2 || math.Abs(most-2.04) > 1e-9 {
		t.Errorf("%v to %v", least, most)
	}
	if p := m.watched(); p != 1 {
		t.Errorf("recorded at %v of its pace", p)
	}
	if m := middle([]float64{4, 1, 3, 2}); m != 2.5 {
		t.Errorf("the middle of four is %v", m)
	}
	folder := t.TempDir()
	must.NoError(t, m.keep(folder))
	if again, err := keptTurns(folder); err != nil || again.speedup() != 2 || len(again.Blocks) != len(m.Blocks) {
		t.Errorf("read again: %v, %v", again, err)
	}
	if _, err := keptTurns(t.TempDir()); !os.IsNotExist(err) {
		t.Errorf("nothing was kept: %v", err)
	}
	m.Blocks = m.Blocks[:1]
	must.NoError(t, m.keep(folder))
	if _, err := keptTurns(folder); err == nil {
		t.Error("turns that end before the recording were read")
	}
}

// TestTaken: a CPU that is slower for a while is so for the recording and for the turns beside it, so that a recording
// is held against these alone; that one is taken whose pace is nearest to theirs, and how fast the twin was has no say
// in it.
func TestTaken(t *testing.T) {
	for _, twin := range []float64{1, 1000} {
		m := turns{
			Blocks: [][]pair{
				{{100, 200}, {100, 200}},
				{{100, twin}, {100, twin}},
				{{50, 150}, {50, 150}},
				{{50, 150}, {50, 150}},
			},
			Recorded: []float64{60, 60, 52},
		}
		if m.taken() != 2 || m.speedup() != 3 || !m.usual() || math.Abs(m.watched()-1.04) > 1e-9 {
			t.Errorf("number %d is taken, at %v: the twin is %v times as fast", m.taken(), m.watched(), m.speedup())
		}
		if m.Blocks, m.Recorded = m.Blocks[:3], m.Recorded[:2]; m.usual() {
			t.Errorf("a recording at %v of the pace beside it is not made again", m.watched())
		}
	}
	for pace, usual := range map[float64]bool{94: false, 96: true, 104: true, 106: false} {
		m := turns{Blocks: [][]pair{{{90, 1}, {100, 1}}, {{100, 1}, {120, 1}}}, Recorded: []float64{pace}}
		if m.usual() != usual {
			t.Errorf("%v beside turns of 100: %v", pace, !usual)
		}
	}
}

func TestCountPhases(t *testing.T) {
	prefix := filepath.Join(t.TempDir(), "plan")
	for name, n := range map[string]uint32{".1": 40_000_000, ".22": 2} {
		must.NoError(t, os.WriteFile(prefix+name, binary.LittleEndian.AppendUint32(nil, n), 0o600))
	}
	if n, err := countPhases(prefix); err != nil || n != 40_000_002 {
		t.Errorf("%d phases, %v", n, err)
	}
	must.NoError(t, os.WriteFile(prefix+".3", nil, 0o600))
	if _, err := countPhases(prefix); err == nil {
		t.Error("a plan without a header was read")
	}
}

// TestRoundsFit: a pair is to take no longer than 23 s on average, of which programs and daemons need 4 s to start and
// to end.
func TestRoundsFit(t *testing.T) {
	block, recording := 4*rounds*(settling+turn), 2*window+4*time.Second
	each := 2*block + recording
	if mean := each + spareAll*(block+recording)/time.Duration(len(twins())); mean > 23*time.Second {
		t.Errorf("a pair takes %v", mean)
	}
}
