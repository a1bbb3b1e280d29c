package request

import (
	"cmp"
	"hash/maphash"

	"github.com/inferscope/inferscope/internal/capture/request/exchange"
)

// Bounds of what counts as sent again.
const (
	maxPause = 60e9 // ns between a failure and the next attempt
	maxAsked = 8192 // questions that are remembered
)

// asked is a question that clients have sent in the last time.
type asked struct {
	failed uint32 // attempts that had an error or ended without an answer
	end    uint64 // ns, when the client knew of the last of these
	other  bool   // it was answered, or asked twice at a time: who asks the same now does not do so for a failure
}

// retries tells requests that are sent again from others. It keeps hashes alone.
type retries struct {
	seed  maphash.Seed
	names map[uint64]asked // by route and the name that the client gave
	asked map[uint64]asked // by route and body
}

func newRetries() retries {
	return retries{seed: maphash.MakeSeed(), names: map[uint64]asked{}, asked: map[uint64]asked{}}
}

// ended takes a request that is over, and returns how often the client has sent it before: by its own word, or because
// all requests with the same name or the same body before it have failed.
func (r *retries) ended(x *exchange.Exchange) uint32 {
	sent := x.Resent
	if x.Name != "" {
		sent = max(sent, again(r.names, maphash.String(r.seed, x.Route+" "+x.Name), x))
	}
	if x.Digest != 0 {
		sent = max(sent, again(r.asked, maphash.String(r.seed, x.Route)^x.Digest, x))
	}
	return sent
}

// again returns how often what has this key failed before, and takes one more.
func again(all map[uint64]asked, key uint64, x *exchange.Exchange) uint32 {
	q := all[key]
	if x.Received > q.end+maxPause {
		q = asked{}
	}
	q.other = q.other || x.Received < q.end // beside another: perhaps another client's
	sent := q.failed
	if q.other {
		sent = 0
	}
	if x.Outcome == exchange.Aborted || x.Outcome == exchange.Complete && x.Status >= 400 {
		q.failed++
	} else {
		q.other = true
	}
	q.end = max(q.end, cmp.Or(x.Left, x.End))
	if len(all) >= maxAsked {
		clear(all)
	}
	all[key] = q
	return sent
}
