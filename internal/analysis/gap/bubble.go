package gap

import (
	"cmp"
	"slices"

	"github.com/inferscope/inferscope/internal/analysis/timeline"
)

// A pipeline bubble is time in which a GPU runs nothing because what it is to work on next has to come from another
// GPU: its stream waits for an event of the other one's, or the thread that launches waits for the other one.

// syncsOf finds what calls waited for, by outermost op; nil where there is one GPU.
func syncsOf(t *timeline.Timeline) map[int32]int32 {
	if len(t.Devices) < 2 {
		return nil
	}
	out := map[int32]int32{}
	for i := range t.Syncs {
		if s := &t.Syncs[i]; s.Op != None && s.Activity != None {
			out[t.Outermost(s.Op)] = int32(i)
		}
	}
	return out
}

// deviceOf returns the device of an activity, index into Timeline.Devices.
func (w *walker) deviceOf(activity int32) int32 {
	return w.t.Streams[w.t.Activities[activity].Stream].Device
}

// elsewhere reports whether an activity ran on another device.
func (w *walker) elsewhere(activity, device int32) bool { return w.deviceOf(activity) != device }

// otherGPU returns until when a call waited for another GPU than that of the gap; 0 where it did not.
func (w *walker) otherGPU(op int32) uint64 {
	i, ok := w.syncAt[op]
	if !ok || w.unobservable {
		return 0
	}
	if s := &w.t.Syncs[i]; w.elsewhere(s.Activity, w.device) {
		return s.Done
	}
	return 0
}

// endsBefore is within what time of another GPU's end a kernel begins that waited for it, ns: a signal between GPUs
// takes some microseconds, as a launch does.
const endsBefore = 30_000

// ended is the end of an activity.
type ended struct {
	at     uint64
	device int32
}

// handedOver returns when another GPU of the process ended what an activity most likely waited for, by its time alone:
// calls name the default streams of all GPUs alike, so that no event between them is known. 0: there is none.
func (w *walker) handedOver(activity int32, start uint64) uint64 {
	if w.syncAt == nil {
		return 0
	}
	s := &w.t.Streams[w.t.Activities[activity].Stream]
	list := w.endsOf(s.Process)
	i, _ := slices.BinarySearchFunc(list, start+1, func(e ended, at uint64) int { return cmp.Compare(e.at, at) })
	for i--; i >= 0 && list[i].at+endsBefore >= start; i-- {
		if list[i].device != s.Device {
			return list[i].at
		}
	}
	return 0
}

// endsOf returns the ends of all activities of a process, in their order.
func (w *walker) endsOf(process int32) []ended {
	if list, ok := w.ends[process]; ok {
		return list
	}
	var list []ended
	for i := range w.t.Activities {
		act := &w.t.Activities[i]
		if s := &w.t.Streams[act.Stream]; s.Process == process {
			list = append(list, ended{act.End, s.Device})
		}
	}
	slices.SortFunc(list, func(x, y ended) int { return cmp.Compare(x.at, y.at) })
	if w.ends == nil {
		w.ends = map[int32][]ended{}
	}
	w.ends[process] = list
	return list
}
