package e2e

import (
	"bufio"
	"encoding/json"
	"fmt"
	"math"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/inferscope/inferscope/internal/analysis/memory"
	"github.com/inferscope/inferscope/internal/testkit/must"
	"github.com/inferscope/inferscope/internal/testkit/needs"
)

// TestMemoryRanges: of a program that keeps one of many small blocks, what each place holds lies where the report says,
// and of a place that allocates now and then it is exact.
func TestMemoryRanges(t *testing.T) {
	needs.Root(t, "it loads BPF programs and attaches probes")
	cmd, ask := startMemoryVictim(t, "c10victim")
	d := startDaemon(t, cmd.Process.Pid, "--gpu", "off", "--overhead-budget", "0")
	for range 10 {
		ask("cache 20000")
		ask("keep 1")
	}
	var truth struct {
		Sites map[string]struct{ Count, Bytes, Live uint64 }
	}
	must.NoError(t, json.Unmarshal([]byte(ask("truth")), &truth))
	text, complaint, code := d.inferscope("memory", "--pid", fmt.Sprint(cmd.Process.Pid), "--json")
	var said struct{ Memory memory.Summary }
	if err := json.Unmarshal([]byte(text), &said); code != 0 || err != nil || len(said.Memory.Devices) != 1 {
		t.Fatalf("%d, %v, %s: %s", code, err, complaint, text)
	}
	found := map[string]uint64{}
	for _, s := range said.Memory.Devices[0].Sites {
		for name, want := range truth.Sites {
			if !strings.Contains(s.Name, name) {
				continue
			}
			found[name] = s.Live
			// The range holds the truth in 95 of 100 cases; three times as wide, in all that a test will see.
			if margin := s.High - s.Low; want.Live+margin < s.Low || want.Live > s.High+margin {
				t.Errorf("%s: %d bytes are live, said are %d (%d to %d)", name, want.Live, s.Live, s.Low, s.High)
			}
			if name == "load_weights" && (s.Low != want.Live || s.High != want.Live) {
				t.Errorf("%s: %d bytes are live, said are %d to %d", name, want.Live, s.Low, s.High)
			}
		}
	}
	for _, name := range []string{"token_cache", "row_cache", "page_cache", "load_weights"} {
		if found[name] == 0 {
			t.Errorf("%s is not found: %s", name, text)
		}
	}
	d.stop()
}

// startMemoryVictim builds and starts a program of testdata/c10sim. ask sends it a command and returns its answer.
func startMemoryVictim(t *testing.T, name string) (cmd *exec.Cmd, ask func(command string) string) {
	t.Helper()
	dir := t.TempDir()
	if text, err := exec.Command("make", "-s", "-C", "../../testdata/c10sim", "OUT="+dir).CombinedOutput(); err != nil {
		t.Fatalf("make: %v\n%s", err, text)
	}
	cmd = exec.CommandContext(t.Context(), filepath.Join(dir, name))
	in, err := cmd.StdinPipe()
	must.NoError(t, err)
	out, err := cmd.StdoutPipe()
	must.NoError(t, err)
	must.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = in.Close()
		_ = cmd.Wait()
	})
	lines := bufio.NewScanner(out)
	ask = func(command string) string {
		t.Helper()
		if command != "" {
			fmt.Fprintln(in, command)
		}
		if !lines.Scan() {
			t.Fatalf("%q: the program ended: %v", command, lines.Err())
		}
		return lines.Text()
	}
	ask("")
	return cmd, ask
}

// TestDriverLeak: a leak of a program without PyTorch, which calls the driver, is found with its function and its slope,
// and what was live when the driver refused more. The program does nothing else: what that costs is much of its own CPU
// time and next to nothing of a CPU, so that no source is reduced.
func TestDriverLeak(t *testing.T) {
	needs.Root(t, "it loads BPF programs and attaches probes")
	cmd, ask := startMemoryVictim(t, "drivervictim")
	ask("leak 50") // before the attach
	starting := time.Now()
	d := startDaemon(t, cmd.Process.Pid, "--gpu", "off")
	const leaks = 100
	begun := time.Now()
	for range leaks {
		ask("leak 1")
		ask("churn 10")
		ask("host 1")
		time.Sleep(40 * time.Millisecond)
	}
	ask("map 8")
	ask("oom 2199023255552")
	asked := time.Now()
	text, complaint, code := d.inferscope("memory", "--pid", fmt.Sprint(cmd.Process.Pid), "--json")
	answered := time.Now()
	var said struct{ Memory memory.Summary }
	if err := json.Unmarshal([]byte(text), &said); code != 0 || err != nil || len(said.Memory.Devices) != 4 {
		t.Fatalf("%d, %v, %s: %s", code, err, complaint, text)
	}
	for _, dev := range said.Memory.Devices[2:] {
		if dev.Allocated != 0 || len(dev.Leaks) != 0 || dev.Allocations == 0 || dev.Allocations != dev.Frees {
			t.Errorf("of what is freed is said: %+v", dev)
		}
	}
	// Of which GPU the context is that was made before the attach is not known; calls that map memory name theirs.
	gpu, mapped := said.Memory.Devices[0], said.Memory.Devices[1]
	const mib = 1 << 20
	if gpu.Type != "driver" || gpu.Index != -1 || gpu.Allocated != leaks*mib || gpu.Allocations != leaks+leaks*10 ||
		gpu.Frees != leaks*10 {
		t.Errorf("%s: %d bytes of %d allocations and %d frees", gpu.Type, gpu.Allocated, gpu.Allocations, gpu.Frees)
	}
	if mapped.Type != "driver" || mapped.Index != 0 || mapped.Allocated != 8*2*mib || mapped.Allocations != 8 {
		t.Errorf("mapped is %s %d: %d bytes of %d allocations", mapped.Type, mapped.Index, mapped.Allocated,
			mapped.Allocations)
	}
	if len(gpu.Leaks) != 1 || len(gpu.Exhausted) != 1 {
		t.Fatalf("%d leaks, %d failures: %s", len(gpu.Leaks), len(gpu.Exhausted), text)
	}
	leak := gpu.Leaks[0]
	observed := time.Duration(leak.Observed)
	if observed < asked.Sub(begun) || observed > answered.Sub(starting) {
		t.Errorf("observed for %v, not %v to %v", observed, asked.Sub(begun), answered.Sub(starting))
	}
	slope := float64(leaks*mib) / observed.Seconds()
	if name := gpu.Sites[leak.Site].Name; !strings.HasPrefix(name, "leak_session") || leak.Bytes != leaks*mib ||
		math.Abs(leak.PerSec/slope-1) > 1e-6 {
		t.Errorf("%s: %d bytes, %.0f bytes a second; truth %.0f", name, leak.Bytes, leak.PerSec, slope)
	}
	oom := gpu.Exhausted[0]
	if oom.Asked != 1<<41 || len(oom.Live) == 0 || oom.Live[0].Site != leak.Site || oom.Live[0].Bytes != leaks*mib {
		t.Errorf("out of memory: %+v", oom)
	}
	d.stop()
}
