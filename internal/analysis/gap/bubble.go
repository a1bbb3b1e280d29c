package gap

import (
	"github.com/inferscope/inferscope/internal/analysis/timeline"
)

// A pipeline bubble is time in which a GPU runs nothing because what it is to work on next has to come from another GPU:
// its stream waits for an event of the other one's, or the thread that launches waits for the other one.

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
	if !ok || w.blind {
		return 0
	}
	if s := &w.t.Syncs[i]; w.elsewhere(s.Activity, w.device) {
		return s.Done
	}
	return 0
}
