package daemon

import (
	"slices"
	"testing"

	"github.com/inferscope/inferscope/internal/recording/event"
)

// fakeScopes is a source of scopes.
type fakeScopes struct {
	fakeSource
	events []event.Event
}

func (s *fakeScopes) Feed(_ uint64, emit func([]event.Event)) {
	if len(s.events) > 0 {
		emit(s.events)
		s.events = nil
	}
}

func (s *fakeScopes) Ranges(used []int32) (texts []string, at map[int32]int32) {
	all := map[int32]string{1: "step", 2: "decode", 3: `{"batch": 1}`}
	at = map[int32]int32{}
	for _, n := range used {
		if text, ok := all[n]; ok {
			texts = append(texts, text)
			at[n] = int32(len(texts))
		}
	}
	return texts, at
}

func scopeEvent(at uint64, name int32, attributes uint64) event.Event {
	return event.Event{
		TS:   at * second,
		Dur:  10,
		PID:  10,
		Kind: event.Range,
		Func: event.ScopeRange,
		Ret:  name,
		Args: [4]uint64{1, 0, 0, attributes},
	}
}

// TestRecordingHoldsScopes: with an agent's ranges in one table, where a name stands once, and without any.
func TestRecordingHoldsScopes(t *testing.T) {
	for _, withGPU := range []bool{true, false} {
		w := newWorld(t)
		w.parts.Sources = append(w.parts.Sources, &fakeScopes{
			fakeSource: fakeSource{
				name: "scopes",
			}, events: []event.Event{scopeEvent(1005, 2, 3), scopeEvent(1006, 1, 0), scopeEvent(1007, 9, 9)},
		})
		want, wantRets, mode := []string{"step", "decode"}, []int32{2, 1, 0}, "off"
		if withGPU {
			a := &fakeActivity{fakeSource: fakeSource{name: "gpu"}}
			a.pending = []event.Event{{TS: 1001 * second, Dur: 10, PID: 10, Kind: event.Range, Ret: 50}}
			w.parts.Sources = append(w.parts.Sources, a)
			wantRets, mode = []int32{1, 2, 1, 0}, "windows"
		}
		d, _ := w.start(Options{}, process(10, 0, second))
		w.now.Store(1010 * second)
		rec := fetch(t, d, 10, 0, 0)
		var rets []int32
		var attributes []uint64
		for _, e := range rec.Events {
			rets = append(rets, e.Ret)
			attributes = append(attributes, e.Args[3])
		}
		g := rec.Meta.GPU
		if g == nil || !slices.Equal(g.Ranges, want) || g.Mode != mode ||
			!slices.Equal(g.Attributes, []string{`{"batch": 1}`}) {
			t.Fatalf("with GPU %v: meta is %+v", withGPU, g)
		}
		if !slices.Equal(rets, wantRets) || attributes[len(attributes)-3] != 1 || attributes[len(attributes)-1] != 0 {
			t.Errorf("with GPU %v: Ret are %v, want %v; attributes %v", withGPU, rets, wantRets, attributes)
		}
	}
}
