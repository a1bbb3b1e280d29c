// Package memlimit bounds the memory of this process: what a hostile file can take of it.
//
// The size of what a file unpacks to is bounded where that is known before (see the limits of packages isc and
// importer). Watch bounds everything else: it has the garbage collector work harder near the limit, and ends a context
// when the process is over it.
package memlimit

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/inferscope/inferscope/internal/format"
)

// Bounds of a limit, in bytes.
const (
	least    = 64 << 20
	unknown  = 2 << 30 // where the machine does not say how much it has
	quarters = 4
)

// Default returns a quarter of the memory that this process may use: of its cgroup where that has a limit, else of the
// machine.
func Default() int64 {
	total := cgroupLimit("/proc/self/cgroup", "/sys/fs/cgroup")
	var info unix.Sysinfo_t
	if unix.Sysinfo(&info) == nil {
		total = min(total, int64(min(uint64(info.Totalram)*uint64(info.Unit), math.MaxInt64)))
	}
	if total == math.MaxInt64 {
		return unknown
	}
	return max(total/quarters, least)
}

// cgroupLimit returns the smallest limit of the cgroups of a process, of version 2 (memory.max) or 1
// (memory.limit_in_bytes); math.MaxInt64 where there is none.
func cgroupLimit(self, root string) int64 {
	limit := int64(math.MaxInt64)
	text, err := os.ReadFile(self)
	if err != nil {
		return limit
	}
	for line := range strings.Lines(string(text)) {
		fields := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(fields) < 3 {
			continue
		}
		var dir, name string
		switch {
		case fields[0] == "0" && fields[1] == "":
			dir, name = root, "memory.max"
		case strings.Contains(","+fields[1]+",", ",memory,"):
			dir, name = filepath.Join(root, "memory"), "memory.limit_in_bytes"
		default:
			continue
		}
		// The limits of all cgroups above hold, too; the path may be one of another mount namespace.
		for below := filepath.Clean("/" + fields[2]); ; below = filepath.Dir(below) {
			if n, ok := number(filepath.Join(dir, below, name)); ok {
				limit = min(limit, n)
			}
			if below == "/" {
				break
			}
		}
	}
	return limit
}

func number(path string) (int64, bool) {
	text, err := os.ReadFile(path)
	if err != nil {
		return 0, false
	}
	n, err := strconv.ParseInt(string(bytes.TrimSpace(text)), 10, 64) // "max" is none
	return n, err == nil && n > 0
}

// Parse reads a size: a number of bytes, or with one of the units kB, MB, GB, TB, KiB, MiB, GiB, TiB.
func Parse(text string) (int64, error) {
	s := strings.ToLower(strings.TrimSpace(text))
	unit := 1.0
	for _, u := range []struct {
		suffix string
		bytes  float64
	}{
		{"kib", 1 << 10},
		{"mib", 1 << 20},
		{"gib", 1 << 30},
		{"tib", 1 << 40},
		{"kb", 1e3},
		{"mb", 1e6},
		{"gb", 1e9},
		{"tb", 1e12},
		{"k", 1e3},
		{"m", 1e6},
		{"g", 1e9},
		{"t", 1e12},
		{"b", 1},
	} {
		if rest, ok := strings.CutSuffix(s, u.suffix); ok {
			s, unit = strings.TrimSpace(rest), u.bytes
			break
		}
	}
	n, err := strconv.ParseFloat(s, 64)
	if err != nil || math.IsNaN(n) || n*unit < least || n*unit > 1<<60 {
		return 0, fmt.Errorf("%q is no size of at least %s, like 8GB", text, format.Size(least))
	}
	return int64(n * unit), nil
}

// ErrExceeded is what ended a context of Watch.
var ErrExceeded = errors.New("out of the memory that is allowed")

// exceeded is the error of a limit that was exceeded.
type exceeded struct{ Limit int64 }

// Error names the limit.
func (e *exceeded) Error() string {
	return fmt.Sprintf("it takes more than %s of memory, the limit", format.Size(uint64(e.Limit)))
}

// Is makes it an ErrExceeded.
func (e *exceeded) Is(err error) bool { return err == ErrExceeded }

// period is how often the memory is looked at: a process can take some 50 MB meanwhile.
const period = 5 * time.Millisecond

// Watch returns a context that ends, with an *Exceeded as its cause, when this process uses more memory than limit.
// stop ends the watch.
func Watch(parent context.Context, limit int64) (ctx context.Context, stop func()) {
	ctx, cancel := context.WithCancelCause(parent)
	before := debug.SetMemoryLimit(limit / 8 * 7)
	go func() {
		tick := time.NewTicker(period)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			if used, err := resident(); err == nil && used > limit {
				cancel(&exceeded{Limit: limit})
				return
			}
		}
	}()
	return ctx, func() {
		cancel(context.Canceled)
		debug.SetMemoryLimit(before)
	}
}

// resident returns how much memory this process has that is no file's: proc_pid_statm(5).
func resident() (int64, error) {
	text, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return 0, err
	}
	var size, all, shared int64
	if _, err := fmt.Sscan(string(text), &size, &all, &shared); err != nil {
		return 0, err
	}
	return (all - shared) * int64(os.Getpagesize()), nil
}
