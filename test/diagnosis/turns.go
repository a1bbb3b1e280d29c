package diagnosis

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/inferscope/inferscope/internal/cudasim"
	"github.com/inferscope/inferscope/internal/gap"
	"github.com/inferscope/inferscope/internal/timeline"
	"github.com/inferscope/inferscope/test/watch"
)

// A program and its fixed twin take turns, for a CPU that others use too is slower in one second than in the next: neighbours in time are
// compared with each other, ABBA, so that what drifts cancels. The one whose turn it is not is stopped.
const (
	rounds   = 6                      // of ABBA: half of them before the program is recorded, half after
	settling = 70 * time.Millisecond  // until a program that goes on is in step: what it queued before it was stopped is done
	turn     = 350 * time.Millisecond // is measured: hundreds of steps of most
)

// pair is what both got done in a second, one after the other.
type pair struct{ Program, Twin float64 }

// turns are the pairs of a program, and what it got done in a second in each recording that was made of it.
type turns struct {
	Pairs    []pair
	Recorded []float64
}

// ratios are how many times as fast the twin was in each pair, the least first.
func (m *turns) ratios() []float64 {
	out := make([]float64, 0, len(m.Pairs))
	for _, p := range m.Pairs {
		out = append(out, p.Twin/p.Program)
	}
	slices.Sort(out)
	return out
}

// speedup is how many times as fast the twin is: the median of the pairs.
func (m *turns) speedup() float64 { return middle(m.ratios()) }

// spread is the least and the most that a pair says.
func (m *turns) spread() (least, most float64) {
	r := m.ratios()
	return r[0], r[len(r)-1]
}

// paces are what the program gets done in a second, the least first.
func (m *turns) paces() []float64 {
	out := make([]float64, 0, len(m.Pairs))
	for _, p := range m.Pairs {
		out = append(out, p.Program)
	}
	slices.Sort(out)
	return out
}

// pace is the middle of these.
func (m *turns) pace() float64 { return middle(m.paces()) }

// A recording at another pace than the program has by itself is no recording of that program: the CPU was slower, or others used it. It is made again, which is
// decided by paces alone: nobody looks at what it foretells before.
const (
	mostTries = 3    // recordings of a program
	spareAll  = 24   // recordings beyond the first of all programs together, so that a call's time is bounded
	allowed   = 0.05 // by how much a pace may lie outside of those of the turns: what recording costs is part of what is tested
)

// usual says whether the last recording was made at a pace of the turns so far.
func (m *turns) usual() bool {
	all, last := m.paces(), m.Recorded[len(m.Recorded)-1]
	return last >= all[0]*(1-allowed) && last <= all[len(all)-1]*(1+allowed)
}

// watched is the pace of the recording that was taken, of that of the turns.
func (m *turns) watched() float64 { return m.Recorded[m.nearest()] / m.pace() }

// nearest returns the recording whose pace is nearest to that of the turns.
func (m *turns) nearest() int {
	best, pace := 0, m.pace()
	for i, r := range m.Recorded {
		if math.Abs(r-pace) < math.Abs(m.Recorded[best]-pace) {
			best = i
		}
	}
	return best
}

// middle is the median; the mean of the two in the middle where there are two.
func middle(list []float64) float64 {
	if len(list) == 0 {
		return 0
	}
	slices.Sort(list)
	n := len(list)
	return (list[(n-1)/2] + list[n/2]) / 2
}

// alternate measures ABBA so many times.
func alternate(t *testing.T, program, twin *party, times int) []pair {
	t.Helper()
	var out []pair
	for range times {
		a, b := program.pace(t), twin.pace(t)
		out = append(out, pair{a, b})
		b, a = twin.pace(t), program.pace(t)
		out = append(out, pair{a, b})
	}
	return out
}

// pace lets a stopped program go on for a turn, and returns how much it gets done in a second.
func (p *party) pace(t *testing.T) float64 {
	t.Helper()
	p.signal(t, syscall.SIGCONT)
	time.Sleep(settling)
	began, from := p.done(t), time.Now()
	time.Sleep(turn)
	ended, took := p.done(t), time.Since(from)
	p.signal(t, syscall.SIGSTOP)
	if ended == began {
		t.Fatalf("%s: got nothing done in %v", p.s.name, took)
	}
	return float64(ended-began) / took.Seconds()
}

// signal sends a signal to all processes of a program, and to its hogs'.
func (p *party) signal(t *testing.T, s syscall.Signal) {
	t.Helper()
	pids := watch.Family(p.v.PID)
	for _, hog := range p.hogs {
		pids = append(pids, hog.PID)
	}
	for _, pid := range pids {
		if err := syscall.Kill(pid, s); err != nil {
			t.Fatalf("%s: send %v: %v", p.s.name, s, err)
		}
	}
}

// done is how much a program has got done so far: kernels, or where it uses no GPU, phases.
func (p *party) done(t *testing.T) uint64 {
	t.Helper()
	sum := uint64(0)
	if p.s.cpuOnly {
		n, err := countPhases(p.plans)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	for _, truth := range p.v.Truths() {
		sum += truth.Operations(cudasim.Kernel).Count
	}
	return sum
}

// countPhases returns how many phases all processes wrote down under a prefix so far.
func countPhases(prefix string) (uint64, error) {
	paths, err := filepath.Glob(prefix + ".*")
	if err != nil {
		return 0, fmt.Errorf("find plans: %w", err)
	}
	sum := uint64(0)
	for _, path := range paths {
		var n [4]byte
		if err := readStart(path, n[:]); err != nil {
			return 0, err
		}
		sum += uint64(binary.LittleEndian.Uint32(n[:]))
	}
	return sum, nil
}

func readStart(path string, into []byte) (err error) {
	f, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("open a plan: %w", err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if _, err := io.ReadFull(f, into); err != nil {
		return fmt.Errorf("read a plan: %w", err)
	}
	return nil
}

// turnsFile is what a folder has of a pair beside the recording.
const turnsFile = "turns.json"

// keep writes what was measured beside the recording.
func (m *turns) keep(folder string) error {
	text, err := json.Marshal(m)
	if err != nil {
		return fmt.Errorf("keep what was measured: %w", err)
	}
	if err := os.WriteFile(filepath.Join(folder, turnsFile), text, 0o600); err != nil {
		return fmt.Errorf("keep what was measured: %w", err)
	}
	return nil
}

// keptTurns reads what keep wrote; fs.ErrNotExist where nothing was kept.
func keptTurns(folder string) (*turns, error) {
	text, err := os.ReadFile(filepath.Join(folder, turnsFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	m := &turns{}
	if err == nil {
		err = json.Unmarshal(text, m)
	}
	if err == nil && len(m.Pairs)*len(m.Recorded) == 0 {
		err = errors.New("there is nothing in it")
	}
	if err != nil {
		return nil, fmt.Errorf("read what was measured: %w", err)
	}
	return m, nil
}

// rate is how much a program got done in a second while it was recorded: kernels while the GPU was watched; 0 where it uses none.
func rate(t *timeline.Timeline) float64 {
	n, ns := 0, uint64(0)
	for i, c := range gap.Covered(t) {
		ns += c.Total()
		for k := t.Devices[i].First; k < t.Devices[i].Last; k++ {
			if a := &t.Activities[k]; a.Kind == timeline.Kernel && c.Holds(a.Start) {
				n++
			}
		}
	}
	return float64(n) / float64(max(ns, 1)) * 1e9
}
