package whatif

import (
	"math"

	"github.com/inferscope/inferscope/internal/analysis/cause"
	"github.com/inferscope/inferscope/internal/analysis/whatif/replay"
)

// rowNames are what rows are called where an edit names them.
var rowNames = [replay.Rows]string{replay.Uploads: "h2d", replay.Downloads: "d2h", replay.Elementwise: "elementwise"}

// rowsOf returns the rows that an edit makes one of.
func (e Edit) rowsOf() (out [replay.Rows]bool) {
	switch e.Cause {
	case cause.SyncCopy, cause.CopyNotOverlapped, cause.CopyBound:
		out[replay.Uploads], out[replay.Downloads] = true, true
	case cause.HostSync:
		out[replay.Downloads] = true
	case cause.LaunchOverhead, cause.TinyKernels:
		out[replay.Elementwise] = true
	case cause.Count:
		for r := replay.NoRow + 1; r < replay.Rows; r++ {
			out[r] = e.matches(rowNames[r])
		}
	}
	return out
}

// What one activity costs that takes the place of a row, as is expected, at the slowest and at the fastest.
var (
	// traffic is the share of the kernels' time beyond their floors that stays: all of it where one kernel does to many
	// tensors what each did to one (torch._foreach), and a part where results stay in registers between operations
	// (torch.compile). For m.mul_(0.9).add_(g); p.add_(m) 5 of 8 reads and writes stay.
	traffic = [...]float64{expected: 0.7, slowest: 1, fastest: 0.4}
	// tensorCost is what a thread spends on each kernel that is no more, ns: a fused kernel's arguments are lists.
	tensorCost = [...]float64{expected: 200, slowest: 500, fastest: 0}
	// packRate is how fast a thread puts together what is uploaded at once, bytes per ns.
	packRate = [...]float64{expected: math.Inf(1), slowest: 8, fastest: math.Inf(1)}
	// ofLinkRate is the share of the link's rate that one large copy gets.
	ofLinkRate = [...]float64{expected: usualOfLink, slowest: leastOfLink, fastest: 1}
)

const (
	// fusedTensors is how many tensors one launch of torch._foreach takes at most (multi_tensor_apply.cuh: 110 with one
	// list, 36 with four).
	fusedTensors = 64
	// usualLink is the rate of a link that is not known, bytes per ns.
	usualLink = 25
)

// merged is the remedy of rows: one activity for each, launched as the first was.
func (s *Study) merged(e Edit, h how, g *replay.Graph) remedy {
	var gpu, host [replay.Rows]float64
	about := e.rowsOf()
	for r := range about {
		if about[r] && g.Rows[r].Count > 0 {
			gpu[r], host[r] = s.mergedTimes(g, replay.Row(r), h.link)
		}
	}
	return func(w *replay.What, c *replay.Change) {
		if !about[w.Row] {
			return
		}
		switch w.Kind {
		case replay.Kernel, replay.Copy:
			c.Scale *= gpu[w.Row]
			c.Gap = 0
		case replay.Sync:
			c.Detach, c.Gap = true, 0
		case replay.Run, replay.Call:
			if goes(w, h.link) {
				c.Scale *= host[w.Row]
			}
		}
	}
}

// goes reports whether what a thread does between launches of a row goes with them. What it computes between copies may
// be the program's own, which stays: the slowest end holds that.
func goes(w *replay.What, end linkSpeed) bool {
	return w.Kind == replay.Call || w.Kind == replay.Run && (w.Row == replay.Elementwise || end != slowest)
}

// mergedTimes returns by what the times of the activities of rows, and of the threads that launch them, are multiplied.
func (s *Study) mergedTimes(g *replay.Graph, r replay.Row, end linkSpeed) (gpu, host float64) {
	t := &g.Rows[r]
	own := 0.0
	for i := range g.Whats {
		if w := &g.Whats[i]; w.Row == r && goes(w, end) {
			own += float64(g.Times[i].Own)
		}
	}
	rows, floor := float64(t.Rows), float64(t.Floor)
	var on, left float64
	if r == replay.Elementwise {
		kernels := rows + math.Floor(float64(t.Count)/fusedTensors)
		on = kernels*floor + traffic[end]*max(0, float64(t.Own)-floor*float64(t.Count))
		left = tensorCost[end] * float64(t.Count)
	} else {
		link := s.link
		if math.IsInf(link, 0) {
			link = usualLink / usualOfLink
		}
		on = rows*floor + float64(t.Bytes)/(ofLinkRate[end]*link)
		left = float64(t.Bytes) / packRate[end]
	}
	return min(1, on/max(1, float64(t.Own))), min(1, left/max(1, own))
}
