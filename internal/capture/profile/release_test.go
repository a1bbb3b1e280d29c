package profile

import (
	"context"
	"errors"
	"testing"
	"time"

	"go.uber.org/zap"
)

// TestNothingReadNothingReleased: a process that is met again and again, with files that are known, does not have
// memory given back each time.
func TestNothingReadNothingReleased(t *testing.T) {
	l := newLoader(zap.NewNop(), newConverter(newModules()))
	released := make(chan struct{}, 100)
	l.release = func() { released <- struct{}{} }
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); l.read(ctx) }()
	for range 50 {
		l.poke()
		for len(l.wake) > 0 {
			time.Sleep(time.Millisecond)
		}
	}
	stop()
	l.poke()
	<-ended
	if len(released) != 0 {
		t.Errorf("memory was given back %d times although nothing was read", len(released))
	}
}

// TestRulesThatTheKernelRefuses: they do not count as loaded.
func TestRulesThatTheKernelRefuses(t *testing.T) {
	l := newLoader(zap.NewNop(), newConverter(newModules()))
	l.maps.set(nil, errors.New("the programs do not load"))
	l.loaded = 7 + 5
	x := &image{state: reading}
	l.publish(x, &filled{count: 5})
	if l.loaded != 7 || x.state != refused {
		t.Errorf("%d rules are counted as loaded, want 7; the file's state is %d", l.loaded, x.state)
	}
}
