package gpu

import (
	"cmp"
	"slices"

	"github.com/inferscope/inferscope/internal/analysis/timeline"
	"github.com/inferscope/inferscope/internal/cuda"
)

// maxPairs bounds the pairs of GPUs: eight of a host make 56.
const maxPairs = 512

// pair is the GPUs at the ends of copies, as their process counts.
type pair struct {
	process  int32
	from, to uint32
}

// peers adds up the copies between GPUs; nil where there are none.
func peers(t *timeline.Timeline) []Peer {
	by, spans := map[pair]*Peer{}, map[pair][]timeline.Span{}
	for i := range t.Activities {
		act := &t.Activities[i]
		e := &t.Rec.Events[act.Event]
		if act.Kind != timeline.Copy || cuda.CopyKind(e.Ret) != cuda.PeerToPeer {
			continue
		}
		k := pair{t.Streams[act.Stream].Process, uint32(e.Args[3]), uint32(e.Args[3] >> 32)}
		p := by[k]
		if p == nil {
			if len(by) == maxPairs {
				continue
			}
			p = &Peer{PID: t.Processes[k.process].PID, Source: k.from, Destination: k.to}
			by[k] = p
		}
		p.Count++
		p.Bytes += e.Args[2]
		p.Longest = max(p.Longest, e.Dur)
		spans[k] = append(spans[k], timeline.Span{From: act.Start, To: act.Start + min(act.End-act.Start, e.Dur)})
	}
	if len(by) == 0 {
		return nil
	}
	ran := kernelTimes(t)
	var out []Peer
	for k, p := range by {
		all := timeline.Join(spans[k])
		p.Time = all.Total()
		p.Alone = all.Without(ran[gpuOf{k.process, k.from}]).Without(ran[gpuOf{k.process, k.to}]).Total()
		p.Bandwidth = share(p.Bytes, p.Time) * 1e9
		out = append(out, *p)
	}
	slices.SortFunc(out, func(x, y Peer) int {
		return cmp.Or(cmp.Compare(y.Bytes, x.Bytes), cmp.Compare(x.PID, y.PID), cmp.Compare(x.Source, y.Source),
			cmp.Compare(x.Destination, y.Destination))
	})
	return out
}

// gpuOf is a GPU as one process counts.
type gpuOf struct {
	process int32
	id      uint32
}

// kernelTimes returns when kernels of each process ran on each of its GPUs.
func kernelTimes(t *timeline.Timeline) map[gpuOf]timeline.Spans {
	lists, out := map[gpuOf][]timeline.Span{}, map[gpuOf]timeline.Spans{}
	for i := range t.Activities {
		if act := &t.Activities[i]; act.Kind == timeline.Kernel {
			k := gpuOf{t.Streams[act.Stream].Process, uint32(t.Rec.Events[act.Event].Func & 0xff)}
			lists[k] = append(lists[k], timeline.Span{From: act.Start, To: act.End})
		}
	}
	for k, list := range lists {
		out[k] = timeline.Join(list)
	}
	return out
}
