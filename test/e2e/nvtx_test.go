package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/event"
	"github.com/inferscope/inferscope/internal/report"
	"github.com/inferscope/inferscope/internal/testkit/cudasim"
	"github.com/inferscope/inferscope/internal/testkit/must"
	"github.com/inferscope/inferscope/internal/testkit/needs"
	"github.com/inferscope/inferscope/internal/testkit/nvlibs"
)

// nvtxLibrary makes a library with NVTX's functions of NVTX's own headers, which is what programs have in them.
func nvtxLibrary(t *testing.T) string {
	t.Helper()
	cc := needs.Tool(t, "cc")
	include := filepath.Dir(filepath.Dir(nvlibs.Header(t, nvlibs.NVTX, "nvToolsExt.h")))
	library := filepath.Join(t.TempDir(), "libnvtx.so")
	cmd := exec.Command(cc, "-shared", "-fPIC", "-I", include, "-DNVTX_EXPORT_API", "-include",
		"nvtx3/nvToolsExt.h", "-x", "c", "/dev/null", "-o", library, "-ldl")
	must.Run(t, cmd)
	return library
}

// nvtxLoop names what it does, in ranges within each other, and marks each round.
var nvtxLoop = []string{
	"until { nvtx push step; nvtx mark round; nvtx push decode; launch 3 kernel=k_us5; sync; nvtx pop; nvtx push " +
		"sample; sleep 1ms; nvtx pop; nvtx pop }",
}

// ranges counts a recording's NVTX ranges by name, and checks that each lies within a step of its thread.
func ranges(t *testing.T, rec *recording.Recording, pid int) map[string]int {
	t.Helper()
	counts := map[string]int{}
	type span struct{ from, to uint64 }
	var steps, inner []span
	for i := range rec.Events {
		e := &rec.Events[i]
		if e.Kind != event.Range || e.Func != event.NVTXRange {
			continue
		}
		if int(e.PID) != pid || int(e.TID) != pid {
			t.Errorf("a range of pid %d, thread %d, made by %d", e.PID, e.TID, pid)
		}
		name := "?"
		if n := int(e.Ret); n > 0 && n <= len(rec.Meta.GPU.Ranges) {
			name = rec.Meta.GPU.Ranges[n-1]
		}
		counts[name]++
		if s := (span{e.TS, e.End()}); name == "step" {
			steps = append(steps, s)
		} else {
			inner = append(inner, s)
		}
	}
	for _, s := range inner {
		within := 0
		for _, step := range steps {
			if step.from <= s.from && s.to <= step.to {
				within++
			}
		}
		if within > 1 { // none: its step ended behind the window
			t.Errorf("a range at %d lies in %d steps", s.from, within)
		}
	}
	return counts
}

// TestNVTX has a program with NVTX's own code in it. Where NVTX_INJECTION64_PATH named CUPTI at its start, its ranges
// are recorded, in each window anew, by an agent that comes late too. Where not, NVTX has switched itself off for good.
func TestNVTX(t *testing.T) {
	t.Parallel()
	library := nvtxLibrary(t)
	paths := cudasim.Build(t)
	for _, named := range []bool{true, false} {
		t.Run(fmt.Sprintf("named %v", named), func(t *testing.T) {
			env := []string{"VICTIM_NVTX=" + library}
			if named {
				env = append(env, "NVTX_INJECTION64_PATH="+filepath.Join(paths.Sim, "libcupti.so.13"))
			}
			v := cudasim.Start(t, cudasim.Options{Level: "counts", Env: env}, nvtxLoop...)
			d := startDaemon(t, v.PID, inWindows("60ms", "200ms", "--overhead-budget", "0")...)
			d.waitAgent(v.PID, "running")
			d.waitWindows(v.PID, 3)
			rec := d.recording(v.PID)
			counts := ranges(t, rec, v.PID)
			t.Logf("%d windows: %v", len(closedWindows(rec, v.PID)), counts)
			if !named {
				if len(counts) != 0 {
					t.Errorf("ranges that nobody handed over: %v", counts)
				}
				return
			}
			for _, name := range []string{"step", "decode", "sample", "round"} {
				if counts[name] < 3 {
					t.Errorf("%d ranges %q in three windows", counts[name], name)
				}
			}
			d.stop()
			unharmed(t, v)
		})
	}
}

// TestRunNVTX: `inferscope run` finds the CUPTI of the environment that a program belongs to, and tells NVTX of it.
func TestRunNVTX(t *testing.T) {
	needs.Long(t)
	t.Parallel()
	library := nvtxLibrary(t)
	p := cudasim.Build(t)
	r := newRunner(t)
	program, cupti := filepath.Join(r.dir, "env/bin/victim"),
		filepath.Join(r.dir, "env/lib/python3.12/site-packages/nvidia/cu13/lib/libcupti.so.13")
	for from, to := range map[string]string{p.Victim: program, filepath.Join(p.Sim, "libcupti.so.13"): cupti} {
		must.NoError(t, errors.Join(os.MkdirAll(filepath.Dir(to), 0o755), os.Symlink(from, to)))
	}
	r.env = append(r.env, "LD_LIBRARY_PATH="+p.LibraryPath(cudasim.Shape580), "VICTIM_NVTX="+library)
	f := r.run("--gpu", "continuous", "--report", "r.json", "--", program,
		"repeat 1000 { nvtx push step; launch 3 kernel=k_us5; sync; nvtx push sample; sleep 1ms; nvtx pop; nvtx pop }")
	f.says(t, 0)
	var m report.Model
	must.NoError(t, json.Unmarshal([]byte(f.report(t, "r.json")), &m))
	counts := map[string]uint64{}
	if m.GPU != nil {
		for _, n := range m.GPU.Ranges {
			counts[n.Name] = n.Count
		}
	}
	if counts["step"] < 100 || counts["sample"] < 100 || counts["step"] > 1000 {
		t.Errorf("of 1,000 steps the report has %v", counts)
	}
}
