package html

import "github.com/inferscope/inferscope/internal/analysis/timeline"

// none stands where an index is missing.
const none int32 = -1

// kind is the content of a track.
type kind string

// The kinds of tracks.
const (
	idleTrack  kind = "idle"  // why a device ran nothing
	gpuTrack   kind = "gpu"   // what a stream did
	callTrack  kind = "call"  // CUDA calls of a thread
	stateTrack kind = "state" // when a thread ran, and what it waited for
	rangeTrack kind = "range" // what the program named

	sensorTrack  kind = "sensor"  // what a GPU's sensors said
	errorTrack   kind = "error"   // errors of a GPU, which are moments
	requestTrack kind = "request" // requests that were served, with their stages
)

// track is one line of the timeline.
type track struct {
	head  trackHead
	items []item // by start
}

// trackHead is what the page is told of a track beside its items.
type trackHead struct {
	Kind  kind   `json:"kind"`
	Name  string `json:"name"`
	Group string `json:"group"` // the device or thread that it belongs to
	PID   uint32 `json:"pid,omitempty"`
	TID   uint32 `json:"tid,omitempty"`
	Seen  int    `json:"seen"` // index into the page's spans of when it was seen; -1: always
	Items int    `json:"n"`    // as drawn
	All   int    `json:"all"`  // as recorded
}

// item is one thing on a track.
type item struct {
	start, end uint64 // ns, CLOCK_MONOTONIC
	label      uint32
	// ref leads on: of GPU work to the call that asked for it (index into Timeline.Ops), of a wait to the thread
	// that ended it (index into scene.who). none: nowhere.
	ref  int32
	src  int32 // of a call: its index into Timeline.Ops
	wait bool  // ref is a thread
}

// label is a text of the timeline, with the class that gives it its colour.
type label struct {
	text  string
	class string
}

// labels numbers texts. There are no more than most: a target can name what it likes.
type labels struct {
	list  []label
	index map[label]uint32
	most  int
}

func newLabels(most int) *labels { return &labels{index: map[label]uint32{}, most: most} }

// of returns the number of a text; where there are too many, that of the plain text of its class.
func (l *labels) of(text, class, plain string) uint32 {
	key := label{text, class}
	if i, ok := l.index[key]; ok {
		return i
	}
	if len(l.list) >= l.most && text != plain {
		return l.of(plain, class, plain)
	}
	i := uint32(len(l.list))
	l.list = append(l.list, key)
	l.index[key] = i
	return i
}

// thread identifies a thread.
type thread struct{ pid, tid uint32 }

// scene is the timeline of a page in the making.
type scene struct {
	in     Input
	labels *labels
	tracks []track
	spans  []timeline.Spans // when tracks were seen
	who    []thread         // threads that have tracks, in their order
	hidden int              // threads that are not shown
	rank   map[thread]int32 // index into who
}

// maxLabels bounds the texts of a timeline.
const maxLabels = 8000

func newScene(in Input) *scene {
	s := &scene{in: in, labels: newLabels(maxLabels), rank: map[thread]int32{}}
	s.chooseThreads()
	s.addDevices()
	s.addMemory()
	s.addRequests()
	s.addThreads()
	return s
}

func (s *scene) add(t track) {
	if len(t.items) == 0 {
		return
	}
	t.head.All = len(t.items)
	s.tracks = append(s.tracks, t)
}

// clip cuts a stretch to the window; false where nothing is left. What has no length is kept: it is a moment.
func (s *scene) clip(from, to uint64) (start, end uint64, ok bool) {
	t := s.in.Timeline
	start, end = max(from, t.From), min(to, t.To)
	return start, end, start <= end && from <= t.To
}
