package timelinetest

import (
	"math/rand/v2"

	"github.com/inferscope/inferscope/internal/testkit/recordtest"
)

// Random makes a program by dice: one to four threads, with streams of their own or a shared one,
// that launch from a handful of kernels, in loops or without order, with copies, memsets and graphs
// between them, and synchronize often, rarely or never.
func Random(c Config) *Sim {
	rng := rand.New(rand.NewPCG(c.Seed, 99))
	if c.Length == 0 {
		c.Length = 100 * Millisecond
	}
	s := New(c)
	kernels := make([]Kernel, 1+rng.IntN(8))
	for i := range kernels {
		kernels[i] = Kernel{
			Name: "kernel_" + string(rune('a'+i)), Handle: uint64(0x100 + i),
			Grid: [3]uint32{
				1 + uint32(rng.IntN(6)),
				1,
				1,
			}, Block: [3]uint32{64 << rng.IntN(3), 1, 1}, Dur: 1_000 + rng.Uint64N(20_000),
		}
	}
	shared := s.Stream(0, 7)
	share := rng.IntN(3) == 0
	for i := range uint32(1 + rng.IntN(4)) {
		st := shared
		if !share {
			st = s.Stream(0x5000+uint64(i)*0x10, 13+i)
		}
		t := s.Spawn(recordtest.PID + i)
		t.Now += rng.Uint64N(300 * Microsecond)
		behave(t, st, kernels, rng)
	}
	return s
}

// behave gives a thread its habits, and enough steps for the length of the recording.
func behave(t *Thread, st *Stream, kernels []Kernel, rng *rand.Rand) {
	loop := make([]int, 1+rng.IntN(40))
	for i := range loop {
		loop[i] = rng.IntN(len(kernels) + 3)
	}
	ordered := rng.IntN(2) == 0
	cost := 2_000 + rng.Uint64N(8_000)
	syncEvery := []int{1, 10, 50, 400, 1 << 30}[rng.IntN(5)]
	pause := rng.Uint64N(400 * Microsecond)
	sizes := []uint64{4, 4096, 1 << 16}
	for i := range 20_000 {
		what := loop[i%len(loop)]
		if !ordered {
			what = rng.IntN(len(kernels) + 3)
		}
		extra := rng.Uint64N(cost)
		t.Then(func(t *Thread) {
			switch {
			case what < len(kernels):
				t.Launch(st, kernels[what], cost+extra)
			case what == len(kernels):
				t.Copy(st, sizes[i%len(sizes)], Pinned, cost)
			case what == len(kernels)+1:
				t.Fill(st, 512, cost)
			case i%7 == 0:
				t.Graph(st, 0x900, kernels, cost+3000)
			default:
				t.Launch(st, kernels[0], cost+extra)
			}
		})
		if i%syncEvery == syncEvery-1 {
			t.Then(func(t *Thread) { t.Sync(st); t.Pause(extra + pause) })
		}
	}
}
