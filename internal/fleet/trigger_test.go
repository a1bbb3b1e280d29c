package fleet

import (
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/inferscope/inferscope/internal/daemon/api"
	"github.com/inferscope/inferscope/internal/format/clierror"
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/event"
)

func TestThreshold(t *testing.T) {
	if th, err := ParseThreshold("200ms for 30s", false); err != nil || th != (Threshold{2e8, 30 * time.Second}) {
		t.Errorf("%+v %v", th, err)
	}
	if th, err := ParseThreshold("20% for 1m", true); err != nil || th != (Threshold{0.2, time.Minute}) {
		t.Errorf("%+v %v", th, err)
	}
	if th, err := ParseThreshold("", true); err != nil || th != (Threshold{}) {
		t.Errorf("%+v %v", th, err)
	}
	for _, text := range []string{"200ms", "20 for 1m", "0% for 1m", "120% for 1m", "NaN% for 1m", "-5% for 1m", "20% for soon", "20% for -1s", "20% for 100h"} {
		if _, err := ParseThreshold(text, true); clierror.CodeOf(err) != clierror.Usage || clierror.HintOf(err) == "" {
			t.Errorf("%q: %v", text, err)
		}
	}
	if _, err := ParseThreshold("0s for 1s", false); err == nil {
		t.Error("a latency of 0")
	}
}

// A threshold must hold for its time, without an exception; what is not known changes nothing.
func TestWeigh(t *testing.T) {
	triggers := Triggers{
		Iteration: Threshold{1e8, 20 * time.Second},
		GPUBusy:   Threshold{0.2, 30 * time.Second},
		Errors:    Threshold{0.01, 0},
	}
	slow, fast := Facts{
		Iterations: 10,
		P50:        2e8,
		Watched:    100,
		Busy:       50,
	}, Facts{
		Iterations: 10,
		P50:        5e7,
		Watched:    100,
		Busy:       50,
	}
	idle, unknown := Facts{Iterations: 10, P50: 5e7, Watched: 100, Busy: 10}, Facts{}
	failing := Facts{Iterations: 10, P50: 5e7, Watched: 100, Busy: 90, Calls: 50, Errors: 1}
	for name, c := range map[string]struct {
		stretches []Facts
		want      string
	}{
		"slow":                  {[]Facts{slow, slow}, "slow"},
		"not for long":          {[]Facts{slow}, ""},
		"with an exception":     {[]Facts{slow, fast, slow}, ""},
		"unknown in between":    {[]Facts{slow, unknown, slow}, "slow"},
		"idle":                  {[]Facts{idle, idle, idle}, "gpu-idle"},
		"not idle for long":     {[]Facts{idle, idle}, ""},
		"errors":                {[]Facts{failing}, "errors"},
		"all is well":           {[]Facts{fast, fast, fast, fast}, ""},
		"nothing is known":      {[]Facts{unknown, unknown, unknown, unknown}, ""},
		"unknown after a while": {[]Facts{slow, slow, unknown}, ""},
	} {
		var s triggerState
		got := ""
		for i := range c.stretches {
			got = s.weigh(&triggers, &c.stretches[i], 10*time.Second)
		}
		if got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
	var s triggerState
	if got := s.weigh(&Triggers{}, &idle, time.Hour); got != "" {
		t.Errorf("without triggers: %q", got)
	}
}

// TestLostChild: a server whose worker has crashed is worth saving, once, and not for what was before; a pool that is
// killed is not.
func TestLostChild(t *testing.T) {
	died := func(pid uint32, at uint64, signal unix.Signal) recording.Process {
		return recording.Process{PID: pid, Parent: 7, Died: at, ExitCode: int32(signal)}
	}
	s := session{target: api.Target{PID: 7, Processes: []recording.Process{{PID: 7}, died(8, 100, unix.SIGSEGV)}}}
	s.lostChild() // what a session does at its beginning
	for _, c := range []struct {
		more recording.Process
		want string
	}{
		{recording.Process{PID: 9, Parent: 7}, ""},
		{died(10, 200, unix.SIGKILL), ""},
		{died(11, 300, unix.SIGTERM), ""},
		{died(12, 400, unix.SIGABRT), "crash"},
		{died(13, 500, 0), ""},
	} {
		s.target.Processes = append(s.target.Processes, c.more)
		if got := s.lostChild(); got != c.want {
			t.Errorf("after %+v: %q, want %q", c.more, got, c.want)
		}
	}
}

// TestOutOfMemory: each allocation that failed is a reason once, although stretches overlap.
func TestOutOfMemory(t *testing.T) {
	failed := func(at ...uint64) *recording.Recording {
		r := &recording.Recording{Events: []event.Event{{TS: 900, Kind: event.Memory}}}
		for _, ts := range at {
			r.Events = append(r.Events, event.Event{TS: ts, Kind: event.OutOfMemory})
		}
		return r
	}
	refused := func(pid uint32, at uint64, device uint16) *recording.Recording {
		r := failed()
		r.Events[0].PID, r.Events[0].Func = 1, event.CUDAMemory // it has PyTorch
		r.Events = append(r.Events, event.Event{TS: at, PID: pid, Kind: event.OutOfMemory, Func: device})
		return r
	}
	var s session
	for i, c := range []struct {
		rec  *recording.Recording
		want bool
	}{
		{failed(), false},
		{failed(100), true},
		{failed(100), false},
		{failed(100, 300, 200), true},
		{failed(300), false},
		{refused(1, 400, event.DriverMemory), false},
		{refused(2, 500, event.DriverMemory), true},
		{refused(1, 600, event.PinnedMemory), true},
	} {
		if got := s.outOfMemory(c.rec); got != c.want {
			t.Errorf("stretch %d: %t", i, got)
		}
	}
}

func TestEnding(t *testing.T) {
	for _, c := range []struct {
		code        int32
		before, now int64
		want        string
	}{
		{0, -1, -1, ""},
		{1 << 8, -1, -1, "error"},
		{143 << 8, -1, -1, ""},
		{int32(unix.SIGSEGV), -1, -1, "crash"},
		{int32(unix.SIGSEGV) | 0x80, -1, -1, "crash"},
		{int32(unix.SIGABRT), 0, 0, "crash"},
		{int32(unix.SIGTERM), -1, -1, ""},
		{int32(unix.SIGKILL), -1, -1, "killed"},
		{int32(unix.SIGKILL), 2, 2, "killed"},
		{int32(unix.SIGKILL), 2, 3, "oom"},
	} {
		target := api.Target{
			PID: 7,
			Processes: []recording.Process{
				{PID: 8, Parent: 7, Died: 1, ExitCode: int32(unix.SIGSEGV)},
				{PID: 7, Died: 1, ExitCode: c.code},
			},
		}
		if got := ending(&target, c.before, c.now); got != c.want {
			t.Errorf("exit code %#x: %q, want %q", c.code, got, c.want)
		}
	}
}
