package whatif

import "math"

// term is one thing that widens an interval, ns to either side, and what it is.
type term struct {
	ns   float64
	from string
}

// What intervals come from, to go after "because": what the evidence lacks.
const (
	ofNames     = "few samples tell this cause's time from that of others; a longer recording has more"
	ofPace      = "the change brings more in some parts of the recording than in others; a longer recording has more parts"
	ofResidue   = "little time would be left, and some of what is to go may stay"
	ofRecording = "recording itself cost the program some of this time"
	ofOthers    = "side effects are unknown: the clock of a busier GPU, caches after waits that are gone"
	ofLink      = "no pinned copies were recorded that would show how fast this link carries them"
	ofMerge     = "what one copy or kernel takes in place of many is known from a range alone"
	ofNothing   = "nothing that takes time in this recording is called that"
	ofUnawaited = "the change takes nothing off the critical path"
	ofWaits     = "the function also waits, and whether it waits for less where it is faster is not known"
	ofWakers    = "some waits may be for what it changes: who ended them was not recorded"
	ofModel     = "what takes the place of this time cannot be seen before the change is made"
)

// narrow is half of the width, relative to the prediction, up to which an interval needs no explanation.
const narrow = 0.15

// together is how far independent terms lead away.
func together(terms []term) float64 {
	sum := 0.0
	for _, t := range terms {
		sum += t.ns * t.ns
	}
	return math.Sqrt(sum)
}

// because returns what most of a wide interval comes from, "" for one that is not.
func because(p *Prediction, terms []term) string {
	if p.High-p.Low <= 2*narrow*p.Speedup {
		return ""
	}
	most := term{}
	for _, t := range terms {
		if t.ns > most.ns {
			most = t
		}
	}
	return most.from
}
