package unwind

import (
	"bufio"
	"bytes"
	"cmp"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"

	"go.opentelemetry.io/ebpf-profiler/host"
	"go.opentelemetry.io/ebpf-profiler/interpreter/interpreterconfig"
	"go.opentelemetry.io/ebpf-profiler/libpf/pfelf"
	"go.opentelemetry.io/ebpf-profiler/nativeunwind/elfunwindinfo"
	"go.opentelemetry.io/ebpf-profiler/processmanager/execinfomanager"
	"go.opentelemetry.io/ebpf-profiler/support"

	"github.com/inferscope/inferscope/internal/capture/procfile"
	"github.com/inferscope/inferscope/internal/testkit/must"
)

// envReader names the reader that a process of this test's program reads files with; its input lists the files.
const envReader = "INFERSCOPE_TEST_UNWINDER"

// smallFile is up to how many bytes of .eh_frame a file is read before a stack needs it (smallTable of the loader).
const smallFile = 512 << 10

// BenchmarkStartup reads the unwind tables of all files that a process of PyTorch maps, each way in a process of its
// own: by the library's manager, which reads all of them before the first stack; by the own reader all of them, and
// those that the loader reads before a stack needs one. TORCH_PYTHON names the interpreter.
func BenchmarkStartup(b *testing.B) {
	files := mappedByTorch(b)
	none, base := readIn(b, "none", files)
	for _, way := range []string{"library", "own", "own-small"} {
		b.Run(way, func(b *testing.B) {
			cpu, memory := 0.0, 0.0
			for b.Loop() {
				s, kib := readIn(b, way, files)
				cpu += s - none
				memory = max(memory, float64(kib-base)/1024)
			}
			b.ReportMetric(cpu/float64(b.N), "cpu-s/op")
			b.ReportMetric(memory, "MiB")
			b.ReportMetric(float64(len(files)), "files")
		})
	}
}

// mappedByTorch returns the files with code of a process that has imported torch.
func mappedByTorch(b *testing.B) []string {
	b.Helper()
	python := cmp.Or(os.Getenv("TORCH_PYTHON"), "/usr/bin/python3")
	out, err := exec.CommandContext(b.Context(), python, "-c",
		"import torch; torch.ones(9).sum(); print(open('/proc/self/maps').read())").Output()
	if err != nil {
		b.Skip("needs PyTorch: ", python, ": ", err)
	}
	var files []string
	for line := range bytes.Lines(out) {
		m, ok := procfile.ParseMapsLine(bytes.TrimSpace(line))
		if ok && m.Perms[2] == 'x' && bytes.HasPrefix(m.Name, []byte("/")) {
			files = append(files, string(m.Name))
		}
	}
	slices.Sort(files)
	return slices.Compact(files)
}

// readIn returns the seconds of CPU and the most resident KiB of a process that reads the files one way.
func readIn(b *testing.B, way string, files []string) (cpu float64, kib int64) {
	b.Helper()
	cmd := exec.CommandContext(b.Context(), os.Args[0], "-test.run=^TestStartupReader$")
	cmd.Env = append(os.Environ(), envReader+"="+way)
	cmd.Stdin = strings.NewReader(strings.Join(files, "\n"))
	if out, err := cmd.CombinedOutput(); err != nil {
		b.Fatalf("%s: %v: %s", way, err, out)
	}
	used := cmd.ProcessState.SysUsage().(*syscall.Rusage)
	return (cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()).Seconds(), used.Maxrss
}

// TestStartupReader is the process of BenchmarkStartup.
func TestStartupReader(t *testing.T) {
	way := os.Getenv(envReader)
	if way == "" {
		return
	}
	its := &library{infos: map[uint16]support.UnwindInfo{}}
	manager, err := execinfomanager.NewExecutableInfoManager(elfunwindinfo.NewStackDeltaProvider(), its,
		interpreterconfig.NoInterpreters())
	must.NoError(t, err)
	table := New(numbers{})
	names := bufio.NewScanner(os.Stdin)
	for number := 1; names.Scan(); number++ {
		must.NoError(t, readOne(way, names.Text(), manager, host.FileID(number), its, table))
	}
}

func readOne(way, name string, m *execinfomanager.ExecutableInfoManager, number host.FileID, its *library,
	table *Table,
) error {
	f, err := os.Open(name)
	if err != nil {
		return fmt.Errorf("open: %w", err)
	}
	defer f.Close()
	switch {
	case way == "library":
		ref := pfelf.NewReferenceWithOpenFunc(name, pfelf.SystemOpener,
			func() (*pfelf.File, error) { return pfelf.NewFile(plain{f}, 0, false) })
		defer ref.Close()
		_, _ = m.AddOrIncRef(number, ref) // what it cannot read costs nobody else anything
		its.said = its.said[:0]           // they are in the kernel
	case way == "own", way == "own-small" && Size(f) <= smallFile:
		table.Reset()
		_ = table.Read(f, name, pfelf.SystemOpener)
	}
	return nil
}
