package report

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/inferscope/inferscope/internal/analysis/summary/cpu"
	"github.com/inferscope/inferscope/internal/format"
	"github.com/inferscope/inferscope/internal/report/document"
)

// pressureFacts reports what the host did to the threads; one line where that was nothing.
func pressureFacts(c *cpu.Summary) document.Facts {
	var f document.Facts
	p := &c.Pressure
	if c.Scheduled && p.Share >= worthALine {
		f.Add("Ready, no CPU",
			fmt.Sprintf("%s summed over threads: %s of the time for which they wanted to run",
				format.Span(p.Runnable), format.Percent(p.Share)))
		if text := takersText(p); text != "" {
			f.Add("CPUs taken by", text)
		}
		f.Add("Switches", fmt.Sprintf("%s because another thread took the CPU, %s to wait; %s between CPUs",
			format.Count(p.Involuntary), format.Count(p.Voluntary),
			format.Plural(p.Migrations, "move", "moves")))
	}
	if p.Throttled > 0 || p.Periods > 0 {
		f.Add("Throttled",
			fmt.Sprintf("%s in %s: the cgroup used up its CPU quota; raise the quota, or use fewer threads",
				format.Span(p.Throttled), format.Plural(p.Periods, "period", "periods")))
	}
	if float64(p.MemoryStall) >= worthALine*float64(c.Length) && p.MemoryStall > 0 {
		f.Add("Memory", fmt.Sprintf("%s of stalls for want of memory", format.Span(p.MemoryStall)))
	}
	if p.MajorFaults > 0 {
		f.Add("Page faults", format.Plural(p.MajorFaults, "fault", "faults")+" had to wait for the disk")
	}
	if text := movesText(p); text != "" {
		f.Add("Moves", text)
	}
	if text := numaText(p); text != "" {
		f.Add("NUMA", text)
	}
	if len(f) == 0 && c.Scheduled {
		f.Add(
			"Nothing to note",
			fmt.Sprintf("ready threads waited for a CPU %s of the time; %s", format.Percent(p.Share), quiet(p)),
		)
	}
	return f
}

func quiet(p *cpu.Pressure) string {
	if !p.Known {
		return "throttling and page faults were not counted in this window"
	}
	return "no throttling, no page fault that waited for the disk"
}

// maxNamedTakers bounds how many takers of CPUs are named.
const maxNamedTakers = 3

func takersText(p *cpu.Pressure) string {
	var parts []string
	for i := range p.Takers[:min(len(p.Takers), maxNamedTakers)] {
		t := &p.Takers[i]
		name := who(t.Name, t.TID)
		switch {
		case t.Throttled:
			name = "nobody: the CPU went idle because a quota was used up"
			if p.Known && p.Throttled == 0 && p.Periods == 0 {
				name = "nobody: the CPU went idle although the cgroup's quota was not used up; a real-time thread may " +
					"use only a part of each second (sched_rt_runtime_us)"
			}
		case t.OtherThread:
			name += " of another process"
		default:
			name += " of the target itself"
		}
		parts = append(parts,
			fmt.Sprintf("%s (%s, %s)", name, format.Span(t.Time), format.Plural(t.Count, "time", "times")))
	}
	if more := len(p.Takers) - maxNamedTakers; more > 0 {
		parts = append(parts, format.Plural(more, "other", "others"))
	}
	if p.OwnCount > 0 {
		parts = append(parts, fmt.Sprintf(
			"and InferScope itself (%s, %s, %s of the time that the threads could run)",
			format.Span(p.OwnTime),
			format.Plural(p.OwnCount, "time", "times"),
			format.Percent(float64(p.OwnTime)/float64(max(1, p.Ran+p.Runnable))),
		))
	}
	return strings.Join(parts, "; ")
}

// Threads are said to move often from so many moves on, and so many per second of running
// time: a move leaves the caches behind, which costs some 10 µs.
const (
	manyMoves     = 100
	manyPerSecond = 500
)

func movesText(p *cpu.Pressure) string {
	perSecond := 1e9 * float64(p.Migrations) / float64(max(1, p.Ran))
	if p.Ran == 0 || p.Migrations < manyMoves || perSecond < manyPerSecond {
		return ""
	}
	s := fmt.Sprintf("threads changed CPUs %s, %.0f per second of running time",
		format.Plural(p.Migrations, "time", "times"), perSecond)
	if p.Crossings > 0 {
		s += fmt.Sprintf(", %s of them to another NUMA node", format.Count(p.Crossings))
	}
	return s + "; each leaves the caches behind: pin threads to CPUs (taskset, OMP_PROC_BIND=close)"
}

// worthANode is which share of pages, running time or accesses on the wrong node is worth a word.
const worthANode = 0.1

// numaText reports what lies on another NUMA node than it should.
func numaText(p *cpu.Pressure) string {
	var parts []string
	if p.RemoteShare >= worthANode {
		parts = append(parts,
			fmt.Sprintf("%s of the pages are on another node than the GPU, which is at node %d (%s)",
				format.Percent(p.RemoteShare), p.GPUNode, nodesText(p.Pages)))
	}
	if p.RemoteRunning >= worthANode {
		parts = append(parts,
			fmt.Sprintf("threads ran %s of their time on another node than the GPU's, which is %d",
				format.Percent(p.RemoteRunning), p.GPUNode))
	}
	if len(p.Pages) > 1 && p.RemoteAccess >= worthANode {
		parts = append(parts,
			fmt.Sprintf("%s of the accesses to memory leave their node, if threads use all pages alike",
				format.Percent(p.RemoteAccess)))
	}
	if len(parts) > 0 && p.GPUNode >= 0 {
		parts = append(parts, fmt.Sprintf("start it with numactl --cpunodebind=%d --membind=%d", p.GPUNode, p.GPUNode))
	}
	return strings.Join(parts, "; ")
}

func nodesText(pages map[string]uint64) string {
	var parts []string
	for _, n := range slices.Sorted(maps.Keys(pages)) {
		parts = append(parts, fmt.Sprintf("node %s: %s", format.Clean(n), format.Plural(pages[n], "page", "pages")))
	}
	return strings.Join(parts, ", ")
}
