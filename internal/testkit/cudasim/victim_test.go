package cudasim

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/inferscope/inferscope/internal/testkit/must"
)

// want compares the application's own calls of some functions to what the script asked for.
func want(t *testing.T, tr *Truth, counts map[string]uint64) {
	t.Helper()
	for name, n := range counts {
		if got := tr.OuterCount(name); got != n {
			t.Errorf("%s: %d calls by the application, want %d", name, got, n)
		}
	}
}

func TestDriverScriptMakesExactlyTheseCalls(t *testing.T) {
	for _, shape := range []int{Shape535, Shape580} {
		v := Start(t, Options{Shape: shape}, "launch 1000 kernel=k_ns100",
			"launch 7 ex grid=2,3,4 block=8,4,2 shared=512 kernel=ex_us1", "h2d 1048576 x10",
			"d2h 4096 x3 async pinned", "memset 65536 x2", "malloc 8192 x5", "free 5", "sync")
		v.Finish()
		tr := v.Truth()
		if tr.Shape != shape || tr.PID != v.PID || tr.Dropped != 0 {
			t.Errorf("shape %d pid %d dropped %d, want %d %d 0", tr.Shape, tr.PID, tr.Dropped, shape, v.PID)
		}
		want(t, tr, map[string]uint64{
			"cuInit": 1, "cuLaunchKernel": 1000, "cuLaunchKernelEx": 7, "cuMemcpyHtoD_v2": 10,
			"cuMemcpyDtoHAsync_v2": 3, "cuMemsetD8_v2": 2, "cuMemAlloc_v2": 5 + 2, "cuMemFree_v2": 5,
			"cuMemHostAlloc": 1, "cuCtxSynchronize": 1, "cuModuleGetFunction": 2,
		})
		if got := tr.Copies(HostToDevice); got != (Tally{10, 10 << 20}) {
			t.Errorf("H2D %+v", got)
		}
		if got := tr.Copies(DeviceToHost); got != (Tally{3, 3 * 4096}) {
			t.Errorf("D2H %+v", got)
		}
		if n := uint64(len(tr.CallsOf("cuLaunchKernel"))); n != 1000 {
			t.Errorf("%d launch records, want 1000", n)
		}
		ex := tr.CallsOf("cuLaunchKernelEx")[0]
		if ex.Grid != [3]uint32{2, 3, 4} || ex.Block != [3]uint32{8, 4, 2} || ex.Shared != 512 ||
			ex.Kernel != "ex_us1" ||
			ex.Depth != 0 {
			t.Errorf("launch record %+v", ex)
		}
	}
}

func TestRuntimeCallsContainDriverCalls(t *testing.T) {
	for _, program := range []string{"dynamic", "static"} {
		o := Options{Lib: "runtime"}
		if program == "static" {
			o.Program = []string{Build(t).VictimStatic}
		}
		for _, o.Shape = range []int{Shape535, Shape580} {
			v := Start(t, o, "launch 20 kernel=k_us1 grid=5,6,7", "launchex 3",
				"h2d 4096 x4", "malloc 100", "free", "sync")
			v.Finish()
			tr := v.Truth()
			want(t, tr, map[string]uint64{
				"cudaLaunchKernel":      20,
				"cudaLaunchKernelExC":   3,
				"cudaMemcpy":            4,
				"cudaMalloc":            3,
				"cudaFree":              2,
				"cudaDeviceSynchronize": 1,
				"cuLaunchKernel":        0,
			})
			if n := tr.Count("cuLaunchKernel"); n != 20 {
				t.Errorf("%s: %d cuLaunchKernel inside, want 20", program, n)
			}
			inner := tr.CallsOf("cuLaunchKernel")[4]
			outer := tr.CallsOf("cudaLaunchKernel")[4]
			if inner.Depth != 1 || inner.Outer != outer.ID || inner.Enter < outer.Enter || inner.Exit > outer.Exit ||
				inner.Grid != outer.Grid {
				t.Errorf("%s: driver call %+v is not inside runtime call %+v", program, inner, outer)
			}
			if tr.Count("cuInit") != 1 || tr.Count("cuDevicePrimaryCtxRetain") != 1 {
				t.Errorf("%s: the runtime did not bring up the driver once", program)
			}
		}
	}
}

func TestForkExecThreadsHaveTheirOwnTruth(t *testing.T) {
	v := Start(t, Options{}, "launch 5", "fork { launch 10; sync }", "thread 4 { launch 100 kernel=k_ns100 }",
		"exec { launch 2; sync }")
	pid, err := ParsePID(v.WaitLine("child"))
	must.NoError(t, err)
	v.Finish()
	child, err := ReadTruth(v.TruthOf(pid))
	must.NoError(t, err)
	want(t, child, map[string]uint64{"cuLaunchKernel": 10, "cuInit": 0})
	if child.PID != pid {
		t.Errorf("child's truth says pid %d, want %d", child.PID, pid)
	}
	tr := v.Truth()
	want(t, tr, map[string]uint64{"cuLaunchKernel": 5 + 400})
	tids := map[uint32]int{}
	for _, c := range tr.CallsOf("cuLaunchKernel") {
		tids[c.TID]++
	}
	if len(tids) != 5 || tids[uint32(v.PID)] != 5 {
		t.Errorf("launches by thread: %v", tids)
	}
	after, err := ReadTruth(v.TruthPath() + ".1")
	must.NoError(t, err)
	want(t, after, map[string]uint64{"cuInit": 1, "cuLaunchKernel": 2})
}

func TestCountsLevelCountsWithoutRecords(t *testing.T) {
	v := Start(t, Options{Level: "counts"}, "thread 3 { launch 1000 kernel=k_ns1 }", "h2d 1000 x3", "sync")
	v.Finish()
	tr := v.Truth()
	want(t, tr, map[string]uint64{"cuLaunchKernel": 3000, "cuMemcpyHtoD_v2": 3})
	if len(tr.Calls)+len(tr.Ops) != 0 || tr.Operations(Kernel).Count != 3000 ||
		tr.Copies(HostToDevice) != (Tally{3, 3000}) {
		t.Errorf("%d calls, %d ops, kernels %+v, H2D %+v",
			len(tr.Calls), len(tr.Ops), tr.Operations(Kernel), tr.Copies(HostToDevice))
	}
}

func TestTruthSurvivesKill(t *testing.T) {
	v := Start(t, Options{}, "launch 50", "print done", "sleep 100s")
	v.WaitLine("done")
	v.Kill()
	want(t, v.Truth(), map[string]uint64{"cuLaunchKernel": 50})
	if n := len(v.Truth().Calls); n < 50 {
		t.Errorf("%d call records after the kill", n)
	}
}

func TestLateLoadAndSecondCopy(t *testing.T) {
	p := Build(t)
	v := Start(t, Options{Args: []string{"--late"}, NoReady: true}, "print idle", "wait", "dlopen-now",
		"launch 3", "open "+p.Libcuda(Shape535), "launch 4", "sync")
	v.WaitLine("idle")
	v.Go()
	v.Finish()
	all := v.Truths()
	if len(all) != 2 || all[0].OuterCount("cuLaunchKernel") != 3 || all[1].OuterCount("cuLaunchKernel") != 4 {
		t.Fatalf("%d truth files", len(all))
	}
}

func TestVictimRefusesABadScript(t *testing.T) {
	p := Build(t)
	for _, script := range []string{
		"lunch 3", "thread 2 { launch 1", "launch 1 }", "sync { }", "sleep 5", "launch many",
	} {
		cmd := exec.Command(p.Victim, script)
		cmd.Env = []string{"LD_LIBRARY_PATH=" + p.LibraryPath(Shape580)}
		out, err := cmd.CombinedOutput()
		if cmd.ProcessState.ExitCode() != 2 || !strings.Contains(string(out), "victim: ") {
			t.Errorf("%q: %v, %s", script, err, out)
		}
	}
}

func TestRuntimeGraphsForksAndPerThreadStreams(t *testing.T) {
	script := []string{
		"stream-new nonblocking", "graph 6 stream=1 kernel=n_us1", "graph-launch 4 stream=1", "ssync stream=1",
		"event-record 0 stream=1", "event-sync 0", "hostfunc stream=1", "malloc 100 async", "free async",
		"d2d 64 async", "memset 64", "fork { launch 3; sync }", "sync",
	}
	v := Start(t, Options{Lib: "runtime", Args: []string{"--ptds"}}, script...)
	pid, err := ParsePID(v.WaitLine("child"))
	must.NoError(t, err)
	v.Finish()
	tr := v.Truth()
	want(t, tr, map[string]uint64{
		"cudaGraphLaunch_ptsz":    4,
		"cudaLaunchKernel_ptsz":   6,
		"cudaMallocAsync_ptsz":    1,
		"cudaLaunchHostFunc_ptsz": 1,
		"cudaMemset_ptds":         1,
	})
	if n := tr.Operations(Kernel).Count; n != 24 {
		t.Errorf("%d kernels on the device, want 24", n)
	}
	child, err := ReadTruth(v.TruthOf(pid))
	must.NoError(t, err)
	want(t, child, map[string]uint64{"cudaLaunchKernel_ptsz": 3})
}

func TestLinkedVictimAndExtraDevices(t *testing.T) {
	v := Start(t, Options{Program: []string{Build(t).VictimLinked}, Env: []string{"CUDASIM_DEVICES=4"}},
		"launch 2", "sync")
	v.Finish()
	want(t, v.Truth(), map[string]uint64{"cuLaunchKernel": 2})
	none := Start(t, Options{NoReady: true, Env: []string{"CUDASIM_DEVICES=0"}}, "launch 2")
	if err := none.Wait(); err == nil || none.Stderr() != "victim: cuInit returned 100\n" {
		t.Errorf("without a device: %v, %q", err, none.Stderr())
	}
}
