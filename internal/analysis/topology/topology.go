// Package topology says where GPUs are attached, and on which NUMA node the threads ran that launch work on each. It is
// a pure function of a timeline and its threads.
package topology

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/inferscope/inferscope/internal/analysis/threads"
	"github.com/inferscope/inferscope/internal/analysis/timeline"
	"github.com/inferscope/inferscope/internal/format"
	"github.com/inferscope/inferscope/internal/recording"
)

// Summary is where GPUs are and where threads ran.
type Summary struct {
	Nodes     int        `json:"nodes"` // NUMA nodes with CPUs; 1 where the host tells of none
	GPUs      []GPU      `json:"gpus"`  // those that the target uses, in the order of the report's devices
	Launchers []Launcher `json:"launchers"`
	Links     []Link     `json:"links,omitempty"` // between these GPUs, as far as they are known
}

// Link is how two GPUs are connected.
type Link struct {
	A    int    `json:"a"`    // index into GPUs
	B    int    `json:"b"`    // index into GPUs
	Kind string `json:"kind"` // as nvidia-smi topo -m calls it: NV18
	Text string `json:"text"` // 18 NVLinks
}

// NVLink reports whether the GPUs reach each other without PCIe.
func (l *Link) NVLink() bool { return strings.HasPrefix(l.Kind, "NV") || l.Kind == "C2C" }

// linkText says what nvidia-smi's name of a link means (its legend).
func linkText(kind string) string {
	if n, ok := strings.CutPrefix(kind, "NV"); ok {
		if n == "1" {
			return "1 NVLink"
		}
		return n + " NVLinks"
	}
	text, ok := map[string]string{
		"C2C": "NVLink-C2C", "PIX": "PCIe, by one switch", "PXB": "PCIe, by several switches",
		"PHB": "PCIe, by the CPU's host bridge", "NODE": "PCIe, by several host bridges of a NUMA node",
		"SYS": "PCIe, by the link between NUMA nodes",
	}[kind]
	if !ok {
		return format.Clean(kind)
	}
	return text
}

// GPU is where one is attached.
type GPU struct {
	PID  uint32 `json:"pid"` // the first process that uses it
	ID   uint8  `json:"id"`  // as that process counts
	UUID string `json:"uuid"`
	Bus  string `json:"bus,omitempty"` // PCI address: 0000:1b:00.0
	Node int    `json:"node"`          // NUMA node; -1: not known
}

// Name names it also where several processes count theirs from 0.
func (g *GPU) Name() string {
	name := fmt.Sprintf("%d of process %d", g.ID, g.PID)
	if g.Bus != "" {
		name += " (" + format.Clean(g.Bus) + ")"
	}
	return name
}

// Launcher is a thread that launches work on a GPU, and where it ran.
type Launcher struct {
	PID      uint32  `json:"pid"`
	TID      uint32  `json:"tid"`
	Name     string  `json:"name"`
	GPU      int     `json:"gpu"`      // index into GPUs
	Launched uint64  `json:"launched"` // kernels, copies and sets of that GPU
	Share    float64 `json:"share"`    // of all that the GPU did whose thread is known
	Ran      uint64  `json:"ran_ns"`   // on CPUs whose node is known
	Far      uint64  `json:"far_ns"`   // of Ran: on another node than the GPU's; 0 where that is not known
	Node     int     `json:"node"`     // where it ran most; -1: not known
}

const (
	// leastShare is the share of a GPU's work from which on a thread is one of those that launch for it.
	leastShare = 0.05
	// far is the share of its time from which on a thread is said to run on another node than its GPU.
	far = 0.5
)

// Remote reports whether a thread ran on another node than its GPU for most of its time.
func (l *Launcher) Remote() bool { return float64(l.Far) > far*float64(l.Ran) }

// Summarize makes the summary; nil where no GPU was seen or the host tells nothing of its GPUs.
func Summarize(t *timeline.Timeline, list []threads.Thread) *Summary {
	if len(t.Devices) == 0 || len(t.Rec.Meta.Host.GPUs) == 0 {
		return nil
	}
	s := &Summary{Nodes: 1, GPUs: []GPU{}, Launchers: []Launcher{}}
	for _, n := range t.Rec.Meta.Host.NodeOf {
		s.Nodes = max(s.Nodes, n+1)
	}
	for i := range t.Devices {
		d := &t.Devices[i]
		g := GPU{PID: t.Processes[d.Process].PID, ID: d.ID, Node: -1}
		if d.Info != nil {
			g.UUID = d.Info.UUID
		}
		for _, h := range t.Rec.Meta.Host.GPUs {
			if h.UUID == g.UUID {
				g.Bus, g.Node = h.Bus, h.Node
			}
		}
		s.GPUs = append(s.GPUs, g)
	}
	s.launchers(t, list)
	s.links(t.Rec.Meta.Driver)
	return s
}

// links finds how the GPUs are connected. One that several processes use counts as the first one's.
func (s *Summary) links(d *recording.Driver) {
	if d == nil {
		return
	}
	at := func(uuid string) int { return slices.IndexFunc(s.GPUs, func(g GPU) bool { return g.UUID == uuid }) }
	for _, l := range d.Links {
		if a, b := at(l.A), at(l.B); a >= 0 && b >= 0 && a != b {
			s.Links = append(s.Links, Link{min(a, b), max(a, b), l.Kind, linkText(l.Kind)})
		}
	}
	slices.SortFunc(s.Links, func(x, y Link) int { return cmp.Or(cmp.Compare(x.A, y.A), cmp.Compare(x.B, y.B)) })
}

// launchers finds the threads that launch for each GPU.
func (s *Summary) launchers(t *timeline.Timeline, list []threads.Thread) {
	type pair struct{ device, thread int32 }
	counts, all := map[pair]uint64{}, make([]uint64, len(t.Devices))
	for i := range t.Activities {
		if a := &t.Activities[i]; a.Op != timeline.None {
			d := t.Streams[a.Stream].Device
			counts[pair{d, t.ThreadOf(t.Outermost(a.Op))}]++
			all[d]++
		}
	}
	for p, n := range counts {
		share := float64(n) / float64(all[p.device])
		if share < leastShare {
			continue
		}
		th := &t.Threads[p.thread]
		l := Launcher{
			PID: t.Processes[th.Process].PID, TID: th.TID, Name: th.Name, GPU: int(p.device), Launched: n, Share: share,
			Node: -1,
		}
		if l.Name == "" {
			l.Name = t.Processes[th.Process].Comm
		}
		l.ran(t.Rec.Meta.Host.NodeOf, list, s.GPUs[p.device].Node)
		s.Launchers = append(s.Launchers, l)
	}
	slices.SortFunc(s.Launchers, func(x, y Launcher) int {
		return cmp.Or(cmp.Compare(x.GPU, y.GPU), cmp.Compare(y.Launched, x.Launched), cmp.Compare(x.PID, y.PID),
			cmp.Compare(x.TID, y.TID))
	})
}

// ran adds up where a thread ran, by the node of each CPU.
func (l *Launcher) ran(nodeOf []int, list []threads.Thread, gpu int) {
	i, found := slices.BinarySearchFunc(list, l, func(x threads.Thread, l *Launcher) int {
		return cmp.Or(cmp.Compare(x.PID, l.PID), cmp.Compare(x.TID, l.TID))
	})
	if !found {
		return
	}
	by := map[int]uint64{}
	for cpu, ns := range list[i].CPUs {
		if int(cpu) < len(nodeOf) && nodeOf[cpu] >= 0 {
			by[nodeOf[cpu]] += ns
			l.Ran += ns
		}
	}
	for node, ns := range by {
		if gpu >= 0 && node != gpu {
			l.Far += ns
		}
		if l.Node < 0 || ns > by[l.Node] || ns == by[l.Node] && node < l.Node {
			l.Node = node
		}
	}
}
