package gpu

import (
	"testing"
	"time"

	"github.com/inferscope/inferscope/internal/capture/proc"
)

// TestLimiter: windows are as rare as the strictest limit wants, and no more often than was asked for.
func TestLimiter(t *testing.T) {
	const on, asked = 200 * time.Millisecond, 2 * time.Second
	var l limiter
	period := func(what string, want time.Duration) {
		t.Helper()
		if got := l.period(on, asked); got != want {
			t.Errorf("%s: windows are %v apart, want %v", what, got, want)
		}
	}
	period("no limit", asked)
	if l.set(limitLeak, time.Second, asked) || l.set(limitLeak, 0, asked) {
		t.Error("a limit below what was asked for is told")
	}
	period("a limit below what was asked for", asked)
	if !l.set(limitCost, 6*time.Second, asked) || !l.set(limitLeak, 10*time.Second, asked) {
		t.Error("a new limit is not told")
	}
	period("two limits", 10*time.Second)
	if l.set(limitLeak, 10500*time.Millisecond, asked) {
		t.Error("a change of 5% is told")
	}
	period("a small change", 10*time.Second)
	if !l.set(limitLeak, 0, asked) {
		t.Error("the end of a limit is not told")
	}
	period("one limit less", 6*time.Second)
	if !l.set(limitCost, asked, asked) {
		t.Error("the end of a limit is not told")
	}
	period("no limit any more", asked)
	if !l.shorten(on/4) || l.shorten(on/4+time.Millisecond) || !l.shorten(on/2) || l.on != on/2 {
		t.Error("a length that changes, and only such a one, is not told")
	}
	if !l.rest(true) || l.rest(true) {
		t.Error("gaps that are to be long are not told once")
	}
	if got, least := l.period(on, asked), time.Duration(restPeriod(uint64(on), uint64(asked))); got != least ||
		least < asked {
		t.Errorf("with long gaps windows are %v apart, want %v", got, least)
	}
}

// TestGovernorAndCost: the stricter one counts, also for processes that come later.
func TestGovernorAndCost(t *testing.T) {
	s := newTestSource(t, Options{Inject: noInjector{t}})
	early := newSession(&proc.Process{PID: 1}, "", newFacts(1))
	early.windows.limiter.set(limitCost, 2*s.opts.Period, s.opts.Period)
	s.mu.Lock()
	s.sessions[early.process.ID()] = early
	s.mu.Unlock()
	least := 3 * s.opts.Period
	s.SetWindowPeriod(least)
	if got := time.Duration(s.times(early).period); got != least {
		t.Errorf("windows are %v apart, want %v", got, least)
	}
	early.windows.limiter.set(limitCost, 5*s.opts.Period, s.opts.Period)
	if got := time.Duration(s.times(early).period); got != 5*s.opts.Period {
		t.Errorf("windows are %v apart, want what the last one took paid off first", got)
	}
	late := &proc.Process{PID: 2}
	s.begin(late, "")
	s.mu.Lock()
	defer s.mu.Unlock()
	if got := time.Duration(s.times(s.sessions[late.ID()]).period); got != least {
		t.Errorf("windows of a process that came later are %v apart, want %v", got, least)
	}
	delete(s.sessions, early.process.ID())
}
