package daemon

import (
	"context"
	"testing"
	"time"

	"github.com/inferscope/inferscope/internal/testkit/must"
)

func TestTicker(t *testing.T) {
	k, err := newTicker(time.Hour)
	must.NoError(t, err)
	ctx, stop := context.WithCancel(t.Context())
	k.start(ctx)
	select {
	case <-k.C:
		t.Error("it ticks before its time")
	case <-time.After(20 * time.Millisecond):
	}
	k.reset(time.Millisecond) // while somebody waits for it
	for range 3 {
		<-k.C
	}
	stop()
	until(func() bool { return k.raw.Control(func(uintptr) {}) != nil }) // closed
	k.reset(time.Second)                                                 // does nothing
}
