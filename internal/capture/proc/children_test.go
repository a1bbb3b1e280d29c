package proc

import (
	"os"
	"os/exec"
	"slices"
	"testing"

	"github.com/inferscope/inferscope/internal/testkit/child"
	"github.com/inferscope/inferscope/internal/testkit/must"
)

// TestChildren: both ways to list the children of a process find those that threads of it have, and no others.
func TestChildren(t *testing.T) {
	var want []uint32
	for range 8 {
		want = append(want, uint32(child.Start(t, exec.Command("sleep", "60")).PID))
	}
	ended := exec.Command("true")
	if err := ended.Run(); err != nil {
		t.Skip(err)
	}
	slices.Sort(want)
	fs, self := newProcfs(procRoot), uint32(os.Getpid())
	lists := map[string]func(uint32) []uint32{"the kernel's lists": fs.childrenOf}
	if _, err := os.Stat(procRoot + "/thread-self/children"); err != nil {
		t.Log("this kernel has no lists of children")
		delete(lists, "the kernel's lists")
	}
	all, err := fs.childrenByParent()
	must.NoError(t, err)
	lists["all processes"] = func(parent uint32) []uint32 { return all[parent] }
	for name, list := range lists {
		got := slices.Sorted(slices.Values(list(self)))
		if !slices.Equal(got, want) {
			t.Errorf("%s: children %v, want %v", name, got, want)
		}
		if got := list(want[0]); len(got) > 0 {
			t.Errorf("%s: a program without children has %v", name, got)
		}
	}
}
