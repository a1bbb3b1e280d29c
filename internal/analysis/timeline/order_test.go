package timeline_test

import (
	"cmp"
	"fmt"
	"os"
	"strconv"
	"testing"

	"github.com/inferscope/inferscope/internal/testkit/must"
	"github.com/inferscope/inferscope/internal/testkit/timelinetest"
)

// losses are the shares of calls and records that random programs lose, and how many at a time.
var losses = []struct {
	calls, records float64
	burst          int
}{
	{0, 0, 1},
	{0.001, 0.001, 1},
	{0.001, 0.001, 30},
	{0.01, 0, 1},
	{0.01, 0, 30},
	{0, 0.01, 1},
	{0, 0.01, 30},
	{0.01, 0.01, 1},
	{0.01, 0.01, 30},
	{0.05, 0.05, 1},
	{0.05, 0.05, 30},
	{0.2, 0.2, 1},
	{0.2, 0.2, 30},
}

// TestOrderOfRandomPrograms holds for random programs that 99% of the links by order are right, whatever
// was lost, and says how many there are. INFERSCOPE_PROGRAMS is how many programs of each kind (default 4).
func TestOrderOfRandomPrograms(t *testing.T) {
	programs, err := strconv.ParseUint(cmp.Or(os.Getenv("INFERSCOPE_PROGRAMS"), "4"), 10, 32)
	must.NoError(t, err)
	for _, loss := range losses {
		for _, windows := range []bool{false, true} {
			t.Run(
				fmt.Sprintf("calls %v records %v burst %d windows %v", loss.calls, loss.records, loss.burst, windows),
				func(t *testing.T) {
					var all score
					for seed := range programs {
						c := timelinetest.Config{
							Seed:        seed,
							LoseCalls:   loss.calls,
							LoseRecords: loss.records,
							Burst:       loss.burst,
						}
						if windows {
							c.CallsLate = 50 * us
							c.Windows = []timelinetest.Span{
								timelinetest.Between(3*ms, 23*ms),
								timelinetest.Between(60*ms, 80*ms),
							}
						}
						s := timelinetest.Random(c)
						got := compare(build(t, s.Run()), s)
						all.add(got)
						if got.linked > 100 && float64(got.wrong) > 0.2*float64(got.linked) {
							t.Logf("seed %d: %+v", seed, got)
						}
					}
					t.Logf("%d of %d linked (%.1f%%), %d wrong (%.3f%%)",
						all.linked, all.linkable, 100*float64(all.linked)/float64(all.linkable), all.wrong,
						100*float64(all.wrong)/float64(max(1, all.linked)))
					if float64(all.wrong) > 0.01*float64(all.linked) {
						t.Errorf("%+v: more than 1%% of the links are wrong", all)
					}
					if loss.calls+loss.records == 0 && float64(all.linked) < 0.7*float64(all.linkable) {
						t.Errorf("%+v: too few links where nothing is lost", all)
					}
				},
			)
		}
	}
}

func (c *score) add(o score) {
	c.activities += o.activities
	c.linked += o.linked
	c.right += o.right
	c.wrong += o.wrong
	c.linkable += o.linkable
}
