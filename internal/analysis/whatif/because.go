package whatif

import "math"

// term is one thing that widens an interval, ns to either side, and what it is, "" for what is in each of them.
type term struct {
	ns   float64
	from string
}

// What intervals come from, to go after "because".
const (
	ofNames     = "samples give only a rough share for this cause"
	ofPace      = "the program's pace varied during the recording, as it does when other programs use the same CPUs"
	ofHalves    = "one half of the recording predicts the other badly, as it does when other programs use the same CPUs"
	ofRecording = "recording itself cost the program some of this time"
	ofOthers    = "side effects are unknown: the clock of a busier GPU, caches after waits that are gone"
)

// wide is how many times as large as its lower end the upper one of an interval is for it to be explained: twice what
// the model's own error makes.
const wide = (1 + 2*modelError) / (1 - 2*modelError)

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
	if p.High < wide*p.Low {
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
