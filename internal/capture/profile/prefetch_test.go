package profile

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"go.opentelemetry.io/ebpf-profiler/libpf"
	"go.opentelemetry.io/ebpf-profiler/process"

	"github.com/inferscope/inferscope/internal/testkit/child"
	"github.com/inferscope/inferscope/internal/testkit/must"
)

// The start of the stack lies in the mapping that the kernel calls by that name.
func TestStackStart(t *testing.T) {
	at, err := stackStart(os.Getpid())
	must.NoError(t, err)
	maps, err := os.Open("/proc/self/maps")
	must.NoError(t, err)
	defer maps.Close()
	for lines := bufio.NewScanner(maps); lines.Scan(); {
		var from, to uint64
		if strings.HasSuffix(lines.Text(), "[stack]") {
			if _, err := fmt.Sscanf(lines.Text(), "%x-%x", &from, &to); err != nil {
				t.Fatal(err)
			}
			if at <= from || at > to {
				t.Errorf("it starts at %#x, the stack is %s", at, lines.Text())
			}
			return
		}
	}
	t.Fatal("no mapping is called [stack]")
}

// What a stack leads to is wanted, and nothing else: libc has called main of each program.
func TestForesee(t *testing.T) {
	cat := child.Start(t, exec.Command("/bin/cat"))
	if _, err := cat.In.Write([]byte("\n")); err != nil {
		t.Fatal(err)
	}
	cat.Line() // so it is in main
	p := process.New(libpf.PID(cat.PID), libpf.PID(cat.PID))
	c := mapped(t, p)
	nowhere := process.RawMapping{Vaddr: 1 << 20, Length: 4096, Path: "nowhere"}
	c.come, c.files = append(c.come, nowhere, nowhere), append(c.files, &image{}, nil)
	(&loader{}).prefetch(p, &c)
	for i, m := range c.come {
		if strings.Contains(m.Path, "/libc.so") && c.files[i].wanted != 1 {
			t.Errorf("%s is wanted %d times", m.Path, c.files[i].wanted)
		}
		if m.Path == nowhere.Path && c.files[i] != nil && c.files[i].wanted != 0 {
			t.Error("a file is wanted that nothing leads to")
		}
	}
}

// mapped lists the code of a process.
func mapped(t *testing.T, p process.Process) (c change) {
	t.Helper()
	libc := false
	if _, err := p.IterateMappings(func(m process.RawMapping) bool {
		if m.IsExecutable() && !m.IsAnonymous() {
			m.Path = strings.Clone(m.Path)
			libc = libc || strings.Contains(m.Path, "/libc.so")
			c.come, c.files = append(c.come, m), append(c.files, &image{})
		}
		return true
	}); err != nil {
		t.Fatal(err)
	}
	if !libc {
		t.Skip("this cat has no libc.so")
	}
	return c
}
