package diagnose

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/inferscope/inferscope/internal/analysis/cause"
	"github.com/inferscope/inferscope/internal/analysis/threads"
	"github.com/inferscope/inferscope/internal/analysis/timeline"
	"github.com/inferscope/inferscope/internal/format"
	"github.com/inferscope/inferscope/internal/recording"
)

// leastChanges is the minimum number of changes of a finding, if the table has as many.
const leastChanges = 2

// changes are what the table says to do, in the user's terms: what does not fit the program is there only where else
// there were too few, and the first names the place in the code.
func (a *analysis) changes(d *Diagnosis, row cause.Cause, w facts) []Change {
	p := programOf(a.t.Rec)
	list := slices.Concat(a.ahead(p, row.ID, &w), row.Changes)
	if w.ownCode() {
		all := len(list)
		list = slices.DeleteFunc(list, func(c cause.Change) bool { return strings.HasPrefix(c.Text, "Give the library") })
		if len(list) < all || a.subject == aboutCPU && (row.ID == cause.NativeWork || row.ID == cause.NoWork) {
			list = append(list, general(row.ID)[0])
		}
	}
	if a.subject == aboutCPU {
		list = slices.DeleteFunc(list, func(c cause.Change) bool { return ofGPU(&c) || !a.suits(p, row.ID, &w, &c) })
		if list = slices.Concat(withoutGPU(row.ID, &w), list); len(list) < leastChanges {
			list = append(list, general(row.ID)...)
		}
	}
	if w.others { // the program's own threads did not take the CPU
		list = slices.DeleteFunc(
			list,
			func(c cause.Change) bool { return strings.HasPrefix(c.Text, "Run fewer threads") },
		)
	}
	if row.ID == cause.LaunchOverhead {
		list = a.launching(d, list, w.graphs)
	}
	if row.ID == cause.SyncCopy {
		list = slices.Insert(list, min(1, len(list)), a.packing()...)
	}
	if row.ID == cause.BandwidthBound && a.mostlyConverts() {
		list = slices.Concat(conversions(), list)
	}
	hosted := row.ID == cause.Dependency && a.putsFunctions()
	format := a.formatOf(&w)
	rank := func(c *cause.Change) int {
		switch {
		case !a.suits(p, row.ID, &w, c):
			return 2
		case row.ID == cause.Allocation && pins(c.Text) != strings.Contains(w.call, "Host"): // cuMemHostAlloc, cudaFreeHost
			return 1
		case row.ID == cause.Dependency && strings.Contains(c.Text, "functions on the host") != hosted:
			return 1
		case row.ID == cause.GPUError && w.ownError == strings.HasPrefix(c.Text, "Drain the machine"):
			return 1
		case row.ID == cause.Serialization:
			return serializing(c, format)
		}
		return 0
	}
	slices.SortStableFunc(list, func(x, y cause.Change) int { return cmp.Compare(rank(&x), rank(&y)) })
	list = slices.CompactFunc(list, func(x, y cause.Change) bool { return x.Text == y.Text }) // in two languages
	n := 0
	for n < len(list) && (n < leastChanges || rank(&list[n]) < 2) {
		n++
	}
	out := make([]Change, n)
	for i := range out {
		out[i] = Change{list[i].Where, list[i].Text, p.example(&list[i])}
	}
	if w.place != "" && n > 0 && changedThere(row.ID) {
		out[0].Text = "In " + w.place + ": " + out[0].Text
	}
	return out
}

// Copies of up to smallCopy bytes take less time than the calls that make them; from leastPacked of them in each
// iteration on these calls are a cost of their own, which pinned memory does not change.
const (
	smallCopy   = 64 << 10
	leastPacked = 16
)

// packing returns what else to do about many small copies: to make one of them.
func (a *analysis) packing() []cause.Change {
	if a.gpu == nil || a.inStep.copies < leastPacked {
		return nil
	}
	count, bytes := uint64(0), uint64(0)
	for i := range a.gpu.Copies {
		if c := &a.gpu.Copies[i]; isAbout(c, cause.SyncCopy) {
			count, bytes = count+c.Count, bytes+c.Bytes
		}
	}
	if count == 0 || bytes > smallCopy*count {
		return nil
	}
	return []cause.Change{{Where: cause.Code, Text: fmt.Sprintf(
		"Make one copy of the %.0f in each iteration, %s each: a small copy costs its call, pinned or not",
		a.inStep.copies, format.Size(bytes/count),
	)}}
}

// conversions are what to do about kernels that convert. Whether these are the same weights at each step is not seen.
func conversions() []cause.Change {
	return []cause.Change{
		{
			Where: "PyTorch",
			Text: "Keep weights in the type that they are computed in, instead of letting autocast convert them at " +
				"each step",
			Example: "model = model.to(torch.bfloat16)  # and no torch.autocast around it",
		},
		{
			Where: "PyTorch",
			Text: "Keep tensors in the layout that the next operator wants: .contiguous() and .to() in a loop copy " +
				"them again",
		},
	}
}

// withoutGPU are the changes for a program that uses no GPU, whose main thread waits for others or for time to pass:
// those of the table are for threads that launch. There are leastChanges at least, so that none of the table's is
// added.
func withoutGPU(id cause.ID, w *facts) []cause.Change {
	switch {
	case id == cause.Worker && w.innerID == cause.Sleep, id == cause.Sleep:
		return []cause.Change{
			{
				Where: "Code",
				Text:  "Wait for what the sleep is for, an event, a file or a process, instead of for a time",
			},
			{Where: "Code", Text: "Sleep for less, if nothing but time is waited for"},
		}
	case id == cause.Worker:
		return []cause.Change{
			{Where: "Code", Text: "Make what is waited for faster: the report names what it spends its time on"},
			{Where: "Code", Text: "Start it earlier, or do other work in the meantime"},
		}
	}
	return nil
}

// waitsIdle reports whether the main thread of a program without a GPU waits for others or for time to pass: what it
// would gain is no more than that the wait is gone.
func (a *analysis) waitsIdle(id cause.ID) bool {
	return a.subject == aboutCPU &&
		(id == cause.Worker || id == cause.Sleep || id == cause.NoWork || id == cause.Network)
}

// ownCode reports whether most of the time is spent in native code of the program's executable, not of a library.
func (w *facts) ownCode() bool {
	return len(w.functions) > 0 && w.functions[0].kind == recording.NativeFrame && w.functions[0].file != "" &&
		!strings.Contains(w.functions[0].file, ".so")
}

// general returns changes for any program without a GPU.
func general(id cause.ID) []cause.Change {
	if id == cause.NoWork {
		return []cause.Change{{Where: "Host", Text: "Run fewer replicas, or let other programs use the machine meanwhile"}}
	}
	return []cause.Change{
		{Where: "Code", Text: "Take work out of what the report names: do it once, or for less"},
		{Where: "Host", Text: "Give the program more CPUs, or faster ones"},
	}
}

// ofGPU reports whether a change concerns GPU work or its launch.
func ofGPU(c *cause.Change) bool {
	return c.Where == "CUDA" || strings.Contains(c.Text+c.Example, "GPU") || strings.Contains(c.Example, "cuda") ||
		strings.Contains(c.Text, "launch")
}

// suits reports whether a change fits this program and the cause in it.
func (a *analysis) suits(p program, id cause.ID, w *facts, c *cause.Change) bool {
	switch {
	case a.subject == aboutCPU:
		return (c.Where != "PyTorch" || p.torch) && (c.Where != "Python" || p.python) &&
			(!strings.Contains(c.Text, "loader") || a.isLoader(w))
	case id == cause.Worker && strings.Contains(c.Text, "loader"):
		return a.isLoader(w)
	case c.Where == "PyTorch":
		return p.torch || p.python
	case c.Where == "Python":
		return p.python
	}
	return true
}

// putsFunctions reports whether the program enqueues host functions in streams.
func (a *analysis) putsFunctions() bool {
	puts := make([]bool, len(a.t.Rec.Meta.Functions))
	for i := range puts {
		base := a.t.Rec.Meta.Functions[i].Base
		puts[i] = strings.Contains(base, "LaunchHostFunc") || strings.Contains(base, "StreamAddCallback")
	}
	return slices.ContainsFunc(a.t.Ops, func(op timeline.Op) bool { return puts[op.Func] })
}

// pins reports whether a change is about pinned memory.
func pins(text string) bool { return strings.HasPrefix(text, "Pin ") }

// program is the language of a program.
type program struct {
	python, torch bool
	name          string // of its main process
}

// programOf detects Python by the stacks of a recording and by its interpreter.
func programOf(rec *recording.Recording) program {
	var p program
	for i := range rec.Meta.Frames {
		f := &rec.Meta.Frames[i]
		p.python = p.python || f.Kind == recording.PythonFrame
		p.torch = p.torch || strings.Contains(threads.ModulePath(f.File), "/torch/") || strings.HasPrefix(f.File, "libtorch") ||
			strings.HasPrefix(f.File, "libc10")
	}
	for i := range rec.Meta.Processes {
		p.python = p.python || strings.HasPrefix(rec.Meta.Processes[i].Comm, "python")
	}
	if len(rec.Meta.Processes) > 0 {
		p.name = format.Clean(rec.Meta.Processes[0].Comm)
	}
	return p
}

// example returns the example of a change, without Python for a program that has none.
func (p program) example(c *cause.Change) string {
	switch {
	case p.python || p.torch:
		return c.Example
	case c.Where == cause.Code:
		return ""
	case p.name != "":
		return strings.ReplaceAll(c.Example, "python infer.py", "./"+p.name)
	}
	return c.Example
}

// ahead is what to do first where a thread is waited for that is no worker of a loader: what it does can be done
// sooner. A tokenizer's thread has no queue that could be deeper.
func (a *analysis) ahead(p program, id cause.ID, w *facts) []cause.Change {
	if id != cause.Worker || a.isLoader(w) {
		return nil
	}
	switch w.innerID {
	case cause.Preprocessing, cause.Serialization, cause.Disk:
		list := a.table[w.innerID].Changes
		if i := slices.IndexFunc(list, func(c cause.Change) bool { return a.suits(p, w.innerID, w, &c) }); i >= 0 {
			return list[i : i+1 : i+1]
		}
	}
	return nil
}

// isLoader reports whether the thread that is waited for is a worker of PyTorch's DataLoader: by its name (it calls
// itself pt_data_worker) or by its code.
func (a *analysis) isLoader(w *facts) bool {
	if strings.Contains(w.doer, "pt_data_worker") {
		return true
	}
	return len(w.functions) > 0 &&
		slices.ContainsFunc(a.places.frames(w.functions[0].stack, false), func(f string) bool {
			return strings.Contains(f, "torch/utils/data/") || strings.HasPrefix(f, "enumerate(DataLoader)")
		})
}

// formats of what a program serializes, by what changes begin with that are about it alone.
const (
	writesJSON = "Write JSON"
	parsesJSON = "Parse JSON"
)

// formatOf returns the data format that the main code of a finding writes or parses; "" if it is not JSON.
func (a *analysis) formatOf(w *facts) string {
	switch {
	case a.runs(w, "json/encoder.py"):
		return writesJSON
	case a.runs(w, "json/decoder.py"):
		return parsesJSON
	}
	return ""
}

// serializing ranks a change about serialization by the format that the program uses.
func serializing(c *cause.Change, format string) int {
	switch {
	case format != "" && strings.HasPrefix(c.Text, format):
		return 0
	case strings.HasPrefix(c.Text, writesJSON), strings.HasPrefix(c.Text, parsesJSON):
		return 2
	case format != "":
		return 1
	}
	return 0
}

// runs reports whether the main code of a finding is in a file.
func (a *analysis) runs(w *facts, file string) bool {
	return len(w.functions) > 0 &&
		slices.ContainsFunc(a.places.frames(w.functions[0].stack, true), func(f string) bool {
			return strings.Contains(f, file)
		})
}

// changedThere reports whether what is to be changed is at the place where a cause is seen: a worker that is waited for
// is busy there, but more workers, or more CPUs, are asked for elsewhere.
func changedThere(id cause.ID) bool {
	switch id {
	case cause.StartEnd, cause.Worker, cause.GIL, cause.NoCPU, cause.Throttled, cause.NoWork, cause.Network:
		return false
	}
	return true
}
