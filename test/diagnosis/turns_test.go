package diagnosis

import (
	"encoding/binary"
	"math"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// TestTurns: what drifts cancels, and one disturbed pair does not count.
func TestTurns(t *testing.T) {
	m := turns{Pairs: []pair{{100, 200}, {80, 160}, {50, 102}, {100, 20}, {70, 140}}}
	if s := m.speedup(); s != 2 {
		t.Errorf("the twin is %v times as fast", s)
	}
	if least, most := m.spread(); least != 0.2 || math.Abs(most-2.04) > 1e-9 {
		t.Errorf("%v to %v", least, most)
	}
	if p := m.pace(); p != 80 {
		t.Errorf("a pace of %v", p)
	}
	if m := middle([]float64{4, 1, 3, 2}); m != 2.5 {
		t.Errorf("the middle of four is %v", m)
	}
	m.Recorded = []float64{40, 79}
	folder := t.TempDir()
	if err := m.keep(folder); err != nil {
		t.Fatal(err)
	}
	if again, err := keptTurns(folder); err != nil || again.speedup() != 2 || len(again.Pairs) != len(m.Pairs) {
		t.Errorf("read again: %v, %v", again, err)
	}
	if _, err := keptTurns(t.TempDir()); !os.IsNotExist(err) {
		t.Errorf("nothing was kept: %v", err)
	}
}

// TestUsual: a recording at a pace that no turn had is made again, and the one is taken whose pace is nearest to that of the turns.
func TestUsual(t *testing.T) {
	m := turns{Pairs: []pair{{100, 200}, {90, 160}, {110, 102}}}
	for pace, usual := range map[float64]bool{85: false, 86: true, 100: true, 115: true, 116: false} {
		if m.Recorded = []float64{50, pace}; m.usual() != usual {
			t.Errorf("%v beside turns of 90 to 110: %v", pace, !usual)
		}
	}
	if m.Recorded = []float64{120, 85, 84}; m.nearest() != 1 || m.watched() != 0.85 {
		t.Errorf("of %v number %d is taken, at %v", m.Recorded, m.nearest(), m.watched())
	}
}

func TestCountPhases(t *testing.T) {
	prefix := filepath.Join(t.TempDir(), "plan")
	for name, n := range map[string]uint32{".1": 40_000_000, ".22": 2} {
		if err := os.WriteFile(prefix+name, binary.LittleEndian.AppendUint32(nil, n), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if n, err := countPhases(prefix); err != nil || n != 40_000_002 {
		t.Errorf("%d phases, %v", n, err)
	}
	if err := os.WriteFile(prefix+".3", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := countPhases(prefix); err == nil {
		t.Error("a plan without a header was read")
	}
}

// TestRoundsFit: all pairs are to take no longer than half an hour, of which programs and daemons need 8 s each to start and to end.
func TestRoundsFit(t *testing.T) {
	each := 4*rounds*(settling+turn) + 2*window + 8*time.Second
	if all := time.Duration(len(twins()))*each + spareAll*(2*window+time.Second); all > 31*time.Minute {
		t.Errorf("%d pairs take %v", len(twins()), all)
	}
	if rounds%2 != 0 {
		t.Error("half of the rounds are before the recording")
	}
}
