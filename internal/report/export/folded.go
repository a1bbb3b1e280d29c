package export

import (
	"bufio"
	"slices"
	"strconv"
	"strings"

	"github.com/inferscope/inferscope/internal/analysis/threads"
	"github.com/inferscope/inferscope/internal/format"
	"github.com/inferscope/inferscope/internal/recording"
)

// Folded stacks: `comm;thread;root;...;leaf count` a line, sorted; the count is CPU samples.

// frameText is a frame for people: `forward (model.py:12)`, `at::native::add [libtorch_cpu.so]`.
func frameText(f *recording.Frame) string {
	switch {
	case f.Kind == recording.PythonFrame && f.File != "":
		return f.Name + " (" + f.File + ":" + strconv.FormatUint(uint64(f.Line), 10) + ")"
	case f.Kind == recording.KernelFrame:
		return f.Name + " [kernel]"
	case f.Kind == recording.ErrorFrame:
		return "[" + f.Name + "]"
	case f.File != "":
		return f.Name + " [" + f.File + "]"
	}
	return f.Name
}

// foldedText is a text that cannot break a line of folded stacks.
func foldedText(s string) string {
	return strings.ReplaceAll(format.Printable(s), ";", ":")
}

// stackOfThread counts samples.
type stackOfThread struct{ thread, stack uint64 }

func writeFolded(v *view, out *bufio.Writer) error {
	counts := map[stackOfThread]uint64{}
	for _, s := range v.T.Index.Samples {
		if s.TS >= v.T.From && s.TS <= v.T.To {
			counts[stackOfThread{threadKey(s.PID, s.TID), uint64(s.Stack)}]++
		}
	}
	byLine := map[string]uint64{} // two stacks can look the same
	for k, n := range counts {
		byLine[v.foldedLine(k)] += n
	}
	list := make([]string, 0, len(byLine))
	for line := range byLine {
		list = append(list, line)
	}
	slices.Sort(list)
	for _, line := range list {
		if _, err := out.WriteString(line + " " + strconv.FormatUint(byLine[line], 10) + "\n"); err != nil {
			return err
		}
	}
	return nil
}

func (v *view) foldedLine(k stackOfThread) string {
	pid, tid := uint32(k.thread>>32), uint32(k.thread)
	parts := []string{foldedText(v.threadName(pid, pid)), foldedText(v.threadName(pid, tid))}
	frames := threads.Frames(v.rec, k.stack)
	for _, f := range slices.Backward(frames) {
		parts = append(parts, foldedText(frameText(&f)))
	}
	if len(frames) == 0 {
		parts = append(parts, "[no stack]")
	}
	return strings.Join(parts, ";")
}
