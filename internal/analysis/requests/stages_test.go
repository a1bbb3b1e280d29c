package requests_test

import (
	"math/rand/v2"
	"testing"

	"github.com/inferscope/inferscope/internal/analysis/requests"
	"github.com/inferscope/inferscope/internal/recording"
)

// TestStagesCover: whatever was and was not seen of a request, in whatever order, its stages follow each other from its
// beginning to its end.
func TestStagesCover(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	at := func() uint64 { return random.Uint64N(6) }
	for range 20_000 {
		r := recording.Request{Received: at(), Asked: at(), FirstToken: at(), LastToken: at()}
		var engine *recording.EngineRequest
		if random.IntN(2) == 0 {
			engine = &recording.EngineRequest{Asked: at(), Queued: at(), Scheduled: at(), First: at(), Last: at()}
		}
		end := r.Received + at()
		from := r.Received
		list := requests.Stages(&r, engine, end)
		for _, p := range list {
			if p.From != from || p.To <= p.From || p.Name == "" {
				t.Fatalf("%+v of %+v, %+v to %d", list, r, engine, end)
			}
			from = p.To
		}
		if from != end {
			t.Fatalf("%+v of %+v, %+v to %d", list, r, engine, end)
		}
	}
}
