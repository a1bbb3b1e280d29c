package symbol_test

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/inferscope/inferscope/internal/capture/proc"
	"github.com/inferscope/inferscope/internal/capture/symbol"
	"github.com/inferscope/inferscope/internal/testkit/must"
)

// Another process's files, through the door that a target's files are opened by.
func TestThroughTarget(t *testing.T) {
	child := exec.Command("sleep", "60")
	if err := child.Start(); err != nil {
		t.Skip("needs sleep: ", err)
	}
	defer func() { _ = child.Wait() }()
	defer func() { _ = child.Process.Kill() }()
	p, err := proc.Describe(child.Process.Pid)
	must.NoError(t, err)
	mappings, err := mapped(p)
	must.NoError(t, err)
	table := symbol.New(symbol.Options{})
	named := 0
	for _, m := range mappings {
		if !filepath.IsAbs(m.Path) {
			continue
		}
		module := symbol.Module{
			Path: m.Path,
			Open: func() (symbol.File, error) { return opened(proc.Open(p, m)) },
			Beside: func(path string) (symbol.File, error) {
				return opened(proc.Open(p, proc.Mapping{Path: path}))
			},
		}
		f, err := module.Open()
		must.NoError(t, err)
		segments, err := symbol.ReadSegments(f)
		f.Close()
		must.NoError(t, err)
		for offset := m.Offset; offset < m.Offset+(m.End-m.Start); offset += 4096 {
			if addr, ok := segments.Address(offset); ok && table.Resolve(module, addr).Name != "" {
				named++
			}
		}
	}
	if s := table.Stats(); named < 10 || s.Failures > 0 {
		t.Errorf("%d addresses named; %+v", named, s)
	}
	memoryThroughTarget(t, table, p)
}

func memoryThroughTarget(t *testing.T, table *symbol.Table, p *proc.Process) {
	t.Helper()
	memory := symbol.Process{
		Key:    symbol.ProcessKey{PID: p.PID, StartTime: p.StartTime},
		NSPID:  p.NSPID,
		UID:    p.UID,
		Maps:   func() (io.ReadCloser, error) { return os.Open(fmt.Sprintf("/proc/%d/maps", p.PID)) },
		Beside: func(path string) (symbol.File, error) { return opened(proc.Open(p, proc.Mapping{Path: path})) },
	}
	if got := table.ResolveMemory(memory, 0).String(); !strings.HasPrefix(got, "[") {
		t.Errorf("%q", got)
	}
}

// mapped waits until the dynamic loader has done its work.
func mapped(p *proc.Process) (all []proc.Mapping, err error) {
	for range 100 {
		all, err = proc.Mappings(p)
		for _, m := range all {
			if err != nil || strings.HasPrefix(filepath.Base(m.Path), "libc") {
				return all, err
			}
		}
		time.Sleep(10 * time.Millisecond)
	}
	return all, err
}

// opened keeps a nil *os.File from becoming a File that is not nil.
func opened(f *os.File, err error) (symbol.File, error) {
	if err != nil {
		return nil, err
	}
	return f, nil
}
