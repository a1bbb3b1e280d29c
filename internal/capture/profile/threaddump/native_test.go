package threaddump

import (
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/inferscope/inferscope/internal/analysis/threads"
	"github.com/inferscope/inferscope/internal/capture/proc"
	"github.com/inferscope/inferscope/internal/capture/symbol"
	"github.com/inferscope/inferscope/internal/recording/dump"
	"github.com/inferscope/inferscope/internal/testkit/must"
	"github.com/inferscope/inferscope/internal/testkit/needs"
)

// buildNative compiles the victim; flags vary what the compiler leaves for unwinders.
func buildNative(t *testing.T, flags ...string) string {
	t.Helper()
	needs.Tool(t, "gcc")
	path := filepath.Join(t.TempDir(), "native")
	args := append(
		[]string{
			"-O2",
			"-fno-optimize-sibling-calls",
			"-Wno-unused-result",
			"-o",
			path,
			"testdata/native.c",
			"-pthread",
		},
		flags...)
	must.Run(t, exec.CommandContext(t.Context(), "gcc", args...))
	return path
}

func dumpNative(t *testing.T, path string, args ...string) map[string]dump.Thread {
	t.Helper()
	p := victim(t, path, args...)
	d, err := New(symbol.New(symbol.Options{}), threads.Describe).Take(t.Context(), p.PID, []*proc.Process{p})
	must.NoError(t, err)
	out := map[string]dump.Thread{}
	for _, th := range d.Processes[0].Threads {
		out[th.Name] = th
	}
	return out
}

// own returns the frames that are the victim's, leaf first; those of libraries are "...".
func own(th dump.Thread) []string {
	var out []string
	for _, f := range th.Frames {
		name := f.Name
		if f.File != "native" {
			name = "..."
		}
		if name != "..." || len(out) == 0 || out[len(out)-1] != "..." {
			out = append(out, name)
		}
	}
	return out
}

func TestNativeStacks(t *testing.T) {
	needs.Root(t, "it reads other processes with BPF")
	for _, build := range [][]string{
		{"-fomit-frame-pointer"},
		{"-fno-omit-frame-pointer"},
		{"-static", "-Wl,--eh-frame-hdr", "-fomit-frame-pointer"},
	} {
		t.Run(strings.Join(build, " "), func(t *testing.T) {
			static := slices.Contains(build, "-static")
			threads := dumpNative(t, buildNative(t, build...))
			want := map[string][]string{
				"sorting": {
					"...", "leaf_pause", "big_frame", "varying_frame", "chain", "chain", "chain", "chain",
					"compare", "...", "sorting", "...",
				},
				"signalled": {"...", "leaf_pause", "handler", "...", "interrupted", "signalled", "..."},
				"reading":   {"...", "reading", "..."},
				"native":    {"...", "main", "...", "_start"},
			}
			for name, frames := range want {
				th := threads[name]
				if !th.Whole || th.Torn || th.Cut != "" {
					t.Errorf("%s: whole %v, torn %v, cut %q", name, th.Whole, th.Torn, th.Cut)
				}
				got := own(th)
				if static { // libc's frames are in the program itself
					if !contains(
						got,
						slices.DeleteFunc(slices.Clone(frames), func(s string) bool { return s == "..." }),
					) {
						t.Errorf("%s: %v lacks some of %v", name, got, frames)
					}
					continue
				}
				if diff := cmp.Diff(frames, got); diff != "" {
					t.Errorf("%s (-want +got):\n%s", name, diff)
				}
			}
		})
	}
}

// contains reports whether the names occur in the stack in that order.
func contains(stack, names []string) bool {
	for _, s := range stack {
		if len(names) > 0 && s == names[0] {
			names = names[1:]
		}
	}
	return len(names) == 0
}

// TestWithoutTables holds that a stack that cannot be unwound says so, and that frame
// pointers stand in where there are any.
func TestWithoutTables(t *testing.T) {
	needs.Root(t, "it reads other processes with BPF")
	none := []string{"-fno-asynchronous-unwind-tables", "-fno-unwind-tables", "-fno-exceptions"}
	th := dumpNative(t, buildNative(t, append(none, "-fomit-frame-pointer")...))["sorting"]
	if th.Whole || th.Cut == "" {
		t.Errorf("whole %v, cut %q: nothing says how to unwind it", th.Whole, th.Cut)
	}
	if got := own(th); len(got) < 2 || got[1] != "leaf_pause" {
		t.Errorf("stack %v, want the leaf at least", got)
	}
	th = dumpNative(t, buildNative(t, append(none, "-fno-omit-frame-pointer")...))["sorting"]
	if th.Whole || th.Cut == "" {
		t.Errorf("whole %v, cut %q: frame pointers are no proof", th.Whole, th.Cut)
	}
	if got := own(th); !contains(
		got,
		[]string{"leaf_pause", "big_frame", "varying_frame", "chain", "chain", "chain", "chain", "compare"},
	) {
		t.Errorf("stack %v lacks frames that have frame pointers", got)
	}
}

func TestStates(t *testing.T) {
	needs.Root(t, "it reads other processes with BPF")
	threads := dumpNative(t, buildNative(t, "-fomit-frame-pointer"), "spin")
	for _, want := range []struct {
		name   string
		states []dump.State
		reason string
		doing  string
	}{
		{"sorting", []dump.State{dump.Idle}, "signal", "pause"},
		{"reading", []dump.State{dump.Idle}, "pipe", "read of pipe:["},
		{"native", []dump.State{dump.Idle}, "pipe", "read of pipe:["},
		{"spinning", []dump.State{dump.Active, dump.Runnable}, "", ""},
	} {
		th := threads[want.name]
		if !slices.Contains(want.states, th.State) || th.Reason != want.reason ||
			!strings.HasPrefix(th.Doing, want.doing) {
			t.Errorf("%s: %s, %q, %q; want one of %v, %q, %q",
				want.name, th.State, th.Reason, th.Doing, want.states, want.reason, want.doing)
		}
	}
	if th := threads["spinning"]; th.State == dump.Active && (len(th.Frames) > 0 || th.Cut == "") {
		t.Errorf("spinning on a CPU has frames %v, cut %q: its registers are not known", th.Frames, th.Cut)
	}
}
