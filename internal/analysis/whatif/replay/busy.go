package replay

// Engine is a part of a GPU that works beside the others: the multiprocessors, and one copy engine for each direction.
type Engine uint8

// The engines.
const (
	Compute  Engine = iota
	ToDevice        // copies from the host
	ToHost          // copies to the host
	Engines
)

// none is what uses no engine that bounds anything: copies inside of a device and between devices, and sets, run beside
// and instead of kernels.
const none = Engines

// Busy is for how long an engine of a device was busy, ns: the time in which at least one thing ran there. With a plan
// that leaves the work as it is, nothing takes less.
type Busy struct {
	Device int32
	Engine Engine
	Time   uint64
	sum    uint64 // ns of all that ran, one beside the other
}

func partOf(name uint8) Engine {
	switch name {
	case kernels:
		return Compute
	case copyUp, copyUpPageable:
		return ToDevice
	case copyDown, copyDownPageable:
		return ToHost
	}
	return none
}

// EngineOf returns the engine that does a What, and whether there is one.
func EngineOf(w *What) (Engine, bool) {
	if w.Kind == Kernel {
		return Compute, true
	}
	if w.Kind == Copy {
		for i, name := range names() {
			if e := partOf(uint8(i)); name == w.Name && e != none && i > 0 {
				return e, true
			}
		}
	}
	return none, false
}

// Busy returns for how long each engine is busy at least under a plan: what is twice as fast leaves half of its part.
func (g *Graph) Busy(p *Plan) []Busy {
	out := make([]Busy, len(g.busy))
	copy(out, g.busy)
	for i := range out {
		left := 0.0
		for k := range g.Whats {
			if e, ok := EngineOf(&g.Whats[k]); ok && e == out[i].Engine && g.Whats[k].Device == out[i].Device {
				left += float64(g.Times[k].Own) * p.Changes[k].Scale
			}
		}
		out[i].Time = uint64(float64(out[i].Time) * left / float64(max(1, out[i].sum)))
	}
	return out
}
