package e2e

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/inferscope/inferscope/internal/analysis/memory"
	"github.com/inferscope/inferscope/internal/testkit/needs"
)

// TestMemoryRanges: of a program that keeps one of many small blocks, what each place holds lies where the report says,
// and of a place that allocates now and then it is exact.
func TestMemoryRanges(t *testing.T) {
	needs.Root(t, "it loads BPF programs and attaches probes")
	dir := t.TempDir()
	if text, err := exec.Command("make", "-s", "-C", "../../testdata/c10sim", "OUT="+dir).CombinedOutput(); err != nil {
		t.Fatalf("make: %v\n%s", err, text)
	}
	cmd := exec.CommandContext(t.Context(), filepath.Join(dir, "c10victim"))
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = in.Close()
		_ = cmd.Wait()
	})
	lines := bufio.NewScanner(out)
	ask := func(command string) string {
		if command != "" {
			fmt.Fprintln(in, command)
		}
		if !lines.Scan() {
			t.Fatalf("%q: the program ended: %v", command, lines.Err())
		}
		return lines.Text()
	}
	ask("")
	d := startDaemon(t, cmd.Process.Pid, "--gpu", "off", "--overhead-budget", "0")
	for range 10 {
		ask("cache 20000")
		ask("keep 1")
	}
	var truth struct {
		Sites map[string]struct{ Count, Bytes, Live uint64 }
	}
	if err := json.Unmarshal([]byte(ask("truth")), &truth); err != nil {
		t.Fatal(err)
	}
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
