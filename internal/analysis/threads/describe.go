package threads

import "github.com/inferscope/inferscope/internal/recording"

// Describe names what a recording of at most one wait shows: what the frames of its last stack prove ("waiting for the
// GIL"), why the thread of its event waits ("lock or condition"), and in which system call. Each is "" where nothing is
// known.
func Describe(rec *recording.Recording) (activity, reason, doing string) {
	if a := NewClassifier(rec).Of(uint64(len(rec.Meta.Stacks))); a != Other {
		activity = a.String()
	}
	if len(rec.Events) == 0 {
		return activity, "", ""
	}
	if w, ok := NewWaits(rec).Of(Interval{Wait: 0}); ok {
		reason, doing = w.Reason.String(), w.Text
	}
	return activity, reason, doing
}
