package profile_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"

	"github.com/inferscope/inferscope/internal/capture/profile"
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/event"
	"github.com/inferscope/inferscope/internal/testkit/must"
	"github.com/inferscope/inferscope/internal/testkit/needs"
)

// In a call whose return is probed the stack goes on with who made the call, and says why it ends there.
func TestStackAtAReturnProbe(t *testing.T) {
	needs.Root(t, "it samples other processes")
	s := newSource(t, profile.Options{Hz: 499, Helper: helper()})
	busy := buildBusy(t)
	v := start(t, busy, "busy")
	tid := v.tid(t, "main")
	probeReturn(t, v, "work_inner")
	s.follow(v.pid())
	s.untilUnwinder()
	inProbed := func(e []recording.Frame) []string {
		native := names(e, recording.NativeFrame)
		if len(native) > 0 && native[0] == "work_inner" {
			return native
		}
		return nil
	}
	whole, cut := 0, 0
	s.until("stacks in the probed function", func(all []event.Event) bool {
		if len(all) < 500 {
			return false
		}
		for _, e := range clockOf(all, tid) {
			stack := s.stack(e)
			native := inProbed(stack)
			if event.StackOrigin(e.Args[1]) == event.Leaf || native == nil {
				continue
			}
			last := stack[len(stack)-1]
			switch {
			case event.StackOrigin(e.Args[1]) == event.Whole:
				whole++ // it was called before the probe was there
			case !strings.Contains(last.Name, "return probe"):
				t.Logf("a stack ends in %+v", last) // the unwinder does not know the file yet
			case !slices.Contains(native, "work_middle"):
				t.Fatalf("the caller is missing in %q", native)
			default:
				cut++
			}
		}
		return cut > 50
	})
	if whole > cut {
		t.Errorf("%d stacks are whole, %d end at the probe: this shows nothing", whole, cut)
	}
	s.until("the reason in the state",
		func([]event.Event) bool { return strings.Contains(s.State().Detail, "return probe") })
}

// probeReturn puts a program that does nothing on the return of a function.
func probeReturn(t *testing.T, v *victim, symbol string) {
	t.Helper()
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Type:         ebpf.Kprobe,
		License:      "GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 0), asm.Return()},
	})
	must.NoError(t, err)
	t.Cleanup(func() { _ = p.Close() })
	for _, file := range mapped(t, v.pid()) {
		ex, err := link.OpenExecutable(file)
		if err != nil {
			continue
		}
		if l, err := ex.Uretprobe(symbol, p, &link.UprobeOptions{PID: int(v.pid())}); err == nil {
			t.Cleanup(func() { _ = l.Close() })
			return
		}
	}
	t.Fatalf("%s is in no file", symbol)
}
