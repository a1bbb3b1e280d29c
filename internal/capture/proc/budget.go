package proc

import (
	"runtime"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// What looking at new processes, programs and mappings may cost: a target decides itself how many it has. Starting a
// large program takes some hundred milliseconds, once.
const (
	budgetShare = 0.05        // of a core, in the long run, for each owner
	budgetBurst = time.Second // of CPU time, at once
	deepestDebt = 10 * time.Second
	// maxLiving bounds the processes of one target that are followed at a time: a quarter of what the kernel's map
	// holds.
	maxLiving = 4096
)

// budgets are the CPU time that may be spent for each target. They are safe for concurrent use.
type budgets struct {
	now func() uint64 // ns

	mu     sync.Mutex
	payers map[uint32]Payer // of each target, by its root
	left   map[Payer]*allowance
}

// Payer is who a target's costs and what is remembered of it are charged to: its user, for all targets of that user
// together, or, of root's, itself.
type Payer struct {
	UID  uint32
	Root uint32 // pid of the target's root; 0 where the user is not root
}

type allowance struct {
	left time.Duration // of CPU time; negative: debt
	at   uint64        // ns: when it was so
}

func newBudgets(now func() uint64) *budgets {
	return &budgets{now: now, payers: map[uint32]Payer{}, left: map[Payer]*allowance{}}
}

// open begins to charge for a target.
func (b *budgets) open(p *Process) {
	b.mu.Lock()
	defer b.mu.Unlock()
	who := Payer{UID: p.Owner}
	if p.Owner == Root {
		who.Root = p.Root
	}
	b.payers[p.Root] = who
}

// forget ends what is known of targets that are not among roots. The debt of a user stays as long as a target of
// theirs.
func (b *budgets) forget(roots map[uint32]bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	paying := map[Payer]bool{}
	for root, who := range b.payers {
		if !roots[root] {
			delete(b.payers, root)
			continue
		}
		paying[who] = true
	}
	for who, a := range b.left {
		if b.fill(a); !paying[who] && a.left >= budgetBurst {
			delete(b.left, who)
		}
	}
}

// payerOf returns who pays for a target.
func (b *budgets) payerOf(root uint32) Payer {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.payer(root)
}

// payer is payerOf under the lock.
func (b *budgets) payer(root uint32) Payer {
	if who, ok := b.payers[root]; ok {
		return who
	}
	return Payer{Root: root}
}

func (b *budgets) of(root uint32) *allowance {
	who := b.payer(root)
	a := b.left[who]
	if a == nil {
		a = &allowance{left: budgetBurst, at: b.now()}
		b.left[who] = a
	}
	b.fill(a)
	return a
}

func (b *budgets) fill(a *allowance) {
	now := b.now()
	if now > a.at {
		a.left = min(budgetBurst, a.left+time.Duration(budgetShare*float64(now-a.at)))
		a.at = now
	}
}

// may reports whether anything may be spent for a target now.
func (b *budgets) may(root uint32) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.of(root).left > 0
}

// spend charges a target.
func (b *budgets) spend(root uint32, cost time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	a := b.of(root)
	a.left = max(-deepestDebt, a.left-cost)
}

// CPUTime returns the CPU time that f takes in its own thread.
func CPUTime(f func()) time.Duration {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	began := threadTime()
	f()
	return threadTime() - began
}

func threadTime() time.Duration {
	var ts unix.Timespec
	if unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &ts) != nil {
		return 0
	}
	return time.Duration(ts.Nano())
}
