package main

import (
	"context"
	"fmt"
	"path/filepath"
	"sync"
	"time"

	"github.com/inferscope/inferscope/internal/format"
	"github.com/inferscope/inferscope/internal/recording"
)

// progressAfter is how long something may take before progress is shown.
const progressAfter = time.Second

// step returns the text of a progress line after a time.
type step func(passed time.Duration) string

// progress shows a progress line on a terminal after a delay. The returned function ends and clears it. Nothing is
// shown if stderr is not a terminal.
func (g *global) progress(ctx context.Context, after time.Duration, s step) (done func()) {
	if _, ok := terminal(g.stderr); !ok {
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() { g.tick(ctx, after, s) })
	return func() {
		cancel()
		wg.Wait()
	}
}

// tick updates the line five times a second until ctx ends. Nothing is shown if that is before the delay is over.
func (g *global) tick(ctx context.Context, after time.Duration, s step) {
	const clearLine = "\r\x1b[K" // ECMA-48, EL
	begin := time.Now()
	first := time.NewTimer(after)
	defer first.Stop()
	if after > 0 {
		select {
		case <-ctx.Done():
			return
		case <-first.C:
		}
	}
	every := time.NewTicker(200 * time.Millisecond)
	defer every.Stop()
	for {
		_, _ = fmt.Fprint(g.stderr, clearLine+s(time.Since(begin)))
		select {
		case <-ctx.Done():
			_, _ = fmt.Fprint(g.stderr, clearLine)
			return
		case <-every.C:
		}
	}
}

// recordingOf returns the text for a recording: how much of the window has passed (0: no window), then that data is
// fetched.
func recordingOf(pid uint32, window time.Duration) step {
	return func(passed time.Duration) string {
		if passed < window {
			return fmt.Sprintf("recording pid %d: %.0f of %.0f s", pid, passed.Seconds(), window.Seconds())
		}
		return fmt.Sprintf("fetching what was recorded of pid %d: %.0f s", pid, (passed - window).Seconds())
	}
}

// untilShown returns the delay of the progress line of a recording: none if its window is known to take long.
func untilShown(window time.Duration) time.Duration {
	if window > progressAfter {
		return 0
	}
	return progressAfter
}

// doing returns the text for work on a file.
func doing(what, path string) step {
	return func(passed time.Duration) string {
		return fmt.Sprintf("%s %s: %.0f s", what, format.Clean(filepath.Base(path)), passed.Seconds())
	}
}

// open is openSource with a line of progress.
func (g *global) open(ctx context.Context, path string) (*recording.Recording, error) {
	return g.openAll(ctx, []string{path})
}

// openAll is openSources with a line of progress.
func (g *global) openAll(ctx context.Context, paths []string) (*recording.Recording, error) {
	defer g.progress(ctx, progressAfter, doing("reading", paths[0]))()
	return g.openSources(ctx, paths)
}

// thinking returns the text for an analysis.
func thinking(passed time.Duration) string {
	return fmt.Sprintf("working out what it means: %.0f s", passed.Seconds())
}
