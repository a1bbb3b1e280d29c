package gpu

import (
	"math"
	"math/rand/v2"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/inferscope/inferscope/internal/capture/proc"
)

// grower is a process whose memory is known, with windows of 200 ms in it.
type grower struct {
	period      int64                    // of windows, ms
	leaves      func(window int) float64 // bytes that each window leaves
	itself      func(ms int64) float64   // bytes that it takes by itself until then
	leakLimited bool                     // windows are as rare as thrift says
	g           leak
	ms          int64   // that it ran
	opened      int64   // when the last window that has ended opened, ms: the next opens a period later
	taken       float64 // bytes that all windows left
	windows     int
	left        float64 // truly, without the first window
	held        int64   // ms in which windows were held back, to see whether it grows without them
}

// run looks at it at every beat, until that many windows have ended or windows would be given up, and reports whether
// they would.
func (p *grower) run(windows int) bool {
	const on = 200
	if p.windows == 0 {
		p.opened = 1100 - p.period
	}
	for ms := p.ms + 250; p.windows < windows; ms += 250 {
		period := p.period
		if p.leakLimited || p.g.onTrial() {
			period = max(period, p.g.leakPeriod().Milliseconds())
		}
		if p.g.resting {
			period = int64(restPeriod(on*1e6, uint64(period)*1e6) / 1e6)
		}
		busy := false
		for next := p.opened + period; ms >= next && !busy; next += period {
			if busy = ms < next+on; busy {
				break
			}
			leaves := p.leaves(p.windows)
			p.taken += leaves
			if p.windows > 0 {
				p.left += leaves
			}
			p.windows++
			p.opened = next
		}
		p.g.note(uint64(ms)*1e6, uint32(p.windows), busy,
			func() (int64, bool) { return int64(1e9 + p.taken + p.itself(ms)), true })
		p.g.rest()
		if p.ms = ms; p.g.onTrial() {
			p.held += 250
		}
		if p.g.trial.guilty {
			return true
		}
	}
	return false
}

func each(bytes float64) func(int) float64 { return func(int) float64 { return bytes } }
func still(int64) float64                  { return 0 }

// noise returns noise that depends on the time alone: it chooses from a number of random values.
func noise(bytes float64, every int64) func(int64) float64 {
	dice := rand.New(rand.NewPCG(3, 4))
	values := make([]float64, 1<<16)
	for i := range values {
		values[i] = bytes * dice.NormFloat64()
	}
	return func(ms int64) float64 { return values[ms/every%int64(len(values))] }
}

func sums(shuttingDown ...func(int64) float64) func(int64) float64 {
	return func(ms int64) (sum float64) {
		for _, f := range shuttingDown {
			sum += f(ms)
		}
		return sum
	}
}

// rate is a program that takes so many bytes a second for ever.
func rate(bytes float64) func(int64) float64 {
	return func(ms int64) float64 { return bytes / 1000 * float64(ms) }
}

// TestLeakIsFound in windows that leave something, before they have left much more than they may.
func TestLeakIsFound(t *testing.T) {
	dice := rand.New(rand.NewPCG(5, 6))
	uneven := func(int) float64 { return 2e6 * dice.Float64() }
	lumps := func(n int) float64 { return 8e6 * float64((n%10)/9) }
	for name, c := range map[string]struct {
		p    grower
		most float64 // that they have left by then
	}{
		"1 MB each":                       {grower{period: 2000, leaves: each(1e6), itself: still}, 67e6},
		"16 kB each":                      {grower{period: 2000, leaves: each(16e3), itself: still}, 65e6},
		"20 MB each":                      {grower{period: 2000, leaves: each(20e6), itself: still}, 161e6},
		"something each":                  {grower{period: 2000, leaves: uneven, itself: still}, 70e6},
		"8 MB in every tenth":             {grower{period: 2000, leaves: lumps, itself: still}, 300e6},
		"1 MB, and it grows":              {grower{period: 2000, leaves: each(1e6), itself: rate(1e6)}, 68e6},
		"1 MB, up and down by 300 kB":     {grower{period: 2000, leaves: each(1e6), itself: noise(3e5, 70)}, 75e6},
		"1 MB, shrinks":                   {grower{period: 2000, leaves: each(1e6), itself: rate(-2e5)}, 150e6},
		"1 MB, rarely":                    {grower{period: 30000, leaves: each(1e6), itself: still}, 67e6},
		"1 MB, without a pause":           {grower{period: 420, leaves: each(1e6), itself: still}, 330e6},
		"1 MB, without a pause, it grows": {grower{period: 420, leaves: each(1e6), itself: rate(5e5)}, 330e6},
	} {
		if found := c.p.run(20_000); !found || c.p.left > c.most {
			t.Errorf("%s: found %v after %d windows, which left %.1f MB; they are said to have left %d",
				name, found, c.p.windows, c.p.left/1e6, c.p.g.left())
		}
	}
}

// TestNoFalseLeakReport whose memory is its own doing, in half a day of windows.
func TestNoFalseLeakReport(t *testing.T) {
	loads := func(ms int64) float64 { return 10e9 * math.Min(1, float64(ms)/120e3) } // a model, for two minutes
	steps := func(ms int64) float64 { return 100e6 * float64(ms/37_000) }            // a large piece now and then
	waves := func(ms int64) float64 { return 200e6 * (1 + math.Sin(float64(ms)/4100)) }
	saw := func(ms int64) float64 { return 3e6 * float64(ms%9_000) / 1000 }
	// llama-server keeps some 100 MB of each answer, which can take as long as the time from window to window.
	answers := func(every int64) func(int64) float64 {
		return func(ms int64) float64 { return 100e6 * float64((ms-1000)/every) }
	}
	for name, c := range map[string]grower{
		"still":                          {period: 2000, itself: still},
		"grows by 1 MB/s":                {period: 2000, itself: rate(1e6)},
		"grows by 1 MB/s, no pause":      {period: 420, itself: rate(1e6)},
		"grows by 1 MB/s, rarely":        {period: 30000, itself: rate(1e6)},
		"grows, up and down by 10 MB":    {period: 2000, itself: sums(rate(1e6), noise(10e6, 170))},
		"up and down by 100 MB":          {period: 2000, itself: noise(100e6, 30)},
		"loads a model":                  {period: 2000, itself: loads},
		"loads a model by chunks":        {period: 2000, itself: sums(loads, noise(50e6, 100))},
		"takes 100 MB every 37 s":        {period: 2000, itself: steps},
		"answers as long as the period":  {period: 2000, itself: answers(1955)},
		"answers of nearly two periods":  {period: 2000, itself: answers(3960)},
		"answers, in step, grows":        {period: 2000, itself: sums(answers(2000), rate(1e6))},
		"waves":                          {period: 2000, itself: sums(waves, rate(1e5))},
		"collects its garbage every 9 s": {period: 2000, itself: sums(saw, rate(1e5))},
	} {
		c.leaves = each(0)
		if c.run(21_600) {
			t.Errorf("%s: accused after %d windows of having left %d bytes", name, c.windows, c.g.left())
		}
		if c.held > c.ms/4 {
			t.Errorf("%s: no window for %d of %d s", name, c.held/1000, c.ms/1000)
		}
	}
}

// TestLeakFlattens: what CUPTI takes in its first windows and keeps is no reason to give up.
func TestLeakFlattens(t *testing.T) {
	p := grower{
		period: 2000,
		itself: still,
		leaves: func(n int) float64 { return 30e6 * math.Exp(-float64(n)/20) / 20 },
	}
	if p.run(21_600) {
		t.Errorf("given up after %d windows that left %.1f MB together", p.windows, p.left/1e6)
	}
	if got := float64(p.g.left()); math.Abs(got-p.left) > 5e6 {
		t.Errorf("windows are said to have left %.1f MB, and left %.1f", got/1e6, p.left/1e6)
	}
}

// TestLeakLimit: windows that leave as much each for ever come as often as they like at first, then ever more rarely,
// and are not given up in a day.
func TestLeakLimit(t *testing.T) {
	const leaves, minute, hour = 150e3, 60_000, 3_600_000
	p := grower{period: 2000, itself: still, leaves: each(leaves), leakLimited: true}
	if p.run(200); p.ms > 7*minute {
		t.Errorf("%d windows took %d s", p.windows, p.ms/1000)
	}
	for _, c := range []struct{ windows, from, to int64 }{{260, 1 * hour, 6 * hour}, {380, 12 * hour, 30 * hour}} {
		if p.run(int(c.windows)) || p.ms < c.from || p.ms > c.to {
			t.Errorf("%d windows that left %.1f MB took %.1f hours", p.windows, p.left/1e6, float64(p.ms)/hour)
		}
	}
	flat := grower{
		period:      2000,
		itself:      still,
		leaves:      func(n int) float64 { return 25e6 * math.Exp(-float64(n)/20) / 20 },
		leakLimited: true,
	}
	if flat.run(1000); flat.ms > 1001*2000 {
		t.Errorf("1,000 windows, of which the first left %.0f MB, took %d s", flat.left/1e6, flat.ms/1000)
	}
	harmless := grower{period: 2000, itself: rate(1e6), leaves: each(0), leakLimited: true}
	if harmless.run(1000); harmless.ms > 1001*2000 {
		t.Errorf("1,000 windows that leave nothing took %d s", harmless.ms/1000)
	}
}

// TestLeakForgets what lies between two times that cannot be compared.
func TestLeakForgets(t *testing.T) {
	p := grower{period: 2000, itself: rate(1e6), leaves: each(0)}
	p.run(20)
	judged := p.g.all
	p.g.forget()
	later := grower{period: 2000, leaves: each(0), itself: sums(rate(1e6), func(int64) float64 { return 5e9 }), g: p.g}
	if later.run(20) || later.g.all <= judged || math.Abs(later.g.sum) > 1e6 {
		t.Errorf("%d bytes in %d stretches, %d of them before", int64(later.g.sum), later.g.all, judged)
	}
	for range 3 {
		later.g.note(1<<62, later.g.windows, false, func() (int64, bool) { return 0, false })
	}
	if later.g.at != 0 {
		t.Error("a reading that failed counts")
	}
}

// TestOwnMemory is what this process takes, without what it shares.
func TestOwnMemory(t *testing.T) {
	p, err := proc.Describe(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	before, ok := ownMemory(p)
	kept, err := unix.Mmap(-1, 0, 64<<20, unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_POPULATE)
	if err != nil {
		t.Fatal(err)
	}
	after, ok2 := ownMemory(p)
	if grown := after - before; !ok || !ok2 || grown < 60<<20 || grown > 80<<20 {
		t.Errorf("64 MiB more make %d bytes more (%v %v)", grown, ok, ok2)
	}
	if err := unix.Munmap(kept); err != nil {
		t.Fatal(err)
	}
}

func BenchmarkOwnMemory(b *testing.B) {
	p, err := proc.Describe(os.Getpid())
	if err != nil {
		b.Skip(err)
	}
	defer p.Close()
	for b.Loop() {
		if _, ok := ownMemory(p); !ok {
			b.Fatal("not known")
		}
	}
}
