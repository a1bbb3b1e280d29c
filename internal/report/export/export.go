// Package export writes a recording in the formats of other tools: Kineto's Chrome JSON,
// Perfetto's protobuf, pprof, OTLP, JSON lines, folded stacks and CSV. Each export is a pure
// function of the recording.
package export

import (
	"bufio"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"

	"github.com/inferscope/inferscope/internal/analysis/cause"
	"github.com/inferscope/inferscope/internal/analysis/gap"
	"github.com/inferscope/inferscope/internal/analysis/threads"
	"github.com/inferscope/inferscope/internal/analysis/timeline"
	"github.com/inferscope/inferscope/internal/cuda"
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/event"
	"github.com/inferscope/inferscope/internal/recording/otlp"
)

// Format is one way to write a recording.
type Format struct {
	Name      string // as --to takes it
	Extension string // of its files, with the dot
	About     string // for people: what reads it
	write     func(v *view, w *bufio.Writer) error
}

// Formats returns all formats in the order in which help lists them.
func Formats() []Format {
	return []Format{
		{
			"perfetto",
			".perfetto-trace",
			"ui.perfetto.dev: threads with their states and calls, requests, GPU streams, counters, why the GPU was " +
				"idle",
			writePerfetto,
		},
		{
			"kineto",
			".pt.trace.json",
			"what reads torch.profiler's files: chrome://tracing, HolisticTraceAnalysis, TensorBoard",
			writeKineto,
		},
		{
			"heap",
			".heap.pb.gz",
			"go tool pprof: what PyTorch and calls of the CUDA driver allocated and what is live, by stack",
			writeHeap,
		},
		{
			"pprof",
			".pb.gz",
			"go tool pprof: CPU, CPU while the GPU was idle, off-CPU and GPU time by stack (-sample_index)",
			writePprof,
		},
		{
			"memory_viz",
			".pickle",
			"pytorch.org/memory_viz and torch.cuda._memory_viz: GPU memory over time, by stack",
			writeMemoryViz,
		},
		{
			"otlp",
			".otlp.json",
			"OpenTelemetry collector (otlpjsonfile): spans and gen_ai.* histograms of requests",
			writeOTLP,
		},
		{"jsonl", ".jsonl", "jq: one event a line", writeJSONL},
		{"folded", ".folded", "flamegraph.pl, speedscope: CPU samples, a stack a line", writeFolded},
		{"csv", ".csv", "spreadsheets, pandas: one kernel a line", writeCSV},
	}
}

// Find returns the format with a name, and whether there is one.
func Find(name string) (Format, bool) {
	all := Formats()
	i := slices.IndexFunc(all, func(f Format) bool { return f.Name == name })
	if i < 0 {
		return Format{}, false
	}
	return all[i], true
}

// ForPath returns the format that a file's name promises by its ending, and whether it promises one.
func ForPath(path string) (Format, bool) {
	for _, f := range Formats() {
		if strings.HasSuffix(strings.ToLower(path), f.Extension) {
			return f, true
		}
	}
	return Format{}, false
}

// Lacks returns what a recording would need for a file that is not empty, and how to record that; "" where it has it.
func (f Format) Lacks(rec *recording.Recording) (what, hint string) {
	const allocate = "record while PyTorch or the CUDA driver allocate, by a daemon without --memory=false"
	holds := func(wanted func(event.MemoryDevice) bool) bool {
		return slices.ContainsFunc(rec.Events, func(e event.Event) bool {
			return e.Kind >= event.Memory && e.Kind <= event.OutOfMemory && wanted(event.MemoryDevice(e.Func))
		})
	}
	switch {
	case f.Name == "otlp" && len(rec.Meta.Requests) == 0:
		return "requests", "record while the server is asked over HTTP/1.1, by a daemon without --requests=off"
	case f.Name == "heap" && !holds(func(event.MemoryDevice) bool { return true }):
		return "allocations", allocate
	case f.Name == "memory_viz" && !holds(gpuType):
		return "allocations of GPU memory", allocate
	}
	return "", ""
}

// Write writes a recording to w. The error is that of w, with the format in front.
func (f Format) Write(w io.Writer, rec *recording.Recording) error {
	out := bufio.NewWriterSize(w, 1<<18)
	err := f.write(newView(rec), out)
	if err == nil {
		err = out.Flush()
	}
	if err != nil {
		return fmt.Errorf("export to %s: %w", f.Name, err)
	}
	return nil
}

// view is a recording with what exports need of it; the dear parts are made when they are first asked for.
type view struct {
	T       *timeline.Timeline
	rec     *recording.Recording
	decoder *cuda.Decoder
	names   map[uint64]string // of threads, by pid << 32 | tid

	threads func() []threads.Thread
	waits   func() *threads.Waits
	walk    func() *gap.Walk
	causes  []cause.Cause
}

// newView prepares a recording for export. It does not change it.
func newView(rec *recording.Recording) *view {
	v := &view{
		T:       timeline.Build(rec),
		rec:     rec,
		decoder: cuda.NewDecoder(rec.Meta.Functions),
		names:   map[uint64]string{},
		causes:  cause.All(),
	}
	v.threads = sync.OnceValue(v.T.Index.Threads)
	v.waits = sync.OnceValue(v.T.Index.Waits)
	v.walk = sync.OnceValue(func() *gap.Walk { return gap.New(v.T, v.threads()) })
	for _, p := range rec.Meta.Processes {
		v.names[threadKey(p.PID, p.PID)] = p.Comm
	}
	for _, t := range rec.Meta.Threads {
		if t.Name != "" {
			v.names[threadKey(t.PID, t.TID)] = t.Name
		}
	}
	return v
}

func threadKey(pid, tid uint32) uint64 { return uint64(pid)<<32 | uint64(tid) }

// threadName returns a thread's name, "thread 12" where it has none.
func (v *view) threadName(pid, tid uint32) string {
	if name := v.names[threadKey(pid, tid)]; name != "" {
		return name
	}
	return fmt.Sprintf("thread %d", tid)
}

// kernelName returns the whole name of a kernel.
func (v *view) kernelName(a *timeline.Activity) string {
	if k := v.T.Kernel(a); k != nil && k.Name != "" {
		return k.Name
	}
	return "kernel (name lost)"
}

// deviceName returns what a device is called.
func deviceName(d *timeline.Device) string {
	if d.Info != nil && d.Info.Name != "" {
		return fmt.Sprintf("GPU %d (%s)", d.ID, d.Info.Name)
	}
	return fmt.Sprintf("GPU %d", d.ID)
}

// rangeName returns the name of a range's event by its Ret; "" where it was lost.
func (v *view) rangeName(ret int32) string {
	if g := v.rec.Meta.GPU; g != nil && ret > 0 && int(ret) <= len(g.Ranges) {
		return g.Ranges[ret-1]
	}
	return ""
}

// writeOTLP writes the requests alone: spans and metrics.
func writeOTLP(v *view, out *bufio.Writer) error { return otlp.WriteJSON(out, &v.rec.Meta) }
