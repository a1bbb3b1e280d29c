package main

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// errSkipped wraps why something cannot be had here.
var errSkipped = errors.New("skipped")

// stand stands in for a test, for the packages that prepare things for tests.
type stand struct {
	testing.TB // nil: those packages call nothing but what is below
	err        error
}

func (s *stand) Helper()          {}
func (s *stand) Skip(args ...any) { s.end(fmt.Errorf("%w: %s", errSkipped, fmt.Sprint(args...))) }
func (s *stand) Skipf(f string, a ...any) {
	s.end(fmt.Errorf("%w: %s", errSkipped, fmt.Sprintf(f, a...)))
}
func (s *stand) Fatal(args ...any)         { s.end(errors.New(fmt.Sprint(args...))) }
func (s *stand) Fatalf(f string, a ...any) { s.end(fmt.Errorf(f, a...)) }

func (s *stand) end(err error) {
	s.err = err
	runtime.Goexit()
}

// attempt runs f as a test would run it, and returns why it was skipped
// (errSkipped) or failed.
func attempt(f func(tb testing.TB)) error {
	s := &stand{}
	done := make(chan struct{})
	go func() {
		defer close(done)
		f(s)
	}()
	<-done
	return s.err
}

// ratios divides round by round: what both sides of a round had to bear cancels out.
func ratios(a, b []float64) []float64 {
	out := make([]float64, 0, len(a))
	for i := range min(len(a), len(b)) {
		if b[i] > 0 {
			out = append(out, a[i]/b[i])
		}
	}
	return out
}

func kernel() string {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return "unknown"
	}
	return unix.ByteSliceToString(u.Release[:])
}

// load is what else this machine does: wall-clock figures of a busy one say little.
func load() string {
	b, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return "unknown"
	}
	first, _, _ := strings.Cut(string(b), " ")
	return first
}

// model is the name of the CPU.
func model() string {
	f, err := os.Open("/proc/cpuinfo")
	if err != nil {
		return "unknown CPU"
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		if name, ok := strings.CutPrefix(s.Text(), "model name"); ok {
			return strings.TrimSpace(strings.TrimLeft(name, "\t :"))
		}
	}
	return "unknown CPU"
}

// threadsOf returns the threads of a process.
func threadsOf(pid int) []int {
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	if err != nil {
		return nil
	}
	var tids []int
	for _, e := range entries {
		if tid, err := strconv.Atoi(e.Name()); err == nil {
			tids = append(tids, tid)
		}
	}
	return tids
}
