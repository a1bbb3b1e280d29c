package requests_test

import (
	"testing"

	"github.com/inferscope/inferscope/internal/recording"
)

// TestSharesByTokens: b's prompt of 3,300 tokens is computed in a step in which a decodes one. Where it is not certain
// that all of it was, or how long it is, the two have the same share.
func TestSharesByTokens(t *testing.T) {
	type row struct {
		shared uint64
		steps  int
	}
	const decode = 10*4*ms + 9*45*ms/10 // of a, with b but for the step with its prompt
	prompt := row{9*ms - 9*ms/3301 + 9*45*ms/10, 10}
	for _, test := range []struct {
		name   string
		change func(b *builder)
		a, b   row
	}{
		{"certain", func(*builder) {}, row{decode + 9*ms/3301, 20}, prompt},
		{
			"scheduled when a step before its own had not begun",
			func(b *builder) { b.rec.Meta.EngineRequests[1].Scheduled = 135 * ms },
			row{decode + 45*ms/10, 18},
			row{45 * ms, 9},
		},
		{
			"not told", func(b *builder) { b.rec.Meta.EngineRequests[1].Computed = 0 },
			row{decode + 45*ms/10, 19},
			row{45 * ms, 9},
		},
		{
			"preempted", func(b *builder) { b.rec.Meta.EngineRequests[0].Preemptions = 1 },
			row{decode + 45*ms/10, 0},
			row{45 * ms, 0},
		},
		{
			"another may have a part of its prompt computed",
			func(b *builder) {
				b.rec.Meta.EngineRequests = append(b.rec.Meta.EngineRequests,
					recording.EngineRequest{ID: "c", Asked: 150 * ms})
			},
			row{decode + 9*ms/3301, 12},
			row{prompt.shared, 2},
		},
		{
			"several tokens at a time", func(b *builder) { b.rec.Meta.Steps[15].Tokens = 5 },
			row{decode + 9*ms/3301, 19},
			row{prompt.shared, 9},
		},
		{
			"another engine", func(b *builder) {
				x := b.rec.Meta.Steps[0]
				x.PID = 3
				b.rec.Meta.Steps = append(b.rec.Meta.Steps, x)
			},
			row{decode + 45*ms/10, 0},
			row{45 * ms, 0},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			b := overlapped(3*ms, func(n uint64) uint64 { return 4 * n },
				recording.GPUWindow{PID: 2, To: 1000 * ms, Activity: true})
			b.rec.Meta.Steps[0].Firsts, b.rec.Meta.Steps[10].Firsts = 1, 1
			b.rec.Meta.EngineRequests[0].Computed, b.rec.Meta.EngineRequests[1].Computed = 100, 3300
			test.change(b)
			for _, r := range b.summary().Slow {
				want := test.a
				if r.ID == "b" {
					want = test.b
				}
				got := row{*r.Engine.GPUShared, r.Engine.StepsByTokens}
				if off := int64(got.shared - want.shared); off > 1e5 || off < -1e5 || got.steps != want.steps {
					t.Errorf("%s: %+v, want %+v", r.ID, got, want)
				}
			}
		})
	}
}
