package fleet

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/inferscope/inferscope/internal/recording/archive"
	"github.com/inferscope/inferscope/internal/testkit/must"
)

// newLiner writes a line for each event.
func newLiner(t *testing.T, s *shelf) *liner {
	return &liner{
		shelf: s, broken: map[string]bool{},
		fail: func(what string, err error) { t.Errorf("%s: %v", what, err) },
		write: func(ctx context.Context, folder string, out io.Writer) error {
			rec, err := archive.ReadContext(ctx, folder, archive.DefaultLimits())
			if err != nil {
				return err
			}
			for i := range rec.Events {
				if _, err := fmt.Fprintf(out, "{\"ts\":%d}\n", rec.Events[i].TS); err != nil {
					return err
				}
			}
			return nil
		},
	}
}

// linesIn counts the lines in a compressed file.
func linesIn(t *testing.T, file []byte) int {
	t.Helper()
	zip, err := gzip.NewReader(bytes.NewReader(file))
	must.NoError(t, err)
	text, err := io.ReadAll(zip)
	must.NoError(t, err)
	return bytes.Count(text, []byte("\n"))
}

// TestLines: a recording gets its JSON lines once, they count as a part of it, and go with it.
func TestLines(t *testing.T) {
	s := open(t, 1<<40, 0, 0)
	l := newLiner(t, s)
	name := made(t, s, 1, 1000)
	before, _ := s.size()
	l.pass(t.Context())
	path := s.lines(name)
	text, err := os.ReadFile(path)
	must.NoError(t, err)
	if n := linesIn(t, text); n != 1000 {
		t.Errorf("%d lines, want 1000", n)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v %v, want only its owner to read it", info.Mode(), err)
	}
	if after, kept := s.size(); after != before+sizeOf(path) || kept != 1 {
		t.Errorf("%d bytes in %d recordings, want %d in one", after, kept, before+sizeOf(path))
	}
	l.write = func(context.Context, string, io.Writer) error { return errors.New("asked again") }
	l.pass(t.Context())
	must.NoError(t, s.delete(name))
	if left := names(t, s.dir); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
}

// TestLinesThatFail: it is counted, once, nothing of it stays on the disk, and the others get theirs.
func TestLinesThatFail(t *testing.T) {
	s := open(t, 1<<40, 0, 0)
	l := newLiner(t, s)
	bad, good := made(t, s, 1, 10), made(t, s, 2, 10)
	failures, write := 0, l.write
	l.fail = func(string, error) { failures++ }
	l.write = func(ctx context.Context, folder string, out io.Writer) error {
		if filepath.Base(folder) != bad {
			return write(ctx, folder, out)
		}
		_, _ = out.Write(make([]byte, 1<<20))
		return errors.New("too large")
	}
	for range 3 {
		l.pass(t.Context())
	}
	want := []string{bad, good, filepath.Base(s.lines(good))}
	if got := names(t, s.dir); failures != 1 || !slices.Equal(got, want) {
		t.Errorf("%d failures, %v; want one, and %v", failures, got, want)
	}
}

// TestLinesStopped: lines that were not finished when the process was to end, or was killed, are written after the next
// start, and a recording that was half deleted goes.
func TestLinesStopped(t *testing.T) {
	s := open(t, 1<<40, 0, 0)
	l := newLiner(t, s)
	name := made(t, s, 1, 10)
	ctx, stop := context.WithCancel(t.Context())
	write := l.write
	l.write = func(_ context.Context, folder string, out io.Writer) error {
		stop()
		return write(t.Context(), folder, out)
	}
	l.pass(ctx)
	if got := names(t, s.dir); !slices.Equal(got, []string{name}) {
		t.Errorf("stopped in the middle: %v", got)
	}
	killed := filepath.Join(s.dir, partial+strings.TrimSuffix(name, archive.Extension)+linesExtension)
	must.NoError(t, os.WriteFile(killed, []byte("half"), 0o600))
	put(t, s.dir, deleted+"old.isc", 1, 0)
	s.recover()
	l.pass(t.Context())
	if got := names(t, s.dir); !slices.Equal(got, []string{name, filepath.Base(s.lines(name))}) {
		t.Errorf("after the next start: %v", got)
	}
}

// TestLinesMakeRoom: lines that need more than there is make room as they are written, and end where there is none.
func TestLinesMakeRoom(t *testing.T) {
	s := open(t, 2*intervalBytes, 0, 0)
	old, name := made(t, s, 1, 10), made(t, s, 2, 10)
	l := newLiner(t, s)
	failed := error(nil)
	l.fail = func(_ string, err error) { failed = err }
	l.broken[old] = true
	l.write = func(_ context.Context, _ string, out io.Writer) error {
		random := make([]byte, 1<<20)
		for i := range random { // that it cannot be compressed
			random[i] = byte(i*i>>3 ^ i*2654435761>>7)
		}
		for i := range 2 * intervalBytes >> 20 {
			random[i] ^= 0xff
			for k := range random {
				random[k] += random[(k*31+i)%len(random)]
			}
			if _, err := out.Write(random); err != nil {
				return err
			}
		}
		return nil
	}
	l.pass(t.Context())
	if got := names(t, s.dir); !errors.Is(failed, errFull) || !slices.Equal(got, []string{name}) {
		t.Errorf("%v, left %v; want no room, and only %s", failed, got, name)
	}
}
