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

// ErrNoTraces says that a folder has no file that this package reads.
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
	m := merger{
		out: recording.Meta{
			Schema: recording.SchemaVersion, Version: parts[0].rec.Meta.Version, Host: parts[0].rec.Meta.Host,
			WallFrom: origin, From: axis,
			Processes: []recording.Process{}, Threads: []recording.Thread{}, Functions: []recording.Function{},
			Libraries: []recording.Library{},
			GPU:       &recording.GPU{Mode: "off", Agents: []recording.Agent{}},
		},
		functions: map[recording.Function]uint16{}, kernels: map[recording.Kernel]int32{}, ranges: map[string]int32{},
		frames: map[recording.Frame]uint32{}, nodes: map[recording.Node]int32{}, pids: map[uint32]bool{},
	}
	for i := range parts {
		if err := m.add(&parts[i], origin); err != nil {
			return nil, err
		}
		parts[i].rec = nil
	}
	return m.finish(parts, skipped), nil
}

// axis is the beginning of the time axis of several files, ns.
const axis = 1_000_000_000

// merger puts recordings into one: tables are merged, and events say their new indices.
type merger struct {
	out       recording.Meta
	events    []event.Event
	functions map[recording.Function]uint16
	kernels   map[recording.Kernel]int32
	ranges    map[string]int32
	frames    map[recording.Frame]uint32
	nodes     map[recording.Node]int32
	pids      map[uint32]bool
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
	functions []uint16
	kernels   []int32
	ranges    []int32
	stacks    []uint64 // by index + 1
	pids      map[uint32]uint32
}

func (m *merger) add(p *part, origin int64) error {
	meta := &p.rec.Meta
	shift := axis - meta.From // modulo 2^64
	if meta.WallFrom != 0 {   // else it begins with the first
		shift += uint64(meta.WallFrom - origin)
	}
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
	m.processes(p, &n)
	m.gpu(meta.GPU, &n, shift)
	for i := range p.rec.Events {
		e := p.rec.Events[i]
		n.translate(&e)
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
func (m *merger) processes(p *part, n *newIndices) {
	const firstFree = 1 << 22 // above the kernel's largest pid
	for _, x := range p.rec.Meta.Processes {
		pid := x.PID
		for free := uint32(firstFree); m.pids[pid]; free++ {
			pid = free
		}
		m.pids[pid] = true
		n.pids[x.PID] = pid
		if x.PID = pid; p.rank >= 0 {
			x.Comm = strings.TrimSpace(fmt.Sprintf("%s rank %d", x.Comm, p.rank))
		}
		m.out.Processes = append(m.out.Processes, x)
	}
	for _, t := range p.rec.Meta.Threads {
		t.PID = n.pids[t.PID]
		m.out.Threads = append(m.out.Threads, t)
	}
	if m.out.Target == 0 {
		m.out.Target = n.pids[p.rec.Meta.Target]
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

// translate gives an event its new indices.
func (n *newIndices) translate(e *event.Event) {
	e.PID = n.pids[e.PID]
	switch e.Kind {
	case event.Call:
		e.Func = n.functions[e.Func]
	case event.Sample:
		e.Args[0] = n.stacks[e.Args[0]]
	case event.Kernel:
		if e.Ret > 0 {
			e.Ret = n.kernels[e.Ret-1] + 1
		}
	case event.Range:
		e.Ret = n.ranges[e.Ret-1] + 1
	}
}

func (m *merger) finish(parts []part, skipped []string) *recording.Recording {
	out := &m.out
	slices.SortStableFunc(m.events, func(x, y event.Event) int { return cmp.Compare(x.TS, y.TS) })
	slices.SortStableFunc(out.Processes, func(x, y recording.Process) int { return cmp.Compare(x.PID, y.PID) })
	slices.SortStableFunc(
		out.Threads,
		func(x, y recording.Thread) int { return cmp.Or(cmp.Compare(x.PID, y.PID), cmp.Compare(x.TID, y.TID)) },
	)
	slices.SortStableFunc(out.GPU.Windows, func(x, y recording.GPUWindow) int { return cmp.Compare(x.From, y.From) })
	detail := fmt.Sprintf(
		"one recording of %d files; their times are those of the wall clocks of their hosts",
		len(parts),
	)
	if len(skipped) > 0 {
		detail += fmt.Sprintf("; %d files are no traces and left out (%s)", len(skipped), shortened(skipped[0]))
	}
	out.Sources = append([]recording.Source{{Name: "import", State: "running", Detail: detail}}, m.out.Sources...)
	return &recording.Recording{Meta: *out, Events: m.events}
}
