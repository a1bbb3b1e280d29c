package export

import (
	"math/rand/v2"
	"testing"

	"github.com/inferscope/inferscope/internal/recording"
)

// TestPhasesCover: whatever was and was not seen of a request, in whatever order, its phases follow each other from its
// beginning to its end.
func TestPhasesCover(t *testing.T) {
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
		list := phases(&r, engine, end)
		for _, p := range list {
			if p.from != from || p.to <= p.from || p.name == "" {
				t.Fatalf("%+v of %+v, %+v to %d", list, r, engine, end)
			}
			from = p.to
		}
		if from != end {
			t.Fatalf("%+v of %+v, %+v to %d", list, r, engine, end)
		}
	}
}
