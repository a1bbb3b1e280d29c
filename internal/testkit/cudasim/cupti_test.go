package cudasim

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/inferscope/inferscope/internal/testkit/must"
	"github.com/inferscope/inferscope/internal/testkit/needs"
)

// record is one line of a victim's "cupti dump".
type record struct {
	kind         string
	corr         uint64
	start, end   uint64
	stream, x, y uint64 // kernel: grid x, block x; memcpy: bytes, kind
	name         string
}

func readRecords(t *testing.T, path string) []record {
	t.Helper()
	f, err := os.Open(path)
	must.NoError(t, err)
	defer f.Close()
	var out []record
	for s := bufio.NewScanner(f); s.Scan(); {
		r := record{}
		line := s.Text() + " 0 0 0"
		if _, err := fmt.Sscan(line, &r.kind, &r.corr, &r.start, &r.end, &r.stream, &r.x, &r.y, &r.name); err != nil &&
			r.kind == "" {
			t.Fatalf("%q: %v", line, err)
		}
		out = append(out, r)
	}
	return out
}

// attach is how a careful agent begins.
const attach = "cupti subscribe; cupti buffers; cupti clock; cupti enable 10; cupti enable 1; cupti enable 2"

func TestActivityRecordsAreTheTruth(t *testing.T) {
	file := filepath.Join(t.TempDir(), "records")
	v := Start(t, Options{Env: []string{"VICTIM_RECORDS=" + file}}, "launch 5 kernel=before_us1", "sync",
		attach, "launch 300 kernel=k_us3 grid=7,1,1 block=96,1,1", "h2d 4096 x20 pinned async", "memset 100",
		"sync", "cupti flush", "cupti dump")
	v.Finish()
	tr := v.Truth()
	truth := map[string]Op{}
	for _, o := range tr.Ops {
		truth[fmt.Sprint(o.Call, o.Start)] = o
	}
	seen := map[string]int{}
	for _, r := range readRecords(t, file) {
		o, ok := truth[fmt.Sprint(r.corr, r.start)]
		if !ok || o.End != r.end || o.StreamID != r.stream {
			t.Fatalf("record %+v is not in the truth (%+v)", r, o)
		}
		if r.kind == "kernel" && (r.name != o.Name || r.x != 7 || r.y != 96) {
			t.Fatalf("record %+v, truth %+v", r, o)
		}
		seen[r.kind]++
	}
	if seen["kernel"] != 300 || seen["memcpy"] != 20 || seen["memset"] != 1 {
		t.Errorf("records: %v", seen)
	}
}

func TestSecondSubscriberIsRefused(t *testing.T) {
	v := Start(t, Options{}, "cupti subscribe", "cupti subscribe", "cupti unsubscribe", "cupti subscribe")
	for i, want := range []string{"0", "39"} {
		if got := v.WaitLine("cupti subscribe"); got != want {
			t.Errorf("subscribe %d returned %s, want %s", i, got, want)
		}
	}
	v.WaitLine("cupti unsubscribe")
	if got := v.WaitLine("cupti subscribe"); got != "0" {
		t.Errorf("subscribing after the unsubscribe returned %s", got)
	}
	busy := Start(t, Options{Env: []string{"CUDASIM_CUPTI_BUSY=1"}}, "cupti subscribe")
	if got := busy.WaitLine("cupti subscribe"); got != "39" {
		t.Errorf("subscribing beside another profiler returned %s", got)
	}
}

func TestCallbacksComeForEnabledIdsOnly(t *testing.T) {
	v := Start(t, Options{}, "cupti subscribe", "cupti callback 307", "launch 40 kernel=k_ns1", "sync", "cupti dump")
	if got := v.WaitLine("cupti records=0"); got != "lost=0 enters=40 exits=40" {
		t.Errorf("callbacks: %s", got)
	}
}

func TestDroppedRecordsAreReported(t *testing.T) {
	v := Start(t, Options{Env: []string{"CUDASIM_CUPTI_DROP_EVERY=10"}}, attach, "launch 100 kernel=k_ns1",
		"sync", "cupti flush", "cupti dump")
	if got := v.WaitLine("cupti records=90"); !strings.HasPrefix(got, "lost=10") {
		t.Errorf("records: %s", got)
	}
}

// graphs prepares a process that has used a graph before the profiler comes.
const graphs = "stream-new nonblocking; graph 3 stream=1 kernel=n_us1; graph-launch 5 stream=1; ssync stream=1"

const replay = "graph-launch 5 stream=1; ssync stream=1"

func TestWaysOutThatHarmAndThatDoNot(t *testing.T) {
	for name, c := range map[string]struct {
		script []string
		dead   bool
	}{
		"finalize in a callback, enabled": {
			[]string{graphs, attach, replay, "cupti callback 126", "cupti finalize-at-exit", replay, replay}, false,
		},
		"finalize in a callback, launches since disabled": {
			[]string{
				graphs, attach, replay, "cupti disable 10; cupti disable 1; cupti disable 2", replay,
				"cupti callback 126; cupti finalize-at-exit bare", replay, replay,
			},
			true,
		},
		"the same, enabled again for some launches": {
			[]string{
				graphs, attach, replay, "cupti disable 10; cupti disable 1; cupti disable 2", replay, "cupti enable 10",
				replay, "cupti callback 126; cupti finalize-at-exit", replay, replay,
			},
			false,
		},
		"finalize in a callback, another thread launches graphs": {
			[]string{
				graphs, attach, "thread 1 nowait { repeat 100000 { " + replay + "; sleep 1ms } }; sleep 500ms",
				"cupti callback 126", "cupti finalize-at-exit", replay, "sleep 60s", // it dies as soon as the thread runs
			},
			true,
		},
		"the same, but that thread has ended": {
			[]string{
				graphs, attach, "thread 1 { " + replay + " }; sleep 100ms", "cupti callback 126",
				"cupti finalize-at-exit", replay, replay,
			},
			false,
		},
		"finalize from a plain thread with graphs": {
			[]string{
				graphs, attach, replay, "cupti disable 10; cupti disable 1; cupti disable 2; cupti finalize", replay,
			},
			true,
		},
		"finalize from a plain thread, no graphs": {
			[]string{"launch 5", attach, "launch 5; sync; cupti finalize; launch 5; sync"}, false,
		},
		"finalize in a callback, kinds off since, nothing launched": {
			[]string{
				graphs, attach, replay, "cupti disable 10; cupti disable 1; cupti disable 2", "cupti callback 126",
				"cupti finalize-at-exit bare; ssync stream=1", replay,
			},
			true,
		},
		"finalize in a callback, on again, nothing launched": {
			[]string{
				graphs, attach, replay, "cupti disable 10; cupti disable 1; cupti disable 2",
				"cupti enable 10; cupti callback 126", "cupti finalize-at-exit; ssync stream=1", replay,
			},
			true,
		},
		"the same in a later subscription": {
			[]string{
				graphs, attach, replay, "cupti disable 10; cupti disable 1; cupti disable 2; cupti unsubscribe", attach,
				"cupti callback 126", "cupti finalize-at-exit; ssync stream=1", replay,
			},
			true,
		},
		"a later subscription, launches in it": {
			[]string{
				graphs, attach, replay, "cupti disable 10; cupti disable 1; cupti disable 2; cupti unsubscribe", attach,
				replay, "cupti callback 126", "cupti finalize-at-exit; ssync stream=1", replay,
			},
			false,
		},
		"finalize in a callback, no graph ran under the kinds": {
			[]string{
				graphs, replay, attach, "cupti disable 10; cupti disable 1; cupti disable 2", "cupti callback 126",
				"cupti finalize-at-exit bare; ssync stream=1", replay,
			},
			false,
		},
		"finalize in a callback, callbacks only": {
			[]string{
				graphs, replay, "cupti subscribe", replay, "cupti callback 126",
				"cupti finalize-at-exit bare; ssync stream=1", replay,
			},
			false,
		},
		"another subscriber's buffers taken over": {
			[]string{"cupti subscribe; cupti buffers; cupti take-over", "launch 3; sync"}, true,
		},
		"buffers of an earlier subscriber": {
			[]string{
				"cupti subscribe; cupti buffers; cupti unsubscribe; cupti subscribe; cupti take-over", "launch 3; sync",
			},
			false,
		},
		"graph trace before there are graphs": {
			[]string{attach, "cupti enable 51", graphs, replay}, false,
		},
		"disable without finalize": {
			[]string{
				graphs, attach, replay,
				"cupti disable 10; cupti disable 1; cupti disable 2; cupti flush; cupti unsubscribe", replay,
			},
			false,
		},
		"graph trace on a late attach": {
			[]string{graphs, attach, "cupti enable 51", replay}, true,
		},
		"attach again after finalize": {
			[]string{
				"launch 5", attach, "launch 5; sync; cupti finalize", attach,
				"launch 5; sync; cupti flush; cupti finalize; launch 1; sync",
			},
			false,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			v := Start(t, Options{}, c.script...)
			if err := v.Wait(); (err != nil) != c.dead {
				t.Errorf("%v; stderr %s", err, v.Stderr())
			}
		})
	}
}

func TestTakingOverBuffersKillsAtExit(t *testing.T) {
	v := Start(t, Options{Env: []string{"CUDASIM_CUPTI_BUSY=1"}}, "cupti buffers", "launch 3", "sync")
	err := v.Wait()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGSEGV {
		t.Errorf("the process ended with %v, want a segmentation fault at exit", err)
	}
}

func TestPythonVictim(t *testing.T) {
	python := needs.Tool(t, "python3")
	p := Build(t)
	v := Start(t, Options{
		Program: []string{python, p.VictimPython},
		Args:    []string{"--requests", "1", "--tokens", "5", "--layers", "2"},
	})
	v.Finish()
	want(t, v.Truth(), map[string]uint64{"cudaLaunchKernel": 30, "cudaMemcpyAsync": 10, "cudaStreamSynchronize": 5})
}
