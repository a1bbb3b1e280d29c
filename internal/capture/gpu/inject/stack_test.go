//go:build amd64 || arm64

package inject

import (
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/inferscope/inferscope/agent"
)

// What a visit uses of a thread's stack is well below what is asked for.
func TestStackUse(t *testing.T) {
	in := newInjector(t)
	v := start(t, "--threads", "1")
	p, c := newPlan(t, in, v)
	low, err := stackOf(int(v.process.PID), c.tid, c.Sp, c.Tls)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("stack %#x to %#x, stack pointer %#x", low.low, low.high, c.Sp)
	if err := p.stopPoint.close(); err != nil {
		t.Fatal(err)
	}
	load(t, in, v, testImage(t))
	lowest := v.lowestUsed(t, low.low, c.Sp)
	used := c.Sp - lowest
	t.Logf("a visit reached %d bytes below the stack pointer", used)
	if used > roomNeeded/2 || used < 1000 {
		t.Errorf("%d bytes of stack used, room is asked for %d", used, roomNeeded)
	}
	v.finish()
}

// newPlan resolves and waits for a caller.
func newPlan(t *testing.T, in *Injector, v *victim) (*plan, caller) {
	t.Helper()
	im := testImage(t)
	p, err := in.prepare(v.process, &im)
	if err != nil {
		t.Fatal(err)
	}
	if p.stopPoint, err = in.setStopPoint(v.process); err != nil {
		t.Fatal(err)
	}
	all, err := p.stopPoint.candidates(within(t, 10*time.Second), nil)
	if err != nil {
		t.Fatal(err)
	}
	return p, all[0]
}

// lowestUsed returns the lowest address of [low, high) that is not zero: a stack that libc made is zero at first.
func (v *victim) lowestUsed(t *testing.T, low, high uint64) uint64 {
	t.Helper()
	b := make([]byte, high-low)
	if err := (memory{int(v.process.PID)}).read(b, low); err != nil {
		t.Fatal(err)
	}
	for i, c := range b {
		if c != 0 {
			return low + uint64(i)
		}
	}
	return high
}

func TestParseVMAs(t *testing.T) {
	const text = `00400000-00401000 r-xp 00000000 08:01 5      /bin/a b
7f0000000000-7f0000001000 ---p 00000000 00:00 0 
7f0000001000-7f0000800000 rw-p 00000000 00:00 0 
7ffc00000000-7ffc00021000 rw-p 00000000 00:00 0                          [stack]
nonsense
ffff-0000 rw-p 0 0 0
`
	var before []string
	got, err := parseVMAs(strings.NewReader(text),
		func(b, v vma) bool { before = append(before, b.perms); return v.perms == "rw-p" })
	if err != nil || len(got) != 2 || got[0].start != 0x7f0000001000 || got[1].name != "[stack]" ||
		strings.Join(before, " ") != " r-xp ---p rw-p" {
		t.Errorf("%+v, before: %q", got, before)
	}
}

func TestRoom(t *testing.T) {
	a := area{low: 0x10000, high: 0x90000}
	for sp, want := range map[uint64]bool{
		0x10000: false, 0x10000 + roomNeeded - 1: false, 0x10000 + roomNeeded: true, 0x8ffff: true, 0x90000: false,
		0: false,
	} {
		if a.room(sp) != want {
			t.Errorf("room at %#x: %v", sp, !want)
		}
	}
}

func TestSignalFor(t *testing.T) {
	for _, tt := range []struct {
		caught, blocked uint64
		want            string
	}{
		{0, 0, "urgent I/O condition"},
		{1 << 22, 0, "window changed"},
		{1 << 22, 1 << 27, "child exited"},
		{1<<22 | 1<<27 | 1<<16, 0, "continued"},
		{^uint64(0), 0, "signal 0"},
	} {
		if got := signalFor(status{caught: tt.caught, blocked: tt.blocked}); fmt.Sprint(got) != tt.want {
			t.Errorf("caught %#x, blocked %#x: %v, want %s", tt.caught, tt.blocked, got, tt.want)
		}
	}
}

// This project's own agent comes in, says hello, and is started again when it has left.
func TestAgent(t *testing.T) {
	in := newInjector(t)
	im := agentImage(t)
	v := start(t, "--threads", "4", "--pause", "50")
	files := v.descriptors()
	for round := range 3 {
		r, err := in.Load(within(t, 20*time.Second), v.process, im)
		if err != nil {
			t.Fatal(err)
		}
		b, err := r.Await(within(t, 5*time.Second), v.process, agentHelloAt(im), 40,
			func(b []byte) bool { return get32(b, 0) == agentMagic })
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("stopped %v, held %v, error %d, started again: %v",
			r.Stopped, time.Duration(get64(b, 32)-r.At), int32(get32(b, 8)), r.Started)
		r.FD.Close()
		if get32(b, 8) != 0 || r.Started != (round > 0) {
			t.Fatalf("round %d: hello % x", round, b)
		}
		v.unharmed()
		for deadline := time.Now().Add(20 * time.Second); v.descriptors() != files; time.Sleep(20 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("round %d: %d files open, %d before: the agent did not leave", round, v.descriptors(), files)
			}
		}
	}
	v.unharmed()
	v.finish()
}

// AGENT_MAGIC and AGENT_ABI of agent/abi.h.
const (
	agentMagic = 0x41534e49
	agentABI   = 4
)

func agentHelloAt(im Image) int64 { return int64(len(im.Bytes)+4095) &^ 4095 }

func agentImage(t *testing.T) Image {
	t.Helper()
	content, err := agent.Image(runtime.GOARCH)
	if err != nil {
		t.Fatal(err)
	}
	layout, err := agent.Describe(content)
	if err != nil {
		t.Fatal(err)
	}
	im := Image{Bytes: content, ParamsOffset: int(layout.Params), StartOffset: layout.Start}
	if _, err := fmt.Sscanf(layout.BuildID, "%x", &im.BuildID); err != nil {
		var raw []byte
		if _, err := fmt.Sscanf(layout.BuildID, "%x", &raw); err != nil {
			t.Fatal(err)
		}
		copy(im.BuildID[:], raw)
	}
	b := make([]byte, layout.ParamsSize)
	put32(b, 0, agentMagic)
	put32(b, 4, agentABI)
	put32(b, 12, 1024)
	put64(b, 24, 200e6)
	put64(b, 32, 2e9)
	put64(b, 40, 1e9)
	put64(b, 56, uint64(agentHelloAt(im)))
	im.Params, im.FDAt, im.NowAt = b, 8, 48 // and no other heartbeat: it leaves after 1.5 s
	return im
}
