package importer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/event"
	"github.com/inferscope/inferscope/internal/recording/memlimit"
)

// maxFiles bounds the files of one recording: a rank of a program has one each.
const maxFiles = 1024

// ErrNoTraces means that a folder has no file that this package reads.
var ErrNoTraces = errors.New(
	"the folder has no trace: neither Kineto JSON (.json, .json.gz) nor SQLite of Nsight Systems (.sqlite)",
)

// Traces returns the files of a folder whose names are those of traces, sorted; nothing of the folders in it.
func Traces(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var out []string
	for _, e := range entries {
		name := strings.ToLower(e.Name())
		if !e.Type().IsRegular() ||
			!strings.HasSuffix(name, ".json") && !strings.HasSuffix(name, ".json.gz") &&
				!strings.HasSuffix(name, ".sqlite") {
			continue
		}
		out = append(out, filepath.Join(dir, e.Name()))
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("%s: %w", dir, ErrNoTraces)
	}
	return out, nil
}

// OpenAll reads several files, each of one or more processes of a program, as one recording. The ranks of a program are
// on one time axis: that of the wall clocks of their hosts. With lenient, files that are no traces are left out, as
// long as there is one that is.
func OpenAll(ctx context.Context, paths []string, limits Limits, lenient bool) (*recording.Recording, error) {
	if len(paths) > maxFiles {
		return nil, fmt.Errorf("%d files are more than %d, the limit", len(paths), maxFiles)
	}
	var parts []part
	var skipped []string
	left := limits
	for _, path := range paths {
		p, err := openPart(ctx, path, left)
		switch {
		case err == nil:
			if p.rank < 0 {
				p.rank = rankIn(path)
			}
			parts = append(parts, p)
			left.Events -= len(p.rec.Events)
		case !lenient || errors.Is(err, memlimit.ErrExceeded) || ctx.Err() != nil:
			return nil, err
		default:
			skipped = append(skipped, filepath.Base(path))
		}
	}
	switch len(parts) {
	case 0:
		return nil, fmt.Errorf("none of its %d files could be read as a trace: %w", len(paths), ErrNoTraces)
	case 1:
		return parts[0].rec, nil
	}
	return merge(parts, skipped)
}

// Join puts recordings of several hosts into one, the first of which gives the time axis: shifts are what is added to
// the times of each, ns, and detail is what is said of them. What is about a host as a whole is that of the first one;
// requests, sensors and pressure are left out.
func Join(recs []*recording.Recording, shifts []int64, detail string) (*recording.Recording, error) {
	first := &recs[0].Meta
	m := newMerger(first)
	m.out.From, m.out.To, m.out.WallFrom, m.out.Overhead = first.From, first.To, first.WallFrom, first.Overhead
	for _, rec := range recs {
		for _, p := range rec.Meta.Processes {
			m.others[p.PID] = true
		}
	}
	for i, rec := range recs {
		p := part{rec: rec, rank: -1}
		if err := m.take(&p, uint64(shifts[i])); err != nil {
			return nil, err
		}
		m.host(&rec.Meta, uint64(shifts[i]))
	}
	return m.finish(recording.Source{Name: "hosts", State: "running", Detail: detail}), nil
}

// host takes what only a daemon knows.
func (m *merger) host(meta *recording.Meta, shift uint64) {
	m.out.From, m.out.To = min(m.out.From, meta.From+shift), max(m.out.To, meta.To+shift)
	m.out.Losses = append(m.out.Losses, meta.Losses...)
	if !slices.Equal(m.out.Host.NodeOf, meta.Host.NodeOf) {
		m.out.Host.NodeOf = nil // numbers of CPUs mean others on each
	}
	for _, g := range meta.Host.GPUs {
		if !slices.Contains(m.out.Host.GPUs, g) {
			m.out.Host.GPUs = append(slices.Clone(m.out.Host.GPUs), g)
		}
	}
	if m.out.RAS == nil {
		m.out.RAS = meta.RAS
	}
	if !meta.Overhead.Whole(recording.CallsSource) {
		m.out.Overhead = meta.Overhead
	}
}

// part is the recording of one file.
type part struct {
	rec  *recording.Recording
	rank int // -1: not known
}

var rankName = regexp.MustCompile(`(?i)(?:rank|worker|gpu)[-_.]?(\d{1,6})`)

// rankIn returns the rank in the name of a file, -1 where there is none.
func rankIn(path string) int {
	if m := rankName.FindStringSubmatch(filepath.Base(path)); m != nil {
		if v, err := strconv.Atoi(m[1]); err == nil {
			return v
		}
	}
	return -1
}

// rankSource is the source that says which rank a trace is of.
const rankSource = "rank"

// merge puts recordings into one.
func merge(parts []part, skipped []string) (*recording.Recording, error) {
	slices.SortStableFunc(parts, func(x, y part) int { return cmp.Compare(uint(x.rank), uint(y.rank)) })
	origin := int64(math.MaxInt64)
	for _, p := range parts {
		if p.rec.Meta.WallFrom != 0 {
			origin = min(origin, p.rec.Meta.WallFrom)
		}
	}
	if origin == math.MaxInt64 {
		origin = 0
	}
	m := newMerger(&parts[0].rec.Meta)
	m.out.WallFrom, m.out.From = origin, axis
	for i := range parts {
		if err := m.add(&parts[i], origin); err != nil {
			return nil, err
		}
		parts[i].rec = nil
	}
	detail := fmt.Sprintf(
		"one recording of %d files; their times are those of the wall clocks of their hosts",
		len(parts),
	)
	if len(skipped) > 0 {
		detail += fmt.Sprintf("; %d files are no traces and left out (%s)", len(skipped), shortened(skipped[0]))
	}
	return m.finish(recording.Source{Name: "import", State: "running", Detail: detail}), nil
}

func newMerger(first *recording.Meta) *merger {
	return &merger{
		out: recording.Meta{
			Schema: recording.SchemaVersion, Version: first.Version, Host: first.Host,
			Processes: []recording.Process{}, Threads: []recording.Thread{}, Functions: []recording.Function{},
			Libraries: []recording.Library{},
			GPU:       &recording.GPU{Mode: "off", Agents: []recording.Agent{}},
		},
		functions: map[recording.Function]uint16{}, kernels: map[recording.Kernel]int32{}, ranges: map[string]int32{},
		attributes: map[string]int32{}, frames: map[recording.Frame]uint32{}, nodes: map[recording.Node]int32{},
		pids: map[uint32]bool{}, others: map[uint32]bool{},
	}
}

// axis is the beginning of the time axis of several files, ns.
const axis = 1_000_000_000

// merger puts recordings into one: tables are merged, and events say their new indices.
type merger struct {
	out        recording.Meta
	events     []event.Event
	functions  map[recording.Function]uint16
	kernels    map[recording.Kernel]int32
	ranges     map[string]int32
	attributes map[string]int32
	frames     map[recording.Frame]uint32
	nodes      map[recording.Node]int32
	pids       map[uint32]bool
	others     map[uint32]bool // processes of files that come later: they keep their pids
}

// intern returns the index of a value in a table, to which it is added where it is not there yet.
func intern[K comparable, I ~int32 | ~uint16 | ~uint32](index map[K]I, table *[]K, k K) I {
	i, ok := index[k]
	if !ok {
		i = I(len(*table))
		*table = append(*table, k)
		index[k] = i
	}
	return i
}

// newIndices are the new indices of one recording's tables.
type newIndices struct {
	functions  []uint16
	kernels    []int32
	ranges     []int32
	attributes []int32
	stacks     []uint64 // by index + 1
	pids       map[uint32]uint32
}

func (m *merger) add(p *part, origin int64) error {
	meta := &p.rec.Meta
	shift := axis - meta.From // modulo 2^64
	if meta.WallFrom != 0 {   // else it begins with the first
		shift += uint64(meta.WallFrom - origin)
	}
	return m.take(p, shift)
}

// take adds a recording whose times are to be shifted, ns modulo 2^64.
func (m *merger) take(p *part, shift uint64) error {
	meta := &p.rec.Meta
	n := newIndices{stacks: []uint64{0}, pids: map[uint32]uint32{}}
	for _, f := range meta.Functions {
		if len(m.out.Functions) >= maxFunctions {
			return fmt.Errorf("the files name more than %d functions", maxFunctions)
		}
		n.functions = append(n.functions, intern(m.functions, &m.out.Functions, f))
	}
	var frames []uint32
	for _, f := range meta.Frames {
		frames = append(frames, intern(m.frames, &m.out.Frames, f))
	}
	for _, s := range meta.Stacks { // callers come before those whom they call
		node := recording.Node{Parent: -1, Frame: frames[s.Frame]}
		if s.Parent >= 0 {
			node.Parent = int32(n.stacks[s.Parent+1]) - 1
		}
		n.stacks = append(n.stacks, uint64(intern(m.nodes, &m.out.Stacks, node))+1)
	}
	m.processes(p, &n, shift)
	m.named(meta, &n)
	for _, c := range meta.Communicators {
		c.PID = m.pid(&n, c.PID)
		m.out.Communicators = append(m.out.Communicators, c)
	}
	if meta.GPU != nil {
		m.gpu(meta.GPU, &n, shift)
	}
	for i := range p.rec.Events {
		e := p.rec.Events[i]
		if e.Kind == event.RequestChunk {
			continue // its request is left out
		}
		m.translate(&n, &e)
		e.TS += shift
		m.events = append(m.events, e)
	}
	m.out.To = max(m.out.To, meta.To+shift)
	m.sources(meta.Sources)
	return nil
}

// sources keeps what each file says it has and lacks: once, where files say the same.
func (m *merger) sources(list []recording.Source) {
	for _, s := range list {
		if s.Name != rankSource && !slices.Contains(m.out.Sources, s) && len(m.out.Sources) < maxSources {
			m.out.Sources = append(m.out.Sources, s)
		}
	}
}

// maxSources bounds the sources of several files.
const maxSources = 64

// processes gives the processes of a file pids that no other file's have, and the name of their rank.
func (m *merger) processes(p *part, n *newIndices, shift uint64) {
	for _, x := range p.rec.Meta.Processes {
		delete(m.others, x.PID)
		x.PID = m.pid(n, x.PID)
		x.Parent = m.pid(n, x.Parent)
		if p.rank >= 0 {
			x.Comm = strings.TrimSpace(fmt.Sprintf("%s rank %d", x.Comm, p.rank))
		}
		for _, at := range []*uint64{&x.Born, &x.Probed, &x.Died} {
			if *at != 0 {
				*at += shift
			}
		}
		m.out.Processes = append(m.out.Processes, x)
	}
	for _, t := range p.rec.Meta.Threads {
		t.PID, t.TID = m.thread(n, t.PID, t.TID)
		m.out.Threads = append(m.out.Threads, t)
	}
	if m.out.Target == 0 {
		m.out.Target = m.pid(n, p.rec.Meta.Target)
	}
}

// pid returns what a process of a file is called, which no process of another file is. 0 is nobody.
func (m *merger) pid(n *newIndices, old uint32) uint32 {
	const firstFree = 1 << 22 // above the kernel's largest pid
	if pid, ok := n.pids[old]; ok || old == 0 {
		return pid
	}
	pid := old
	for free := uint32(firstFree); m.pids[pid] || m.others[pid]; free++ {
		pid = free
	}
	m.pids[pid] = true
	n.pids[old] = pid
	return pid
}

// thread returns what a thread is called: the main thread of a process has its number.
func (m *merger) thread(n *newIndices, pid, tid uint32) (newPID, newTID uint32) {
	newPID = m.pid(n, pid)
	if tid == pid {
		tid = newPID
	}
	return newPID, tid
}

// named takes the tables that name what threads did.
func (m *merger) named(meta *recording.Meta, n *newIndices) {
	for _, t := range meta.OtherThreads {
		t.PID, t.TID = m.thread(n, t.PID, t.TID)
		m.out.OtherThreads = append(m.out.OtherThreads, t)
	}
	for _, o := range meta.Objects {
		o.PID = m.pid(n, o.PID)
		m.out.Objects = append(m.out.Objects, o)
	}
	for _, l := range meta.Libraries {
		l.PID = m.pid(n, l.PID)
		m.out.Libraries = append(m.out.Libraries, l)
	}
}

func (m *merger) gpu(g *recording.GPU, n *newIndices, shift uint64) {
	out := m.out.GPU
	if g.Mode != "off" {
		out.Mode = g.Mode
	}
	for _, k := range g.Kernels {
		n.kernels = append(n.kernels, intern(m.kernels, &out.Kernels, k))
	}
	for _, r := range g.Ranges {
		n.ranges = append(n.ranges, intern(m.ranges, &out.Ranges, r))
	}
	for _, a := range g.Attributes {
		n.attributes = append(n.attributes, intern(m.attributes, &out.Attributes, a))
	}
	for _, a := range g.Agents {
		a.PID = m.pid(n, a.PID)
		out.Agents = append(out.Agents, a)
	}
	for _, w := range g.Windows {
		w.PID, w.From, w.To = n.pids[w.PID], w.From+shift, w.To+shift
		out.Windows = append(out.Windows, w)
	}
	for _, d := range g.Devices {
		d.PID = n.pids[d.PID]
		out.Devices = append(out.Devices, d)
	}
	for _, s := range g.Streams {
		s.PID = n.pids[s.PID]
		out.Streams = append(out.Streams, s)
	}
}

// translate gives an event its new indices. One that a damaged recording has beyond a table names nothing.
func (m *merger) translate(n *newIndices, e *event.Event) {
	pid := e.PID
	e.PID = m.pid(n, pid)
	switch e.Kind {
	case event.Kernel, event.Copy, event.Set, event.Sync: // whose TID is a stream
	default:
		_, e.TID = m.thread(n, pid, e.TID)
	}
	switch e.Kind {
	case event.Call, event.Skipped:
		if int(e.Func) >= len(n.functions) {
			e.Func = math.MaxUint16
			return
		}
		e.Func = n.functions[e.Func]
	case event.Fork:
		e.Args[0] = uint64(m.pid(n, uint32(e.Args[0])))
	case event.OffCPU:
		if e.Flags&event.Mark == 0 { // else it has sums there
			by, tid := m.thread(n, uint32(e.Args[1]>>32), uint32(e.Args[1]))
			e.Args[1] = uint64(by)<<32 | uint64(tid)
		}
	case event.Sample, event.Allocation, event.OutOfMemory:
		e.Args[0] = at(n.stacks, e.Args[0])
	case event.Kernel:
		e.Ret = after(n.kernels, e.Ret)
	case event.Range:
		e.Ret, e.Args[3] = after(n.ranges, e.Ret), uint64(after(n.attributes, int32(e.Args[3])))
	}
}

// at returns what stands at an index, 0 beyond the table.
func at(table []uint64, i uint64) uint64 {
	if i >= uint64(len(table)) {
		return 0
	}
	return table[i]
}

// after returns the new index + 1 of an index + 1; 0, which names nothing, stays.
func after(table []int32, i int32) int32 {
	if i <= 0 || int(i) > len(table) {
		return 0
	}
	return table[i-1] + 1
}

func (m *merger) finish(about recording.Source) *recording.Recording {
	out := &m.out
	slices.SortStableFunc(m.events, func(x, y event.Event) int { return cmp.Compare(x.TS, y.TS) })
	slices.SortStableFunc(out.Processes, func(x, y recording.Process) int { return cmp.Compare(x.PID, y.PID) })
	slices.SortStableFunc(
		out.Threads,
		func(x, y recording.Thread) int { return cmp.Or(cmp.Compare(x.PID, y.PID), cmp.Compare(x.TID, y.TID)) },
	)
	slices.SortStableFunc(out.GPU.Windows, func(x, y recording.GPUWindow) int { return cmp.Compare(x.From, y.From) })
	out.Sources = append([]recording.Source{about}, m.out.Sources...)
	return &recording.Recording{Meta: *out, Events: m.events}
}
