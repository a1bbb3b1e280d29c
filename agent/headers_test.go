package agent_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/inferscope/inferscope/internal/testkit/needs"
	"github.com/inferscope/inferscope/internal/testkit/nvlibs"
)

// version is one CUPTI with the newest structures that it fills.
type version struct {
	cupti, runtime                    nvlibs.Part
	kernel, copy, set, sync, overhead string
}

func versions() []version {
	return []version{
		{nvlibs.CUPTI11, nvlibs.Runtime11, "Kernel8", "Memcpy5", "Memset4", "Synchronization", "Overhead"},
		{nvlibs.CUPTI12, nvlibs.Runtime12, "Kernel9", "Memcpy6", "Memset4", "Synchronization2", "Overhead3"},
		{nvlibs.CUPTI13, nvlibs.Runtime13, "Kernel13", "Memcpy7", "Memset5", "Synchronization2", "Overhead3"},
	}
}

// TestHeaders compiles testdata/headers.c against the real headers of three versions of CUPTI.
func TestHeaders(t *testing.T) {
	cc := needs.Tool(t, "cc")
	for _, v := range versions() {
		t.Run(string(v.cupti), func(t *testing.T) {
			dir := filepath.Dir(nvlibs.Header(t, v.cupti, "cupti.h"))
			args := []string{
				"-std=gnu11", "-fsyntax-only", "-Wall", "-Werror", "-Wno-deprecated-declarations",
				"-Wno-format", "-x", "c",
				"-I", dir, "-I", filepath.Dir(nvlibs.Header(t, v.runtime, "cuda.h")), "-I", hostDefines(t),
				"-DCALLBACK_IDS=" + callbackIDs(t, dir),
			}
			for name, theirs := range map[string]string{
				"KERNEL": v.kernel, "COPY": v.copy, "SET": v.set, "SYNC": v.sync, "OVERHEAD": v.overhead,
			} {
				args = append(args, "-D"+name+"=CUpti_Activity"+theirs)
			}
			if v.overhead == "Overhead3" {
				args = append(args, "-DOVERHEAD_DATA")
			}
			if text, err := exec.Command(cc, append(args, "testdata/headers.c")...).CombinedOutput(); err != nil {
				t.Errorf("%v\n%s", err, text)
			}
		})
	}
}

// hostDefines makes a folder with the one header that comes in another package and declares nothing.
func hostDefines(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "crt"), 0o755); err != nil {
		t.Fatal(err)
	}
	text := ""
	for _, empty := range []string{
		"__host__", "__device__", "CUDARTAPI", "CUDARTAPI_CDECL", "__cudart_builtin__", "__device_builtin__",
		"__device_builtin_texture_type__", "__device_builtin_surface_type__",
	} {
		text += "#define " + empty + "\n"
	}
	text += "#define __builtin_align__(n)\n#define __align__(n)\n#define __specialization_static\n"
	if err := os.WriteFile(filepath.Join(dir, "crt", "host_defines.h"), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return dir
}

// callbackIDs makes an assertion of each id of calls.c that the version in dir knows.
func callbackIDs(t *testing.T, dir string) string {
	t.Helper()
	source, err := os.ReadFile("src/calls.c")
	if err != nil {
		t.Fatal(err)
	}
	known, err := os.ReadFile(filepath.Join(dir, "cupti_driver_cbid.h"))
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	ids := regexp.MustCompile(`\[(\d+) /\* (\w+) \*/\]`).FindAllStringSubmatch(string(source), -1)
	for _, id := range ids {
		constant := "CUPTI_DRIVER_TRACE_CBID_" + id[2]
		if regexp.MustCompile(constant + `\b`).Match(known) {
			fmt.Fprintf(&out, "_Static_assert(%s == %s, %q); ", constant, id[1], id[2])
		}
	}
	if n := strings.Count(out.String(), "_Static_assert"); len(ids) < 35 || n < len(ids)-1 {
		t.Fatalf("calls.c has %d ids and the headers know %d of them: a pattern is off", len(ids), n)
	}
	return out.String()
}

// TestOffsets compares what the tests know of abi.h with what C makes of it.
func TestOffsets(t *testing.T) {
	cc := needs.Tool(t, "gcc")
	c := "#include <stddef.h>\n#include \"abi.h\"\n"
	for what, want := range map[string]int{
		"AGENT_ABI": abi, "AGENT_DATA": ringData, "sizeof(struct agent_params)": paramsLength,
		"sizeof(struct agent_hello)": helloSize, "offsetof(struct agent_ring, heartbeat)": ringHeartbeat,
		"offsetof(struct agent_ring, tail)": ringTail, "offsetof(struct agent_ring, on_ns)": ringOn,
		"offsetof(struct agent_ring, period_ns)": ringPeriod, "offsetof(struct agent_ring, deadline_ns)": ringDeadline,
		"offsetof(struct agent_ring, mode)": ringMode, "offsetof(struct agent_ring, wake)": ringWake,
		"offsetof(struct agent_ring, flush)": ringFlush, "offsetof(struct agent_ring, head)": ringHead,
		"offsetof(struct agent_ring, dropped)": ringDropped, "offsetof(struct agent_ring, began)": ringBegan,
		"offsetof(struct agent_ring, state)": ringState, "offsetof(struct agent_ring, error)": ringError,
		"offsetof(struct agent_ring, cupti_version)": ringVersion, "offsetof(struct agent_ring, windows)": ringWindows,
		"offsetof(struct agent_ring, graphs)": ringGraphs, "offsetof(struct agent_ring, flushed)": ringFlushed,
		"offsetof(struct agent_ring, opening)": ringOpening, "offsetof(struct agent_ring, path)": ringPath,
		"offsetof(struct agent_ring, lost)": ringLost, "offsetof(struct agent_ring, graph_threads)": ringThreads,
		"offsetof(struct agent_ring, graph_thread)": ringGrapher, "offsetof(struct agent_ring, holder)": ringHolder,
		"offsetof(struct agent_ring, gate)": ringGate, "offsetof(struct agent_ring, armed)": ringArmed,
		"offsetof(struct agent_ring, ask)": ringAsk, "offsetof(struct agent_params, fd)": paramsFD,
		"offsetof(struct agent_params, hello_at)": paramsHello, "offsetof(struct agent_params, slots)": paramsSlots,
		"offsetof(struct agent_params, cupti)": paramsCUPTI,
	} {
		c += fmt.Sprintf("_Static_assert((%s) == %d, \"the tests say %d\");\n", what, want, want)
	}
	cmd := exec.Command(cc, "-fsyntax-only", "-x", "c", "-I.", "-")
	cmd.Stdin = strings.NewReader(c)
	if text, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, text)
	}
}
