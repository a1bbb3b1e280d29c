package html

import (
	"fmt"
	"slices"

	"github.com/inferscope/inferscope/internal/analysis/cause"
	"github.com/inferscope/inferscope/internal/analysis/gap"
	"github.com/inferscope/inferscope/internal/analysis/threads"
	"github.com/inferscope/inferscope/internal/analysis/timeline"
	"github.com/inferscope/inferscope/internal/cuda"
	"github.com/inferscope/inferscope/internal/format"
	"github.com/inferscope/inferscope/internal/recording"
)

// addDevices creates the tracks of the GPUs, or of the main thread if no GPU activity was recorded.
func (s *scene) addDevices() {
	r := readingsOf(&s.in.Timeline.Rec.Meta)
	defer s.addOtherReadings(&r)
	w := s.in.Walk
	if w == nil {
		return
	}
	if w.Main != nil {
		items := s.steps(nil, w.Steps[w.Main.First:w.Main.Last])
		s.add(
			track{head: trackHead{Kind: idleTrack, Name: "what it did", Group: "Main thread", Seen: -1}, items: items},
		)
		return
	}
	for i := range s.in.Timeline.Devices {
		s.device(int32(i), &r)
	}
}

func (s *scene) device(i int32, r *readings) {
	t := s.in.Timeline
	d := &t.Devices[i]
	name := fmt.Sprintf("GPU %d", d.ID)
	if d.Info != nil && d.Info.Name != "" {
		name += ": " + format.Clean(d.Info.Name)
	}
	seen := -1
	if int(i) < len(s.in.Walk.Covered) {
		seen = len(s.spans)
		s.spans = append(s.spans, s.in.Walk.Covered[i])
	}
	var why []item
	for g, steps := range s.in.Walk.All() {
		if g.Device == i {
			why = s.steps(why, steps)
		}
	}
	s.add(track{head: trackHead{Kind: idleTrack, Name: "idle, by cause", Group: name, Seen: seen}, items: why})
	s.streams(d, name, seen)
	if d.Info != nil {
		s.addReadings(r, d.Info.UUID, name)
	}
}

// streams makes a track for each stream of a device, and for copies and sets in it another one: they run on other
// engines.
func (s *scene) streams(d *timeline.Device, group string, seen int) {
	t := s.in.Timeline
	compute, moves := map[int32]*track{}, map[int32]*track{}
	var order []int32
	for i := d.First; i < d.Last; i++ {
		a := &t.Activities[i]
		list := compute
		if a.Kind != timeline.Kernel {
			list = moves
		}
		if compute[a.Stream] == nil && moves[a.Stream] == nil {
			order = append(order, a.Stream)
		}
		if list[a.Stream] == nil {
			list[a.Stream] = &track{head: trackHead{Kind: gpuTrack, Group: group, Seen: seen, PID: s.pidOf(a.Stream)}}
		}
		list[a.Stream].items = append(list[a.Stream].items, s.activity(a))
	}
	slices.Sort(order)
	shared := slices.ContainsFunc(
		order,
		func(st int32) bool { return s.pidOf(st) != s.pidOf(order[0]) },
	) // by processes, each with numbers of its own
	for _, st := range order {
		name := fmt.Sprintf("stream %d", t.Streams[st].ID)
		if shared {
			name += fmt.Sprintf(" of %d", s.pidOf(st))
		}
		if tr := compute[st]; tr != nil {
			tr.head.Name = name
			s.add(*tr)
		}
		if tr := moves[st]; tr != nil {
			tr.head.Name = name + ", copies"
			s.add(*tr)
		}
	}
}

func (s *scene) pidOf(stream int32) uint32 {
	t := s.in.Timeline
	return t.Processes[t.Streams[stream].Process].PID
}

func (s *scene) activity(a *timeline.Activity) item {
	t := s.in.Timeline
	it := item{start: a.Start, end: a.End, ref: none, src: none}
	if a.Op != timeline.None {
		it.ref = t.Outermost(a.Op)
	}
	switch a.Kind {
	case timeline.Kernel:
		it.label = s.labels.of(kernelText(t, a), "kernel", "kernel")
	case timeline.Copy:
		text := "copy " + copyText(t.Rec.Events[a.Event].Ret)
		if a.Exchange {
			text += " of NCCL"
		}
		it.label = s.labels.of(text, "copy", "copy")
	default:
		it.label = s.labels.of("memset", "set", "memset")
	}
	return it
}

// maxKernel bounds a kernel's name in the timeline, in characters: templates can be thousands long.
const maxKernel = 160

func kernelText(t *timeline.Timeline, a *timeline.Activity) string {
	k := t.Kernel(a)
	if k == nil || k.Name == "" {
		return "kernel (name lost)"
	}
	return format.Shorten(format.Clean(k.Name), maxKernel)
}

// copyText names a copy by Ret of its event: see bpf/event.h.
func copyText(ret int32) string {
	way := cuda.CopyKind(ret).String()
	switch way {
	case string(cuda.Unknown):
		way = "of an unknown kind"
	case string(cuda.Peer):
		way = "peer to peer"
	}
	for _, shift := range []int32{8, 16} {
		if cuda.MemoryKind(ret>>shift) == cuda.Pageable {
			way += ", pageable"
		}
	}
	return way
}

// steps appends what the walk says of gaps.
func (s *scene) steps(items []item, steps []gap.Step) []item {
	for i := range steps {
		st := &steps[i]
		items = append(items, item{start: st.From, end: st.To, label: s.stepLabel(st), ref: none, src: none})
	}
	return items
}

func (s *scene) stepLabel(st *gap.Step) uint32 {
	c := cause.Of(st.Cause)
	title := s.title(&c)
	text := title
	if st.Inner != cause.Unknown && st.Inner != st.Cause {
		inner := cause.Of(st.Inner)
		text += ": " + s.title(&inner)
	}
	if at := place(s.in.Timeline.Rec, st.Stack); at != "" {
		text += ", in " + at
	}
	switch st.Sure {
	case gap.Inferred:
		text += " (inferred from samples)"
	case gap.Guessed:
		text += " (a guess)"
	}
	return s.labels.of(text, "cause "+c.Key, title)
}

// title is what the breakdown calls a cause: it says nothing of a GPU that nobody watched.
func (s *scene) title(c *cause.Cause) string {
	for i := range s.in.Diagnosis.Breakdown.Parts {
		if p := &s.in.Diagnosis.Breakdown.Parts[i]; p.Key == c.Key {
			return p.Name
		}
	}
	return c.Title
}

// place names the Python function nearest to the leaf of a stack, else the native one; "" where there is neither.
func place(rec *recording.Recording, stack uint64) string {
	native := ""
	for f := range threads.Walk(rec, stack) {
		switch fr := &rec.Meta.Frames[f]; fr.Kind {
		case recording.PythonFrame:
			return frameText(fr)
		case recording.NativeFrame:
			if native == "" {
				native = frameText(fr)
			}
		}
	}
	return native
}
