package nvidia

import (
	"bufio"
	"cmp"
	"debug/elf"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/inferscope/inferscope/internal/capture/ring"
	"github.com/inferscope/inferscope/internal/capture/uprobe"
	"github.com/inferscope/inferscope/internal/capture/uprobe/elffile"
	"github.com/inferscope/inferscope/internal/cuda"
	"github.com/inferscope/inferscope/internal/recording/event"
	"github.com/inferscope/inferscope/internal/testkit/must"
)

// TestFrequency prints how often a running process calls every function that its
// CUDA libraries export, whether the table has it or not: the marks Hot and
// Shadowed in the table were chosen from its output. It needs a process:
//
//	INFERSCOPE_FREQUENCY_PID=1234 go test -run TestFrequency -v ./test/nvidia
func TestFrequency(t *testing.T) {
	pid, err := strconv.ParseUint(os.Getenv("INFERSCOPE_FREQUENCY_PID"), 10, 32)
	if err != nil {
		t.Skip("INFERSCOPE_FREQUENCY_PID names no process to look at")
	}
	rings, err := ring.New(ring.Options{Bytes: 256 << 20})
	must.NoError(t, err)
	defer rings.Close()
	attacher, err := uprobe.NewAttacher(uprobe.Options{Maps: rings.Maps()})
	must.NoError(t, err)
	defer attacher.Close()
	var names []string
	for _, path := range mappedCUDA(t, uint32(pid)) {
		attachment := attachAll(t, attacher, path, uint32(pid), &names)
		defer attachment.Close()
	}
	fmt.Fprintln(os.Stderr, "probed")
	counts := make([]int, len(names))
	const window = 4 * time.Second
	for end := time.Now().Add(window); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		rings.Drain(func(batch []event.Event) {
			for i := range batch {
				counts[batch[i].Func]++
			}
		})
	}
	if lost, err := rings.Losses(); err != nil || len(lost) > 0 {
		t.Errorf("lost %v, %v", lost, err)
	}
	printFrequencies(t, names, counts, window)
}

// mappedCUDA returns the files of pid's CUDA libraries as this process can open them.
func mappedCUDA(t *testing.T, pid uint32) []string {
	t.Helper()
	f, err := os.Open(fmt.Sprintf("/proc/%d/maps", pid))
	must.NoError(t, err)
	defer f.Close()
	var paths []string
	for lines := bufio.NewScanner(f); lines.Scan(); {
		_, path, _ := strings.Cut(lines.Text(), "/")
		if base := filepath.Base(path); strings.HasPrefix(base, "libcuda.so") || strings.HasPrefix(base, "libcudart") {
			paths = append(paths, fmt.Sprintf("/proc/%d/root/%s", pid, path))
		}
	}
	slices.Sort(paths)
	return slices.Compact(paths)
}

// attachAll probes the entry of every function that the file exports. names gets
// one entry for each, by which events are told apart.
func attachAll(t *testing.T, attacher *uprobe.Attacher, path string, pid uint32, names *[]string) *uprobe.Attachment {
	t.Helper()
	f, err := os.Open(path)
	must.NoError(t, err)
	defer f.Close()
	info, err := f.Stat()
	must.NoError(t, err)
	file, err := elffile.Open(f, info.Size())
	must.NoError(t, err)
	functions, err := file.Functions()
	must.NoError(t, err)
	var sites []uprobe.Site
	cheap := 0
	for i, fn := range functions {
		if i > 0 && functions[i-1].Addr == fn.Addr {
			(*names)[len(*names)-1] += "=" + fn.Name
			continue
		}
		point := uprobe.Choose(fn.Code, fn.Addr, elf.Machine(file.Machine))
		if point.Cheap {
			cheap++
		}
		sites = append(sites,
			uprobe.Site{Offset: fn.Offset + point.Offset, Cookie: new(cuda.Row).Cookie(uint16(len(*names)))})
		*names = append(*names, fn.Name)
	}
	t.Logf("%s: %d functions, %d addresses, %d cheap", file.SONAME, len(functions), len(sites), cheap)
	attachment, err := attacher.Attach(f, pid, sites)
	must.NoError(t, err)
	return attachment
}

func printFrequencies(t *testing.T, names []string, counts []int, window time.Duration) {
	t.Helper()
	order := make([]int, len(names))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int { return cmp.Compare(counts[b], counts[a]) })
	for _, i := range order {
		if counts[i] == 0 {
			break
		}
		first, _, _ := strings.Cut(names[i], "=")
		row, known := cuda.Match(first)
		mark := "probed"
		switch {
		case !known:
			mark = "not in the table"
		case row.Hot:
			mark = "hot"
		case row.Shadowed:
			mark = "shadowed"
		}
		t.Logf("%9d calls %10.0f/s  %-17s %s", counts[i], float64(counts[i])/window.Seconds(), mark, names[i])
	}
}
