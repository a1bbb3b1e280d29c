package main

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// progress shows on a terminal how far a window from now on has passed. The
// function that it returns ends that, and leaves the line empty.
func (g *global) progress(ctx context.Context, pid uint32, window time.Duration) (done func()) {
	if _, ok := terminal(g.stderr); !ok || window <= 0 {
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() { g.tick(ctx, pid, window) })
	return func() {
		cancel()
		wg.Wait()
	}
}

func (g *global) tick(ctx context.Context, pid uint32, window time.Duration) {
	const clearLine = "\r\x1b[K" // ECMA-48, EL
	begin := time.Now()
	every := time.NewTicker(200 * time.Millisecond)
	defer every.Stop()
	for {
		passed := min(time.Since(begin), window)
		_, _ = fmt.Fprintf(g.stderr, clearLine+"recording pid %d: %.0f of %.0f s", pid, passed.Seconds(), window.Seconds())
		select {
		case <-ctx.Done():
			_, _ = fmt.Fprint(g.stderr, clearLine)
			return
		case <-every.C:
		}
	}
}
