package threaddump

import (
	"encoding/json"
	"fmt"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/dump"
	"github.com/inferscope/inferscope/internal/testkit/must"
	"github.com/inferscope/inferscope/internal/testkit/needs"
)

const pySpyVersion = "0.4.3"

// pySpy returns the program, out of $PATH or from PyPI.
func pySpy(t *testing.T) string {
	t.Helper()
	if path, err := exec.LookPath("py-spy"); err == nil {
		return path
	}
	dir := t.TempDir()
	out,
		err := exec.CommandContext(t.Context(), somePython(t), "-m", "pip", "install", "--quiet",
		"--disable-pip-version-check",
		"--no-deps", "--target", dir, "py-spy=="+pySpyVersion).
		CombinedOutput()
	if err != nil {
		t.Skipf("needs py-spy %s, and pip could not get it: %v %s", pySpyVersion, err, out)
	}
	return filepath.Join(dir, "bin", "py-spy")
}

// spied is what py-spy prints of a thread.
type spied struct {
	TID    uint32 `json:"os_thread_id"`
	Frames []struct {
		Name string `json:"name"`
		File string `json:"filename"`
		Line int    `json:"line"`
	} `json:"frames"`
}

// TestAgainstPySpy holds that both see the same Python stacks of the same process.
func TestAgainstPySpy(t *testing.T) {
	needs.Root(t, "it reads other processes with BPF")
	spy := pySpy(t)
	for version, python := range pythons(t) {
		t.Run(version, func(t *testing.T) {
			p := victim(t, python, "testdata/threads.py")
			raw, err := exec.CommandContext(t.Context(), spy, "dump", "--json", "--pid", strconv.Itoa(int(p.PID))).
				Output()
			if err != nil {
				t.Skipf("py-spy %s cannot read Python %s: %v", pySpyVersion, version, err)
			}
			var theirs []spied
			must.NoError(t, json.Unmarshal(raw, &theirs))
			want, got := map[uint32][]string{}, map[uint32][]string{}
			for _, th := range theirs {
				for _, f := range th.Frames {
					want[th.TID] = append(want[th.TID], fmt.Sprintf("%s (%s:%d)", f.Name, f.File, f.Line))
				}
			}
			for _, th := range take(t, p).Threads {
				got[th.TID] = pythonFrames(&th)
			}
			if len(want) != 8 {
				t.Errorf("py-spy saw %d threads, want 8", len(want))
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("Python stacks (-py-spy +ours):\n%s", diff)
			}
		})
	}
}

func pythonFrames(th *dump.Thread) []string {
	var out []string
	for i := range th.Frames {
		if th.Frames[i].Kind == recording.PythonFrame {
			out = append(out, th.Frames[i].Place())
		}
	}
	return out
}
