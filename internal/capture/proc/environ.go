package proc

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"time"
)

const (
	// maxEnviron bounds what is read of an environment. A process can make its own as long as its address space
	// (PR_SET_MM_MAP of prctl(2)), and needs no right for that.
	maxEnviron = 1 << 20
	// maxVariable bounds one variable, in bytes: a longer one counts as not set.
	maxVariable = 64 << 10
)

// Variable returns a variable of the environment that the process with the pid was started with, as far as its first
// MiB says. The environment lies in the process's own memory, which it may have mapped from a file system that never
// answers, so the read has a deadline.
func Variable(pid uint32, name string) (value string, set bool, err error) {
	return newProcfs(procRoot).variable(pid, name)
}

func (fs *procfs) variable(pid uint32, name string) (value string, set bool, err error) {
	f, err := os.Open(fs.path(pid, "environ"))
	if err != nil {
		return "", false, fmt.Errorf("reading the environment of pid %d: %w", pid, err)
	}
	type result struct {
		value string
		set   bool
		err   error
	}
	found := make(chan result, 1)
	go func() {
		defer f.Close()
		value, set, err := findVariable(f, name)
		found <- result{value, set, err}
	}()
	deadline := time.NewTimer(cmdlineTimeout)
	defer deadline.Stop()
	select {
	case r := <-found:
		return r.value, r.set, r.err
	case <-deadline.C:
		return "", false, fmt.Errorf("reading the environment of pid %d: its memory does not answer: %w",
			pid, os.ErrDeadlineExceeded)
	}
}

// findVariable looks for NAME=value among strings that end with a NUL. It holds one of them at a time.
func findVariable(r io.Reader, name string) (value string, set bool, err error) {
	lines := bufio.NewReaderSize(io.LimitReader(r, maxEnviron), maxVariable)
	prefix := []byte(name + "=")
	whole := true // the next piece is the beginning of a string
	for {
		piece, err := lines.ReadSlice(0)
		if value, ok := bytes.CutPrefix(bytes.TrimSuffix(piece, []byte{0}), prefix); whole && ok &&
			!errors.Is(err, bufio.ErrBufferFull) {
			return string(value), true, nil
		}
		whole = !errors.Is(err, bufio.ErrBufferFull)
		if whole && err != nil {
			if errors.Is(err, io.EOF) {
				err = nil
			}
			return "", false, err
		}
	}
}
