package cudaapi_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/inferscope/inferscope/internal/capture/cudaapi"
	"github.com/inferscope/inferscope/internal/capture/proc"
	"github.com/inferscope/inferscope/internal/testkit/child"
	"github.com/inferscope/inferscope/internal/testkit/must"
	"github.com/inferscope/inferscope/internal/testkit/needs"
)

// TestUnseen: the calls of a process are seen where its driver is probed, and where it is not it is said.
func TestUnseen(t *testing.T) {
	b, _ := watch(t, cudaapi.Options{}, "sync")
	if err := b.source.Unseen(b.process); err != nil {
		t.Errorf("the simulated driver is probed, yet: %v", err)
	}
	python := needs.Tool(t, "python3")
	garbage := filepath.Join(t.TempDir(), "libcuda.so.1")
	must.NoError(t, os.WriteFile(garbage, []byte(strings.Repeat("garbage ", 1000)), 0o755))
	cmd := exec.Command(
		python,
		"-c",
		"import mmap, sys; f = open(sys.argv[1]); m = mmap.mmap(f.fileno(), 0, flags=mmap.MAP_PRIVATE, "+
			"prot=mmap.PROT_READ | mmap.PROT_EXEC); print(1, flush=True); input()",
		garbage,
	)
	program := child.Start(t, cmd)
	program.Line()
	p, err := proc.Describe(program.PID)
	must.NoError(t, err)
	t.Cleanup(func() { p.Close() })
	if err := b.source.Unseen(p); err != nil {
		t.Errorf("before it is looked at: %v", err)
	}
	if err := b.source.Follow(p); err == nil {
		t.Error("a file of garbage is probed")
	}
	if err := b.source.Unseen(p); err == nil || !strings.Contains(err.Error(), "restart the program") {
		t.Errorf("its driver is not probed, and it is said: %v", err)
	}
}
