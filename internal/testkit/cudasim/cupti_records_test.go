package cudasim

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/inferscope/inferscope/internal/testkit/must"
)

// profiled runs a script under the victim's own profiler and returns the victim and
// the lines of its records by kind, each without the kind.
func profiled(t *testing.T, env []string, script ...string) (*Victim, map[string][]string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "records")
	v := Start(t, Options{Env: append(env, "VICTIM_RECORDS="+file)}, append(script, "cupti flush", "cupti dump")...)
	v.Finish()
	text, err := os.ReadFile(file)
	must.NoError(t, err)
	lines := map[string][]string{}
	for line := range strings.Lines(string(text)) {
		kind, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		lines[kind] = append(lines[kind], rest)
	}
	return v, lines
}

func TestEachReleaseHasItsRecords(t *testing.T) {
	p := Build(t)
	for name, env := range map[string][]string{
		"11.8": {"CUDASIM_CUPTI_VERSION=11.8"}, "12.9": {"CUDASIM_CUPTI_VERSION=12.9"}, "13.0": nil,
		"13.5":          {"CUDASIM_CUPTI_VERSION=13.5"},
		"library of 12": {"VICTIM_CUPTI=" + filepath.Join(p.Sim, "cupti12", "libcupti.so.12")},
		"library of 11": {"VICTIM_CUPTI=" + filepath.Join(p.Sim, "cupti11", "libcupti.so.11.8")},
	} {
		v, lines := profiled(t, env, attach+"; cupti enable 38", "launch 5000 kernel=k_ns10",
			"h2d 64 x50 pinned async", "memset 64 x9", "sync")
		if got := len(lines["kernel"]); got != 5000 {
			t.Errorf("%s: %d kernels", name, got)
		}
		if c, s, y := len(lines["memcpy"]), len(lines["memset"]), len(lines["sync"]); c != 50 || s != 9 || y != 1 {
			t.Errorf("%s: %d copies, %d memsets, %d synchronizations", name, c, s, y)
		}
		if n := v.Truth().Operations(Kernel).Count; n != 5000 {
			t.Errorf("%s: %d kernels in truth", name, n)
		}
	}
}

func TestRecordsThatAreNotAboutOperations(t *testing.T) {
	_, lines := profiled(
		t,
		[]string{"CUDASIM_DEVICES=2", "CUDASIM_CUPTI_ENABLE_NS=3000000"},

		"cupti subscribe; cupti buffers; cupti clock; cupti enable 17; cupti enable 8; cupti enable 9; cupti enable "+
			"37; cupti enable 10",
		"stream-new nonblocking; stream-new", "launch 1 stream=1; sync", "cupti flush",
	)
	if got := fmt.Sprint(lines["device"]); got != "[0 132 9 0 85899345920 1 132 9 0 85899345920]" {
		t.Errorf("devices: %s", got)
	}
	if got := fmt.Sprint(lines["context"]); got != "[1 0]" {
		t.Errorf("contexts: %s", got)
	}
	if len(lines["stream"]) != 2 || !strings.HasSuffix(lines["stream"][0], " 1 2") ||
		!strings.HasSuffix(lines["stream"][1], " 1 1") {
		t.Errorf("streams: %q, want a non-blocking and a default one of context 1", lines["stream"])
	}
	resource := 0
	for _, l := range lines["overhead"] {
		var what, start, end uint64
		if _, err := fmt.Sscan(l, &what, &start, &end); err != nil {
			t.Fatal(err)
		}
		if what == 3<<16 && end-start >= 3_000_000 {
			resource++
		}
	}
	if resource != 1 || len(lines["overhead"]) < 2 {
		t.Errorf("overhead: %q, want the slow enable and a flush", lines["overhead"])
	}
}

func TestCopiesBetweenDevices(t *testing.T) {
	v, lines := profiled(t, []string{"CUDASIM_DEVICES=2"}, attach+"; cupti enable 22", "p2p 4096 x3", "h2d 64", "sync")
	if len(lines["peer"]) != 6 || len(lines["memcpy"]) != 1 {
		t.Fatalf("%d copies between devices, %d others", len(lines["peer"]), len(lines["memcpy"]))
	}
	if !strings.HasSuffix(lines["peer"][0], " 4096 0 1 1 2") || !strings.HasSuffix(lines["peer"][1], " 4096 1 2 0 1") {
		t.Errorf("%q: want device and context of source and destination", lines["peer"][:2])
	}
	if got := v.Truth().Copies(PeerToPeer); got != (Tally{6, 6 * 4096}) {
		t.Errorf("truth: %+v", got)
	}
}

func TestGraphNodesAndContexts(t *testing.T) {
	_, lines := profiled(t, nil, "stream-new nonblocking", "graph 3 stream=1 kernel=a_us1", attach,
		"graph-launch 2 stream=1", "graph-update 3 stream=1 kernel=b_us1", "graph-launch stream=1",
		"ssync stream=1", "context 1", "launch 1 kernel=c_us1", "sync", "context 0", "reset",
		"launch 1 kernel=d_us1", "sync")
	var nodes, contexts []string
	for _, l := range lines["kernel"] {
		f := strings.Fields(l)
		nodes = append(nodes, f[6]+":"+f[7]+":"+f[8])
		contexts = append(contexts, f[9])
	}
	want := "[a_us1:1:1 a_us1:1:2 a_us1:1:3 a_us1:1:1 a_us1:1:2 a_us1:1:3 b_us1:1:1 b_us1:1:2 b_us1:1:3 c_us1:0:0 " +
		"d_us1:0:0]"
	if fmt.Sprint(nodes) != want {
		t.Errorf("name:graph:node %v\nwant %s", nodes, want)
	}
	if n := len(contexts); n != 11 || contexts[8] != "1" || contexts[9] == "1" || contexts[10] == "1" ||
		contexts[9] == contexts[10] {
		t.Errorf("contexts %v: want another for the second context, and another after the reset", contexts)
	}
}

func TestCallbackParameters(t *testing.T) {
	for script, want := range map[string]string{
		"cupti callback 307; launch 1 kernel=foo_us1 grid=4,5,6 block=7,8,1 shared=99": "cuLaunchKernel foo_us1 ID F " +
			"500000004 700000006 100000008 63 0",
		"cupti callback 652; launch 1 kernel=bar_us1 ex":              "cuLaunchKernelEx bar_us1 ID F F",
		"cupti callback 514; graph 2 stream=1; graph-launch stream=1": "cuGraphLaunch - ID F F",
		"cupti callback 277; h2d 4096 pinned async stream=1": "cuMemcpyHtoDAsync_v2 - ID F " +
			"F 1000 F",
		"cupti callback 126; ssync stream=1": "cuStreamSynchronize - ID F",
	} {
		v := Start(t, Options{}, "stream-new nonblocking", "cupti subscribe", script, "cupti last")
		got := strings.Fields(v.WaitLine("cupti last"))
		words := strings.Fields(want)
		for i, w := range words {
			ok := got[i] == w || w == "ID" && got[i] != "0" || w == "F" && len(got[i]) > 8
			if !ok {
				t.Errorf("%q: %v, want %s", script, got, want)
				break
			}
		}
	}
}

func TestGraphsStaySlowerUntilFinalized(t *testing.T) {
	env := []string{"CUDASIM_CUPTI_GRAPH_ON_NS=4000", "CUDASIM_CUPTI_GRAPH_OFF_NS=2000", "CUDASIM_GRAPH_NODE_NS=1000"}
	v := Start(t, Options{Env: env}, "stream-new nonblocking", "graph 11 stream=1 kernel=n_us1",
		"graph-launch stream=1", attach, "graph-launch stream=1; ssync stream=1",
		"cupti disable 10; cupti disable 1; cupti disable 2", "graph-launch stream=1; ssync stream=1",
		"cupti enable 10", "graph-launch stream=1; ssync stream=1", "cupti callback 126",
		"cupti finalize-at-exit; ssync stream=1", "graph-launch stream=1; ssync stream=1")
	v.Finish()
	first, last := map[uint64]uint64{}, map[uint64]uint64{}
	var order []uint64
	for _, o := range v.Truth().Ops {
		if first[o.Call] == 0 {
			order = append(order, o.Call)
			first[o.Call] = o.Start
		}
		last[o.Call] = o.End
	}
	var took []uint64
	for _, call := range order {
		took = append(took, last[call]-first[call])
	}
	// 11 kernels of 1 us, 10 gaps of 1 us and what the instruments add
	if got := fmt.Sprint(took); got != "[21000 61000 41000 61000 21000]" {
		t.Errorf("launches took %s ns: before, while on, while off, on again, after the finalize", got)
	}
}
