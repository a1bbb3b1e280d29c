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

	"github.com/inferscope/inferscope/internal/analysis/gap"
	"github.com/inferscope/inferscope/internal/analysis/timeline"
	"github.com/inferscope/inferscope/internal/testkit/cudasim"
	"github.com/inferscope/inferscope/internal/testkit/must"
	"github.com/inferscope/inferscope/test/watch"
)

// A program and its fixed twin take turns, for a CPU that others use too is slower in one second than in the next:
// neighbours in time are compared with each other, ABBA, so that what drifts cancels. The one whose turn it is not is
// stopped.
const (
	rounds   = 3                      // of ABBA in a block of turns; the program is recorded between two blocks
	settling = 70 * time.Millisecond  // until a program that goes on is in step: what it queued before it was stopped is done
	turn     = 350 * time.Millisecond // is measured: hundreds of steps of most
)

// pair is what both got done in a second, one after the other.
type pair struct{ Program, Twin float64 }

// turns are the blocks of pairs of a program, and what it got done in a second in each recording that was made of it:
// the first between the first two blocks, the second between the next two. A recording is compared with the two blocks
// beside it alone, which it shares the CPU's mood with.
type turns struct {
	Blocks   [][]pair
	Recorded []float64
}

// beside are the pairs before and after a recording.
func (m *turns) beside(i int) []pair { return slices.Concat(m.Blocks[i], m.Blocks[i+1]) }

// ratios are how many times as fast the twin was in each pair beside the recording that is taken, the least first.
func (m *turns) ratios() []float64 {
	var out []float64
	for _, p := range m.beside(m.taken()) {
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

// A recording at another pace than the program has just before and after it is no recording of that program: the CPU
// was slower, or others used it. It is made again, and of several that one is taken whose pace is nearest to that of
// the turns beside it. Paces alone decide: nobody looks at what a recording predicts before, nor at how fast the twin
// is.
const (
	mostTries = 3    // recordings of a program
	spareAll  = 24   // recordings beyond the first of all programs together, so that a call's time is bounded
	allowed   = 0.05 // by how much the paces may differ: what recording costs is part of what is tested
)

// pace is that of a recording, of the program's own beside it.
func (m *turns) pace(i int) float64 {
	var own []float64
	for _, p := range m.beside(i) {
		own = append(own, p.Program)
	}
	return m.Recorded[i] / middle(own)
}

// taken is the recording that counts.
func (m *turns) taken() int {
	best := 0
	for i := range m.Recorded {
		if off(m.pace(i)) < off(m.pace(best)) {
			best = i
		}
	}
	return best
}

// usual reports whether it is one that need not be made again.
func (m *turns) usual() bool { return off(m.pace(m.taken())) <= allowed }

// off is how far a pace is from another, of which it is so much: twice as fast is as far as half as fast.
func off(pace float64) float64 { return math.Max(pace, 1/pace) - 1 }

// watched is the pace of the recording that is taken.
func (m *turns) watched() float64 { return m.pace(m.taken()) }

// middle is the median; the mean of the two in the middle where there are two.
func middle(list []float64) float64 {
	if len(list) == 0 {
		return 0
	}
	slices.Sort(list)
	n := len(list)
	return (list[(n-1)/2] + list[n/2]) / 2
}

// alternate measures a block of turns.
func alternate(t *testing.T, program, twin *party) []pair {
	t.Helper()
	var out []pair
	for range rounds {
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
	return float64(ended-began) * float64(max(1, p.s.worth)) / took.Seconds()
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
		must.NoError(t, err)
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
	if err == nil && (len(m.Recorded) == 0 || len(m.Blocks) != len(m.Recorded)+1) {
		err = errors.New("there is no recording between two blocks of turns in it")
	}
	if err != nil {
		return nil, fmt.Errorf("read what was measured: %w", err)
	}
	return m, nil
}

// rate is how much a program got done in a second while it was recorded: kernels while the GPU was watched; 0 where it
// uses none.
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
