package gap

import (
	"strings"

	"github.com/inferscope/inferscope/internal/analysis/cause"
	"github.com/inferscope/inferscope/internal/analysis/threads"
)

// tracedWait is what a thread waited for, by the ranges that another tool's trace has: there is no event that says
// whether a thread ran, but some ranges and functions do nothing but wait. cause.Count where no such is there.
func (s *stacks) tracedWait(stack uint64) cause.ID {
	leaf := true
	for i := range threads.Walk(s.rec, stack) {
		if s.frames[i]&tracedWait != 0 {
			f := &s.rec.Meta.Frames[i]
			switch {
			case strings.HasPrefix(f.Name, "enumerate("): // DataLoader: its workers make the batch
				return cause.Worker
			case strings.HasPrefix(f.Name, "gloo:"): // collectives of the CPU, over the network
				return cause.Network
			case leaf:
				if c := builtinWait(f.Name, s.amongWorkers(stack)); c != cause.Count {
					return c
				}
			}
		}
		leaf = leaf && s.frames[i]&tracedWait == 0 && s.frames[i]&isPython == 0
	}
	return cause.Count
}

// builtinWait is what a built-in function of Python waits for, by its name as torch.profiler writes it: "<built-in
// method acquire of _thread.lock object>". workers says that it was called by what talks to other threads or processes.
func builtinWait(name string, workers bool) cause.ID {
	rest, ok := strings.CutPrefix(name, "<built-in method ")
	if !ok {
		rest, _ = strings.CutPrefix(name, "<method '")
	}
	word := rest
	if i := strings.IndexAny(rest, " '>"); i >= 0 {
		word = rest[:i]
	}
	switch word {
	case "sleep":
		return cause.Sleep
	case "acquire", "wait", "__enter__":
		if strings.Contains(rest, "lock") || strings.Contains(rest, "Lock") || word == "acquire" {
			return cause.Worker
		}
	case "poll", "select", "epoll", "recv", "recv_into", "recv_bytes":
		if workers {
			return cause.Worker
		}
		return cause.Network
	case "read", "readinto", "readline", "write", "fsync":
		return cause.Disk
	}
	return cause.Count
}

// amongWorkers reports whether a stack has code that waits for threads or processes of the program.
func (s *stacks) amongWorkers(stack uint64) bool {
	for i := range threads.Walk(s.rec, stack) {
		f := &s.rec.Meta.Frames[i]
		if s.frames[i]&awaits != 0 || strings.Contains(f.File, "/multiprocessing/") ||
			strings.Contains(f.File, "torch/utils/data/") {
			return true
		}
	}
	return false
}
