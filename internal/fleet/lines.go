package fleet

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/klauspost/compress/gzip"

	"github.com/inferscope/inferscope/internal/recording/archive"
)

// linesExtension is that of the events of a recording as JSON lines, beside the recording.
const linesExtension = ".jsonl.gz"

// linesLook is how often recordings without JSON lines are looked for.
const linesLook = 2 * time.Second

// writeLines writes the events of the recording in a folder as JSON lines.
type writeLines = func(ctx context.Context, folder string, out io.Writer) error

// liner writes JSON lines of finished recordings. They are made of what is on the disk, so that recordings of a process
// that was killed have them too.
type liner struct {
	shelf *shelf
	write writeLines
	fail  func(what string, err error)

	mu     sync.Mutex      // one recording at a time is in memory
	broken map[string]bool // recordings that have none, and are not tried again
}

// SetLines gives the worker what writes JSON lines.
func (w *Worker) SetLines(write writeLines) {
	if !w.cfg.Lines {
		return
	}
	w.lines = &liner{shelf: w.shelf, write: write, fail: w.fail, broken: map[string]bool{}}
	if w.upload != nil {
		w.upload.lines = w.lines
	}
}

// run writes what is missing until ctx is done.
func (l *liner) run(ctx context.Context) {
	ticker := time.NewTicker(linesLook)
	defer ticker.Stop()
	for {
		l.pass(ctx)
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// pass writes JSON lines of all finished recordings that have none.
func (l *liner) pass(ctx context.Context) {
	found, err := list(l.shelf.dir)
	if err != nil {
		return
	}
	there := map[string]bool{}
	for _, f := range found {
		there[f.name] = true
		if ctx.Err() != nil {
			return
		}
		l.ensure(ctx, f.name)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for name := range l.broken {
		if !there[name] {
			delete(l.broken, name)
		}
	}
}

// ensure writes JSON lines of a recording unless it has some. It returns their path; "" where they cannot be written,
// which is counted.
func (l *liner) ensure(ctx context.Context, name string) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	path := l.shelf.lines(name)
	if _, err := os.Lstat(path); err == nil {
		return path
	}
	if l.broken[name] {
		return ""
	}
	defer l.shelf.pin(name)()
	err := l.shelf.room()
	if err == nil {
		err = l.one(ctx, name, path)
	}
	if err == nil {
		return path
	}
	if ctx.Err() == nil && !errors.Is(err, os.ErrNotExist) { // else it is written after the next start, or was deleted
		l.broken[name] = true
		l.fail("writing JSON lines of "+name, err)
	}
	return ""
}

// one writes JSON lines under a name that nobody reads, until they are whole.
func (l *liner) one(ctx context.Context, name, path string) (err error) {
	partialPath := filepath.Join(l.shelf.dir, partial+filepath.Base(path))
	f, err := os.OpenFile(partialPath, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = os.Remove(partialPath)
		}
	}()
	zip, err := gzip.NewWriterLevel(&roomy{ctx: ctx, shelf: l.shelf, to: f}, gzip.BestSpeed)
	if err != nil {
		return errors.Join(err, f.Close())
	}
	out := bufio.NewWriterSize(zip, 1<<18)
	err = l.write(ctx, filepath.Join(l.shelf.dir, name), out)
	if err == nil {
		err = errors.Join(out.Flush(), zip.Close(), f.Sync())
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	if err := os.Rename(partialPath, path); err != nil {
		return fmt.Errorf("putting JSON lines into their place: %w", err)
	}
	return syncDir(l.shelf.dir)
}

// roomy writes as long as there is room on the disk, which it makes.
type roomy struct {
	ctx   context.Context
	shelf *shelf
	to    io.Writer
	since int // bytes since it looked
}

func (r *roomy) Write(b []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	if r.since += len(b); r.since > intervalBytes/2 {
		r.since = 0
		if err := r.shelf.room(); err != nil {
			return 0, err
		}
	}
	return r.to.Write(b)
}

// lines returns the path of the JSON lines of a recording.
func (s *shelf) lines(name string) string {
	return filepath.Join(s.dir, strings.TrimSuffix(name, archive.Extension)+linesExtension)
}

// isLines reports whether a file is what a recording has beside it, or was to become that.
func isLines(name string) bool { return strings.HasSuffix(name, linesExtension) }
